"""A service in a process of its own, which a test may kill."""

import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def service(model, data, *options):
    """The process, and its address once it answers; its log is written beside its data."""
    command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{model}", "--data", str(data)]
    with open(data.with_suffix(".log"), "ab") as log:
        process = subprocess.Popen([*command, "--port", "0", *options], stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("serving on "), data.with_suffix(".log").read_text()[-2000:]
        yield process, line.split()[2]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
