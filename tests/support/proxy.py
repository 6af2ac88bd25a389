"""The shipped nginx configuration, run by the real nginx in front of services on this machine."""

import os
import re
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from ports import free_port
from waiting import wait_until

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
SHIPPED = Path(__file__).parents[2] / "deploy" / "nginx.conf"


def configuration(folder, port, services):
    """Return the shipped file with other addresses and paths, and nothing else changed."""
    text = SHIPPED.read_text()
    names = re.findall(r"^ +server (\S+:8000) ", text, re.MULTILINE)
    assert len(names) == 2
    assert len(services) in (1, 2)
    for name, address in zip(names, services, strict=False):
        text = text.replace(name, urlsplit(address).netloc)
    if len(services) == 1:
        text = re.sub(rf"^ +server {names[1]}.*\n", "", text, flags=re.MULTILINE)
    text = text.replace("listen 8080 ", f"listen 127.0.0.1:{port} ")
    text = text.replace("/tmp/nginx", f"{folder}/nginx").replace("/dev/stdout", f"{folder}/access.log")
    unused = "".join(f"{name}_temp_path {folder}/{name};\n" for name in ("fastcgi", "scgi", "uwsgi"))
    return text.replace("http {\n", f"http {{\n{unused}")


@contextmanager
def nginx(folder, *services):
    """Run nginx in front of services at these addresses; yields its own address."""
    port = free_port()
    file = Path(folder) / "nginx.conf"
    file.write_text(configuration(folder, port, services))
    errors = Path(folder) / "nginx-errors.log"
    user = "user root; " if os.geteuid() == 0 else ""  # it could not write into the folder of a test otherwise
    command = [NGINX, "-p", str(folder), "-c", str(file), "-e", str(errors), "-g", f"{user}daemon off;"]
    with open(errors, "ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    try:
        wait_until(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, errors.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(180)


def _listens(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
