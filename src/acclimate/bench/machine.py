"""What a result was measured with: versions, hardware, memory."""

import os
import platform
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from acclimate import __version__

PACKAGES = ("numpy", "pillow", "onnxruntime", "torch", "transformers", "open_clip_torch")


@cache
def versions() -> dict[str, str]:
    """Versions of what can change a figure: this library, Python, and the array and model libraries installed."""
    found = {"acclimate": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def hardware(device: str) -> str:
    """The machine in words, with its GPU where the work was done on one."""
    words = f"{_processor()}, {os.cpu_count()} cores"
    if device.startswith("cuda"):
        import torch

        words += f", {torch.cuda.get_device_name(device)}"
    return words


def peak_memory_mb(device: str) -> float | None:
    """The most memory the process (on a GPU: its tensors) has held so far; None where the system does not tell."""
    if device.startswith("cuda"):
        import torch

        return float(torch.cuda.max_memory_allocated(device) / 1e6)
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, kibibytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


@cache
def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
