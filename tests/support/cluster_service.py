"""A service on a local Ray with processes that tests kill, over the tiny model."""

import io
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import httpx
import ray
import ray.serve

from acclimate.cluster.serving.cluster_service import ClusterService
from acclimate.serve.limits import Limits
from acclimate.serve.service import check_setup
from waiting import wait_until

LABELS = ["red circle", "green square", "blue stripes"]
KEEPER = "keeper-token-0123456789"
CAMERA = "camera-token-0123456789"
LAB = "lab-token-0123456789"
BODY = 2 * 2**20  # bytes that a request may have


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


class Running:
    """The service on Ray, over a folder in which `acclimate serve` has made the stream `old`."""

    def __init__(self, model, folder, token_file):
        self.model = model
        self.folder = folder
        self.token_file = token_file
        self._stack = ExitStack()
        self._runs = False
        # Snapshots are those that calls ask for, however long the tests take.
        limits = Limits(body_bytes=BODY, workers=1, timeout_s=60.0, snapshot_s=86_400.0)
        labels, setup = check_setup(LABELS, {"method": "tda", "skip_duplicates": False, "guard": None}, limits)
        self.service = ClusterService(
            data=folder,
            model=f"onnx:{model}",
            device="cpu",
            port=0,
            token_file=token_file,
            limits=limits,
            defaults={"labels": labels, **setup.model_dump()},
            replicas=(2, 2),
            cpus=0.5,
            fronts=2,
        )

    def start(self):
        """Start it, unless it runs."""
        if self._runs:
            return
        url = self._stack.enter_context(self.service.running())
        self.client = self._stack.enter_context(httpx.Client(base_url=url, timeout=120, headers=bearer(KEEPER)))
        self._runs = True

    def stop(self):
        """End it, and Ray Serve with it."""
        self._stack.close()
        ray.serve.shutdown()
        self._runs = False
        self.service.port = 0

    def create(self, name, **options):
        answer = self.client.post("/v1/streams", json={"name": name, "labels": LABELS, **options})
        assert answer.status_code == 201, answer.text

    def classify(self, name, images, **options):
        files = [("image", (f"{i}.png", image, "image/png")) for i, image in enumerate(images)]
        return self.client.post(f"/v1/streams/{name}/classify", files=files, **options)

    def actor(self, name):
        """Return the actor of a stream."""
        return ray.get_actor(f"stream:{name}", namespace="acclimate")

    def replicas(self, deployment):
        """Return the actors of a deployment's replicas."""
        found = ray.util.list_named_actors(all_namespaces=True)
        names = [each["name"] for each in found if f"#{deployment}#" in each["name"]]
        return [ray.get_actor(name, namespace="serve") for name in names]


def pid_of(actor):
    """Return the process of an actor."""
    return ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=60)


def kill(actor):
    """End an actor's process as a broken machine would, and wait until it is gone."""
    process = pid_of(actor)
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{process}").exists() or "State:\tZ" in status(process))


def status(process):
    try:
        return Path(f"/proc/{process}/status").read_text()
    except OSError:
        return "State:\tZ"
