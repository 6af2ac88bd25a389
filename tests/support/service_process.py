"""A service in a process of its own, which a test may kill."""

import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def service(model, data, *options, handles=None):
    """Start a service; yield the process, and its address once it answers. Its log is written beside its data.

    `handles` is the number of files and connections that it may have open.
    """
    command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{model}", "--data", str(data)]
    if handles is not None:
        command = ["sh", "-c", f'ulimit -n {handles} && exec "$@"', "sh", *command]
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
