"""Who may do what: tokens from a file, each with the streams it is for."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from acclimate.errors import InputError

Action = Literal["classify", "manage"]
LINE = "NAME TOKEN STREAM=ACTION ..., such as: camera sha256:9f86d0... shop-*=classify"
SHORTEST = 16  # characters of a token; a guess must not be worth the try


@dataclass(frozen=True)
class Caller:
    """Somebody who sends requests.

    Attributes:
        name: of the token, or the address where no tokens are asked for.
        grants: (pattern of stream names, action) pairs. Who may manage a stream may classify with it, too.
    """

    name: str
    grants: tuple[tuple[str, str], ...] = (("*", "manage"),)

    def may(self, action: Action, stream: str) -> bool:
        """Whether an action on a stream is allowed."""
        return any(granted in (action, "manage") and fnmatchcase(stream, pattern) for pattern, granted in self.grants)


class Tokens:
    """The tokens of a service; only their digests are kept.

    Args:
        known: (SHA-256 digest of a token, whose it is) pairs.
    """

    def __init__(self, known: Sequence[tuple[bytes, Caller]]) -> None:
        self.known = tuple(known)

    def find(self, authorization: bytes) -> Caller | None:
        """Whose token an Authorization header holds, if anybody's."""
        scheme, _, token = authorization.partition(b" ")
        digest = sha256(token.strip()).digest()
        found = None
        for known, caller in self.known:  # all of them, so that the time taken tells nothing
            if hmac.compare_digest(digest, known):
                found = caller
        return found if scheme.lower() == b"bearer" else None


def read_tokens(path: Path) -> Tokens:
    """Read a token file: a token a line, blank lines and lines starting with # are skipped.

    A line is a name, the token itself or `sha256:` and its digest in hexadecimal, and what it is for: patterns of
    stream names (`*` stands for anything) with `classify`, `manage` or both, as in `shop-*=classify lab=manage`. A
    token for no stream may still read the metrics and use what belongs to no stream.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token file {path} cannot be read: {error}.") from error
    known: dict[bytes, Caller] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, *rest = line.split()
        if not rest:
            raise InputError(f"{path}, line {number}: a line is {LINE}.")
        digest = _digest(rest[0], f"{path}, line {number}")
        if digest in known or name in {caller.name for caller in known.values()}:
            raise InputError(f"{path}, line {number}: the name {name!r} or its token comes twice; keep one.")
        known[digest] = Caller(name, tuple(grant for text in rest[1:] for grant in _grants(text, path, number)))
    if not known:
        raise InputError(f"there are no tokens in {path}; a line is {LINE}.")
    return Tokens(list(known.items()))


def _digest(secret: str, where: str) -> bytes:
    kind, colon, digest = secret.partition(":")
    if colon and kind == "sha256":
        try:
            found = bytes.fromhex(digest)
        except ValueError:
            found = b""
        if len(found) != 32:
            raise InputError(f"{where}: after sha256: come 64 hexadecimal digits, as `sha256sum` gives them.")
        return found
    if len(secret) < SHORTEST:
        raise InputError(f"{where}: the token is too short to be safe; make one with `openssl rand -hex 32`.")
    return sha256(secret.encode()).digest()


def _grants(text: str, path: Path, number: int) -> list[tuple[str, str]]:
    pattern, _, actions = text.partition("=")
    granted = actions.split(",")
    if not pattern or any(action not in get_args(Action) for action in granted):
        raise InputError(f"{path}, line {number}: {text!r} is not STREAM=classify, STREAM=manage or both with a comma.")
    return [(pattern, action) for action in granted]
