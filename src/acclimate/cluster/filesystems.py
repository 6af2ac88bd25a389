"""File systems by URL: those that pyarrow knows (S3, Google, Azure, Hadoop), and those of fsspec.

A URL is a scheme, a bucket or a host, and a path that is taken as it is written: `s3://bucket/my photos/cat #1.jpg`.
Credentials and endpoints come from the environment, where the tools of each store look for them.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode

from acclimate.errors import InputError, MissingExtraError, install_command, missing, reason
from acclimate.images.opening import URL

STORES = ("s3", "gcs", "abfs")  # pyarrow's names of object stores, where a file appears when it is complete
OF_PYARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
LOCAL = ("file", "local")
GOOGLE_RETRY_S = 60  # time for which requests to Google are repeated; the default is a quarter of an hour
CREDENTIALS = "the credentials in the environment (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE)"
HINTS = {  # words in errors of stores, in lower case -> advice
    "no_such_bucket|bucket.*(not exist|not found)": "check the name of the bucket, and AWS_ENDPOINT_URL",
    "access_denied|access_key|signature|forbidden|permission|status 40[13]|unauthorized|credential": "check "
    f"{CREDENTIALS}, and that they allow this",
    "resolving region": "check the name of the bucket, and the network; or set AWS_ENDPOINT_URL",
    "network_connection|resolve|connect|time.?out|timed out": "check the network, and AWS_ENDPOINT_URL",
}


class UnreachableError(OSError):
    """A file system that refused, with a reason and a hint."""


def is_local(url: str) -> bool:
    """Return True if this is a path on the local disk, or a `file://` URL of one."""
    return not URL.match(url) or url.partition(":")[0].lower() in LOCAL


def local_path(url: str) -> str:
    """Return the absolute path of what `is_local`: processes elsewhere may have another working directory.

    Examples:
        >>> local_path("file:///data/photos"), local_path("/data/../data/photos/")
        ('/data/photos', '/data/photos')
    """
    if not URL.match(url):
        return os.path.abspath(url)  # noqa: PTH100 (pathlib keeps "..")
    host, _, path = url.partition("://")[2].partition("/")
    if host not in ("", "localhost"):
        raise InputError(f"{url} names the machine {host}; write file:///PATH for a file of this one.")
    return os.path.abspath(f"/{path}")  # noqa: PTH100


def locate(url: str) -> tuple[Any, str]:
    """Return the file system (pyarrow.fs.FileSystem) of a URL, opened once per process, and the path within it.

    Raises:
        InputError: the scheme is unknown, or the URL contains a password.
        MissingExtraError: a package is missing.
        OSError: the file system cannot be reached.
    """
    root, path = split(url)
    filesystem, base = _open(root)
    return filesystem, f"{base.rstrip('/')}/{path}" if path else base


def split(url: str) -> tuple[str, str]:
    """Return the root of a URL and the path below it.

    Examples:
        >>> split("s3://bucket/photos//cats/")
        ('s3://bucket', 'photos/cats')
        >>> split("https://example.org/a.jpg?size=2")
        ('https://example.org', 'a.jpg?size=2')
    """
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    if not host:
        raise InputError(f"{url} names no bucket or host; write {scheme}://BUCKET/PATH.")
    if ":" in host.rpartition("@")[0] and scheme != "github":
        raise InputError(
            f"the URL of {scheme}://{host.rpartition('@')[2]} contains a password, which would be written to results; "
            "put it into the environment (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)."
        )
    return f"{scheme.lower()}://{host}", "/".join(part for part in path.split("/") if part)


def check_scheme(url: str) -> None:
    """Refuse a URL whose scheme is unknown or whose package is missing, without opening anything."""
    scheme = split(url)[0].partition("://")[0]
    _require_pyarrow(url)
    if scheme not in OF_PYARROW:
        _fsspec_class(scheme, url)


@contextmanager
def explained(doing: str = "") -> Iterator[None]:
    """Turn whatever a file system raises within the block into an OSError with a reason and a hint; not missing files.

    Args:
        doing: such as "read s3://bucket/photo.jpg", if the message should say so.
    """
    try:
        yield
    except (FileNotFoundError, InputError, MissingExtraError, UnreachableError):
        raise
    except Exception as error:  # libraries for file systems raise errors of many kinds
        why = " ".join((reason(error) if isinstance(error, OSError) else f"{error}" or type(error).__name__).split())
        hint = next((hint for pattern, hint in HINTS.items() if re.search(pattern, why.lower())), "")
        raise UnreachableError(f"{doing and f'cannot {doing}: '}{why.rstrip('.')}{hint and f'; {hint}'}") from error


@lru_cache(64)
def _open(root: str) -> tuple[Any, str]:
    _require_pyarrow(root)
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    scheme, _, host = root.partition("://")
    with explained(f"open {root}"):
        if scheme == "s3" and host.startswith("anonymous@"):  # Ray's notation
            return _anonymous_s3(host.partition("@")[2])
        if scheme in OF_PYARROW:
            try:
                found, base = FileSystem.from_uri(_uri(scheme, host))
            except (ValueError, NotImplementedError):  # pyarrow was built without it: fsspec may know it
                pass
            else:
                return found, base
        _fsspec_class(scheme, root)
        from fsspec.core import url_to_fs

        filesystem, base = url_to_fs(f"{root}/")
        return PyFileSystem(FSSpecHandler(filesystem)), base


def _uri(scheme: str, host: str) -> str:
    """Return the URI that pyarrow opens; for S3, with the endpoint of the environment, which old versions ignore."""
    host = quote(host, safe="@:.-_")
    if scheme in ("gs", "gcs"):
        return f"{scheme}://{host}?retry_limit_seconds={GOOGLE_RETRY_S}"
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if scheme != "s3" or not endpoint:
        return f"{scheme}://{host}"
    protocol, _, address = endpoint.rpartition("://")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    options = {"scheme": protocol or "https", "endpoint_override": address.rstrip("/"), "region": region}
    return f"s3://{host}?{urlencode(options)}"


def _anonymous_s3(bucket: str) -> tuple[Any, str]:
    from pyarrow.fs import S3FileSystem, resolve_s3_region

    return S3FileSystem(anonymous=True, region=resolve_s3_region(bucket)), bucket


def _require_pyarrow(url: str) -> None:
    try:
        import pyarrow.fs  # noqa: F401
    except ImportError as error:
        raise missing(f"{url} needs pyarrow", "parquet") from error


def _fsspec_class(scheme: str, url: str) -> None:
    """Import the file system of fsspec for a scheme."""
    try:
        import fsspec
    except ImportError as error:
        raise missing(f"{url} needs fsspec", "ray") from error
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError:
        raise InputError(
            f"unknown scheme {scheme}:// in {url}; write s3://, gs://, abfs://, hdfs:// or another that fsspec knows."
        ) from None
    except ImportError as error:
        package = re.search(r"(?:[Ii]nstall|requires) [\"'`]?([\w.-]+)", str(error))
        command = install_command("", package[1]) if package else str(error)
        raise MissingExtraError(f"{scheme}:// needs a package that is not installed: {command}.") from error
