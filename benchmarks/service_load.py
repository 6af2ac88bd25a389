"""Load test of the service: the real command, real sockets, JPEG images.

The floor is the encoder alone on prepared pixels, at the batch size that the service reached, on the same cores, in
alternating rounds.

    python benchmarks/service_load.py
"""

import argparse
import asyncio
import io
import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from acclimate.encoders import Encoder, load_encoder
from acclimate.encoders.convert import convert
from acclimate.images.opening import open_image
from tiny_models import save_tiny_model

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


def batches_so_far(address: str) -> tuple[float, float]:
    """Return the number of images encoded so far, and of their batches."""
    with urlopen(f"{address}/metrics") as answer:
        text = answer.read().decode()
    images, batches = (
        re.search(rf"^acclimate_batch_size_{name} (\S+)$", text, re.MULTILINE) for name in ("sum", "count")
    )
    return float(images[1]), float(batches[1])


def resident_mb(process: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--width", type=int, default=384, help="of the encoder's image tower")
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        save_tiny_model("clip", work / "torch", size=128, width=options.width, layers=options.layers, patch=16)
        convert(load_encoder(f"local:{work / 'torch'}", "cpu"), work / "onnx")
        encoder = load_encoder(f"onnx:{work / 'onnx'}", "cpu")
        photos = draw_photos(200)
        command = [sys.executable, "-m", "acclimate", "serve", "--model", f"onnx:{work / 'onnx'}", "--port", "0"]
        command += ["--data", str(work / "state"), "--labels", ",".join(f"thing {i}" for i in range(options.labels))]
        command += ["--no-skip-duplicates"]  # drawn photos are alike, and every image must be learnt
        with open(work / "log", "wb") as log:
            service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            address = service.stdout.readline().split()[2]
            send = partial(load, address, options.streams, options.clients)
            asyncio.run(send(options.clients, photos, 16))  # creates the streams, and fills the largest batches once
            asyncio.run(send(4 * options.clients, photos))
            rounds: list[tuple[float, float, float]] = []
            times: list[float] = []
            before = batches_so_far(address)
            for _ in range(ROUNDS):
                rate, took = asyncio.run(send(options.requests // ROUNDS, photos))
                images, batches = np.subtract(batches_so_far(address), before)
                batch = round(images / batches)
                rounds.append((rate, encoder_rate(encoder, photos, batch), resident_mb(service.pid)))
                times += took
        finally:
            service.terminate()
            service.wait(60)
            service.stdout.close()
    rates, floors, memory = np.array(rounds).T
    setting = f"{options.clients} clients, {options.streams} streams, {options.labels} labels"
    print(f"{setting}: {len(times)} requests without errors, in {ROUNDS} rounds that alternate with the encoder alone")
    print(
        f"service {np.median(rates):.1f} images/s, encoder alone {np.median(floors):.1f} at its mean batch of {batch}"
    )
    print(f"ratio {np.median(rates / floors):.2f}")
    middle, high, most = np.percentile(times, [50, 99, 100]) * 1e3
    print(f"latency: median {middle:.0f} ms, 99th percentile {high:.0f} ms, maximum {most:.0f} ms")
    print("memory of the service after each round: " + ", ".join(f"{value:.0f}" for value in memory) + " MB")
    assert memory[-1] <= 1.05 * memory[ROUNDS // 2 - 1], "memory grew"


if __name__ == "__main__":
    main()
