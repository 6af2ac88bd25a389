"""Access control: tokens from a file, and a middleware that refuses requests and ends those that take too long."""

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Literal
from urllib.parse import unquote_to_bytes

import anyio
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.errors import InputError
from acclimate.files import open_text
from acclimate.serve.http_errors import failure, path_below_mount
from acclimate.serve.limits import Limits
from acclimate.serve.logs import SAFE_METHODS
from acclimate.serve.queues import leaves_enough

Action = Literal["classify", "manage"]
TOKEN_LINE = "NAME TOKEN STREAM=ACTION ..., for example: camera sha256:9f86d0... shop-*=classify"
GRANT = re.compile("[^=]+=(classify|manage)(,(classify|manage))*")
MIN_TOKEN_CHARS = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Paths that reveal nothing about streams, images or labels. Every other path needs a token, whether it exists or not.
HEALTH = ("/health/live", "/health/ready")
OPEN = ("/", "/docs", "/openapi.json", *HEALTH)
OPEN_FOLDER = "/page/"
LARGE_BODIES = ("/classify", "/corrections", "/state")  # ends of the paths that take images and states
BODIES_HELD = 4  # full-sized bodies that all requests together may hold in memory
MIN_SHARE_DIVISOR = 128  # a caller may always have all that there is room for, divided by this


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    name: str  # the token's name
    grants: tuple[tuple[str, str], ...] = (("*", "manage"),)  # (pattern of stream names, action); manage allows both
    token: bool = False  # True if it has sent a token

    def may(self, action: Action, stream: str) -> bool:
        """Return True if an action on a stream is allowed."""
        return any(granted in (action, "manage") and fnmatchcase(stream, pattern) for pattern, granted in self.grants)


LOCAL = Caller("127.0.0.1")  # everybody, if a service has no tokens: it can only be reached from its own machine
Tokens = Mapping[bytes, Caller]  # keys are SHA-256 digests; the tokens themselves are not kept


def find_caller(tokens: Tokens, authorization: bytes) -> Caller | None:
    """Return the owner of the token in an Authorization header; None if it is not a token of this service."""
    scheme, _, token = authorization.partition(b" ")
    # The time of a lookup reveals something about digests at most, not about tokens.
    return tokens.get(sha256(token.strip()).digest()) if scheme.lower() == b"bearer" else None


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
        secret, *grants = rest
        digest = _digest(secret, where)
        if digest in tokens or name in {caller.name for caller in tokens.values()}:
            raise InputError(f"{where}: the name {name!r} or its token is duplicated; remove one of the lines.")
        for text in grants:
            if not GRANT.fullmatch(text):
                raise InputError(f"{where}: {text!r} is not STREAM=classify, STREAM=manage or STREAM=classify,manage.")
        pairs = (text.split("=") for text in grants)
        allowed = tuple((pattern, action) for pattern, actions in pairs for action in actions.split(","))
        tokens[digest] = Caller(name, allowed, token=True)
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
        self.reload()

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


