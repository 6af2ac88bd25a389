"""A client of `acclimate serve`, with nothing but the standard library."""

import io
import json
import os
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping
from http.client import HTTPException, HTTPMessage, HTTPResponse, IncompleteRead
from numbers import Integral, Real
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener
from uuid import uuid4

from acclimate.errors import AcclimateError
from acclimate.serve.timed_http import TimedHTTPHandler, TimedHTTPSHandler

BUSY = (429, 503)  # statuses of a request that was not carried out and may be sent again
JSON = "application/json"
RETRY_S = 10.0  # the longest wait between two attempts
MAX_ANSWER_BYTES = 64 * 2**20  # largest JSON response
MAX_STATE_BYTES = 2**30  # largest state file
MAX_ERROR_CHARS = 2000  # longer error messages are cut
Value = TypeVar("Value")


class ServiceError(AcclimateError):
    """A request that failed.

    Attributes:
        status: status of the response; 0 if there was none.
        code: the kind of error, for programs: "not_found", "invalid", "busy", ...; "unreachable" without a response.
        message: the same for people.
        request_id: identifies the request in the log of the service.
    """

    def __init__(self, status: int, code: str, message: str, request_id: str = "") -> None:
        super().__init__(f"{message} ({code})")
        self.status = status
        self.code = code
        self.message = message
        self.request_id = request_id


