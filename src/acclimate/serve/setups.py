"""What a stream was created with, as a file in its folder; and the files of a new stream."""

import json
from pathlib import Path

from acclimate.errors import StateError
from acclimate.files import write_atomically
from acclimate.methods import Adapter
from acclimate.serve.history import History
from acclimate.serve.schemas import Setup

FILE, VERSION = "stream.json", 1
# What streams had before there was a choice; a new stream may have another default.
BEFORE = {"views_kind": "augmix", "skip_duplicates": False, "guard": None}


def create_files(folder: Path, setup: Setup, model: str, adapter: Adapter, keep: int) -> None:
    """Write the files of a new stream: its setup, the fingerprint of its model, and its first snapshot."""
    folder.mkdir()
    content = json.dumps({"version": VERSION, "model": model, "setup": setup.model_dump()}, indent=1)
    write_atomically(folder / FILE, content.encode())
    History(folder, keep, adapter)


def read_setup(folder: Path) -> tuple[Setup, str]:
    """The setup of a stream, and the fingerprint of its model; StateError if the file cannot be used."""
    try:
        fields = json.loads((folder / FILE).read_bytes())
        if fields["version"] != VERSION:
            raise StateError(f"{FILE} was written by another version of acclimate; use that version.")
        return Setup(**{**BEFORE, **fields["setup"]}), str(fields["model"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{FILE} cannot be read ({error}); restore the file, or delete the stream.") from error
