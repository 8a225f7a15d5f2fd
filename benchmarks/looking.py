"""Benchmarks of inspection: HTML of an episode, imports and help texts, live curves of a run, and origins of sampled
rows.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.figure import Counted, Figure, Side, Size, Timed, at_most, cpu_seconds, limit


def episode(steps: int):
    """Return a random episode of `steps` steps with two policy outputs."""
    from episodes import SingleAgentEpisode

    rng = np.random.default_rng(0)
    observations = rng.normal(size=(steps + 1, 4)).cumsum(0).astype(np.float32)
    outputs = {"action_logp": rng.normal(size=steps), "vf_preds": rng.normal(size=steps).cumsum()}
    return SingleAgentEpisode.from_arrays(
        observations, rng.integers(0, 2, steps), np.ones(steps), extra_model_outputs=outputs, terminated=True
    )


def drawing(size: Size, steps: int) -> Timed:
    """Time creating the HTML view of an episode of `steps` steps."""
    return Timed(episode(size(steps))._repr_html_, clock=cpu_seconds)


def html_bytes(size: Size, steps: int) -> Counted:
    """Count the bytes of the HTML view of an episode of `steps` steps."""
    return Counted(len(episode(size(steps))._repr_html_().encode()))


# --- importing --------------------------------------------------------------------------------------------------------

BELOW = "numpy, gymnasium.spaces, tree"
LIBRARY = "episodes.single_agent, episodes.pack, episodes.batch"  # `import episodes` loads them when they are used
IMPORT = "import time; began = time.process_time(); import {}; print(time.process_time() - began)"


class Imports:
    """Measurement of imports: imports modules in new Python processes, and sums their CPU seconds."""

    def __init__(self, modules: str) -> None:
        self.script, self.seconds = IMPORT.format(modules), 0.0
        self.env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def once(self) -> None:
        """Import the modules in a new Python process, and add its CPU seconds."""
        command = [sys.executable, "-c", self.script]
        process = subprocess.run(command, capture_output=True, text=True, check=True, env=self.env)
        self.seconds += float(process.stdout)


def importing(size: Size, modules: str) -> Timed:
    """Time the import of modules, in a new Python process for each call."""
    imports = Imports(modules)
    return Timed(imports.once, clock=lambda: imports.seconds)


class Help:
    """Measurement of a command: runs Python with arguments in new processes, and sums their CPU seconds."""

    def __init__(self, *words: str) -> None:
        self.words, self.seconds = words, 0.0

    def once(self) -> None:
        """Run the command in a new process, and add its CPU seconds."""
        before = os.times()
        subprocess.run([sys.executable, *self.words], capture_output=True, check=True)
        after = os.times()
        self.seconds += after.children_user + after.children_system - before.children_user - before.children_system


def helping(size: Size, words: Sequence[str]) -> Timed:
    """Time a Python process with the arguments `words`, such as `--help` of a command."""
    command = Help(*words)
    return Timed(command.once, clock=lambda: command.seconds)


# --- live curves ------------------------------------------------------------------------------------------------------


def logging_rows(size: Size) -> Timed:
    """Time writing a row of 12 numbers to the CSV file that `episodes watch` reads."""
    from episode_learners.loggers import CSVLogger

    logger, steps = CSVLogger(tempfile.mkdtemp()), iter(range(10**9))
    row = {f"metric_{k}": k / 7 for k in range(12)}

    def run() -> None:
        logger.log("update", row, next(steps))

    weakref.finalize(run, logger.close)
    return Timed(run, clock=cpu_seconds)


WATCHER = """
import sys, threading, time, urllib.request
from episodes.inspect.page_server import PageServer
server, version = PageServer(sys.argv[1]), ""
threading.Thread(target=server.serve_forever, daemon=True).start()
while True:
    with urllib.request.urlopen(f"{server.url}runs?version={version}") as answer:
        body = answer.read()
    if body:
        version = body.split(b'"version":', 1)[1].split(b",", 1)[0].decode()
    print(flush=True)
    time.sleep(1)