class Client:
    """A client of a service that was started with `acclimate serve`.

    What the service answers is returned as it is: dicts and lists of plain values, as in the API documentation at
    /docs. Requests that the service refuses because it is busy are sent again after the time that it asks for, and so
    are those that cannot be delivered. When a connection breaks later, the request may have been carried out, and it is
    sent again only where twice is as good as once: reading, answering without learning, correcting and freezing.
    Others are not; an image would be learnt twice. Redirects are refused: the token is for this address.

    Args:
        url: address of the service.
        token: needed if the service was started with `--token-file`.
        timeout: seconds that a call may take, however often it is sent and however slowly it is answered.
        retries: the largest number of times that a request is sent again.

    Examples:
        >>> client = Client("http://localhost:8000", retries=0)
        >>> client.create("shop", ["cat", "dog"])  # doctest: +SKIP
        >>> client.classify("shop", "photos/1.jpg")[0]["predictions"][0]  # doctest: +SKIP
        {'label': 'cat', 'score': 0.93}
        >>> try:
        ...     Client("http://localhost:1", retries=0).ready()
        ... except ServiceError as error:
        ...     print(error.code)
        unreachable
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 60.0, retries: int = 3) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.retries = retries
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = build_opener(_NoRedirect, TimedHTTPHandler, TimedHTTPSHandler)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def ready(self) -> bool:
        """Return True if the service accepts images at the moment; ServiceError if it cannot be reached."""
        try:
            return self._parsed(self._send("GET", "/health/ready", retries=0), bool, "ready")
        except ServiceError as error:
            if error.status == 503:
                return False
            raise

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return self._send("GET", "/metrics").decode(errors="replace")

    def streams(self) -> list[dict[str, Any]]:
        """Return the streams that the token may use."""
        return self._list("/v1/streams", "streams")

    def create(self, stream: str, labels: Iterable[str], **setup: Any) -> dict[str, Any]:
        """Create a stream with labels, and a `method`, `settings`, `templates`, ... if they are given."""
        return self._json("POST", "/v1/streams", {"name": stream, "labels": list(labels), **setup})

    def describe(self, stream: str) -> dict[str, Any]:
        """Return the description of a stream: labels, settings, counts, and its problems, if it has any."""
        return self._parsed(self._send("GET", _path(stream)), dict)

    def delete(self, stream: str) -> None:
        """Delete a stream and everything it has learnt."""
        self._send("DELETE", _path(stream))

    def classify(
        self, stream: str, *images: Any, adapt: bool = True, top_k: int = 5, unsure: float | None = None
    ) -> list[dict[str, Any]]:
        """Classify images in one request: paths, encoded bytes, or Pillow images; the stream learns if `adapt`.

        Answers with a score below `unsure` are marked. Returns a result per image.
        """
        query = {"adapt": str(adapt).lower(), "top_k": top_k} | ({} if unsure is None else {"unsure": unsure})
        body, kind = _form([_named(image) for image in images])
        path = f"{_path(stream, 'classify')}?{urlencode(query)}"
        return self._parsed(self._send("POST", path, body, kind, idempotent=not adapt), list, "results")

    def zero_shot(self, image: Any, labels: Iterable[str], template: str | None = None) -> list[dict[str, Any]]:
        """Classify an image into any labels without a stream; nothing is learnt."""
        parameters = {"candidate_labels": list(labels), "hypothesis_template": template}
        body = _dumped({"inputs": _base64(image), "parameters": parameters})
        return self._parsed(self._send("POST", "/classify", body, JSON, idempotent=True), list)

    def change_labels(self, stream: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> dict[str, Any]:
        """Add and remove labels; what was learnt about the others is kept."""
        return self._json("PATCH", _path(stream, "labels"), {"add": list(add), "remove": list(remove)})

    def correct(self, stream: str, image_or_id: Any, label: str) -> int:
        """Correct the label of an image: one that was learnt, by its id, or any image. Returns the correction's id."""
        given = {"id": image_or_id} if isinstance(image_or_id, Integral) else {"image": _base64(image_or_id)}
        body = _dumped({**given, "label": label})
        return self._parsed(self._send("POST", _path(stream, "corrections"), body, JSON, idempotent=True), int, "id")

    def corrections(self, stream: str) -> list[dict[str, Any]]:
        """Return the corrections of a stream."""
        return self._list(_path(stream, "corrections"), "corrections")

    def undo(self, stream: str, correction: int) -> None:
        """Undo a correction."""
        self._send("DELETE", _path(stream, "corrections", str(int(correction))))

    def freeze(self, stream: str, frozen: bool = True) -> dict[str, Any]:
        """Stop learning, or with `frozen=False` resume it."""
        return self._json("POST", _path(stream, "freeze" if frozen else "unfreeze"), idempotent=True)

    def reset(self, stream: str) -> dict[str, Any]:
        """Forget everything learnt; the snapshots remain."""
        return self._json("POST", _path(stream, "reset"))

    def snapshots(self, stream: str) -> list[dict[str, Any]]:
        """Return the snapshots that can be rolled back to, newest first."""
        return self._list(_path(stream, "snapshots"), "snapshots")

    def snapshot(self, stream: str) -> int:
        """Take a snapshot; returns its id."""
        return self._parsed(self._send("POST", _path(stream, "snapshot")), int, "snapshot")

    def rollback(self, stream: str, snapshot: int | None = None) -> int:
        """Go back to a snapshot, by default the last one that differs; returns its id."""
        body = _dumped({"snapshot": snapshot})
        return self._parsed(self._send("POST", _path(stream, "rollback"), body, JSON), int, "snapshot")

    def state(self, stream: str) -> bytes:
        """Return what was learnt, as the content of a state file."""
        return self._send("GET", _path(stream, "state"), most=MAX_STATE_BYTES)

    def upload_state(self, stream: str, state: bytes | str | os.PathLike[str]) -> dict[str, Any]:
        """Continue from a state file: its content, or its path."""
        content = state if isinstance(state, bytes) else Path(state).read_bytes()
        return self._parsed(self._send("PUT", _path(stream, "state"), content, "application/octet-stream"), dict)

    def caches(self, stream: str, thumbnails: bool = False) -> list[dict[str, Any]]:
        """Return every cache entry: label, entropy, id, client, and thumbnail if the stream keeps them."""
        return self._list(f"{_path(stream, 'caches')}?{urlencode({'thumbnails': str(thumbnails).lower()})}", "entries")

    def learnt(self, stream: str) -> dict[str, Any]:
        """Return what was learnt about each label, and how much each client has taught."""
        return self._parsed(self._send("GET", _path(stream, "learnt")), dict)

    def _list(self, path: str, field: str) -> list[dict[str, Any]]:
        return self._parsed(self._send("GET", path), list, field)

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, idempotent: bool = False
    ) -> dict[str, Any]:
        content = b"" if body is None else _dumped(body)
        return self._parsed(self._send(method, path, content, JSON, idempotent=idempotent), dict)

    def _parsed(self, content: bytes, kind: type[Value], field: str = "") -> Value:
        """Return the JSON of an answer, or one of its fields."""
        try:
            found = json.loads(content)
            found = found[field] if field else found
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._unexpected() from error
        if not isinstance(found, kind) or not all(isinstance(each, dict) for each in _items(found)):
            raise self._unexpected()
        return found

    def _unexpected(self) -> ServiceError:
        return ServiceError(0, "unexpected", f"{self.url} does not answer as acclimate does; check the URL.")

    def _send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        kind: str = "",
        *,
        idempotent: bool = False,
        retries: int | None = None,
        most: int = MAX_ANSWER_BYTES,
    ) -> bytes:
        """Send a request, several times if it was not carried out or is `idempotent`."""
        headers = self._headers | ({"Content-Type": kind} if kind else {})
        left = self.retries if retries is None else retries
        idempotent = idempotent or method == "GET"
        wait = 0.5
        deadline = time.monotonic() + self.timeout
        while True:
            request = Request(f"{self.url}{path}", body or None, headers, method=method)
            try:
                with self._opener.open(request, timeout=max(deadline - time.monotonic(), 0.001)) as response:
                    return _read(response, most)
            except HTTPError as answer:
                failure = _failure(answer)
                asked = answer.headers.get("Retry-After", "")  # seconds; proxies may send a date
                wait = float(asked[:9]) if asked.isdecimal() else wait
                worth_it = answer.code in BUSY
            except (URLError, HTTPException, OSError) as error:
                reason = getattr(error, "reason", error)
                failure = ServiceError(0, "unreachable", f"{self.url} cannot be reached: {reason}"[:MAX_ERROR_CHARS])
                worth_it = idempotent or isinstance(reason, ConnectionRefusedError)
            except ValueError as error:  # headers that cannot be understood
                raise self._unexpected() from error
            wait = min(wait, RETRY_S)
            if not left or not worth_it or time.monotonic() + wait > deadline:
                raise failure
            time.sleep(wait)
            left = left - 1
            wait = 2 * wait


