"""Ray, started so that nobody but this machine reaches it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from episodes.errors import EpisodeStateError, needing

__all__ = ["start_ray"]

_PATIENCE_S = 300  # that Ray waits for processes which it has started; by itself it gives up after 30 s
_LOOPBACK = ("127.", "localhost:")  # what the addresses of a Ray of this machine alone begin with
_PATIENT = {
    "RAY_gcs_server_port_wait_time_s": f"{_PATIENCE_S}",
    "RAY_agent_register_timeout_ms": f"{_PATIENCE_S}000",
    "RAY_worker_register_timeout_seconds": f"{_PATIENCE_S}",
}


def start_ray(
    num_cpus: int | None = None,
    *,
    address: str | None = None,
    object_store_memory: int = 512 * 2**20,
    temp_dir: str | None = None,
) -> None:
    """Start Ray without a dashboard, every port of it on 127.0.0.1; or join the cluster at `address`.

    Args:
        num_cpus: how many actors of one CPU there can be; as many as the machine has by default.
        address: of a cluster that runs already; the others are its own matter then.
        object_store_memory: bytes, of shared memory; what does not fit goes to files in `temp_dir`.
        temp_dir: for the sockets, logs and spilled objects; its path must be short. Ray's own by default.

    Raises:
        EpisodeStateError: Ray runs already in this process.
        MissingExtra: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    is_local = address is None or address.startswith(_LOOPBACK)
    if is_local:
        # Ray takes the address of the network card for 127.0.0.1, unless it believes that it cannot be a cluster.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray = loaded_ray()
    if ray.is_initialized():
        raise EpisodeStateError("start_ray: Ray runs already in this process; ray.shutdown() first, or use it as it is")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if is_local:
        from ray._private import ray_constants

        ray_constants.ENABLE_RAY_CLUSTER = False  # it was read when Ray was imported
    if address is not None:
        ray.init(address=address, **quiet)
        return
    for name, value in _PATIENT.items():
        os.environ.setdefault(name, value)
    with _patience():
        ray.init(
            address="local",  # otherwise Ray joins whatever RAY_ADDRESS or an earlier `ray start` tells of
            num_cpus=num_cpus,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            object_store_memory=object_store_memory,
            _temp_dir=temp_dir,
            **quiet,
        )


@contextmanager
def _patience() -> Iterator[None]:
    """Let Ray wait for its node, whose processes are long in starting on a busy machine."""
    from ray._private import services

    get_node: Callable[..., Any] = services.get_node
    services.get_node = lambda *arguments: retry_until_ready(get_node, *arguments)
    try:
        yield
    finally:
        services.get_node = get_node


def retry_until_ready(get_node: Callable[..., Any], *arguments: Any, interval_s: float = 0.1) -> Any:
    """What `get_node` gives, which is asked again as long as it raises RuntimeError: the node is not there yet."""
    until = monotonic() + _PATIENCE_S
    while True:
        try:
            return get_node(*arguments)
        except RuntimeError:
            if monotonic() > until:
                raise
        sleep(interval_s)


def loaded_ray() -> Any:
    """The module `ray`; MissingExtra where it is not installed."""
    with needing("ray", "runners in actors need Ray"):
        import ray
    return ray
