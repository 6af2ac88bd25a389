"""What a request costs more on Ray than in `acclimate serve`, and how much memory the processes of the service take."""

import io
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import numpy as np
import psutil
import ray

from acclimate.cluster.connection import connect
from acclimate.cluster.serving.cluster_service import ClusterService
from cluster_parts.figures import Figures
from drawn_images import draw

PART = "service"
STREAM = {"name": "s", "labels": [f"thing {number}" for number in range(100)], "method": "tda"}
STREAM |= {"skip_duplicates": False, "guard": None}
AT_ONCE = 8
ALONE = "acclimate serve"
ON_RAY = "acclimate cluster serve"


def service(figures: Figures, quick: bool) -> None:
    """Send the same requests to both services in turn."""
    count = 10 if quick else 120
    images = []
    for number in range(12):
        content = io.BytesIO()
        draw(("red", "green", "blue")[number % 3], number).save(content, "PNG")
        images.append(content.getvalue())
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "acclimate", "serve", "--data", f"{name}/alone", "--port", "0"]
        alone = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert alone.stdout is not None
            urls = {ALONE: alone.stdout.readline().split()[2]}
            with (
                connect(num_cpus=4, object_store_memory=2**28),
                ClusterService(data=Path(name, "cluster"), port=0).running() as urls[ON_RAY],
            ):
                clients = {way: httpx.Client(base_url=url, timeout=60) for way, url in urls.items()}
                _requests(figures, clients, images, count)
                _memory(figures)
            figures.add(PART, "MB", psutil.Process(alone.pid).memory_full_info().uss / 1e6, stream=ALONE)
        finally:
            alone.terminate()
            alone.wait()
    tables(figures)


def _requests(figures: Figures, clients: dict[str, httpx.Client], images: list[bytes], count: int) -> None:
    def classify(client: httpx.Client, number: int) -> None:
        image = images[number % len(images)]
        kind = {"content-type": "image/png"}
        client.post("/v1/streams/s/classify", content=image, headers=kind).raise_for_status()

    seconds: dict[tuple[str, str], list[float]] = {}
    for client in clients.values():
        client.post("/v1/streams", json=STREAM).raise_for_status()
    for number in range(count):
        for way, client in clients.items():
            calls: dict[str, Any] = {"classify an image": partial(classify, client, number)}
            calls["describe the stream"] = partial(client.get, "/v1/streams/s")
            for name, call in calls.items():
                began = perf_counter()
                call()
                seconds.setdefault((way, name), []).append(perf_counter() - began)
    for (way, name), times in seconds.items():
        figures.add(PART, f"ms, {name}", 1e3 * float(np.median(times)), stream=way)
    for way, client in clients.items():
        with ThreadPoolExecutor(AT_ONCE) as pool:
            began = perf_counter()
            list(pool.map(partial(classify, client), range(count)))
            figures.add(PART, "images/s", count / (perf_counter() - began), stream=way)


def _memory(figures: Figures) -> None:
    """Memory of the processes of the service, without what they share with others."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        handle = ray.get_actor(actor["name"], namespace=actor["namespace"])
        pid = ray.get(handle.__ray_call__.remote(lambda _: os.getpid()), timeout=60)
        name = actor["name"]  # SERVE_REPLICA::application#deployment#id, SERVE_PROXY_ACTOR-id, stream:name
        name = name.split("#")[1] if "#" in name else name.partition(":")[0].partition("-")[0]
        if not figures.of(PART, "MB", stream=name):
            figures.add(PART, "MB", psutil.Process(pid).memory_full_info().uss / 1e6, stream=name)


def tables(figures: Figures) -> None:
    """Print what was measured."""
    rows = []
    for what in ("ms, classify an image", "ms, describe the stream", "images/s"):
        alone, on_ray = (figures.value(PART, what, stream=way) for way in (ALONE, ON_RAY))
        name = f"{what}, {AT_ONCE} requests at once" if what == "images/s" else what
        rows.append((name, f"{alone:.1f}", f"{on_ray:.1f}", f"{on_ray / alone:.2f}"))
    about = "The bundled model, 100 labels, tda; both services on the same two cores, medians of requests in turn."
    figures.table("The service", about, ("", ALONE, ON_RAY, "ratio"), rows)
    rows = [(each.stream, f"{each.value:,.0f}") for each in figures.of(PART, "MB")]
    about = "Memory of a process of each kind, without what it shares with others. There is one per stream."
    figures.table("Memory of the service", about, ("", "MB"), rows)
