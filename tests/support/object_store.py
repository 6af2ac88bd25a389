"""An S3 server on this machine: moto, where it is installed."""

import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from ports import free_port
from waiting import wait_until


def find_moto():
    """Return the program that starts the server; None if it is not installed for this Python."""
    return shutil.which("moto_server", path=Path(sys.executable).parent)


@contextmanager
def s3_server():
    """Run a server with the bucket `bucket`; yield its URL."""
    port = free_port()
    command = [find_moto(), "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(url))
        urlopen(Request(f"{url}/bucket", method="PUT")).close()
        yield url
    finally:
        server.kill()
        server.wait()


def _answers(url):
    try:
        urlopen(url).close()
    except OSError:
        return False
    return True
