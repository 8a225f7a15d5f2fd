"""Starts Ray with ports that can be reached only from this machine."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from episodes.errors import EpisodeStateError, needing

__all__ = ["start_ray"]

_TIMEOUT_S = 300  # for processes that Ray starts, in place of Ray's 30 s
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # if "0", Ray's ports are on 127.0.0.1, on Linux too
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
        EpisodeStateError: Ray runs already in this process, or was imported before and would open ports to other
            machines.
        MissingExtra: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    is_local = address is None or address.startswith(_LOOPBACK)
    if is_local:
        os.environ[_CLUSTERS] = "0"  # Ray reads the variable when it is imported
    ray = loaded_ray()
    if ray.is_initialized():
        raise EpisodeStateError(
            "start_ray: Ray runs already in this process; call ray.shutdown() first, or do without start_ray"
        )
    if is_local and not ray.util.get_node_ip_address().startswith(_LOOPBACK):
        raise EpisodeStateError(
            f"start_ray: Ray was imported before without {_CLUSTERS}=0, so other machines would reach its ports; set "
            "this environment variable or call start_ray before `import ray`, or call ray.init() yourself"
        )
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is not None:
        ray.init(address=address, **quiet)
        return
    for name, value in _TIMEOUTS.items():
        os.environ.setdefault(name, value)
    ray.init(
        address="local",  # otherwise Ray joins the cluster of RAY_ADDRESS or of an earlier `ray start`
        num_cpus=num_cpus,
        include_dashboard=False,
        object_store_memory=object_store_memory,
        _temp_dir=temp_dir,
        **quiet,
    )


def is_ray_running() -> bool:
    """Return True if this process is connected to Ray. Ray is not imported."""
    return "ray" in sys.modules and loaded_ray().is_initialized()


def loaded_ray() -> Any:
    """Import and return the module `ray`.

    Raises:
        MissingExtra: Ray is not installed.
    """
    with needing("ray", "runners in actors need Ray"):
        import ray
    return ray
