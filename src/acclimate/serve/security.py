"""Access control: tokens from a file, and a middleware that refuses requests and ends those that take too long."""

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import unquote_to_bytes

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.errors import InputError
from acclimate.files import open_text
from acclimate.serve.http_errors import failure
from acclimate.serve.limits import Limits
from acclimate.serve.logs import SAFE_METHODS
from acclimate.serve.queues import leaves_enough
from acclimate.serve.uploads import Body

Action = Literal["classify", "manage"]
TOKEN_LINE = "NAME TOKEN STREAM=ACTION ..., for example: camera sha256:9f86d0... shop-*=classify"
MIN_TOKEN_CHARS = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Paths that reveal nothing about streams, images or labels. Every other path needs a token, whether it exists or not.
HEALTH = ("/health/live", "/health/ready")
OPEN = ("/", "/docs", "/openapi.json", *HEALTH)
OPEN_FOLDER = "/page/"
MAX_QUERY_FIELDS = 2000
MIN_REQUESTS = 4  # requests that a caller may always have at a time
# Bits of an address that name a network: one client can easily have many addresses of it.
IPV4_BITS = 24
IPV6_BITS = 64


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    name: str  # the token's name, or the client's network if the service has no tokens; see `client_of`
    grants: tuple[tuple[str, str], ...] = (("*", "manage"),)  # (pattern of stream names, action); manage allows both
    token: bool = False  # True if it has sent a token

    def may(self, action: Action, stream: str) -> bool:
        """Return True if an action on a stream is allowed."""
        return any(granted in (action, "manage") and fnmatchcase(stream, pattern) for pattern, granted in self.grants)

    @property
    def manages(self) -> bool:
        """True if there is any stream that it may manage."""
        return any(granted == "manage" for _, granted in self.grants)


def client_of(address: str) -> str:
    """Return the client that an address belongs to: one for all loopback addresses, else its network.

    Examples:
        >>> client_of("192.0.2.7"), client_of("::ffff:192.0.2.7"), client_of("127.8.9.10"), client_of("2001:db8::7")
        ('192.0.2.0/24', '192.0.2.0/24', '127.0.0.1', '2001:db8::/64')
    """
    try:
        found: Any = ip_address(address.partition("%")[0])
    except ValueError:  # such as that of a Unix socket
        return address or "unknown"
    found = getattr(found, "ipv4_mapped", None) or found
    bits = IPV4_BITS if found.version == 4 else IPV6_BITS
    return "127.0.0.1" if found.is_loopback else str(ip_network((found, bits), strict=False))


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
    """Middleware: refuses requests before their body is read, and ends those that take too long.

    A request that has no response after `limits.timeout_s`, or whose client has disconnected, is cancelled: work that
    has not begun then never happens. Without tokens everybody is accepted. `hosts` are the host names that requests may
    be sent to, None for any; they detect DNS rebinding: a page of another site that resolves its own host name to
    127.0.0.1.
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
        body = Body(scope, receive, self.limits, self.held)
        answer: ASGIApp = self._refuse(scope, body) or self.app
        awaited = True
        started = False

        async def respond(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start" and not body.complete.is_set():
                message["headers"] = [*message["headers"], (b"connection", b"close")]  # the rest must not be sent
            if awaited:
                started = True
                await send(message)

        request = asyncio.ensure_future(answer(scope, body.receive, respond))  # type: ignore[arg-type]
        self.running[body.caller] += 1
        request.add_done_callback(lambda _: self._release(body))
        gone = asyncio.ensure_future(body.disconnected())
        try:
            await asyncio.wait({request, gone}, timeout=self.limits.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                await request
            elif not started:
                awaited = False
                await self._give_up(scope, body, gone.done())(scope, receive, send)
        finally:
            request.cancel()
            gone.cancel()

    def _give_up(self, scope: Scope, body: Body, gone: bool) -> Response:
        status = 499
        message = "the client has disconnected."
        if not body.complete.is_set():
            status = 408
            message = "the body was sent too slowly; send smaller or fewer images."
        elif not gone:
            status = 504
            limit = f"no answer within {self.limits.timeout_s:g} s"
            message = f"{limit}; it may still be carried out: look before you send it again."
        return failure(scope, status, message, {"Connection": "close"})

    def _release(self, body: Body) -> None:
        self.running -= Counter([body.caller])  # drops callers without any
        self.held -= Counter({body.caller: body.size})

    def _refuse(self, scope: Scope, body: Body) -> Response | None:
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
        address = scope["client"][0] if scope["client"] else ""
        authorization = headers.get(b"authorization", b"")
        caller = Caller(client_of(address)) if self.tokens is None else find_caller(self.tokens.tokens, authorization)
        if caller is None and scope["path"] not in OPEN and not scope["path"].startswith(OPEN_FOLDER):
            message = "send a token of this service in the header `Authorization: Bearer TOKEN`."
            return failure(scope, 401, message, {"WWW-Authenticate": "Bearer"})
        scope["state"]["caller"] = caller
        body.caller = "" if caller is None else caller.name
        running = self.running[body.caller] + 1
        room = leaves_enough(running, self.running.total() + 1, self.limits.requests, MIN_REQUESTS)
        if not room and scope["path"] not in HEALTH:
            return failure(scope, 429, "too many requests at once; try again in a moment.")
        if scope["query_string"].count(b"&") > MAX_QUERY_FIELDS:
            most = f"a query may have at most {MAX_QUERY_FIELDS} parameters"
            return failure(scope, 400, f"{most}; send JSON for more labels.")
        try:
            unquote_to_bytes(scope["query_string"]).decode()
        except UnicodeDecodeError:
            return failure(scope, 422, "the query is not UTF-8 with percent signs; encode it again.")
        if int(headers.get(b"content-length", 0)) > body.most:
            return failure(scope, 413, body.too_large())
        return None
