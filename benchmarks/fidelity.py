"""The paper's seven systems beside their authors' code: the same weights, images, shots and settings, the same answers.

    python benchmarks/fidelity.py --tda DIR --tpt DIR --coop DIR --difftpt DIR --tip-adapter DIR --dassl DIR

Each option is a clone of the authors' repository; without one the command says where it is. Both sides get a tiny
random CLIP (a ViT, and a ResNet where open_clip can be imported) with CLIP's own vocabulary, on a CPU in single
precision. The authors' functions are called as they are, and their logits compared with this library's. With `--to` the
table is written as a page. Nothing of the authors' code is part of this project.
"""

import argparse
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from acclimate.bench.results import write_page
from fidelity_parts import encoding, tda, tip_adapter, training, tuning
from fidelity_parts.authors import REPOSITORIES, Clones
from fidelity_parts.models import Pair, pairs
from fidelity_parts.rows import LIMIT, VALUES_LIMIT, Row

SYSTEMS = ("CLIP", "TDA", "TPT", "DiffTPT", "CoOp", "CoCoOp", "Tip-Adapter")
HEADING = "| system | compared | largest difference | of | equal answers | verdict | deviation |"
ABOUT = f"""
Both sides get the same random weights, images, texts, shots, settings and random choices. *Largest difference* is
between the logits of both sides (for the first rows: between the numbers named), and *of* is how much the method
changes zero-shot logits, or the largest of the numbers. A verdict *equal* means that all answers are equal and the
difference is rounding: at most {LIMIT:.1%} of the effect for logits, {VALUES_LIMIT:.1%} for other numbers. Rounding
shows more than in trained models, as the random features are nearly centred.
"""
NOTES = """
How the authors' code was run:

- on a CPU in single precision: `.cuda()` changes nothing and `.half()` gives single precision. **Not compared**: half
  precision, autocast and the scaling of gradients on a GPU, in which the authors run.
- unchanged, but for: their accuracy functions, which are where the logits are recorded; the download of weights, which
  gives the tiny model; the loader of TPT and DiffTPT, which reads only OpenAI's archives (the function behind it gets
  the same weights); AugMix's random numbers, which are the ones that this library has drawn.
- Dassl's engine, which imports data loaders and loggers, is replaced by the three short methods that CoOp calls. Its
  optimiser and schedule are its own; PyTorch's base of schedules, which has lost an argument, takes it again.
- Packages that they import and that were not on this machine were replaced by names that cannot be called, except
  `wandb.log`, which does nothing, `ftfy.fix_text`, which changes nothing, and yacs's settings, a dictionary here:
  {stood_in}.

**Not compared**, as it is not in these repositories or needs data: real weights and images, CoOp's split files, images
made by a diffusion model, and the order in which the authors shuffle. How the protocol of `acclimate reproduce` differs
is said in the cells of its tables.
"""


def main() -> None:
    """Print the table, and write it as a page; fail if a system differs that is not documented to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for each in REPOSITORIES:
        parser.add_argument(f"--{each.option}", type=Path, metavar="DIR", help=f"a clone of {each.address}")
    parser.add_argument("--to", type=Path, help="write a page with the table here, such as docs/results/fidelity.md")
    given = vars(parser.parse_args())
    clones = Clones({each.option: given[each.option.replace("-", "_")] for each in REPOSITORIES})
    if lacking := missing(clones):
        sys.exit(lacking)
    warnings.simplefilter("ignore")
    print(f"{HEADING}\n{'| --- ' * 2}{'| ---: ' * 3}{'| --- ' * 2}|", flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in compare(clones, pairs(clones, Path(folder))):
            rows.append(row)
            print(row.line(), flush=True)
    if given["to"]:
        write_page(page(clones, rows), given["to"])
    if wrong := [row.system for row in rows if not row.agrees and not row.deviation]:
        sys.exit(f"{', '.join(wrong)}: the answers are not those of the authors' code.")


def missing(clones: Clones) -> str:
    """Return which clones are missing and how to get them; "" if none is."""
    lacking = [
        each for each in REPOSITORIES if not (clones.folders[each.option] or Path()).joinpath(each.file).is_file()
    ]
    if not lacking:
        return ""
    options = ", ".join(f"--{each.option}" for each in lacking)
    commands = "\n".join(f"    {each.clone_command('authors')}" for each in lacking)
    given = " ".join(f"--{each.option} authors/{each.name}" for each in REPOSITORIES)
    return (
        f"The authors' code is not part of this project, and {options} named no clone of it. Get it with\n{commands}\n"
        f"and give the folders:\n    python benchmarks/fidelity.py {given}"
    )


def compare(clones: Clones, models: list[Pair]) -> Iterator[Row]:
    """Yield all rows."""
    for pair in models:
        yield from encoding.rows(clones, pair)
    yield from encoding.view_rows(clones, models[0])
    yield from tda.fact_rows(clones)
    yield from tda.random_rows(clones)
    for part in (tda, tuning, training, tip_adapter):
        for pair in models:
            yield from part.rows(clones, pair)


def page(clones: Clones, rows: list[Row]) -> list[str]:
    """Return the paragraphs of the page."""
    options = " ".join(f"--{each.option} {each.name}" for each in REPOSITORIES)
    equal = sum(row.agrees for row in rows)
    documented = sum(not row.agrees and bool(row.deviation) for row in rows)
    table = [HEADING, f"{'| --- ' * 2}{'| ---: ' * 3}{'| --- ' * 2}|", *(row.line() for row in rows)]
    used = ", ".join(f"{name} {_version(name)}" for name in ("torch", "torchvision", "transformers", "open_clip_torch"))
    stood_in = ", ".join(f"`{name}`" for name in clones.stood_in) or "none"
    if "torchvision" in clones.stood_in:
        stood_in += ". Without torchvision, pixels, AugMix's views and the ResNet are not compared"
    return [
        "# The authors' code beside this library",
        f"`python benchmarks/fidelity.py {options} --to docs/results/fidelity.md`: {equal} of {len(rows)} comparisons "
        f"are equal, {documented} differ on purpose. The authors' code: {', '.join(clones.commits())}. Here: {used}; "
        f"Python {platform.python_version()}.",
        "\n".join(summary(rows)),
        ABOUT.strip(),
        "\n".join(table),
        NOTES.format(stood_in=stood_in).strip(),
    ]


def summary(rows: list[Row]) -> list[str]:
    """Return a table with a line for each system of the paper, without what differs on purpose."""
    lines = ["| system | comparisons | equal answers | largest difference of logits |", "| --- | ---: | ---: | ---: |"]
    for system in SYSTEMS:
        own = [row for row in rows if row.system.startswith(f"{system},") and row.effect and not row.deviation]
        equal = sum(row.equal for row in own)
        answers = sum(row.answers for row in own)
        difference = max((row.difference for row in own), default=0.0)
        lines.append(f"| {system} | {len(own)} | {equal:,} of {answers:,} | {difference:.1e} |")
    return lines


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


if __name__ == "__main__":
    main()
