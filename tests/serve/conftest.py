"""A real service in this process: real sockets, real streams, the tiny model."""

import shutil
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Thread

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from acclimate.encoders import load_encoder
from acclimate.serve.app import create_app
from acclimate.serve.limits import Limits
from acclimate.serve.security import LOOPBACK_NAMES, AccessMiddleware
from acclimate.serve.server import bind, make_server
from acclimate.serve.streams import Streams
from drawn_images import draw, encoded
from portal import running
from service_process import PATIENT
from waiting import wait_until

LABELS = ["red circle", "green square", "blue stripes"]


@pytest.fixture(scope="session")
def encoder(tiny_onnx):
    return load_encoder(f"onnx:{tiny_onnx}", "cpu")


@pytest.fixture(scope="session")
def pictures():
    """Return twelve drawn images as PNG files."""
    return [encoded(draw(("red", "green", "blue")[i % 3], i)) for i in range(12)]


@pytest.fixture(scope="session")
def serve(encoder, tmp_path_factory):
    """Return a function that starts services: `with serve(...) as client`; streams `one` and `two` are there."""

    @contextmanager
    def start(tokens=None, defaults=None, folder=None, **limits):
        folder = folder or tmp_path_factory.mktemp("service")
        streams = Streams(folder, encoder, Limits(**PATIENT | limits), defaults)
        with start_blocking_portal() as portal:  # a thread of its own: a browser's driver may run an event loop here
            portal.call(create_streams, streams)
        with bind("127.0.0.1", 0) as listening:
            server = make_server(create_app(streams, tokens, LOOPBACK_NAMES))
            thread = Thread(target=server.run, args=([listening],), daemon=True)
            thread.start()
            try:
                wait_until(lambda: server.started or not thread.is_alive())
                host, port = listening.getsockname()
                with httpx.Client(base_url=f"http://{host}:{port}", timeout=180) as client:
                    client.streams = streams
                    client.app = server.config.app
                    client.folder = folder
                    client.server = server
                    client.gate = gate_of(server.config.app)
                    client.time_limit = partial(time_limit, client)
                    yield client
            finally:
                server.should_exit = True
                thread.join(180)
            assert not thread.is_alive(), "the service does not stop"

    return start


@pytest.fixture
def client(serve):
    """Return a client of a service without tokens."""
    with serve() as client:
        yield client


@pytest.fixture(scope="session")
def images(photos):
    """Return forty drawn images as PNG files."""
    return [path.read_bytes() for path in sorted(photos.rglob("*.png"))]


@pytest.fixture
def start(encoder, tmp_path):
    """Return a function that starts services on a folder, for blocking calls; they are closed at the end."""
    with ExitStack() as services:

        def begin(folder="state", model=encoder, learned=None, **limits):
            service = running(tmp_path / folder, model, Limits(**PATIENT | limits), prompts=learned)
            return services.enter_context(service)

        yield begin


@pytest.fixture
def after_a_kill(start, tmp_path):
    """Return a function that starts a service on a copy of the present files: what a kill now would leave."""

    def begin(**limits):
        copy = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        shutil.copytree(tmp_path / "state", copy)
        return start(copy.name, **limits)

    return begin


def gate_of(app):
    """Return the middleware that counts requests and bodies, and ends what takes too long."""
    gate = app.middleware_stack
    while not isinstance(gate, AccessMiddleware):
        gate = gate.app
    return gate


@contextmanager
def time_limit(client, seconds):
    """Give the requests of a service another time limit while the block runs."""
    limits = client.gate.limits
    client.gate.limits = limits.model_copy(update={"timeout_s": seconds})
    try:
        yield
    finally:
        client.gate.limits = limits


async def create_streams(streams):
    """Create the streams `one` and `two`, unless they are there."""
    for name in sorted({"one", "two"} - {each["name"] for each in streams.describe()}):
        await streams.create(name, LABELS, method="tda", skip_duplicates=False)
