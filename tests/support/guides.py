"""The snippets of a page of the documentation, in order, and a reader who does what they say."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from typer.testing import CliRunner

from acclimate.cli import app
from ports import free_port
from waiting import wait_until

ADDRESS = "localhost:8000"  # where the pages say that the service is
SHELL_SIGNS = set("|<>&;$`(")


class Snippet(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int  # where it begins
    not_run: str  # why it cannot be run here, from a comment above it: <!-- not run: it needs ... -->
    given: str  # what the reader has and no page makes, from a comment above it: <!-- with: my-clip -->


def snippets(page: Path) -> list[Snippet]:
    """Return all fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    pattern = r"(?:^<!-- (?:not run: ([^>]+)|with: ([^>]+)) -->\n)?^( *)```(\w*)\n(.*?)^\3```$"
    return [
        Snippet(each[4], textwrap.dedent(each[5]), text[: each.start()].count("\n") + 1, each[1] or "", each[2] or "")
        for each in re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
    ]


def commands(text: str) -> list[str]:
    """Return the commands of a snippet of shell, without comments."""
    lines = [re.sub(r"(^|\s+)#.*", "", line) for line in re.sub(r"\\\n|(?<=\|)\n", " ", text).splitlines()]
    return [line.strip() for line in lines if line.strip()]


def as_shell(command: str) -> list[str]:
    """Return the words of a command, with the names of files in the place of patterns that are not quoted."""
    words = []
    for word in shlex.split(command, posix=False):
        found = sorted(map(str, Path().glob(word))) if "*" in word and word[0] not in "\"'" else []
        words += found or shlex.split(word)
    return words


def as_script(page: Path) -> str:
    """Return all snippets of a page as one script of a shell, for a reader to whom acclimate is installed already."""
    lines = []
    for snippet in snippets(page):
        if snippet.language == "python" and not snippet.not_run:
            lines += ["python - <<'END OF SNIPPET'", snippet.text, "END OF SNIPPET"]
        elif snippet.language == "sh" and not snippet.not_run:
            lines += [each for each in commands(snippet.text) if not each.startswith(". ")]
    return "\n".join([*lines, ""]).replace("make demo", "acclimate demo")


class Reader:
    """A reader who follows a page in the working directory, with acclimate on the PATH."""

    def __init__(self, demo: Path, give: Callable[[str], Path], chdir: Callable[[str], None]) -> None:
        self.demo = demo
        self.give = give
        self.chdir = chdir
        self.scope: dict[str, object] = {}
        self.port = free_port()
        self.services: list[subprocess.Popen[bytes]] = []
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "ACCLIMATE_SERVE_PORT": str(self.port)}

    def follow(self, page: Path) -> None:
        """Run all snippets of a page in order, Python in one namespace."""
        for snippet in snippets(page):
            where = f"{page.name}, line {snippet.line}"
            text = snippet.text.replace(ADDRESS, f"localhost:{self.port}")
            if snippet.not_run:
                continue
            if snippet.given:
                shutil.copytree(self.give(snippet.given), snippet.given)
            if snippet.language == "python":
                exec(compile(text, where, "exec"), self.scope)
            elif snippet.language == "sh":
                for command in commands(text):
                    self.do(command, where)

    def do(self, command: str, where: str) -> None:
        """Run one command."""
        program, *arguments = shlex.split(command)
        if command in ("make demo", "acclimate demo"):
            shutil.copytree(self.demo, "acclimate-demo")  # what it leaves is the same for all
        elif program == ".":
            assert arguments == [".venv/bin/activate"], where
        elif program == "cd":
            self.chdir(*arguments)
        elif command.startswith("acclimate serve"):
            self.serve(arguments)
        elif program == "acclimate" and arguments[0] != "cluster" and not SHELL_SIGNS & set(command):
            result = CliRunner().invoke(app, as_shell(command)[1:])
            assert result.exit_code == 0, (where, command, result.output, result.exception)
        else:
            done = subprocess.run(["bash", "-ec", command], env=self.environment, capture_output=True, text=True)
            assert done.returncode == 0, (where, command, done.stdout + done.stderr)
            assert '"error"' not in done.stdout, (where, command, done.stdout)  # an answer of the service

    def serve(self, arguments: list[str]) -> None:
        """Start the service as in another terminal, in place of the one before, and wait until it answers."""
        self.stop()
        command = [sys.executable, "-m", "acclimate", *arguments]
        self.services.append(subprocess.Popen(command, env=self.environment, stderr=subprocess.DEVNULL))
        wait_until(self.served)

    def served(self) -> bool:
        """Return True if the service answers."""
        assert self.services[-1].poll() is None, self.services[-1].args
        with suppress(URLError):
            urlopen(f"http://127.0.0.1:{self.port}/health/ready").close()
            return True
        return False

    def stop(self) -> None:
        """Stop the service."""
        while self.services:
            service = self.services.pop()
            service.terminate()
            assert service.wait(180) == 0