class _NoRedirect(HTTPRedirectHandler):
    """A handler that refuses redirects: the token is for one address, and a request may not be repeated elsewhere."""

    def http_error_302(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage) -> Any:
        fp.close()
        target = str(headers.get("Location"))[:200]
        raise ServiceError(code, "unexpected", f"{req.host} redirects to {target!r}; give that address if it is right.")

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _items(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _read(response: HTTPResponse, most: int) -> bytes:
    parts = []
    size = 0
    while part := response.read(2**20):
        parts.append(part)
        size += len(part)
        if size > most:
            raise ServiceError(response.status, "unexpected", f"the answer has more than {most} bytes.")
    if response.length:  # what is missing: with a size to read, this is no error of `read`
        raise IncompleteRead(b"", response.length)
    return b"".join(parts)


def _failure(answer: HTTPError) -> ServiceError:
    try:
        with answer:
            error = json.loads(answer.read(2**20))["error"]
        code, message, request_id = (str(error[name])[:MAX_ERROR_CHARS] for name in ("code", "message", "request_id"))
        return ServiceError(answer.code, code, message, request_id)
    except (ValueError, KeyError, TypeError, RecursionError, HTTPException, OSError):  # a proxy may answer
        return ServiceError(answer.code, "unexpected", f"{answer.code} {answer.reason}"[:MAX_ERROR_CHARS])


def _dumped(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, default=_plain).encode()


def _plain(value: Any) -> int | float:
    """Convert a NumPy number to a JSON number."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON.")


def _path(stream: str, *parts: str) -> str:
    return "/".join(["/v1/streams", quote(stream, safe=""), *parts])


def _named(image: Any) -> tuple[str, bytes]:
    """Return file name and content of an image: a path, encoded bytes, or a Pillow image."""
    if isinstance(image, (bytes, bytearray)):
        return "image", bytes(image)
    if isinstance(image, (str, os.PathLike)):
        path = Path(image)
        return path.name, path.read_bytes()
    if hasattr(image, "save"):  # a Pillow image, which need not be installed
        buffer = io.BytesIO()
        (image if image.mode in ("RGB", "L") else image.convert("RGB")).save(buffer, "PNG")
        return "image", buffer.getvalue()
    raise TypeError(f"an image is a path, encoded bytes or a Pillow image, got {type(image).__name__}.")


def _base64(image: Any) -> str:
    return b64encode(_named(image)[1]).decode()


def _form(files: list[tuple[str, bytes]]) -> tuple[bytes, str]:
    """Return body and content type of a form with image files."""
    boundary = uuid4().hex
    parts = []
    for name, content in files:
        safe = name.replace("\\", "_").replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{safe}"\r\n\r\n'
        parts.append(head.encode(errors="replace") + content + b"\r\n")
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"
