"""A method of somebody else's, as text of a Python file."""

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


def install(folder, name="sharpen", value="own_sharpen:Sharpen", code=SHARPEN):
    """Put a package with one method into a folder as pip would: a module, and metadata with its entry point."""
    (folder / "own_sharpen.py").write_text(code)
    metadata = folder / "own_sharpen-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-sharpen\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[acclimate.methods]\n{name} = {value}\n")
