"""The front: replicas that answer HTTP with the same application as on one machine."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from threading import Thread
from time import sleep
from typing import Any, ClassVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acclimate.cluster.serving.remote_streams import ClusterStreams
from acclimate.cluster.serving.service_settings import Model, Settings
from acclimate.errors import InputError
from acclimate.serve.app import create_app
from acclimate.serve.logs import logger
from acclimate.serve.security import TokenFile

TOKENS_S = 1.0  # interval between checks of the token file
REQUEST_ID = b"x-request-id"


class Application:
    """The ASGI application of this process, which `Front` makes; unlike that one, this can be sent to a replica."""

    app: ClassVar[ASGIApp | None] = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. Ray Serve's proxy adds the request's id to the response, too."""

        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [each for each in message["headers"] if each[0] != REQUEST_ID]
            await send(message)

        assert Application.app is not None
        await Application.app(scope, receive, send_without_id)


class Front:
    """One replica. It keeps nothing: streams are on shared storage and in their actors.

    Args:
        settings: settings of the service.
        model: the description of the model.
        tokens: True if requests need a token of the file `settings.tokens`, which is read again when it changes.
        hosts: the host names that requests may be sent to; None for any.
        defaults: settings of streams that are created by their first images; None to refuse those.
    """

    def __init__(
        self,
        settings: Settings,
        model: Model,
        tokens: bool,
        hosts: Collection[str] | None,
        defaults: Mapping[str, Any] | None,
    ) -> None:
        settings.begin()
        file = TokenFile(settings.tokens) if tokens else None
        Application.app = create_app(ClusterStreams(settings, model, defaults), file, hosts)
        if file is not None:
            Thread(target=_watch, args=(file,), name="acclimate-tokens", daemon=True).start()


def _watch(file: TokenFile) -> None:
    """Read the token file again whenever it has changed."""
    known = 0  # it may have changed since it was read
    while True:
        sleep(TOKENS_S)
        with suppress(OSError):
            changed = file.path.stat().st_mtime_ns
            if changed != known:
                try:
                    file.reload()
                    known = changed  # else it is tried again: revoked permissions must end here, too
                except InputError as error:
                    logger.error("token file not reloaded", extra={"fields": {"reason": str(error)}})
