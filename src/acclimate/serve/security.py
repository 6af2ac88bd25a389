"""Access control: tokens from a file, and a middleware that refuses requests before their body is read."""

import hmac
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import unquote_to_bytes

import anyio
from fastapi import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.errors import InputError
from acclimate.files import open_text
from acclimate.serve.connections import Connections
from acclimate.serve.http_errors import failure
from acclimate.serve.limits import Limits
from acclimate.serve.networks import client_of
from acclimate.serve.queues import leaves_enough

Action = Literal["classify", "manage"]
TOKEN_LINE = "NAME TOKEN STREAM=ACTION ..., for example: camera sha256:9f86d0... shop-*=classify"
MIN_TOKEN_CHARS = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Paths that reveal nothing about streams, images or labels. Every other path needs a token, whether it exists or not.
HEALTH = ("/health/live", "/health/ready")
OPEN = ("/", "/docs", "/openapi.json", *HEALTH)
OPEN_FOLDER = "/page/"
MAX_QUERY_FIELDS = 2000
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LARGE_BODIES = ("/classify", "/corrections", "/state")  # ends of the paths that take images and states
BODIES_HELD = 4  # full-sized bodies that all requests together may hold in memory
MIN_SHARE_DIVISOR = 32  # a caller may always hold a full-sized body divided by this


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    name: str  # the token's name, or the client's network if the service has no tokens; see `networks.client_of`
    grants: tuple[tuple[str, str], ...] = (("*", "manage"),)  # (pattern of stream names, action); manage allows both
    token: bool = False  # True if it has sent a token

    def may(self, action: Action, stream: str) -> bool:
        """Return True if an action on a stream is allowed."""
        return any(granted in (action, "manage") and fnmatchcase(stream, pattern) for pattern, granted in self.grants)

    @property
    def manages(self) -> bool:
        """True if there is any stream that it may manage."""
        return any(granted == "manage" for _, granted in self.grants)


Tokens = Mapping[bytes, Caller]  # keys are SHA-256 digests; the tokens themselves are not kept


def find_caller(tokens: Tokens, authorization: bytes) -> Caller | None:
    """Return the owner of the token in an Authorization header; None if it is not a token of this service."""
    scheme, _, token = authorization.partition(b" ")
    digest = sha256(token.strip()).digest()
    found = None
    for known, caller in tokens.items():  # always all of them, so that the time taken reveals nothing
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
        lines = open_text(path).read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token file {path} cannot be read: {error}.") from error
    tokens: dict[bytes, Caller] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}, line {number}"
        name, *rest = line.split()
        if not rest:
            raise InputError(f"{where}: the format of a line is {TOKEN_LINE}.")
        digest = _digest(rest[0], where)
        if digest in tokens or name in {caller.name for caller in tokens.values()}:
            raise InputError(f"{where}: the name {name!r} or its token is duplicated; remove one of the lines.")
        tokens[digest] = Caller(name, tuple(grant for text in rest[1:] for grant in _grants(text, where)), token=True)
    if not tokens:
        raise InputError(f"there are no tokens in {path}; the format of a line is {TOKEN_LINE}.")
    return tokens


