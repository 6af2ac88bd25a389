"""Access control: tokens from a file, each with the streams it may use."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from acclimate.errors import InputError

Action = Literal["classify", "manage"]
FORMAT = "NAME TOKEN STREAM=ACTION ..., for example: camera sha256:9f86d0... shop-*=classify"
SHORTEST = 16  # characters of a token


@dataclass(frozen=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: of the token, or the client's address if the service has no tokens.
        grants: (pattern of stream names, action) pairs; `manage` includes `classify`.
    """

    name: str
    grants: tuple[tuple[str, str], ...] = (("*", "manage"),)

    def may(self, action: Action, stream: str) -> bool:
        """Whether an action on a stream is allowed."""
        return any(granted in (action, "manage") and fnmatchcase(stream, pattern) for pattern, granted in self.grants)


class Tokens:
    """The tokens of a service; only their digests are kept.

    Args:
        known: pairs of a token's SHA-256 digest and its owner.
    """

    def __init__(self, known: Sequence[tuple[bytes, Caller]]) -> None:
        self.known = tuple(known)

    def find(self, authorization: bytes) -> Caller | None:
        """The owner of the token in an Authorization header; None if it is not a token of this service."""
        scheme, _, token = authorization.partition(b" ")
        digest = sha256(token.strip()).digest()
        found = None
        for known, caller in self.known:  # always all of them, so that the time taken reveals nothing
            if hmac.compare_digest(digest, known):
                found = caller
        return found if scheme.lower() == b"bearer" else None


def read_tokens(path: Path) -> Tokens:
    """Read a token file: one token per line; blank lines and lines that start with # are skipped.

    A line has a name, the token itself or `sha256:` and its hexadecimal digest, and what the token allows: patterns of
    stream names (`*` matches anything) with `classify`, `manage` or both, for example `shop-*=classify lab=manage`. A
    token without any stream may still read the metrics and use the routes that belong to no stream.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token file {path} cannot be read: {error}.") from error
    known: dict[bytes, Caller] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}, line {number}"
        name, *rest = line.split()
        if not rest:
            raise InputError(f"{where}: the format of a line is {FORMAT}.")
        digest = _digest(rest[0], where)
        if digest in known or name in {caller.name for caller in known.values()}:
            raise InputError(f"{where}: the name {name!r} or its token is duplicated; remove one of the lines.")
        known[digest] = Caller(name, tuple(grant for text in rest[1:] for grant in _grants(text, where)))
    if not known:
        raise InputError(f"there are no tokens in {path}; the format of a line is {FORMAT}.")
    return Tokens(list(known.items()))


def _digest(secret: str, where: str) -> bytes:
    kind, colon, digest = secret.partition(":")
    if colon and kind == "sha256":
        try:
            found = bytes.fromhex(digest)
        except ValueError:
            found = b""
        if len(found) != 32:
            raise InputError(f"{where}: sha256: must be followed by 64 hexadecimal digits, as printed by `sha256sum`.")
        return found
    if len(secret) < SHORTEST:
        raise InputError(f"{where}: the token is too short to be safe; make one with `openssl rand -hex 32`.")
    return sha256(secret.encode()).digest()


def _grants(text: str, where: str) -> list[tuple[str, str]]:
    pattern, _, actions = text.partition("=")
    granted = actions.split(",")
    if not pattern or any(action not in get_args(Action) for action in granted):
        raise InputError(f"{where}: {text!r} is not STREAM=classify, STREAM=manage or STREAM=classify,manage.")
    return [(pattern, action) for action in granted]
