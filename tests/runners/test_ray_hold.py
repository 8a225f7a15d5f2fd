"""`RaySession`: start and end of Ray, and calls after a shutdown."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from episode_runners import start_ray
from episode_runners.remote import ray_session
from episode_runners.remote import start as start_module
from episode_runners.remote.ray_session import RaySession
from episodes.errors import EpisodeStateError


class Ray:
    """The module `ray`, which counts how many times it was started."""

    def __init__(self) -> None:
        self.is_running, self.starts, self.address = False, 0, "127.0.0.1:1"

    def is_initialized(self) -> bool:
        return self.is_running

    def get_runtime_context(self) -> Any:
        if not self.is_running:
            raise AssertionError("Ray would be started by being asked")
        names = {"get_node_id": f"node {self.starts}", "get_job_id": "01000000"}
        answers = {name: lambda answer=answer: answer for name, answer in names.items()}
        return SimpleNamespace(gcs_address=self.address, **answers)

    def start(self, num_cpus: int | None = None, *, address: str | None = None, temp_dir: str | None = None) -> None:
        assert temp_dir is None or Path(temp_dir).is_dir()
        self.is_running, self.starts = True, self.starts + 1
        self.address = address or self.address
        self.temp_dir = temp_dir

    def shutdown(self) -> None:
        self.is_running = False


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    monkeypatch.setattr(ray_session, "loaded_ray", lambda: made)
    monkeypatch.setattr(ray_session, "is_ray_running", made.is_initialized)
    monkeypatch.setattr(ray_session, "start_ray", made.start)
    monkeypatch.setattr(RaySession, "_started", None)
    return made


def test_started_ray_ends_with_the_last_group(ray: Ray) -> None:
    first, second = RaySession(3, None), RaySession(2, None)
    folder = Path(str(ray.temp_dir))
    assert ray.starts == 1
    assert first.is_for_groups_alone
    assert second.is_for_groups_alone
    first.end()
    assert second.is_there
    assert folder.is_dir()
    second.end()
    assert not ray.is_running
    assert not folder.exists()
    third = RaySession(1, None)
    assert (ray.starts, third.is_there, second.is_there) == (2, True, False)
    third.end()


def test_ray_is_started_before_it_is_imported(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded() -> Ray:
        assert ray.is_running, "Ray was imported before start_ray could set the variables that it reads then"
        return ray

    monkeypatch.setattr(ray_session, "loaded_ray", loaded)
    RaySession(1, None).end()


def test_running_ray_is_used_and_not_ended(ray: Ray) -> None:
    ray.start()
    held = RaySession(3, None)
    assert not held.is_for_groups_alone
    held.end()
    assert ray.is_running
    assert ray.starts == 1


def test_session_after_shutdown_makes_no_ray_call(ray: Ray) -> None:
    held = RaySession(3, None)
    folder = Path(str(ray.temp_dir))
    ray.shutdown()
    assert not held.is_there
    ray.start()
    assert not held.is_there
    held.end()
    assert ray.is_running
    assert not folder.exists()


def test_start_removes_temporary_folders_of_killed_processes(
    ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("runners-killed", "runners-other"):
        (tmp_path / name).mkdir()
    (tmp_path / "runners-killed" / "driver.lock").touch()
    (tmp_path / "runners-killed" / "log").write_text("text")
    first = RaySession(1, None)
    assert {path.name for path in tmp_path.iterdir()} == {"runners-other", Path(str(ray.temp_dir)).name}
    ray.shutdown()
    second = RaySession(1, None)  # the first folder is still locked
    assert len(list(tmp_path.iterdir())) == 3
    first.end()
    second.end()
    assert [path.name for path in tmp_path.iterdir()] == ["runners-other"]


def test_second_cluster_address_raises(ray: Ray) -> None:
    held = RaySession(3, "10.0.0.1:6379")
    assert not held.is_for_groups_alone
    with pytest.raises(EpisodeStateError, match=r"Ray runs in this process already, at 10\.0\.0\.1:6379"):
        RaySession(1, "10.0.0.2:6379")
    sessions = [RaySession(1, address) for address in (None, "auto", "10.0.0.1:6379")]
    for session in sessions:
        session.end()
    assert ray.is_running
    held.end()
    assert not ray.is_running


@pytest.mark.parametrize("ip", ["127.0.0.1", "192.0.2.7"])
def test_start_ray_opens_no_port_to_other_machines(ip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    imported = SimpleNamespace(
        is_initialized=lambda: False,
        util=SimpleNamespace(get_node_ip_address=lambda: ip),
        init=lambda **options: calls.append(options),
    )
    monkeypatch.setattr(start_module, "loaded_ray", lambda: imported)
    if ip == "127.0.0.1":
        start_ray(2)
        assert calls[0]["address"] == "local"
    else:
        with pytest.raises(EpisodeStateError, match="RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0"):
            start_ray(2)
        assert not calls
    start_ray(address="192.0.2.8:6379")
    assert calls[-1]["address"] == "192.0.2.8:6379"
