"""Ray, started so that nobody but this machine reaches it."""

from __future__ import annotations

import logging
import os
from typing import Any

from episodes.errors import EpisodeStateError, MissingExtra

__all__ = ["start_ray"]


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
    if address is None:
        # Ray takes the address of the network card for 127.0.0.1, unless it believes that it cannot be a cluster.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray = loaded_ray()
    if ray.is_initialized():
        raise EpisodeStateError("start_ray: Ray runs already in this process; ray.shutdown() first, or use it as it is")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is not None:
        ray.init(address=address, **quiet)
        return
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # it was read when Ray was imported
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=object_store_memory,
        _temp_dir=temp_dir,
        **quiet,
    )


def loaded_ray() -> Any:
    """The module `ray`; MissingExtra where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("runners in actors need Ray; install the extra: pip install 'rl-episodes[ray]'") from error
    return ray
