"""Methods of somebody else's, as text of Python files."""

SHARPEN = '''\
from dataclasses import dataclass

import acclimate


@acclimate.register
@dataclass(eq=False, repr=False, kw_only=True)
class Sharpen(acclimate.Adapter):
    """Zero-shot logits times a factor."""

    name = "sharpen"
    summary = "zero-shot logits times a factor"
    kind = "episodic"
    merges = "union"
    factor: float = 2.0

    def respond(self, evidence, ids, learn):
        return acclimate.Step(self.factor * evidence.logits)
'''

# A method that waits at the ninth sample until it may go on; it says that it has come so far.
WAITING = '''\
import time
from dataclasses import dataclass
from pathlib import Path

import acclimate


@acclimate.register
@dataclass(eq=False, repr=False, kw_only=True)
class Waiting(acclimate.TDA):
    """TDA that waits in the middle."""

    name = "waiting"
    folder: str = "."

    def respond(self, evidence, ids, learn):
        if 8 in ids:
            Path(self.folder, "begun").touch()
            while not Path(self.folder, "go").exists():
                time.sleep(0.01)
        return super().respond(evidence, ids, learn)
'''


def install(folder, name="sharpen", value="own_sharpen:Sharpen", code=SHARPEN):
    """Put a package with one method into a folder as pip would: a module, and metadata with its entry point."""
    (folder / "own_sharpen.py").write_text(code)
    metadata = folder / "own_sharpen-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-sharpen\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[acclimate.methods]\n{name} = {value}\n")
