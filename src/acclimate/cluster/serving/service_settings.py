"""Settings that all processes of the service share."""

import logging
from dataclasses import dataclass
from pathlib import Path

from acclimate.methods import load_plugin
from acclimate.serve.limits import Limits
from acclimate.serve.stderr import BoundedLog, JsonLines

STDERR = 2
STREAM = "stream:"  # prefix of the names of streams' actors


@dataclass(frozen=True)
class Model:
    """The description of a model that is not loaded; see `acclimate.encoders.Encoder`."""

    dim: int
    logit_scale: float
    logit_bias: float
    fingerprint: str


@dataclass(frozen=True)
class Settings:
    """The settings of a service, known to all its processes.

    Attributes:
        name: name of the service, of its application in Ray Serve, and of the namespace of its actors.
        data: the folder of the streams, which all nodes see.
        limits: limits of the service; those of queues hold per process.
        plugins: Python files with methods.
    """

    name: str
    data: Path
    limits: Limits
    plugins: tuple[Path, ...] = ()

    @property
    def streams(self) -> Path:
        """The folder of the streams' folders."""
        return self.data / "streams"

    @property
    def tokens(self) -> Path:
        """The latest copy of the token file, with digests in place of tokens."""
        return self.data / "tokens"

    @property
    def encoders(self) -> str:
        """The name of the application that encodes."""
        return f"{self.name}-encoders"

    def begin(self) -> None:
        """Prepare a process that has just been started: its log goes to stderr, where Ray collects it."""
        logger = logging.getLogger("acclimate")
        if not logger.handlers:
            handler = BoundedLog(STDERR, self.limits.log_lines)
            handler.setFormatter(JsonLines())
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
        for path in self.plugins:
            load_plugin(path)
