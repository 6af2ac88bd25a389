"""The connections of the HTTP server: their number, the eviction order when there are too many, and their timeouts.

uvicorn keeps a connection for as long as its client likes. Here every connection is in a `Phase`, and each phase has a
limit of its own: beyond it, the connection is closed that has been in this phase the longest, of the address that has
most of them. A client that sends its request when it connects is hence answered, whatever others do with their
connections, even from its own address.
"""

import asyncio
import errno
import json
import os
import socket
from collections import Counter
from contextlib import suppress
from enum import Enum
from struct import pack
from time import monotonic
from typing import Any
from uuid import uuid4

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from acclimate.serve.chunks import Parser
from acclimate.serve.limits import Limits
from acclimate.serve.networks import network

MAX_CONNECTIONS = 1024  # fewer if there are not enough file handles
RESERVED_HANDLES = 256  # file handles for states, journals, workers, and connections that are being opened or closed
EVENT_LOOP_TURNS = 8  # a request that was sent at once is read within so many turns
MAX_HEADER_BYTES = 16 * 2**10  # request line with all headers
MAX_PIPELINED_BYTES = 64 * 2**10  # bytes sent before the response to an earlier request
HEADER_END = b"\r\n\r\n"
MAX_PIPELINED_REQUESTS = 16  # requests sent before that response
SEND_BUFFER_BYTES = 64 * 2**10  # the kernel's buffer per connection
MAX_UNREAD_BYTES = 64 * 2**20  # unread responses of all clients together
MIN_READ_BYTES_PER_S = 8 * 2**10  # required of a client with unread data, averaged over READ_S
READ_S = 10.0
STOP_S = 5.0  # time left to send bodies and read responses once the service is asked to stop
SWEEP_S = 1.0
RESET = pack("HH" if os.name == "nt" else "ii", 1, 0)  # value of SO_LINGER: closing discards unsent data
NO_HANDLES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Phase(Enum):
    """The event that a connection is waiting for."""

    HEADER = "the complete header of its first request"
    IDLE = "the complete header of another request"
    BODY = "the rest of a request's body"
    ANSWER = "the answer of the service"
    READER = "the client, which has to read a response"
    CLOSED = "nothing"


def connection_limit() -> int:
    """Return the largest number of connections: `MAX_CONNECTIONS`, or as many as there are file handles for.

    The limit of file handles is raised as far as allowed.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = MAX_CONNECTIONS + RESERVED_HANDLES
    if soft != unlimited and soft < wanted:
        raised = wanted if hard == unlimited else min(hard, wanted)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return MAX_CONNECTIONS if soft == unlimited else min(MAX_CONNECTIONS, soft - min(RESERVED_HANDLES, soft // 2))


class Connections:
    """All connections of a server by phase and address, with one timer for all of them.

    A quarter of the places is for connections without a complete header, a quarter for idle ones, and one address may
    have half of each. The other half is for requests: to make room for one, the client that is slowest to read its
    response or to send its body is closed. Only if the service works on all of them, it is `full`.

    Attributes:
        most: number of connections.
        accepts: connections to accept at a time, few enough for each to be served before it is the longest.
    """

    def __init__(self, limits: Limits, most: int | None = None) -> None:
        self.most = most or connection_limit()
        self._header_s = limits.header_s
        self.accepts = max(1, self.most // 8 // EVENT_LOOP_TURNS)
        self._phases: dict[Phase, dict[str, dict[Connection, float]]] = {phase: {} for phase in Phase}
        self._counts: Counter[Phase] = Counter()
        self._unread = 0  # bytes of all responses that wait for their readers
        self._stopped: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """True if another request would be one too many."""
        requests = self._counts[Phase.BODY] + self._counts[Phase.ANSWER] + self._counts[Phase.READER]
        return requests > self.most // 2

    def move(self, connection: "Connection", phase: Phase) -> None:
        """Note the phase that a connection is in now, and close another one if there are too many."""
        before = connection.phase
        address = connection.address
        if before in (phase, Phase.CLOSED):
            return
        if before is not None:
            group = self._phases[before][address]
            del group[connection]
            if not group:
                del self._phases[before][address]
            self._counts[before] -= 1
            self._unread -= connection.unread
            connection.unread = 0
        connection.phase = phase
        if phase is Phase.CLOSED:
            return
        self._phases[phase].setdefault(address, {})[connection] = monotonic()
        self._counts[phase] += 1
        if phase is Phase.READER:
            connection.unread = connection.transport.get_write_buffer_size()
            self._unread += connection.unread
        self._make_room(phase, address)
        if self._timer is None:
            self._timer = connection.loop.call_later(SWEEP_S, self._sweep, connection.loop)
        if self._stopped is not None and phase in (Phase.HEADER, Phase.IDLE):
            self.close(connection)

    def _make_room(self, phase: Phase, address: str) -> None:
        quarter = self.most // 4
        if phase in (Phase.HEADER, Phase.IDLE):
            if len(self._phases[phase][address]) > quarter // 2:
                self.close(next(iter(self._phases[phase][address])))
            elif self._counts[phase] > quarter:
                self.close_longest(phase)
        elif self.full and not self.close_longest(Phase.READER) and self._counts[Phase.BODY] > 1:
            self.close_longest(Phase.BODY)
        while self._unread > MAX_UNREAD_BYTES and self._counts[Phase.READER] > 1:
            self.close_longest(Phase.READER)

    def close_longest(self, phase: Phase) -> bool:
        """Close the longest in a phase, of the address that has most of them there; False if there is none."""
        groups = self._phases[phase]
        if groups:
            largest = max(groups.values(), key=len)
            self.close(next(iter(largest)))
            return True
        return False

    def close(self, connection: "Connection") -> None:
        """Close a connection at once, whatever its client has not read."""
        if connection.phase is Phase.READER:  # the kernel must not keep it either
            connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.move(connection, Phase.CLOSED)
        connection.transport.abort()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections whose time is over."""
        now = monotonic()
        late: list[Connection] = []
        for phase in (Phase.HEADER, Phase.IDLE):
            for group in self._phases[phase].values():
                for connection, since in group.items():  # the longest first
                    if now - since < self._header_s:
                        break
                    late.append(connection)
        for group in self._phases[Phase.READER].values():
            for connection, since in group.items():
                if now - since >= READ_S:
                    left = connection.transport.get_write_buffer_size()
                    if connection.unread - left < MIN_READ_BYTES_PER_S * READ_S:
                        late.append(connection)
                    group[connection] = now
                    self._unread += left - connection.unread
                    connection.unread = left
        if self._stopped is not None and now - self._stopped >= STOP_S:
            late += [each for phase in (Phase.BODY, Phase.READER) for each in self._in(phase)]
        for connection in late:
            self.close(connection)
        self._timer = loop.call_later(SWEEP_S, self._sweep, loop) if self._counts.total() else None

    def _in(self, phase: Phase) -> list["Connection"]:
        return [connection for group in self._phases[phase].values() for connection in group]

    def stop(self) -> None:
        """Close the connections that have no request, and from now on every connection once its request is done."""
        self._stopped = monotonic()
        for connection in self._in(Phase.HEADER) + self._in(Phase.IDLE):
            self.close(connection)


