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
    """Show which packages are installed, whether they work, and how to install the others; works offline."""
    import os
    import platform
    import warnings
    from contextlib import suppress
    from importlib import import_module
    from importlib.metadata import PackageNotFoundError, version

    from acclimate import __version__
    from acclimate.errors import install_command, root_cause
    from acclimate.prompts import default_cache_folder

    say(f"acclimate {__version__}, Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores")
    packages = {  # the module to import, what the package is for, and the extra that installs it
        "numpy": ("numpy", "everything", ""),
        "onnxruntime": ("onnxruntime", "the bundled model and onnx: models", ""),
        "torch": ("torch", "hf:, local: and open_clip: models, --device", "torch"),
        "torchvision": ("torchvision", "open_clip: models, images decoded on a GPU", ""),
        "transformers": ("transformers.models.clip.modeling_clip", "hf: and local: models", "hf"),
        "open_clip_torch": ("open_clip", "open_clip: models", "open-clip"),
        "onnxscript": ("onnxscript", "acclimate convert", "convert"),
        "diffusers": ("diffusers", "acclimate generate", "diffusion"),
        "pyarrow": ("pyarrow", "parquet results", "parquet"),
        "openpyxl": ("openpyxl", "Excel results and labels", "excel"),
        "datasets": ("datasets", "hfds: sources", "datasets"),
        "fastapi": ("fastapi", "acclimate serve", "serve"),
        "httpx": ("httpx", "the Python client of the service", "client"),
        "matplotlib": ("matplotlib.pyplot", "plots", "plot"),
        "av": ("av", "videos", "video"),
        "pillow-heif": ("pillow_heif", "HEIC images", "heic"),
        "pandas": ("pandas", "Evaluation.to_pandas", ""),
    }
    for package, (module, purpose, extra) in packages.items():
        try:
            line = f"{version(package):12} {purpose}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import_module(module)
        except PackageNotFoundError:
            line = f"{'missing':12} {purpose}; {install_command(extra, package)}"
        except Exception as error:  # a package that does not fit another one fails in many ways
            line += f"; cannot be imported: {root_cause(error)}"
        say(f"  {package:16} {line}")
    found: list[str] = []
    with suppress(Exception):  # one that cannot be imported is named above
        import onnxruntime

        providers = onnxruntime.get_available_providers()
        found += [name for name in providers if name.startswith(("CUDA", "CoreML", "Tensorrt"))]
    with suppress(Exception):
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
