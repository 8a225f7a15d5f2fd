"""Senders and receivers that are dropped without `close`: they are released at once, with a ResourceWarning."""

from __future__ import annotations

from pathlib import Path

import pytest

from episodes.transport import make_keys
from tests.fresh_process import run_fresh

IMPORTS = """
import gc, os, sys, time, warnings
from pathlib import Path
import numpy as np
from episodes import EpisodePack
from episodes.transport import EpisodeReceiver, EpisodeSender, make_keys
"""

SETUP = """
def resources():
    threads = len(os.listdir("/proc/self/task"))
    return threads, sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd")[:-1])

def make():
    folder = Path(sys.argv[1])
    receivers, senders = folder / "receiver", folder / "sender"
    receiver = EpisodeReceiver(keys=receivers, journal=folder / "journal")
    sender = EpisodeSender(receiver.address, keys=senders)
    sender.send(EpisodePack(observations=np.zeros(3), actions=np.zeros(2), rewards=np.zeros(2), lengths=[2]))
    receiver.recv(60)
    return receiver, sender

def use():
    pair = make()
    raise ValueError("an error of the user")

def wait_for(expected):
    # The kernel removes threads that have ended a moment later.
    until = time.monotonic() + 20
    while resources() != expected:
        assert time.monotonic() < until, (resources(), expected)
        time.sleep(0.01)

EpisodeReceiver().close()
before = (1, resources()[1])
wait_for(before)
warnings.simplefilter("always")
"""

DROPS = [
    "receiver, sender = make(); del sender; del receiver",
    "receiver, sender = make(); del receiver; del sender",
    "try:\n    use()\nexcept ValueError as error:\n    assert 'of the user' in str(error)",
    "pair = [*make()]; pair.append(pair); pair[0].mine = pair; del pair; gc.collect()",
]
EXITS = {"exit": "pair = make()", "cycle at exit": "pair = [*make()]; pair.append(pair)"}
WARNINGS = [f"ResourceWarning: a {name} was dropped without close()" for name in ("EpisodeSender", "EpisodeReceiver")]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed in Linux's /proc")
def test_dropped_endpoints_are_released_with_a_warning(tmp_path: Path) -> None:
    make_keys(tmp_path)
    code = "".join(f"{drop}\nwait_for(before)\nprint('released')\n" for drop in DROPS)
    output, errors = run_fresh(IMPORTS, SETUP + code, str(tmp_path))
    assert output == "released\n" * len(DROPS)
    assert [errors.count(warning) for warning in WARNINGS] == [len(DROPS)] * 2


@pytest.mark.parametrize("case", EXITS)
def test_endpoints_never_hang_the_exit(case: str, tmp_path: Path) -> None:
    make_keys(tmp_path)
    _, errors = run_fresh(IMPORTS, SETUP + EXITS[case], str(tmp_path))
    assert [errors.count(warning) for warning in WARNINGS] == [1, 1]
