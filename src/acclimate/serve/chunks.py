"""HTTP/1.1 whose bodies do not come in crumbs: parsing a chunk costs the same time for one byte as for many."""

from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

FREE = 1000  # chunks of a body that may have any size
SMALLEST = 512  # bytes that the chunks of a longer body have on average


class Connection(h11.Connection):
    """Parses the requests of a connection; a body in many tiny chunks is an error."""

    chunks = size = 0  # of the current body

    def next_event(self) -> Any:
        """The next part of a request."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = self.size = 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_end
            self.size += len(event.data)
            if self.chunks > FREE and self.size < SMALLEST * self.chunks:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event


class Protocol(H11Protocol):
    """The protocol of the HTTP server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = Connection(h11.SERVER)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, and close the connection."""
        with suppress(h11.LocalProtocolError):  # it is answered already
            super().send_400_response(msg)
        self.transport.close()
