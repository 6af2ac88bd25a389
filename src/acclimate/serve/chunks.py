"""An HTTP/1.1 parser that refuses bodies in tiny chunks: parsing a chunk of one byte costs as much as a large one."""

from typing import Any

import h11

UNCHECKED_CHUNKS = 1000  # chunks of a body that may have any size
MIN_MEAN_CHUNK_BYTES = 512  # required average once a body has more chunks


class Parser(h11.Connection):
    """A parser of the requests of a connection; a body in many tiny chunks is an error."""

    chunks = 0  # chunks of the current body
    size = 0  # bytes of the current body

    def next_event(self) -> Any:
        """Return the next part of a request."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = self.size = 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_end
            self.size += len(event.data)
            if self.chunks > UNCHECKED_CHUNKS and self.size < MIN_MEAN_CHUNK_BYTES * self.chunks:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event
