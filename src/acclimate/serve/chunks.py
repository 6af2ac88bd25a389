"""HTTP/1.1 whose bodies do not come in crumbs: parsing a chunk costs the same time for one byte as for many."""

from typing import Any

import h11

FREE = 1000  # chunks of a body that may have any size
SMALLEST = 512  # bytes that the chunks of a longer body have on average


class Parser(h11.Connection):
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
