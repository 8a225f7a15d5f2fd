"""Loggers: intervals, tables with new columns, curves, and continuation after an interruption."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from episode_learners.loggers import CSVLogger, Logger, MultiLogger, TensorBoardLogger, WandbLogger
from episode_learners.loggers.curves import curves_of
from episode_learners.loggers.run_description import describe_run
from episode_runners.stats import CollectStats
from episodes.errors import InvalidArgument
from tests.interrupts import Breaking


class Kept(Logger):
    def __init__(self, intervals=None):
        super().__init__(intervals)
        self.rows = []

    def write(self, scope, metrics, step):
        self.rows.append((scope, step, dict(metrics)))


def test_unknown_scope_raises():
    with pytest.raises(InvalidArgument, match="tests"):
        Logger({"tests": 1})
    with pytest.raises(InvalidArgument, match="train, test, update, info"):
        Logger().log("loss", {}, 0)


def test_csv_logger_adds_later_columns(tmp_path: Path):
    with CSVLogger(tmp_path) as logger:
        logger.log("update", {"loss": 1.5}, 10)
        logger.log("update", {"loss": 0.5, "kl": 0.1}, 20)
        logger.log("update", {"kl": 0.2}, 30)
    rows = CSVLogger(tmp_path).rows("update")
    assert rows == [
        {"step": "10", "loss": "1.5", "kl": ""},
        {"step": "20", "loss": "0.5", "kl": "0.1"},
        {"step": "30", "loss": "", "kl": "0.2"},
    ]


def test_csv_logger_ignores_half_a_row(tmp_path: Path):
    with CSVLogger(tmp_path) as logger:
        for step in (100, 200, 3000):
            logger.log("test", {"mean_return": 1.5}, step)
    table = tmp_path / "test.csv"
    table.write_bytes(table.read_bytes()[: -len("00,1.5\r\n")])  # "30" is what is left of the last row
    with CSVLogger(tmp_path) as logger:
        logger.resume(200)
        logger.log("test", {"mean_return": 2.5, "note": 0.0}, 300)
    assert [row["step"] for row in CSVLogger(tmp_path).rows("test")] == ["100", "200", "300"]


FULL = """
import json, resource, signal, sys
from pathlib import Path
from episode_learners.loggers import CSVLogger

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
logger, written = CSVLogger(sys.argv[1]), []
for step in range(300):
    limit = 1000 if step < 200 else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        logger.log("train", {"mean_return": step / 7}, step)
        written.append(step)
    except OSError:
        pass
