"""A service in a process of its own, which a test may kill."""

import os
import subprocess
import sys
from contextlib import contextmanager

import httpx

PATIENT = {"timeout_s": 120.0, "decode_s": 60.0}  # limits that a busy machine does not reach


def environment(limits):
    """Return environment variables that give a service these limits, and others that a busy machine does not reach."""
    limits = PATIENT | limits
    return os.environ | {f"ACCLIMATE_SERVE_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}


@contextmanager
def service(model, data, *options, handles=None, prefix=(), **limits):
    """Start a service; yield the process, and its address once it answers. Its log is written beside its data.

    `handles` is the number of files and connections that it may have open, `prefix` a command that runs it.
    """
    command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{model}", "--data", str(data)]
    if handles is not None:
        command = ["sh", "-c", f'ulimit -n {handles} && exec "$@"', "sh", *command]
    command = [*prefix, *command, "--port", "0", *options]
    with open(data.with_suffix(".log"), "ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(limits))
    try:
        line = process.stdout.readline()
        assert line.startswith("serving on "), data.with_suffix(".log").read_text()[-2000:]
        yield process, line.split()[2]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def connected(address):
    """Return an HTTP client; it is quickly made, as it reads no certificates."""
    return httpx.Client(base_url=address, timeout=180, verify=False)
