"""`acclimate models`, `methods`, `doctor` and `convert`."""

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.arguments import Plugins
from acclimate.cli.console import say


def models() -> None:
    """List the kinds of models, and well-known models by name."""
    from acclimate.encoders.loading import BUNDLED, KNOWN, PREFIXES

    say(f"{BUNDLED:11} the small model that comes with acclimate; the default, no download")
    for prefix, (_, _, what, example) in PREFIXES.items():
        say(f"{prefix + ':':11} {what}", f"{'':11} {example}")
    say("", "well-known models:", *(f"  {name}" for name in KNOWN))


def methods(plugin: Plugins = None) -> None:
    """List the methods with what they can do, what they need, and their settings with their meaning."""
    from inspect import signature

    from acclimate.classify.report import setting_meanings
    from acclimate.methods import list_methods

    for name, method in list_methods().items():
        merges = f"states merge by {method.merges}" if method.merges else "states cannot be merged"
        needs = f"needs {', '.join(sorted(method.needs))}" if method.needs else "needs features only"
        say(f"{name:11} {method.summary}", f"{'':11} {method.kind}; {merges}; {needs}")
        meanings = setting_meanings(method)
        for setting in method.default_settings():
            meaning = [f"{'':15} {meanings[setting]}"] if setting in meanings else []  # a plugin may say nothing
            say(f"{'':13} {signature(method).parameters[setting]}", *meaning)


def doctor() -> None:
    """Show which packages are installed, what they are for, and how to install the others; works offline."""
    import os
    import platform
    from contextlib import suppress
    from importlib.metadata import PackageNotFoundError, version

    import onnxruntime

    from acclimate import __version__
    from acclimate.errors import install_command
    from acclimate.prompts import default_cache_folder

    say(f"acclimate {__version__}, Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores")
    packages = {  # what each is for, and the extra that installs it
        "numpy": ("everything", ""),
        "onnxruntime": ("the bundled model and onnx: models", ""),
        "torch": ("hf:, local: and open_clip: models, --device", "torch"),
        "transformers": ("hf: and local: models", "hf"),
        "open_clip_torch": ("open_clip: models", "open-clip"),
        "onnxscript": ("acclimate convert", "convert"),
        "diffusers": ("acclimate generate", "diffusion"),
        "pyarrow": ("parquet results", "parquet"),
        "openpyxl": ("Excel results and labels", "excel"),
        "datasets": ("hfds: sources", "datasets"),
        "fastapi": ("acclimate serve", "serve"),
        "httpx": ("the Python client of the service", "client"),
        "matplotlib": ("plots", "plot"),
        "av": ("videos", "video"),
        "pillow-heif": ("HEIC images", "heic"),
        "pandas": ("Evaluation.to_pandas", ""),
    }
    for package, (purpose, extra) in packages.items():
        try:
            say(f"  {package:16} {version(package):12} {purpose}")
        except PackageNotFoundError:
            say(f"  {package:16} {'missing':12} {purpose}; {install_command(extra, package)}")
    found = [name for name in onnxruntime.get_available_providers() if name.startswith(("CUDA", "CoreML", "Tensorrt"))]
    with suppress(ImportError):
        import torch

        found += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    say(f"  text cache       {default_cache_folder()}", f"  accelerators     {', '.join(found) or 'none'}")


def convert(
    model: Annotated[str, typer.Argument(help="hf:ID or local:DIR.")],
    to: Annotated[Path, typer.Option(help="The folder to create.")],
) -> None:
    """Convert a PyTorch model to ONNX, so that classifying and serving do not need PyTorch."""
    from acclimate.encoders.convert import convert as convert_encoder

    difference = convert_encoder(model, to)
    size = sum(path.stat().st_size for path in to.iterdir()) / 1e6
    say(f"{to}: {size:.1f} MB, features differ by at most {difference:.1e}. Use it as onnx:{to}")
