"""The peak memory of this process, or of its tensors on a GPU."""

import sys
from contextlib import suppress
from pathlib import Path


def reset_peak_memory(device: str) -> None:
    """Let `peak_memory_mb` count from now on; on the CPU this works on Linux only."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb(device: str) -> float | None:
    """Return the peak memory of the process, or of its tensors on a GPU; None if the system does not report it."""
    if device.startswith("cuda"):
        import torch

        return float(torch.cuda.max_memory_allocated(device) / 1e6)
    with suppress(OSError, StopIteration):  # Linux alone can reset the peak
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024 / 1e6
    try:
        import resource
    except ImportError:  # Windows
        return None
    # The unit is bytes on macOS and kibibytes elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
