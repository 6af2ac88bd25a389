"""Load test of the service: the real command, real sockets, JPEG images.

The floor is the encoder alone on prepared pixels, at the batch size that the service reached, on the same cores, in
alternating rounds.

    python benchmarks/service_load.py
    python benchmarks/service_load.py --before OLD/src     # the service of another source tree in alternating rounds
"""

import argparse
import asyncio
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from acclimate.encoders import Encoder, load_encoder
from acclimate.encoders.convert import convert
from acclimate.images.opening import open_image
from tiny_models import save_tiny_model

ROOT = Path(__file__).parents[1]
ROUNDS = 10
PART = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'


def draw_photos(count: int) -> list[bytes]:
    """Write JPEG files of 320 x 240 pixels with photo-like detail."""
    rng = np.random.default_rng(0)
    photos = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)).resize((320, 240))
        fine = rng.integers(-12, 12, (240, 320, 3))
        buffer = io.BytesIO()
        pixels = np.clip(np.asarray(coarse, int) + fine, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
        photos.append(buffer.getvalue())
    return photos


def encoder_rate(encoder: Encoder, photos: list[bytes], batch: int, seconds: float = 3.0) -> float:
    """Return images per second through the encoder and nothing else."""
    pixels = [encoder.prepare(open_image(photo)) for photo in photos]
    batches = [[pixels[(start + i) % len(pixels)] for i in range(batch)] for start in range(0, len(pixels), batch)]
    encoder.encode_images(batches[0])
    done = 0
    began = perf_counter()
    while perf_counter() - began < seconds:
        encoder.encode_images(batches[done % len(batches)])
        done += 1
    return done * batch / (perf_counter() - began)


async def client(
    address: str, stream: str, photos: list[bytes], share: list[int], times: list[float], images: int
) -> None:
    """Send requests over one connection until the shared list of work is empty."""
    host = urlsplit(address).hostname
    port = urlsplit(address).port
    reader, writer = await asyncio.open_connection(host, port)
    while share:
        first = share.pop()
        chosen = [photos[(first + i) % len(photos)] for i in range(images)]
        body = b"".join(PART + photo + b"\r\n" for photo in chosen) + b"--x--\r\n"
        head = f"POST /v1/streams/{stream}/classify HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(body)}\r\n"
        began = perf_counter()
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        content = await reader.readexactly(int(length[1]))
        assert answer.startswith(b"HTTP/1.1 200"), (answer, content)
        assert json.loads(content)["results"][0]["id"] is not None, content
        times.append(perf_counter() - began)
    writer.close()


async def load(
    address: str, streams: int, clients: int, requests: int, photos: list[bytes], images: int = 1
) -> tuple[float, list[float]]:
    """Requests per second, and the latency of each in seconds."""
    share = list(range(requests))
    times = []
    began = perf_counter()
    work = [client(address, f"stream-{i % streams}", photos, share, times, images) for i in range(clients)]
    await asyncio.gather(*work)
    return requests / (perf_counter() - began), times


class LoadedService:
    """`acclimate serve` of a source tree, in a process of its own, with its measurements.

    Attributes:
        rates: images per second of each round.
        times: the latency of each request in seconds.
        memory: resident memory after each round, in MB.
    """

    def __init__(self, source: Path, model: Path, work: Path) -> None:
        self.rates: list[float] = []
        self.times: list[float] = []
        self.memory: list[float] = []
        command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{model}", "--port", "0"]
        with open(work / "log", "wb") as log:
            self.process = subprocess.Popen(
                [*command, "--data", str(work / "state")],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(source)},
            )
        self.address = self.process.stdout.readline().split()[2]

    def create(self, streams: int, labels: int) -> None:
        """Create streams that learn from every image, as drawn photos are alike."""
        for number in range(streams):
            setup = {"name": f"stream-{number}", "labels": [f"thing {i}" for i in range(labels)]}
            body = json.dumps({**setup, "skip_duplicates": False}).encode()
            with urlopen(Request(f"{self.address}/v1/streams", body, {"Content-Type": "application/json"})):
                pass

    def measure(self, streams: int, clients: int, requests: int, photos: list[bytes]) -> None:
        """Measure one round."""
        rate, took = asyncio.run(load(self.address, streams, clients, requests, photos))
        self.rates.append(rate)
        self.times += took
        self.memory.append(int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096 / 1e6)

    def mean_batch(self) -> int:
        """Return the mean number of images that were encoded at once so far."""
        with urlopen(f"{self.address}/metrics") as answer:
            text = answer.read().decode()
        images, batches = (
            re.search(rf"^acclimate_batch_size_{name} (\S+)$", text, re.MULTILINE) for name in ("sum", "count")
        )
        return round(float(images[1]) / float(batches[1]))

    def close(self) -> None:
        """Stop the service."""
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()

    def summary(self) -> str:
        """Return its rate and latency in words."""
        middle, high, most = np.percentile(self.times, [50, 99, 100]) * 1e3
        rate = f"{np.median(self.rates):.1f} images/s"
        return f"{rate}; latency: median {middle:.0f} ms, 99th percentile {high:.0f} ms, maximum {most:.0f} ms"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--width", type=int, default=384, help="of the encoder's image tower")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--before", type=Path, help="the src folder of an earlier version, to compare with")
    options = parser.parse_args()
    sources = {"service": ROOT / "src"}
    if options.before is not None:
        sources["before"] = options.before
    floors = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        work = Path(name)
        save_tiny_model("clip", work / "torch", size=128, width=options.width, layers=options.layers, patch=16)
        convert(load_encoder(f"local:{work / 'torch'}", "cpu"), work / "onnx")
        encoder = load_encoder(f"onnx:{work / 'onnx'}", "cpu")
        photos = draw_photos(200)
        services = {}
        for key, source in sources.items():
            (work / key).mkdir()
            services[key] = LoadedService(source, work / "onnx", work / key)
            running.callback(services[key].close)
            services[key].create(options.streams, options.labels)
            send = partial(load, services[key].address, options.streams, options.clients)
            asyncio.run(send(options.clients, photos, 16))  # fills the largest batches once
            asyncio.run(send(4 * options.clients, photos))
        for number in range(ROUNDS):
            for service in list(services.values())[:: 1 if number % 2 else -1]:
                service.measure(options.streams, options.clients, options.requests // ROUNDS, photos)
            batch = services["service"].mean_batch()
            floors.append(encoder_rate(encoder, photos, batch))
    service = services["service"]
    setting = f"{options.clients} clients, {options.streams} streams, {options.labels} labels"
    print(f"{setting}: {len(service.times)} requests without errors, in {ROUNDS} alternating rounds")
    for key, each in services.items():
        print(f"{key}: {each.summary()}")
    print(f"encoder alone at a batch of {batch}: {np.median(floors):.1f} images/s")
    print(f"ratio of the service to the encoder alone: {np.median(np.divide(service.rates, floors)):.2f}")
    if "before" in services:
        before = services["before"]
        ratios = np.divide(service.rates, before.rates)
        high, low = (np.percentile(each.times, 99) for each in (service, before))
        print(f"ratio to before: images/s {np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f}), "
              f"99th percentile {high / low:.2f}")  # fmt: skip
    print("memory of the service after each round: " + ", ".join(f"{value:.0f}" for value in service.memory) + " MB")
    assert service.memory[-1] <= 1.05 * service.memory[ROUNDS // 2 - 1], "memory grew"


if __name__ == "__main__":
    main()
