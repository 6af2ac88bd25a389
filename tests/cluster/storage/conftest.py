"""Places to keep files: the local disk and an S3 server."""

import pytest

from object_store import find_moto, s3_server

pytest.importorskip("pyarrow")


@pytest.fixture(scope="session")
def s3_url():
    if find_moto() is None:
        pytest.skip("moto is not installed: pip install 'moto[s3]' flask flask-cors")
    with s3_server() as url:
        yield url


@pytest.fixture
def s3(s3_url, monkeypatch):
    """Return the URL of a bucket."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_url,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    forget_filesystems()
    yield "s3://bucket"
    forget_filesystems()


@pytest.fixture(params=["path", "s3"])
def base(request, tmp_path):
    """Return the URL of an empty folder, which need not exist."""
    if request.param == "path":
        return (tmp_path / "results").as_posix()
    return f"{request.getfixturevalue(request.param)}/{tmp_path.name}/results"


@pytest.fixture
def elsewhere(s3, tmp_path):
    """Return the URL of an empty folder that is not on the local disk."""
    return f"{s3}/{tmp_path.name}"


def forget_filesystems():
    from acclimate.sources import urls

    urls._open.cache_clear()
    urls._opened.cache_clear()
