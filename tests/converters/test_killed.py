"""A killed conversion leaves its input unchanged and no partial output, and can be run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import run_python

KILLED = """
import hashlib, os, random, signal, sys, time, traceback
from pathlib import Path

import numpy as np
from gymnasium import spaces
from episodes import SingleAgentEpisode
from episodes.converters import read, write
from episodes.storage import copy

root, names, kills, outside = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), bool(int(sys.argv[4]))
known = {
    "observation_space": spaces.Dict(at=spaces.Box(-9, 9, (3,)), frame=spaces.Box(0, 255, (16, 16, 3), np.uint8)),
    "action_space": spaces.Discrete(3),
    "terminated": True,
}

def episode(i):
    n = i % 4 + 1
    seen = {"at": np.full((n + 1, 3), i, np.float32), "frame": np.full((n + 1, 16, 16, 3), i, np.uint8)}
    infos = [{"n": t} for t in range(n + 1)]
    return SingleAgentEpisode.from_arrays(seen, np.zeros(n, int), np.ones(n), infos=infos, id_=f"e{i}", **known)

NUM, ALL = 6, [f"e{i}" for i in range(6)]
write([episode(i) for i in range(NUM)], root / "source", "episodes")
if "from minari" in names:  # from a data set of Minari's own to another one
    write(read(root / "source")[0], "some/source-v0", "minari")
FOREIGN = {"from csv": root / "foreign/log.csv", "from d4rl": root / "foreign/d4rl.hdf5"}
FOREIGN_IDS = {}
if FOREIGN.keys() & set(names):
    import h5py

    (root / "foreign").mkdir()
    rows = [f"{i % 7},{i},{i / 3},{i % 2}" for i in range(300)]
    FOREIGN["from csv"].write_text("\\n".join(["episode_id,t,obs,action", *rows]))
    with h5py.File(FOREIGN["from d4rl"], "w") as file:
        for key in ("observations", "next_observations", "actions"):
            file[key] = np.arange(600.0).reshape(300, 2)
        file["rewards"], file["terminals"], file["timeouts"] = np.ones(300), np.zeros(300), np.arange(300) % 9 == 8

def foreign_ids(name):
    if name not in FOREIGN_IDS:
        FOREIGN_IDS[name] = [one.id_ for one in read(FOREIGN[name])[0]]
    return FOREIGN_IDS[name]

def converted(name, target):
    if name == "copy":
        copy(root / "source", target)
    elif name == "from minari":
        write(read("some/source-v0", "minari")[0], target, "minari")
    elif name in FOREIGN:
        write(read(FOREIGN[name])[0], target, "episodes")
    else:
        write(read(root / "source")[0], target, name)

def place(name, number):
    is_minari = name in ("minari", "from minari")
    return f"some/{name.replace(' ', '-')}-v{number}" if is_minari else str(root / f"{name}{number}")

def there(target):
    return (root / "minari" / target).exists() or Path(target).exists()

def ids(name, target):
    form = {"copy": "episodes", "from minari": "minari", **dict.fromkeys(FOREIGN, "episodes")}.get(name, name)
    return [found.id_ for found in read(target, form)[0]]

def content(name, target):  # of data sets that foreign files become, in which all arrays are compared
    return [one.to_numpy() for one in read(target)[0]] if name in FOREIGN else []

def files():  # of the sources
    folders = [root / "source", root / "foreign", root / "minari/some/source-v0"]
    found = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return {str(file): hashlib.sha256(file.read_bytes()).digest() for file in found}

def traced(most):  # how many lines of ours were run; killed after so many
    done = 0
    def trace(frame, event, argument):
        nonlocal done
        if "/episodes/" not in frame.f_code.co_filename:
            return None
        done += 1
        if done == most:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    return lambda: (sys.settrace(None), done)[1]

def child(name, target, most=None):
    pid = os.fork()
    if pid:
        return pid
    try:
        count = None if most is None else traced(most)
        converted(name, target)
        if most == 0:
            (root / "lines").write_text(str(count()))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

def tried(name):
    converted(name, place(name, kills + 1))  # what is done once and kept is done, so that all run the same lines
    first = time.monotonic()
    assert os.waitpid(child(name, place(name, 0), 0), 0)[1] == 0
    lasted, lines = time.monotonic() - first, int((root / "lines").read_text())
    rng, before, killed = random.Random(name), files(), 0
    for number in range(1, kills + 1):
        target = place(name, number)
        if outside:
            pid = child(name, target)
            time.sleep(rng.uniform(0, lasted))
            os.kill(pid, signal.SIGKILL)
        else:  # half of them near the end, where what was written gets its name
            pid = child(name, target, rng.randrange(lines) + 1 if number % 2 else lines - rng.randrange(60))
        killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        assert files() == before
        if not there(target):
            converted(name, target)
            assert not [left for left in os.listdir(root) if ".draft-" in left], os.listdir(root)
        assert ids(name, target) == (foreign_ids(name) if name in FOREIGN else ALL), (name, number)
        pairs = zip(content(name, target), content(name, place(name, kills + 1)), strict=True)
        assert all(again.equals(once) for again, once in pairs), (name, number)
    assert outside or killed >= kills // 2, (name, killed)  # one of the last lines may be there only at times

for name in names:
    tried(name)
"""

NAMES = ["parquet", "rllib", "lerobot", "episodes", "minari", "from minari", "copy", "from csv", "from d4rl"]


def test_conversion_killed_at_any_line_leaves_no_partial_output(tmp_path: Path) -> None:
    run(tmp_path, ",".join(NAMES), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_conversion_killed_at_random_time_leaves_no_partial_output(tmp_path: Path, name: str) -> None:
    run(tmp_path / "lines", name, 40)
    run(tmp_path / "moments", name, 40, outside=True)


def run(folder: Path, names: str, kills: int, *, outside: bool = False) -> None:
    folder.mkdir(exist_ok=True)
    run_python("-c", KILLED, folder, names, kills, int(outside), MINARI_DATASETS_PATH=str(folder / "minari"))