print(json.dumps(written))
"""


def test_csv_logger_has_no_row_that_a_full_disk_refused(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    written = json.loads(done.stdout)
    assert written[-1] == 299
    assert 100 < len(written) < 200
    assert [int(row["step"]) for row in CSVLogger(tmp_path).rows("train")] == written


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupts before `with` has the file
def test_interrupted_csv_row_is_written_whole_or_not_at_all(tmp_path: Path):
    def log(logger: CSVLogger, step: int) -> None:
        logger.log("train", {"mean_return": 0.5} if step < 5 else {"mean_return": 0.5, "loss": 1.0}, step)

    counter = Breaking(KeyboardInterrupt, -1, rooms=("/loggers/", "/storage/"))
    counted = CSVLogger(tmp_path / "counted")
    counter.run(lambda: [log(counted, step) for step in range(8)])
    for at in range(1, counter.num_seen, 7):
        logger = CSVLogger(tmp_path / str(at))
        breaking = Breaking(KeyboardInterrupt, at, rooms=("/loggers/", "/storage/"))
        certain = [step for step in range(8) if not breaking.run(partial(log, logger, step))]
        rows = [int(row["step"]) for row in logger.rows("train")]
        assert sorted(set(rows)) == rows
        assert set(certain) <= set(rows)
        assert not list((tmp_path / str(at)).glob(".*.csv.*"))


def test_tensorboard_curves_have_tianshou_names(tmp_path: Path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorBoardLogger(tmp_path) as logger:
        for step in (10, 20, 30):
            logger.log("test", {"mean_return": float(step)}, step)
        logger.log("train", {"steps_per_second": 5.0}, 10)
    with TensorBoardLogger(tmp_path) as logger:
        logger.resume(20)
        logger.log("test", {"mean_return": 99.0}, 30)
        logger.log("update", {"loss": 0.5}, 30)
    result = accumulators.EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in result.Scalars("test/returns_stat/mean")] == [
        (10, 10.0),
        (20, 20.0),
        (30, 99.0),
    ]
    assert {"training/collect_speed", "training/env_step", "update/loss"} <= set(result.Tags()["scalars"])


def test_multi_logger_applies_separate_intervals(tmp_path: Path):
    often, seldom = Kept(), Kept({"test": 20})
    logger = MultiLogger([often, seldom, CSVLogger(tmp_path)])
    for step in (0, 10, 20):
        logger.log("test", {"mean_return": 1.0}, step)
    logger.describe(describe_run(gamma=0.9))
    logger.close()
    assert (len(often.rows), len(seldom.rows)) == (3, 2)
    description = json.loads((tmp_path / "run.json").read_text())
    assert description["configuration"] == {"gamma": 0.9}
    assert set(description["versions"]) >= {"python", "torch", "numpy"}


class Failing(Kept):
    """Logger that fails in a chosen method."""

    def __init__(self, at):
        super().__init__()
        self.at, self.is_closed = at, False

    def write(self, scope, metrics, step):
        if self.at == scope:
            raise OSError("no space left")
        super().write(scope, metrics, step)

    def flush(self):
        if self.at == "flush":
            raise OSError("no space left")

    def close(self):
        self.is_closed = True
        super().close()


def write(logger, step):
    logger.log("test", {"mean_return": float(step)}, step)
    logger.flush()


@pytest.mark.parametrize("at", ["test", "flush"])
def test_multi_logger_drops_failing_logger(at, tmp_path: Path):
    failing, other_logger = Failing(at), Kept()
    logger = MultiLogger([failing, other_logger, CSVLogger(tmp_path)])
    logger.log("update", {"loss": 1.0}, 0)
    with pytest.warns(RuntimeWarning, match=r"Failing\..* failed, it is left out from now on: .*no space left"):
        write(logger, 0)
    write(logger, 10)
    logger.close()
    assert failing.is_closed
    assert [step for _, step, _ in other_logger.rows] == [0, 0, 10]
    assert [row["mean_return"] for row in CSVLogger(tmp_path).rows("test")] == ["0.0", "10.0"]


def test_multi_logger_raises_if_last_logger_fails():
    logger = MultiLogger([Failing("test")])
    with pytest.raises(InvalidArgument, match="unknown scope"):
        logger.log("loss", {}, 0)
    with pytest.raises(OSError, match="no space left"):
        logger.log("test", {}, 0)


def test_curves_include_spread_of_returns_and_lengths():
    stats = CollectStats(4, 2.0, np.array([1.0, 3.0]), np.array([1, 3]))
    result = curves_of("train", stats.as_dict(), 4)
    for kind in ("returns_stat", "lens_stat"):
        shown = [result[f"training/{kind}/{name}"] for name in ("mean", "std", "min", "max")]
        assert shown == [2.0, 1.0, 1.0, 3.0]


def test_wandb_logger_resumes_offline_run_by_id(tmp_path: Path, monkeypatch):
    pytest.importorskip("wandb")
    patience = {"WANDB__SERVICE_WAIT": "300", "WANDB_INIT_TIMEOUT": "300"}  # its process may be long in starting
    for name, value in {
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "WANDB_DISABLE_GIT": "true",
        **patience,
    }.items():
        monkeypatch.setenv(name, value)
    with WandbLogger(tmp_path, {"update": 10}, mode="offline", project="a-project") as logger:
        logger.describe({"configuration": {"gamma": 0.9}})
        logger.log("test", {"mean_return": 12.5}, 100)
        for step in (100, 105, 110):
            logger.log("update", {"loss": float(step)}, step)
        assert dict(logger.run.config)["configuration"] == {"gamma": 0.9}
        summary, first = dict(logger.run.summary), logger.run.id
    assert summary["test/returns_stat/mean"] == 12.5
    assert (summary["update/loss"], summary["env_step"]) == (110.0, 110)
    files = list((tmp_path / "wandb").glob(f"offline-run-*-{first}/*.wandb"))
    assert [path.stat().st_size > 0 for path in files] == [True]
    with WandbLogger(tmp_path, mode="offline", project="a-project") as resumed:
        resumed.resume(110)
        resumed.log("test", {"mean_return": 20.0}, 200)
        assert resumed.run.id == first
