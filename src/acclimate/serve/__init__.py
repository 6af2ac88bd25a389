"""The HTTP service: streams that adapt, each for itself, and survive restarts."""

from importlib.util import find_spec

from acclimate.errors import missing


def check_installed() -> None:
    """Refuse to serve without the packages that it needs."""
    for package in ("fastapi", "fastapi_swagger", "prometheus_client", "pydantic_settings", "uvicorn"):
        if find_spec(package) is None:
            raise missing(f"serving needs {package}", "serve")