class Connection(H11Protocol):
    """One connection, which tells `Connections` what it is waiting for."""

    phase: Phase | None = None
    address = ""
    unread = 0  # bytes of a response, when its reader was last looked at

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.conn = Parser(h11.SERVER, MAX_HEADER_BYTES)
        self._all = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a header."""
        transport.set_write_buffer_limits(high=0)  # a response counts as read when nothing of it is left here
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.address = network(str(peer[0]) if peer else "", ipv4=32)  # many clients may share a part of IPv4
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place."""
        super().connection_lost(exc)
        self._all.move(self, Phase.CLOSED)

    def handle_events(self) -> None:
        """Handle what was received."""
        super().handle_events()
        self._note()
        if self.flow.read_paused and self.phase in (Phase.ANSWER, Phase.READER):
            ahead = self.conn.trailing_data[0]
            if len(ahead) > MAX_PIPELINED_BYTES or ahead.count(HEADER_END) > MAX_PIPELINED_REQUESTS:
                self._all.close(self)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to read this response."""
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._note()

    def resume_writing(self) -> None:
        """Go on, now that the client has read everything."""
        super().resume_writing()
        self._note()

    def _note(self) -> None:
        if self.flow.write_paused:
            phase = Phase.READER
        elif self.cycle is None:
            phase = Phase.HEADER
        elif self.cycle.response_complete:
            phase = Phase.IDLE
        else:
            phase = Phase.BODY if self.cycle.more_body else Phase.ANSWER
        self._all.move(self, phase)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP as every failed request is answered, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application must not answer as well
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            message = f"this is not a valid HTTP/1.1 request with a header of at most {MAX_HEADER_BYTES} bytes."
            error = {"code": "bad_request", "message": message, "request_id": uuid4().hex}
            content = json.dumps({"error": error}).encode()
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
            answer = h11.Response(status_code=400, headers=[*headers, ("Connection", "close")], reason=b"Bad Request")
            self.transport.write(self.conn.send(answer) or b"")
            self.transport.write(self.conn.send(h11.Data(content)) or b"")
            self.conn.send(h11.EndOfMessage())
        self.transport.close()


class ConnectionServer(uvicorn.Server):
    """A server that closes connections when it stops, or when file handles run out."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._all = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        asyncio.get_running_loop().set_exception_handler(self._failed)
        for each in sockets or []:
            if isinstance(each, Listening):
                each.at_once = self._all.accepts
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the running requests only."""
        self._all.stop()
        await super().shutdown(sockets)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if getattr(context.get("exception"), "errno", None) in NO_HANDLES:
            for _ in range(self._all.accepts):
                _ = self._all.close_longest(Phase.HEADER) or self._all.close_longest(Phase.IDLE)
        loop.default_exception_handler(context)


class Listening(socket.socket):
    """A listening socket from which an event loop accepts few connections at a time.

    asyncio would accept thousands before it serves the first one, or fail as often if file handles run out.
    """

    at_once = 1
    _accepted = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; BlockingIOError if others must be served first."""
        if self._accepted >= self.at_once:
            self._accepted = 0
            raise BlockingIOError
        try:
            accepted = super().accept()
        except OSError as error:
            # After one failure asyncio waits for a second, if it does not try again now.
            self._accepted = self.at_once if error.errno in NO_HANDLES else 0
            raise
        self._accepted += 1
        return accepted
