"""Fuzzing: each target for some seconds (`--fuzz-seconds`) in a process under a limit on memory, first on its corpus.

What a fuzzer finds is added to `tests/corpus` as a file, and stays mended.
"""

import subprocess
import sys
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest

pytestmark = pytest.mark.fuzz

HERE = Path(__file__).parent
CASE_S = 120.0  # time limit of one case on a busy machine


@pytest.mark.parametrize("target", ["images", "bodies", "states"])
def test_fuzz(target, tiny_onnx, request):
    seconds = request.config.getoption("--fuzz-seconds")
    seed = request.config.getoption("--fuzz-seed")
    command = [sys.executable, HERE / "fuzz" / "child.py", target, tiny_onnx, str(seed), str(seconds), HERE / "corpus"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: Queue[str] = Queue()
    reader = Thread(target=lambda: [lines.put(line) for line in process.stdout] + [lines.put("")])
    reader.start()
    said = []
    case = "the start"
    patience = 300.0
    try:
        while line := lines.get(timeout=patience):
            if line.startswith("case "):
                case = line.split()[1]
                patience = CASE_S
                said = []
            said.append(line)
    except Empty:
        pytest.fail(f"case {case} of {target} took longer than {CASE_S:g} s; run it with --fuzz-seed {case}")
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
    output = "".join(said)
    assert "done" in output, f"case {case} of {target} ended with {process.returncode}:\n{output[-3000:]}"
