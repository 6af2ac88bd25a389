"""The setup of a stream as a file in its folder, and the files of a new stream."""

import json
from pathlib import Path
from typing import NamedTuple

from acclimate.errors import StateError, reason
from acclimate.files import write_atomically
from acclimate.methods import Adapter
from acclimate.serve.history import History
from acclimate.serve.schemas import StreamSetup

FILE = "stream.json"
VERSION = 1
# Values for streams that were created before these settings existed; new streams may have other defaults.
OLD_DEFAULTS = {"views_kind": "augmix", "skip_duplicates": False, "guard": None}


class StreamRecord(NamedTuple):
    """The setup, model and creator of a stream."""

    setup: StreamSetup
    model: str  # its fingerprint
    client: str = ""  # the name of its token, or its network; "" for none


def create_files(folder: Path, record: StreamRecord, adapter: Adapter, keep: int) -> None:
    """Write the files of a new stream: its setup and its first snapshot."""
    folder.mkdir()
    fields = {"version": VERSION, "model": record.model, "client": record.client, "setup": record.setup.model_dump()}
    write_atomically(folder / FILE, json.dumps(fields, indent=1).encode())
    History(folder, keep, adapter)


def read_setup(folder: Path) -> StreamRecord:
    """Read the setup of a stream; StateError if the file cannot be used."""
    try:
        fields = json.loads((folder / FILE).read_bytes())
        if fields["version"] != VERSION:
            raise StateError(f"{FILE} was written by another version of acclimate; use that version.")
        return StreamRecord(
            StreamSetup(**{**OLD_DEFAULTS, **fields["setup"]}), str(fields["model"]), str(fields.get("client", ""))
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = reason(error) if isinstance(error, OSError) else error  # an OSError names folders of the server
        raise StateError(f"{FILE} cannot be read ({why}); restore the file, or delete the stream.") from error
