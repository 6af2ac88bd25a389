"""Problems that keep a stream from being written to the disk."""

from acclimate.serve.logs import logger


class Problems:
    """The problems of a stream with writing its files; the log gets a line when there is one, and when it is gone.

    Examples:
        >>> problems = Problems("shop")
        >>> problems.report("journal", "No space left on device.")
        >>> problems.text
        'No space left on device.'
        >>> problems.report("journal", None)
        >>> problems.text is None
        True
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._found: dict[str, str] = {}

    @property
    def text(self) -> str | None:
        """All problems; None if there are none. For any thread."""
        return " ".join(list(self._found.values())) or None

    def report(self, file: str, problem: str | None) -> None:
        """Note a problem with the "journal" or a "snapshot", or that there is none any more."""
        known = file in self._found
        fields = {"stream": self._stream, "file": file}
        if problem is not None:
            self._found[file] = problem
            if not known:
                logger.warning("what is learnt cannot be written", extra={"fields": {**fields, "reason": problem}})
        elif known:
            del self._found[file]
            logger.info("what is learnt can be written again", extra={"fields": fields})