class AccessMiddleware:
    """Middleware: refuses requests, receives the bodies of others, and ends what takes too long.

    Routes that take images or states get bodies of `limits.body_bytes`, all others of `limits.json_bytes`. Together the
    bodies in memory occupy `BODIES_HELD` of the largest; a caller may hold as much as it leaves to the others, and in
    any case a little. Sending the body and answering it may take `limits.timeout_s` each. Requests that take longer, or
    whose client has disconnected, are cancelled: work that has not begun then never happens.

    Without tokens everybody is accepted. `hosts` are the host names that requests may be sent to, None for any; they
    detect DNS rebinding: a page of another site that resolves its own host name to 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, tokens: TokenFile | None, hosts: Collection[str] | None, limits: Limits) -> None:
        self.app = app
        self.tokens = tokens
        self.hosts = hosts
        self.limits = limits
        self.running: Counter[str] = Counter()  # requests by caller
        self.held: Counter[str] = Counter()  # bytes of all bodies in memory, by caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refuse(scope)
        caller = scope["state"]["caller"]
        name = "" if caller is None else caller.name
        body = BytesIO()  # gives what it holds without a copy
        self.running[name] += 1
        try:
            refusal = refusal or await self._receive(scope, receive, body, name)
            refusal = refusal or await self._answer(scope, receive, send, body.getvalue())
            if refusal is not None:
                refusal.headers["Connection"] = "close"  # the rest of its body must not be sent
                await refusal(scope, receive, send)
        finally:
            self.running -= Counter([name])  # drops callers without any
            self.held -= Counter({name: body.tell()})

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the response to a request that is refused unread; None for others, whose caller is noted."""
        headers = dict(scope["headers"])
        if b"transfer-encoding" in headers and b"content-length" in headers:
            return failure(scope, 400, "send either Content-Length or Transfer-Encoding, not both.")
        host = headers.get(b"host", b"").decode("latin-1")
        name = re.sub(r":\d*$", "", host).lower()
        if self.hosts is not None and name not in self.hosts:
            return failure(scope, 400, f"{name!r} is not an allowed host name of this service.")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and scope["method"] not in SAFE_METHODS and origin.partition("://")[2] != host:
            return failure(scope, 403, "requests from pages of other sites are not allowed.")
        authorization = headers.get(b"authorization", b"")
        caller = LOCAL if self.tokens is None else find_caller(self.tokens.tokens, authorization)
        path = path_below_mount(scope)
        if caller is None and path not in OPEN and not path.startswith(OPEN_FOLDER):
            message = "send a token of this service in the header `Authorization: Bearer TOKEN`."
            return failure(scope, 401, message, {"WWW-Authenticate": "Bearer"})
        scope["state"]["caller"] = caller
        running = self.running["" if caller is None else caller.name] + 1
        most = self.limits.requests
        room = leaves_enough(running, self.running.total() + 1, most, most // MIN_SHARE_DIVISOR)
        if not room and path not in HEALTH:
            return failure(scope, 429, "too many requests at once; try again in a moment.")
        try:
            unquote_to_bytes(scope["query_string"]).decode()
        except UnicodeDecodeError:
            return failure(scope, 422, "the query is not UTF-8 with percent signs; encode it again.")
        return None

    async def _receive(self, scope: Scope, receive: Receive, body: BytesIO, name: str) -> Response | None:
        """Receive a body; returns the response to one that is too large or too slow."""
        most = self.limits.body_bytes
        if not scope["path"].endswith(LARGE_BODIES):
            most = min(most, self.limits.json_bytes)
        announced = int(dict(scope["headers"]).get(b"content-length", 0))
        room = BODIES_HELD * self.limits.body_bytes
        more = True
        with anyio.move_on_after(self.limits.timeout_s):
            while True:
                if max(announced, body.tell()) > most:
                    what = f"the body of this request may have at most {most} bytes"
                    return failure(scope, 413, f"{what}; send smaller or fewer images or labels.")
                if not leaves_enough(self.held[name], self.held.total(), room, room // MIN_SHARE_DIVISOR):
                    return failure(scope, 429, "too many large requests at once; try again in a moment.")
                if not more:
                    return None
                message = await receive()
                if message["type"] == "http.disconnect":
                    return failure(scope, 499, "the client has disconnected.")
                more = message.get("more_body", False)
                self.held[name] += body.write(message.get("body", b""))
        return failure(scope, 408, "the body was sent too slowly; send smaller or fewer images.")

    async def _answer(self, scope: Scope, receive: Receive, send: Send, content: bytes) -> Response | None:
        """Have a request answered; returns the response to one that was cancelled before that."""
        unread: list[Message] = [{"type": "http.request", "body": content}]
        started = False

        async def replay() -> Message:
            if not unread:
                await anyio.sleep_forever()  # `gone` listens to the connection
            return unread.pop()

        async def respond(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        with anyio.move_on_after(self.limits.timeout_s) as lifetime:
            gone = asyncio.ensure_future(receive())
            gone.add_done_callback(lambda done: None if done.cancelled() else lifetime.cancel())
            try:
                await self.app(scope, replay, respond)
            finally:
                gone.cancel()
        if started:
            return None
        if anyio.current_time() < lifetime.deadline:
            return failure(scope, 499, "the client has disconnected.")
        limit = f"no answer within {self.limits.timeout_s:g} s"
        return failure(scope, 504, f"{limit}; it may still be carried out: look before you send it again.")