class TokenFile:
    """The tokens in a file, which can be read again while the service runs.

    Attributes:
        tokens: the last result of `read_tokens`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokens = read_tokens(path)

    def reload(self) -> None:
        """Read the file again; if it cannot be used, an InputError is raised and the tokens stay as they were."""
        self.tokens = read_tokens(self.path)


def _digest(secret: str, where: str) -> bytes:
    if secret.startswith("sha256:"):
        if not re.fullmatch("sha256:[0-9a-fA-F]{64}", secret):
            raise InputError(f"{where}: sha256: must be followed by 64 hexadecimal digits, as printed by `sha256sum`.")
        return bytes.fromhex(secret.removeprefix("sha256:"))
    if len(secret) < MIN_TOKEN_CHARS:
        raise InputError(f"{where}: the token is too short to be safe; make one with `openssl rand -hex 32`.")
    return sha256(secret.encode()).digest()


def _grants(text: str, where: str) -> list[tuple[str, str]]:
    pattern, _, actions = text.partition("=")
    granted = actions.split(",")
    if not pattern or any(action not in get_args(Action) for action in granted):
        raise InputError(f"{where}: {text!r} is not STREAM=classify, STREAM=manage or STREAM=classify,manage.")
    return [(pattern, action) for action in granted]


class AccessMiddleware:
    """Middleware: refuses requests before their body is read, and stops reading bodies that are too large or too slow.

    Without tokens everybody is accepted. `hosts` are the host names that requests may be sent to, None for any; they
    detect DNS rebinding: a page of another site that resolves its own host name to 127.0.0.1.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: TokenFile | None,
        hosts: Collection[str] | None,
        limits: Limits,
        connections: Connections,
    ) -> None:
        self.app = app
        self.tokens = tokens
        self.hosts = hosts
        self.limits = limits
        self.connections = connections
        self.held: Counter[str] = Counter()  # bytes of all bodies in memory, by caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = Body(self, receive, scope)
        refusal = self._refuse(scope, body)

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and not body.complete:
                message["headers"] = [*message["headers"], (b"connection", b"close")]  # the rest must not be sent
            await send(message)

        try:
            await (refusal or self.app)(scope, body.receive, send_and_close)
        finally:
            body.release()

    def _refuse(self, scope: Scope, body: "Body") -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and _host_name(host) not in self.hosts:
            return failure(scope, 400, f"{_host_name(host)!r} is not an allowed host name of this service.")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and scope["method"] not in SAFE_METHODS and origin.partition("://")[2] != host:
            return failure(scope, 403, "requests from pages of other sites are not allowed.")
        if self.connections.full and scope["path"] not in HEALTH:
            return failure(scope, 503, "too many requests at once; try again in a moment.")
        address = scope["client"][0] if scope["client"] else ""
        authorization = headers.get(b"authorization", b"")
        caller = Caller(client_of(address)) if self.tokens is None else find_caller(self.tokens.tokens, authorization)
        if caller is None and scope["path"] not in OPEN and not scope["path"].startswith(OPEN_FOLDER):
            message = "send a token of this service in the header `Authorization: Bearer TOKEN`."
            return failure(scope, 401, message, {"WWW-Authenticate": "Bearer"})
        scope["state"]["caller"] = caller
        if scope["query_string"].count(b"&") > MAX_QUERY_FIELDS:
            return failure(
                scope, 400, f"a query may have at most {MAX_QUERY_FIELDS} parameters; send JSON for more labels."
            )
        try:
            unquote_to_bytes(scope["query_string"]).decode()
        except UnicodeDecodeError:
            return failure(scope, 422, "the query is not UTF-8 with percent signs; encode it again.")
        body.caller = "" if caller is None else caller.name
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 20 or int(length) > body.most:
            return failure(scope, 413, body.too_large())
        return None


class Body:
    """The body of one request, counted while it is received; the gate counts the bytes of all bodies.

    Routes that take images or states get bodies of `limits.body_bytes`, all others of `limits.json_bytes`. Together the
    bodies occupy `BODIES_HELD` of the largest; each caller may hold as much as is left to the others, and in any case a
    little.
    """

    def __init__(self, gate: AccessMiddleware, receive: Receive, scope: Scope) -> None:
        self.gate = gate
        self._receive = receive
        limits = gate.limits
        headers = dict(scope["headers"])
        self.most = limits.body_bytes
        if not scope["path"].endswith(LARGE_BODIES):
            self.most = min(limits.json_bytes, self.most)
        self.complete = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"
        self.caller = ""
        self.size = 0
        self.deadline = anyio.current_time() + limits.timeout_s

    async def receive(self) -> Message:
        """Return the next part."""
        if self.complete:  # the next message says that the client has disconnected, and may take any time
            return await self._receive()
        try:
            with anyio.fail_after(self.deadline - anyio.current_time()):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body was sent too slowly; send smaller or fewer images.") from None
        part = len(message.get("body", b""))
        held = self.gate.held
        self.size += part
        held[self.caller] += part
        self.complete = not message.get("more_body", False)
        if self.size > self.most:
            raise HTTPException(413, self.too_large())
        most = self.gate.limits.body_bytes
        if not leaves_enough(held[self.caller], held.total(), BODIES_HELD * most, most // MIN_SHARE_DIVISOR):
            raise HTTPException(429, "too many large requests at once; try again in a moment.")
        return message

    def release(self) -> None:
        """Note that the body is not in memory any more."""
        held = self.gate.held
        held[self.caller] -= self.size
        if not held[self.caller]:
            del held[self.caller]

    def too_large(self) -> str:
        """Return the reason why a larger body is refused."""
        return f"the body of this request may have at most {self.most} bytes; send smaller or fewer images or labels."


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
