"""A client of `acclimate serve`, on httpx."""

import io
import json
import os
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from acclimate.errors import AcclimateError, missing

try:
    import httpx
except ImportError:
    raise missing("the client of the service needs httpx", "client") from None

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
        retry_after: seconds after which the service wants to be asked again; None if it does not say.
    """

    def __init__(
        self, status: int, code: str, message: str, request_id: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(f"{message} ({code})")
        self.status = status
        self.code = code
        self.message = message
        self.request_id = request_id
        self.retry_after = retry_after


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
        timeout: seconds that a call may take, however often it is sent, while each part of the request and of the head
            of its answer takes less than that.
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
        self._http = httpx.Client(
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {}),
            limits=httpx.Limits(max_keepalive_connections=0),  # the service may close an idle connection at any time
        )

    def ready(self) -> bool:
        """Return True if the service accepts images at the moment; ServiceError if it cannot be reached."""
        try:
            return self._json(bool, "GET", "/health/ready", "ready", retries=0)
        except ServiceError as error:
            if error.status == 503:
                return False
            raise

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return self._send("GET", "/metrics").decode(errors="replace")

    def streams(self) -> list[dict[str, Any]]:
        """Return the streams that the token may use."""
        return self._json(list, "GET", "/v1/streams", "streams")

    def create(self, stream: str, labels: Iterable[str], **setup: Any) -> dict[str, Any]:
        """Create a stream with labels, and a `method`, `settings`, `templates`, ... if they are given."""
        return self._json(dict, "PUT", _path(stream), body={"labels": list(labels), **setup})

    def describe(self, stream: str) -> dict[str, Any]:
        """Return the description of a stream: labels, settings, counts, and its problems, if it has any."""
        return self._json(dict, "GET", _path(stream))

    def delete(self, stream: str) -> None:
        """Delete a stream and everything it has learnt."""
        self._send("DELETE", _path(stream))

    def classify(
        self, stream: str, *images: Any, adapt: bool = True, top_k: int = 5, unsure: float | None = None
    ) -> list[dict[str, Any]]:
        """Classify images in one request: paths, encoded bytes, or Pillow images; the stream learns if `adapt`.

        Answers with a score below `unsure` are marked. Returns a result per image.
        """
        query = {"adapt": adapt, "top_k": top_k} | ({} if unsure is None else {"unsure": unsure})
        files = [("image", _named(image)) for image in images]
        return self._json(
            list, "POST", _path(stream, "classify"), "results", idempotent=not adapt, params=query, files=files
        )

    def zero_shot(self, image: Any, labels: Iterable[str], template: str | None = None) -> list[dict[str, Any]]:
        """Classify an image into any labels without a stream; nothing is learnt."""
        parameters = {"candidate_labels": list(labels), "hypothesis_template": template}
        body = {"inputs": _base64(image), "parameters": parameters}
        return self._json(list, "POST", "/classify", body=body, idempotent=True)

    def change_labels(self, stream: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> dict[str, Any]:
        """Add and remove labels; what was learnt about the others is kept."""
        return self._json(dict, "PATCH", _path(stream, "labels"), body={"add": list(add), "remove": list(remove)})

    def correct(self, stream: str, image_or_id: Any, label: str) -> int:
        """Correct the label of an image: one that was learnt, by its id, or any image. Returns the correction's id."""
        body = {"id": image_or_id} if isinstance(image_or_id, Integral) else {"image": _base64(image_or_id)}
        return self._json(int, "POST", _path(stream, "corrections"), "id", body | {"label": label}, idempotent=True)

    def corrections(self, stream: str) -> list[dict[str, Any]]:
        """Return the corrections of a stream."""
        return self._json(list, "GET", _path(stream, "corrections"), "corrections")

    def undo(self, stream: str, correction: int) -> None:
        """Undo a correction."""
        self._send("DELETE", _path(stream, "corrections", str(int(correction))))

    def freeze(self, stream: str, frozen: bool = True) -> dict[str, Any]:
        """Stop learning, or with `frozen=False` resume it."""
        return self._json(dict, "POST", _path(stream, "freeze" if frozen else "unfreeze"), idempotent=True)

    def reset(self, stream: str) -> dict[str, Any]:
        """Forget everything learnt; the snapshots remain."""
        return self._json(dict, "POST", _path(stream, "reset"))

    def snapshots(self, stream: str) -> list[dict[str, Any]]:
        """Return the snapshots that can be rolled back to, newest first."""
        return self._json(list, "GET", _path(stream, "snapshots"), "snapshots")

    def snapshot(self, stream: str) -> int:
        """Take a snapshot; returns its id."""
        return self._json(int, "POST", _path(stream, "snapshot"), "snapshot")

    def rollback(self, stream: str, snapshot: int | None = None) -> int:
        """Go back to a snapshot, by default the last one that differs; returns its id."""
        return self._json(int, "POST", _path(stream, "rollback"), "snapshot", body={"snapshot": snapshot})

    def state(self, stream: str) -> bytes:
        """Return what was learnt, as the content of a state file."""
        return self._send("GET", _path(stream, "state"), most=MAX_STATE_BYTES)

    def upload_state(self, stream: str, state: bytes | str | os.PathLike[str]) -> dict[str, Any]:
        """Continue from a state file: its content, or its path."""
        content = state if isinstance(state, bytes) else Path(state).read_bytes()
        return self._json(
            dict, "PUT", _path(stream, "state"), content=content, headers={"Content-Type": "application/octet-stream"}
        )

    def caches(self, stream: str, thumbnails: bool = False) -> list[dict[str, Any]]:
        """Return every cache entry: label, entropy, id, client, and thumbnail if the stream keeps them."""
        return self._json(list, "GET", _path(stream, "caches"), "entries", params={"thumbnails": thumbnails})

    def learnt(self, stream: str) -> dict[str, Any]:
        """Return what was learnt about each label, and how much each client has taught."""
        return self._json(dict, "GET", _path(stream, "learnt"))

    def _json(
        self,
        kind: type[Value],
        method: str,
        path: str,
        field: str = "",
        body: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> Value:
        """Send a request, with a body of JSON if there is one; returns the JSON of the answer, or a field of it."""
        if body is not None:
            request["content"] = json.dumps(body, default=lambda number: number.item())  # numbers of NumPy have `item`
            request["headers"] = {"Content-Type": "application/json"}
        content = self._send(method, path, **request)
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            found = json.loads(content)
            found = found[field] if field else found
            rows = found if isinstance(found, list) else []
            if isinstance(found, kind) and all(isinstance(row, dict) for row in rows):
                return found
        raise ServiceError(0, "unexpected", f"{self.url} does not answer as acclimate does; check the URL.")

    def _send(
        self,
        method: str,
        path: str,
        *,
        idempotent: bool = False,
        retries: int | None = None,
        most: int = MAX_ANSWER_BYTES,
        **request: Any,
    ) -> bytes:
        """Send a request, several times if it was not carried out or is `idempotent`; `request` is that of httpx."""
        left = self.retries if retries is None else retries
        wait = 0.5
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return self._attempt(deadline, most, method, f"{self.url}{path}", **request)
            except ServiceError as error:
                delivered = not isinstance(error.__cause__, httpx.ConnectError)
                again = error.status in (429, 503) if error.status else idempotent or method == "GET" or not delivered
                wait = min(error.retry_after or wait, 10.0)
                if not left or not again or time.monotonic() + wait > deadline:
                    raise
            time.sleep(wait)
            left -= 1
            wait *= 2

    def _attempt(self, deadline: float, most: int, method: str, url: str, **request: Any) -> bytes:
        """Send a request once. The timeout of httpx is that of each wait; that of an answer is checked here."""
        content = bytearray()
        seconds = max(deadline - time.monotonic(), 0.001)
        try:
            with self._http.stream(method, url, timeout=seconds, **request) as response:
                for part in response.iter_raw():
                    content += part
                    if len(content) > most:
                        raise ServiceError(
                            response.status_code, "unexpected", f"the answer has more than {most} bytes."
                        )
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("timed out")
        except (httpx.TransportError, httpx.InvalidURL) as error:
            message = f"{self.url} cannot be reached: {str(error)[:MAX_ERROR_CHARS]}"
            raise ServiceError(0, "unreachable", message) from error
        if response.is_success:
            return bytes(content)
        raise _failure(response, content)


def _failure(response: httpx.Response, content: bytes | bytearray) -> ServiceError:
    """Return the error that a response describes; that of a proxy has a status only, or an address to go to."""
    status = f"{response.status_code} {response.reason_phrase} {response.headers.get('Location', '')}"
    fields = {"code": "unexpected", "message": f"the answer is {status[:200].strip()}; check the URL of the service."}
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        error = json.loads(content)["error"]
        fields = {name: str(error[name])[:MAX_ERROR_CHARS] for name in ("code", "message", "request_id")}
    asked = response.headers.get("Retry-After", "")  # seconds; proxies may send a date
    return ServiceError(response.status_code, **fields, retry_after=float(asked[:9]) if asked.isdecimal() else None)


def _path(stream: str, *parts: str) -> str:
    return "/".join(["/v1/streams", quote(stream, safe=""), *parts])


def _base64(image: Any) -> str:
    return b64encode(_named(image)[1]).decode()


def _named(image: Any) -> tuple[str, bytes]:
    """Return file name and content of an image: a path, encoded bytes, or a Pillow image."""
    if isinstance(image, (bytes, bytearray)):
        return "image", bytes(image)
    if isinstance(image, (str, os.PathLike)):
        return Path(image).name.encode(errors="replace").decode(), Path(image).read_bytes()
    if not hasattr(image, "save"):
        raise TypeError(f"an image is a path, encoded bytes or a Pillow image, got {type(image).__name__}.")
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "PNG")
    return "image", buffer.getvalue()
