"""`acclimate models`, `methods`, `doctor`: what there is, and what works here."""

import typer


def models() -> None:
    """List the kinds of models and well-known names."""
    from acclimate.encoders.base import BUNDLED, KNOWN, PREFIXES

    typer.echo(f"{BUNDLED:11} the small model that comes with acclimate; the default, needs no download")
    for prefix, (_, _, what, example) in PREFIXES.items():
        typer.echo(f"{prefix + ':':11} {what}\n{'':11} {example}")
    typer.echo("\nwell-known names:")
    for name in KNOWN:
        typer.echo(f"  {name}")


def methods() -> None:
    """List the methods and their settings."""
    from dataclasses import fields

    from acclimate.methods import list_methods

    for name, method in list_methods().items():
        typer.echo(f"{name:11} {method.summary}")
        for field in fields(method.Config):
            typer.echo(f"{'':11}   {field.name} = {field.default}")


def doctor() -> None:
    """Say what is installed, what it enables, and how to get the rest. Touches no network."""
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from acclimate import __version__
    from acclimate.prompts import default_cache_folder

    typer.echo(
        f"acclimate {__version__}, Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores"
    )
    needs = {
        "numpy": "everything",
        "onnxruntime": "the bundled model and onnx: models",
        "torch": "hf:, local: and open_clip: models, --device; pip install 'acclimate[torch]'",
        "transformers": "hf: and local: models; pip install 'acclimate[hf]'",
        "open_clip_torch": "open_clip: models; pip install 'acclimate[open-clip]'",
        "onnxscript": "acclimate convert; pip install 'acclimate[convert]'",
        "pyarrow": "parquet results; pip install 'acclimate[parquet]'",
        "datasets": "hfds: sources; pip install 'acclimate[datasets]'",
        "fastapi": "acclimate serve; pip install 'acclimate[serve]'",
        "matplotlib": "plots; pip install 'acclimate[plot]'",
    }
    for package, enables in needs.items():
        what, _, how = enables.partition("; ")
        try:
            typer.echo(f"  {package:16} {version(package):12} {what}")
        except PackageNotFoundError:
            typer.echo(f"  {package:16} {'missing':12} {what}; {how}")
    typer.echo(f"  text cache       {default_cache_folder()}")
    typer.echo(f"  accelerators     {_accelerators()}")


def _accelerators() -> str:
    import onnxruntime

    found = [name for name in onnxruntime.get_available_providers() if name.startswith(("CUDA", "CoreML", "Tensorrt"))]
    try:
        import torch

        found += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except ImportError:
        pass
    return ", ".join(found) or "none"
