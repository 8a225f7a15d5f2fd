"""Starts Ray with ports that can be reached only from this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from episodes.errors import EpisodeStateError, needing

__all__ = ["start_ray"]

_TIMEOUT_S = 300  # for processes that Ray starts, in place of Ray's 30 s
_LOOPBACK = ("127.", "localhost:")  # prefixes of addresses that only this machine reaches
_TIMEOUTS = {
    "RAY_gcs_server_port_wait_time_s": f"{_TIMEOUT_S}",
    "RAY_agent_register_timeout_ms": f"{_TIMEOUT_S}000",
    "RAY_worker_register_timeout_seconds": f"{_TIMEOUT_S}",
}


def start_ray(
    num_cpus: int | None = None,
    *,
    address: str | None = None,
    object_store_memory: int = 512 * 2**20,
    temp_dir: str | None = None,
) -> None:
    """Start Ray without a dashboard and with all ports on 127.0.0.1, or join the cluster at `address`.

    Args:
        num_cpus: number of one-CPU actors; by default the machine's CPUs.
        address: address of a running cluster. The other arguments are not used then.
        object_store_memory: bytes of shared memory. Objects that do not fit are written to `temp_dir`.
        temp_dir: directory of sockets, logs and written objects, with a short path; by default Ray's own.

    Raises:
        EpisodeStateError: Ray runs already in this process.
        MissingExtra: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    is_local = address is None or address.startswith(_LOOPBACK)
    if is_local:
        # Ray replaces 127.0.0.1 by the network card's address, unless clusters are disabled.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray = loaded_ray()
    if ray.is_initialized():
        raise EpisodeStateError("start_ray: Ray runs already in this process; ray.shutdown() first, or use it as it is")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if is_local:
        from ray._private import ray_constants

        ray_constants.ENABLE_RAY_CLUSTER = False  # Ray reads the environment variable when it is imported
    if address is not None:
        ray.init(address=address, **quiet)
        return
    for name, value in _TIMEOUTS.items():
        os.environ.setdefault(name, value)
    with _longer_timeouts():
        ray.init(
            address="local",  # otherwise Ray joins the cluster of RAY_ADDRESS or of an earlier `ray start`
            num_cpus=num_cpus,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            object_store_memory=object_store_memory,
            _temp_dir=temp_dir,
            **quiet,
        )


@contextmanager
def _longer_timeouts() -> Iterator[None]:
    """Context manager that gives Ray more time to start its processes, which takes long on a busy machine."""
    from ray._private import services

    get_node: Callable[..., Any] = services.get_node
    services.get_node = lambda *arguments: retry_until_ready(get_node, *arguments)
    try:
        yield
    finally:
        services.get_node = get_node


def retry_until_ready(get_node: Callable[..., Any], *arguments: Any, interval_s: float = 0.1) -> Any:
    """Call `get_node` until it succeeds, and return its result. It raises RuntimeError while Ray is not ready."""
    until = monotonic() + _TIMEOUT_S
    while True:
        try:
            return get_node(*arguments)
        except RuntimeError:
            if monotonic() > until:
                raise
        sleep(interval_s)


def loaded_ray() -> Any:
    """Import and return the module `ray`.

    Raises:
        MissingExtra: Ray is not installed.
    """
    with needing("ray", "runners in actors need Ray"):
        import ray
    return ray
