"""A client of `acclimate serve`, with nothing but the standard library."""

import io
import json
import os
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener
from uuid import uuid4

from acclimate.errors import AcclimateError

BUSY = (429, 503)  # statuses of a request that was not carried out and may be sent again
JSON = "application/json"
RETRY_S = 10.0  # the longest wait between two attempts


class ServiceError(AcclimateError):
    """A request that failed.

    Attributes:
        status: of the response; 0 if there was none.
        code: what went wrong, for programs: "not_found", "invalid", "busy", ...; "unreachable" without a response.
        message: the same for people.
        request_id: identifies the request in the log of the service.
    """

    def __init__(self, status: int, code: str, message: str, request_id: str = "") -> None:
        super().__init__(f"{message} ({code})")
        self.status, self.code, self.message, self.request_id = status, code, message, request_id


class Client:
    """Talks to a service that was started with `acclimate serve`.

    What the service answers is returned as it is: dicts and lists of plain values, as in the API documentation at
    /docs. Requests that the service refuses because it is busy are sent again after the time that it asks for, and so
    are those that cannot be delivered. When a connection breaks later, the request may have been carried out, and it is
    sent again only where twice is as good as once: reading, answering without learning, correcting and freezing.
    Others are not; an image would be learnt twice. Redirects to another address are refused: the token is for this one.

    Args:
        url: address of the service.
        token: needed if the service was started with `--token-file`.
        timeout: seconds to wait for an answer.
        retries: how often a request is sent again at most.

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
        self.url, self.timeout, self.retries = url.rstrip("/"), timeout, retries
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = build_opener(_SameOrigin)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def ready(self) -> bool:
        """Whether the service accepts images at the moment; ServiceError if it cannot be reached."""
        try:
            return bool(self._get("/health/ready", retries=0)["ready"])
        except ServiceError as error:
            if error.status == 503:
                return False
            raise

    def metrics(self) -> str:
        """The metrics in Prometheus' text format."""
        return self._send("GET", "/metrics").decode()

    def streams(self) -> list[dict[str, Any]]:
        """The streams that the token may use."""
        return cast(list[dict[str, Any]], self._get("/v1/streams")["streams"])

    def create(self, stream: str, labels: Iterable[str], **setup: Any) -> dict[str, Any]:
        """Create a stream with labels, and a `method`, `settings`, `templates`, ... if they are given."""
        return self._json("POST", "/v1/streams", {"name": stream, "labels": list(labels), **setup})

    def describe(self, stream: str) -> dict[str, Any]:
        """A stream: labels, settings, counts, and its problems, if it has any."""
        return self._get(_path(stream))

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
        answer = self._parsed(self._send("POST", path, body, kind, again=not adapt))
        return cast(list[dict[str, Any]], answer["results"])

    def zero_shot(self, image: Any, labels: Iterable[str], template: str | None = None) -> list[dict[str, Any]]:
        """Classify an image into any labels without a stream; nothing is learnt."""
        parameters = {"candidate_labels": list(labels), "hypothesis_template": template}
        body = json.dumps({"inputs": _base64(image), "parameters": parameters}).encode()
        answers = self._parsed(self._send("POST", "/classify", body, JSON, again=True))
        return cast(list[dict[str, Any]], answers)

    def change_labels(self, stream: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> dict[str, Any]:
        """Add and remove labels; what was learnt about the others is kept."""
        return self._json("PATCH", _path(stream, "labels"), {"add": list(add), "remove": list(remove)})

    def correct(self, stream: str, image_or_id: Any, label: str) -> int:
        """Say what an image shows: one that was learnt, by its id, or any image. Returns the correction's id."""
        given = {"id": image_or_id} if isinstance(image_or_id, int) else {"image": _base64(image_or_id)}
        answer = self._json("POST", _path(stream, "corrections"), {**given, "label": label}, again=True)
        return cast(int, answer["id"])

    def corrections(self, stream: str) -> list[dict[str, Any]]:
        """The corrections of a stream."""
        return cast(list[dict[str, Any]], self._get(_path(stream, "corrections"))["corrections"])

    def undo(self, stream: str, correction: int) -> None:
        """Undo a correction."""
        self._send("DELETE", _path(stream, "corrections", str(correction)))

    def freeze(self, stream: str, frozen: bool = True) -> dict[str, Any]:
        """Stop learning, or with `frozen=False` resume it."""
        return self._json("POST", _path(stream, "freeze" if frozen else "unfreeze"), again=True)

    def reset(self, stream: str) -> dict[str, Any]:
        """Forget everything learnt; the snapshots remain."""
        return self._json("POST", _path(stream, "reset"))

    def snapshots(self, stream: str) -> list[dict[str, Any]]:
        """The snapshots that can be rolled back to, newest first."""
        return cast(list[dict[str, Any]], self._get(_path(stream, "snapshots"))["snapshots"])

    def snapshot(self, stream: str) -> int:
        """Take a snapshot; returns its id."""
        return cast(int, self._json("POST", _path(stream, "snapshot"))["snapshot"])

    def rollback(self, stream: str, snapshot: int | None = None) -> int:
        """Go back to a snapshot, by default the last one that differs; returns its id."""
        return cast(int, self._json("POST", _path(stream, "rollback"), {"snapshot": snapshot})["snapshot"])

    def state(self, stream: str) -> bytes:
        """What was learnt, as the content of a state file."""
        return self._send("GET", _path(stream, "state"))

    def upload_state(self, stream: str, state: bytes | str | os.PathLike[str]) -> dict[str, Any]:
        """Continue from a state file: its content, or its path."""
        content = state if isinstance(state, bytes) else Path(state).read_bytes()
        answer = self._parsed(self._send("PUT", _path(stream, "state"), content, "application/octet-stream"))
        return cast(dict[str, Any], answer)

    def caches(self, stream: str, thumbnails: bool = False) -> list[dict[str, Any]]:
        """Every cache entry: label, entropy, id, client, and thumbnail if the stream keeps them."""
        found = self._get(f"{_path(stream, 'caches')}?{urlencode({'thumbnails': str(thumbnails).lower()})}")
        return cast(list[dict[str, Any]], found["entries"])

    def learnt(self, stream: str) -> dict[str, Any]:
        """What was learnt about each label, and how much each client has taught."""
        return self._get(_path(stream, "learnt"))

    def _get(self, path: str, retries: int | None = None) -> dict[str, Any]:
        return cast(dict[str, Any], self._parsed(self._send("GET", path, retries=retries)))

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, again: bool = False
    ) -> dict[str, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        return cast(dict[str, Any], self._parsed(self._send(method, path, content, JSON, again=again)))

    def _parsed(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError as error:
            message = f"{self.url} does not answer as acclimate does; check the URL."
            raise ServiceError(0, "unexpected", message) from error

    def _send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        kind: str = "",
        *,
        again: bool = False,
        retries: int | None = None,
    ) -> bytes:
        """Send a request, several times if it was not carried out, or if it may be carried out `again`."""
        headers = self._headers | ({"Content-Type": kind} if kind else {})
        left = self.retries if retries is None else retries
        again, wait = again or method == "GET", 0.5
        while True:
            request = Request(f"{self.url}{path}", body or None, headers, method=method)
            try:
                with self._opener.open(request, timeout=self.timeout) as response:
                    return cast(bytes, response.read())
            except HTTPError as answer:
                failure = _failure(answer)
                asked = answer.headers.get("Retry-After", "")  # seconds, or of a proxy a date
                wait = float(asked) if asked.isdecimal() else wait
                worth_it = answer.code in BUSY
            except (URLError, HTTPException, OSError) as error:
                reason = getattr(error, "reason", error)
                failure = ServiceError(0, "unreachable", f"{self.url} cannot be reached: {reason}")
                worth_it = again or isinstance(reason, ConnectionRefusedError)
            if not left or not worth_it:
                raise failure
            time.sleep(min(wait, RETRY_S))
            left, wait = left - 1, 2 * wait


class _SameOrigin(HTTPRedirectHandler):
    """Follows redirects to the same scheme, host and port only: they get the headers of the request."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if (old.scheme, old.netloc) != (new.scheme, new.netloc):
            fp.close()
            message = f"{old.scheme}://{old.netloc} redirects to {newurl}; give that address if it is the service."
            raise ServiceError(code, "unexpected", message)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _failure(answer: HTTPError) -> ServiceError:
    with answer:
        content = answer.read()
    try:
        error = json.loads(content)["error"]
        return ServiceError(answer.code, error["code"], error["message"], error["request_id"])
    except (ValueError, KeyError, TypeError):  # of a proxy, say
        return ServiceError(answer.code, "unexpected", f"{answer.code} {answer.reason}")


def _path(stream: str, *parts: str) -> str:
    return "/".join(["/v1/streams", quote(stream, safe=""), *parts])


def _named(image: Any) -> tuple[str, bytes]:
    """File name and content of an image: a path, encoded bytes, or a Pillow image."""
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
    """Body and content type of a form with image files."""
    boundary = uuid4().hex
    parts = []
    for name, content in files:
        safe = name.replace("\\", "_").replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{safe}"\r\n\r\n'
        parts.append(head.encode() + content + b"\r\n")
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"
