"""Services that start quickly: each is forked from a process that has imported everything already."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

from service_process import environment


class Nursery:
    """A process that starts one service after another."""

    def __init__(self, process):
        self._process = process

    @contextmanager
    def service(self, *arguments):
        """Run `acclimate serve`; yield its process id and its address. It is killed at the end, if not before."""
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        pid = int(self._process.stdout.readline())
        try:
            line = self._process.stdout.readline()
            assert line.startswith("serving on "), line
            yield pid, line.split()[2]
        finally:
            os.kill(pid, signal.SIGKILL)  # it is not reaped before it is told to be
            print(file=self._process.stdin, flush=True)
            while not self._process.stdout.readline().startswith("ended"):
                pass


@contextmanager
def nursery(log, **limits):
    """Yield a nursery; all services have these limits and write to this log."""
    with open(log, "ab") as errors:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        process = subprocess.Popen([sys.executable, __file__], text=True, env=environment(limits), **pipes)
    try:
        yield Nursery(process)
    finally:
        process.stdin.close()
        process.wait(180)
        process.stdout.close()


def _run():
    import onnxruntime  # noqa: F401

    import acclimate.serve.command
    import acclimate.serve.streams  # noqa: F401  (imported for all services)
    from acclimate.cli import main

    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            print(os.getpid(), flush=True)  # noqa: T201
            sys.argv = ["acclimate", "serve", *json.loads(line)]
            main()
            os._exit(1)
        sys.stdin.readline()
        os.waitpid(pid, 0)
        print("ended", flush=True)  # noqa: T201


if __name__ == "__main__":
    _run()
