"""The connection to a Ray cluster: a local one that is started and stopped here, or one that runs already.

Problems are found here within seconds and explained: Ray itself waits minutes for a cluster that is not there, and
for ever for resources that no node has.
"""

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from acclimate.errors import InputError, RunError, missing
from acclimate.methods.registry import loaded_plugins

ANSWER_TIMEOUT_S = 5.0  # time limit for an answer from the cluster's address
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # first bytes of gRPC, with empty settings
THIS_MACHINE = (None, "", "local")  # addresses that start a Ray here
LOCAL = "or leave out --address for a Ray of this machine alone"
JOINING = (
    "the command runs on a node of the cluster: start one with `ray start --head`, add this machine by `ray start "
    "--address=HOST:PORT`, or use `ray job submit`. Where a token is asked for, set RAY_AUTH_MODE=token, and "
    "RAY_AUTH_TOKEN to what `ray get-auth-token` prints on the head node"
)
# Lifetime of a process that runs no task. After one second, Ray's default, every block of a job would wait for new
# processes where encoders hold all CPUs.
IDLE = "RAY_idle_worker_killing_time_threshold_ms"
# Read by Ray when it is imported, and by a Ray that is started here
ENVIRONMENT = {
    "RAY_gcs_server_request_timeout_seconds": "15",  # time limit to find a node on this machine (default 60)
    "RAY_USAGE_STATS_ENABLED": "0",
    IDLE: "600000",
}
# "0", when Ray is imported, is Ray's own way to listen on 127.0.0.1 and nowhere else. It takes the address of another
# network interface otherwise, even if 127.0.0.1 is asked for.
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@contextmanager
def connect(address: str | None = None, **how: Any) -> Iterator[None]:
    """Connect to a Ray cluster while the block runs.

    A process that is connected already stays so, and its connection is left as it was.

    Args:
        address: "auto" for the cluster that this machine belongs to, or HOST:PORT of its head node; None starts a Ray
            on this machine, which nobody else can reach, and stops it at the end.
        **how: further arguments of `ray.init`, such as `num_cpus` for a local Ray.

    Raises:
        MissingExtraError: if Ray is not installed.
        InputError: if there is no cluster, or one of another version.
        RunError: if Ray does not start.
    """
    ray = import_ray(address)
    address = None if address in THIS_MACHINE else address
    if ray.is_initialized():
        if address not in (None, "auto"):
            raise InputError(f"this process is connected to a Ray already; call ray.shutdown() to use {address}.")
        yield
        return
    how = {"log_to_driver": False, "logging_level": logging.ERROR} | how
    try:
        if address is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            _start(**{"num_cpus": cores, "include_dashboard": False} | how)
        else:
            _join(address, **how)
        yield
    finally:
        ray.shutdown()


def _start(**how: Any) -> None:
    import ray

    if os.environ.get(LOOPBACK_ONLY) != "0":
        raise RunError(f"other machines could reach this Ray; set {LOOPBACK_ONLY}=0 before Ray is imported.")
    try:
        ray.init("local", **how)
    except Exception as error:  # Ray raises a bare one if its processes are not ready in time
        raise RunError(
            f"Ray did not start on this machine: {error} Try again when the machine is less busy, with free memory and "
            "space on the disk; Ray's own logs are in the folder ray of the temporary folder."
        ) from error


def import_ray(address: str | None = None) -> Any:
    """Import Ray, with our settings if nobody has imported it before; without an address, as one of this machine alone.

    Raises:
        MissingExtraError: Ray or pyarrow is not installed.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address in THIS_MACHINE and "ray" not in sys.modules:
        os.environ[LOOPBACK_ONLY] = "0"
    try:
        import pyarrow.fs  # noqa: F401
        import ray
    except ModuleNotFoundError as error:
        if error.name not in ("pyarrow", "ray"):
            raise
        raise missing("work on a cluster needs Ray", "ray") from None
    return ray


def _join(address: str, **how: Any) -> None:
    import ray

    if address != "auto":
        found = re.fullmatch(r"\[?([^\[\]/]+)\]?:([0-9]{1,5})", address)
        if found is None or not 0 < int(found[2]) < 65536:
            raise InputError(
                f"{address!r} is not an address; give auto or HOST:PORT of the head node (not ray:// of a Ray client "
                f"or http:// of a dashboard, which are for `ray job submit`), {LOCAL}."
            )
        if why := _silent(found[1], int(found[2])):
            raise InputError(
                f"no Ray cluster answers at {address}: {why}; check `ray status` on the head node, {LOCAL}."
            )
    try:
        ray.init(address, **how)
    except Exception as error:  # the type depends on Ray's version
        why = " ".join(f"{error} {error.__cause__ or ''}".split())[:400].rstrip(".")
        raise InputError(f"cannot connect to the Ray cluster at {address}: {why}; {JOINING}; {LOCAL}.") from error


def _silent(host: str, port: int) -> str:
    """Return the reason why nothing that speaks gRPC answers there; "" if something does."""
    try:
        with socket.create_connection((host, port), ANSWER_TIMEOUT_S) as line:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return ""  # only Ray knows the certificates
            line.sendall(PREFACE)
            return "" if line.recv(9)[3:4] == b"\x04" else "what answers there is not Ray"
    except OSError as error:
        return error.strerror or str(error)


def send_plugins() -> None:
    """Let Ray send objects of the plugins that were loaded here together with their code from now on.

    What a plugin imports must be installed on every node.
    """
    from ray import cloudpickle

    files = set(map(str, loaded_plugins()))
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) in files:
            cloudpickle.register_pickle_by_value(module)