"""


class WatchedRun:
    """PPO training run with 2,000 logged rows, whose curves another process requests each second."""

    def __init__(self, size: Size) -> None:
        import gymnasium

        from episode_learners import PPO, MLPPolicy
        from episode_learners.loggers import CSVLogger
        from episode_runners import SingleAgentEnvRunner

        self.folder = tempfile.mkdtemp()
        self.logger, self.step, self.num_steps = CSVLogger(self.folder), 0, size(8192)
        env = gymnasium.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync")
        policy = MLPPolicy(env.single_observation_space, env.single_action_space)
        self.runner, self.ppo = SingleAgentEnvRunner(env, policy, seed=0), PPO(policy)
        for _ in range(size(2000)):
            self.log({f"metric_{k}": k / 7 for k in range(12)})

    def log(self, row: dict[str, float]) -> None:
        """Log a row of metrics and a row of episode statistics."""
        self.step += 1
        self.logger.log("update", row, self.step)
        self.logger.log("train", {"mean_return": 1.0, "steps_per_second": 1.0}, self.step)

    def epoch(self) -> None:
        """Sample episodes, update the policy, and log the metrics."""
        pack = self.runner.sample(num_timesteps=self.num_steps)
        self.log(self.ppo.update(pack))

    def close(self) -> None:
        """Close the environments and files, and remove the folder of the run."""
        self.runner.close()
        self.logger.close()
        shutil.rmtree(self.folder)


class Watcher:
    """Process that requests the curves of a run each second. It is paused except while it is measured."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, "-c", WATCHER, folder]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.process.stdout.readline()  # type: ignore[union-attr]  # it has started
        self.pause()

    def pause(self) -> None:
        """Pause the process."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process continue."""
        self.process.send_signal(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Kill the process, and close its output."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


def watching(size: Size, is_watched: bool) -> Timed:
    """Time sampling of 8,192 steps and one update, with or without another process that requests the run's curves.

    The clock is the CPU time of both processes, so that other load on the machine does not count.
    """
    run = WatchedRun(size)
    watcher = Watcher(run.folder)

    def epoch() -> None:
        """Train for one epoch. If the run is watched, the other process runs meanwhile."""
        if is_watched:
            watcher.resume()
        try:
            run.epoch()
        finally:
            watcher.pause()

    weakref.finalize(epoch, run.close)
    weakref.finalize(epoch, watcher.close)
    return Timed(epoch, items=run.num_steps, clock=lambda: cpu_seconds() + watcher.cpu_seconds())


# --- pages of many episodes, and episodes of the training -------------------------------------------------------------


def opening_page(size: Size, num_episodes: int) -> Timed:
    """Time the answers that a browser needs for its first picture of a data set: opening it, the page, and its rows."""
    from episodes import EpisodePack
    from episodes.facts.facts import random_ids
    from episodes.inspect.page_server import PageServer
    from episodes.storage import EpisodeWriter

    folder, count = tempfile.mkdtemp(), size(1000)
    pack = EpisodePack.from_episodes([episode(10) for _ in range(count)])
    with EpisodeWriter(folder) as writer:
        for _ in range(num_episodes // 1000):
            writer.add(pack.replace(ids=random_ids(count)))

    def open_page() -> None:
        """Open the data set and answer the first two requests."""
        with PageServer(folder) as server:
            server.source.answer("", {})
            server.source.answer("rows", {})

    weakref.finalize(open_page, shutil.rmtree, folder)
    return Timed(open_page, clock=cpu_seconds)


def page_bytes(size: Size, num_episodes: int) -> Counted:
    """Count the bytes of the page of CartPole episodes with random actions."""
    from episode_runners import SingleAgentEnvRunner
    from episodes.inspect.html_report import write_report
    from episodes.storage import EpisodeDataset, EpisodeWriter

    with tempfile.TemporaryDirectory() as folder:
        with SingleAgentEnvRunner("CartPole-v1", num_envs=16, seed=0) as runner, EpisodeWriter(f"{folder}/d") as writer:
            writer.add(runner.sample(num_episodes=size(num_episodes), random_actions=True))
        return Counted(write_report(EpisodeDataset(f"{folder}/d"), f"{folder}/page.html").stat().st_size)


def keeping(size: Size, keeps: bool) -> Timed:
    """Time 2,000 steps of DQN on CartPole, in episodes of about 20 steps, with or without an `EpisodeKeeper`."""
    import gymnasium as gym
    import torch

    from episode_learners import DQN, QPolicy
    from episode_learners.trainers import EpisodeKeeper, OffPolicyConfig, OffPolicyTrainer
    from episode_runners import SingleAgentEnvRunner
    from episodes.replay import EpisodeReplayBuffer

    folder, env = tempfile.mkdtemp(), gym.make_vec("CartPole-v1", 8)
    weights = torch.Generator().manual_seed(0)  # the episodes of both sides are equally long
    policy = QPolicy(env.single_observation_space, env.single_action_space, generator=weights)
    keeper, number = EpisodeKeeper(folder), size(2000)
    trainer = OffPolicyTrainer(
        DQN(policy, seed=0),
        SingleAgentEnvRunner(env, policy, seed=0),
        EpisodeReplayBuffer(50_000, seed=0),
        OffPolicyConfig(steps_per_collect=8, warmup_steps=1000, shows_progress=False),
        hooks=[keeper] if keeps else [],
    )
    trainer.step()  # the warmup

    def train() -> None:
        """Train for the steps."""
        goal = trainer.num_steps + number
        while trainer.num_steps < goal:
            trainer.step()

    weakref.finalize(train, shutil.rmtree, folder)
    return Timed(train, clock=cpu_seconds)


def filming(size: Size, records: bool) -> Timed:
    """Time 400 random steps of CartPole that are rendered, with or without a `FrameRecorder`."""
    from episode_learners.trainers import FrameRecorder
    from episode_runners import SingleAgentEnvRunner

    class Rendered:
        """Hook that renders each step, and drops the images."""

        def on_step(self, runner: SingleAgentEnvRunner) -> None:
            runner.env.render()

    hook, mode = FrameRecorder() if records else Rendered(), {"render_mode": "rgb_array"}
    runner = SingleAgentEnvRunner("CartPole-v1", num_envs=8, seed=0, env_kwargs=mode, hooks=[hook])
    return Timed(lambda: runner.sample(num_timesteps=size(400), random_actions=True), clock=cpu_seconds)


# --- lineage ----------------------------------------------------------------------------------------------------------


def filled(size: Size, lineage: int | None = None):
    """Return a replay buffer filled with random steps. `lineage` is the length of its log of added episodes."""
    from episodes.replay import EpisodeReplayBuffer

    buffer = EpisodeReplayBuffer(size(100_000), seed=0, lineage=lineage)
    buffer.add([episode(min(1000, buffer.capacity)) for _ in range(max(buffer.capacity // 1000, 1))])
    return buffer


def drawing_rows(size: Size, knows: bool) -> Timed:
    """Time sampling of 256 transitions, with or without the origin (episode and step) of each row."""
    buffer = filled(size)
    draw = (lambda: buffer.sample(256).origin.numbers) if knows else (lambda: buffer.sample(256))
    return Timed(draw, clock=cpu_seconds)


def adding_rows(size: Size, knows: bool) -> Timed:
    """Time adding packs of 5,000 steps to a full buffer, with or without a log of the added episodes."""
    from episodes import EpisodePack
    from episodes.facts.facts import random_ids

    buffer = filled(size, size(400_000) if knows else None)
    pack = EpisodePack.from_episodes([episode(size(200)) for _ in range(size(25))])
    return Timed(buffer.add, fresh=lambda: pack.replace(ids=random_ids(len(pack))), clock=cpu_seconds)


def ledger_bytes(size: Size) -> Counted:
    """Measure the bytes per row of a `Ledger` that records updates of 256 rows."""
    from episodes.storage.ledger import Ledger

    buffer, updates = filled(size), size(400)
    with tempfile.TemporaryDirectory() as folder:
        with Ledger(folder) as ledger:
            for update in range(updates):
                ledger.note(update, buffer.sample(256))
        return Counted(sum(file.stat().st_size for file in Path(folder).iterdir()) / (256 * updates))


FIGURES = (
    Figure("looking/200 steps", Side("ours", partial(drawing, steps=200)), limit("5 ms", 0.005), at_most(1), "ms"),
    Figure(
        "looking/100,000 steps", Side("ours", partial(drawing, steps=100_000)), limit("20 ms", 0.020), at_most(1), "ms"
    ),
    Figure(
        "looking/200 steps, bytes",
        Side("ours", partial(html_bytes, steps=200)),
        limit("50 kB", 50_000),
        at_most(1),
        "bytes",
    ),
    Figure(
        "looking/100,000 steps, bytes",
        Side("ours", partial(html_bytes, steps=100_000)),
        limit("50 kB", 50_000),
        at_most(1),
        "bytes",
    ),
    Figure(
        "looking/import episodes",
        Side("ours", partial(importing, modules=LIBRARY)),
        Side(BELOW, partial(importing, modules=BELOW)),
        at_most(1.5),
        "ms",
    ),
    Figure(
        "looking/episodes --help",
        Side("ours", partial(helping, words=("-m", "episodes", "--help"))),
        Side("import numpy", partial(helping, words=("-c", "import numpy"))),
        at_most(3),
        "ms",
    ),
    Figure(
        "looking/episodes train --help",
        Side("ours", partial(helping, words=("-m", "episode_learners", "train", "--help"))),
        Side("import numpy", partial(helping, words=("-c", "import numpy"))),
        at_most(4),
        "ms",
    ),
    Figure("looking/a row of a run's CSV file", Side("ours", logging_rows), limit("100 us", 0.0001), at_most(1), "us"),
    Figure(
        "looking/PPO while its page is watched",
        Side("ours", partial(watching, is_watched=True)),
        Side("not watched", partial(watching, is_watched=False)),
        at_most(1.01),
        "us",
    ),
    Figure(
        "looking/first answers for 100,000 episodes",
        Side("ours", partial(opening_page, num_episodes=100_000)),
        limit("0.5 s", 0.5),
        at_most(1),
        "ms",
    ),
    Figure(
        "looking/page of 10,000 episodes, bytes",
        Side("ours", partial(page_bytes, num_episodes=10_000)),
        limit("5 MB", 5_000_000),
        at_most(1),
        "bytes",
    ),
    Figure(
        "looking/DQN whose episodes are kept",
        Side("ours", partial(keeping, keeps=True)),
        Side("not kept", partial(keeping, keeps=False)),
        at_most(1.03),
        "ms",
    ),
    Figure(
        "looking/CartPole whose frames are recorded",
        Side("ours", partial(filming, records=True)),
        Side("rendered", partial(filming, records=False)),
        at_most(2),
        "ms",
    ),
    Figure(
        "looking/draw 256 and their origin",
        Side("ours", partial(drawing_rows, knows=True)),
        Side("the draw alone", partial(drawing_rows, knows=False)),
        at_most(1.1),
        "us",
    ),
    Figure(
        "looking/add 5,000 steps with a log of them",
        Side("ours", partial(adding_rows, knows=True)),
        Side("without", partial(adding_rows, knows=False)),
        at_most(1.25),
        "us",
    ),
    Figure("looking/a row of a ledger", Side("ours", ledger_bytes), limit("16 bytes", 16), at_most(1.25), "bytes"),
)
