"""The release: wheel and sdist from a clean tree, checked as users get them, with a list of what they contain.

    make release

builds the committed files into dist/, checks their metadata, installs the wheel in a new environment without a network,
follows README.md there, and writes the SBOM beside the wheel (CycloneDX). Nothing is uploaded.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
EXTRAS = "plot,serve"  # those of `make demo`
OFFLINE = ("unshare", "--map-root-user", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "bash")
DEAD_PROXY = "http://127.0.0.1:9"  # nothing listens there
BUNDLED = (  # name, version, licence, and where it is in the wheel; src/acclimate/THIRD_PARTY.md says more of each
    ("CLIP ViT-B/16", "2021", "MIT", "acclimate/encoders/bundled/image.safetensors"),
    ("WordNet", "3.0", "WordNet-3.0", "acclimate/prompts/data"),
)


def run(*command: object, cwd: Path = ROOT, offline: bool = False, **options: Any) -> str:
    """Run a command that must succeed, and return what it printed; without a network if `offline`."""
    words = [str(each) for each in command]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= options.pop("environment", {})
    if offline and subprocess.run([*OFFLINE, "true"], capture_output=True).returncode == 0:
        words = [*OFFLINE, *words]
    elif offline:  # the second best: what goes through a proxy fails
        environment |= dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), DEAD_PROXY)
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, **options)
    printed: str = done.stdout
    if done.returncode:
        sys.exit(f"{' '.join(words)[:200]} failed:\n{printed[-3000:]}{done.stderr[-3000:]}")
    return printed


def check_tree() -> str:
    """Refuse a tree with changes that are not committed or a changelog without this version, and return the version."""
    if changed := run("git", "status", "--porcelain"):
        sys.exit(f"commit these first; a release has committed files only:\n{changed}")
    text = (ROOT / "src/acclimate/__init__.py").read_text(encoding="utf-8")
    version = str(re.findall(r'__version__ = "(.+)"', text)[0])
    if f"\n## [{version}]" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        sys.exit(f"CHANGELOG.md has no entry for {version}; name its heading `## [{version}] - DATE`.")
    return version


def build(here: Path) -> tuple[Path, Path]:
    """Build the sdist from the committed files and the wheel from the sdist; check and return wheel and sdist."""
    source = here / "source"
    source.mkdir()
    run("git", "archive", "--output", here / "source.tar", "HEAD")
    run("tar", "--extract", "--file", here / "source.tar", "--directory", source)
    shutil.rmtree(DIST, ignore_errors=True)
    when = run("git", "log", "-1", "--format=%ct").strip()
    run(sys.executable, "-m", "build", source, "--outdir", DIST, environment={"SOURCE_DATE_EPOCH": when})
    (wheel,) = DIST.glob("*.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def install(wheel: Path, here: Path) -> Path:
    """Install the wheel and what it needs from files alone into a new environment, and return its Python."""
    wanted = f"{wheel}[{EXTRAS}]"
    wheels = here / "wheels"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "download", "--only-binary", ":all:", "--constraint", "constraints.txt", "--dest", wheels, wanted)
    run(sys.executable, "-m", "venv", here / "venv")
    python = here / "venv/bin/python"
    run(python, "-m", "pip", "--quiet", "install", "--no-index", "--find-links", wheels, wanted, offline=True)
    return python


def follow_readme(python: Path, here: Path) -> int:
    """Run the commands of README.md without a network, and return how many there are."""
    walk = here / "walk"
    walk.mkdir()
    page = "import pathlib, sys, guides; print(guides.as_script(pathlib.Path(sys.argv[1])))"
    support = {"PYTHONPATH": str(ROOT / "tests/support")}
    script = run(python, "-c", page, ROOT / "README.md", environment=support)
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    environment = {"PATH": path, "ACCLIMATE_CACHE": str(here / "cache"), "HOME": str(here)}
    run("bash", "-euo", "pipefail", cwd=walk, offline=True, environment=environment, input=script)
    return len(re.findall(r"^acclimate ", script, re.MULTILINE))


def sha256(file: Path) -> list[dict[str, str]]:
    """Return the checksum of a file as CycloneDX has it."""
    return [{"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}]


def licence(package: Distribution) -> list[dict[str, Any]]:
    """Return the licence that a package declares as CycloneDX has it: an expression, or a name."""
    about = package.metadata
    if "License-Expression" in about:
        return [{"expression": about["License-Expression"]}]
    classifiers = about.get_all("Classifier") or []
    names = [each.split(" :: ")[-1] for each in classifiers if each.startswith("License")]
    first_line = about["License"].strip().splitlines()[0] if "License" in about else "not declared"
    return [{"license": {"name": name}} for name in names or [first_line]]


def write_sbom(version: str, wheel: Path, python: Path, wheels: Path) -> Path:
    """Write the wheel, what is bundled in it, and every package that was installed with it."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    files = {re.sub(r"[-_.]+", "-", each.name.split("-")[0]).lower(): each for each in wheels.glob("*.whl")}
    packages: list[dict[str, Any]] = []
    for package in distributions(path=[str(site)]):
        name = re.sub(r"[-_.]+", "-", package.name).lower()
        if name in files and name != "acclimate":
            purl = f"pkg:pypi/{name}@{package.version}"
            about = {"type": "library", "bom-ref": purl, "name": name, "version": package.version, "purl": purl}
            packages.append({**about, "licenses": licence(package), "hashes": sha256(files[name])})
    bundled = [
        {"type": "data", "bom-ref": name, "name": name, "version": edition, "description": f"bundled: {path}"}
        | {"licenses": [{"license": {"name": terms}}]}
        for name, edition, terms, path in BUNDLED
    ]
    this = f"pkg:pypi/acclimate@{version}"
    about = {"type": "library", "bom-ref": this, "name": "acclimate", "version": version, "purl": this}
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid5(NAMESPACE_URL, sha256(wheel)[0]["content"]).urn,
        "version": 1,
        "metadata": {
            "component": {**about, "licenses": [{"license": {"id": "MIT"}}], "hashes": sha256(wheel)},
        },
        "components": bundled + sorted(packages, key=lambda each: str(each["name"])),
    }
    path = DIST / f"acclimate-{version}.cdx.json"
    path.write_text(json.dumps(bom, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Build, check, walk and list, and print what was done."""
    began = perf_counter()
    version = check_tree()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        wheel, sdist = build(here)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; {sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
        python = install(wheel, here)
        print(f"README.md: {follow_readme(python, here)} commands of acclimate ran from the wheel, offline")
        sbom = write_sbom(version, wheel, python, here / "wheels")
    print(f"{sbom.name}: {len(json.loads(sbom.read_text())['components'])} components")
    print(f"{version} is ready in {DIST} after {perf_counter() - began:.0f} s; tag it v{version} to publish it")


if __name__ == "__main__":
    main()
