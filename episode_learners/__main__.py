"""Command line of training: `episodes train`, `evaluate`, `play` and `export`. Slow modules such as torch are imported
only when a command needs them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episodes.command.terminal import say, say_wrapped
from episodes.errors import EpisodeError, InvalidArgument, UnreadableData

if TYPE_CHECKING:
    from episode_learners.loggers import Logger
    from episode_learners.run import Run
    from episode_learners.trainers.trainer import Trainer
    from episode_runners.evaluation import Evaluation
    from episodes.multi_agent import MultiAgentEpisode
    from episodes.pack import EpisodePack

RUN = "run.json"
DEFAULT_FOLDER = "runs"
KEPT = "training"  # data set of --keep-episodes in the folder of a run
BEST_HELP = "take the policy of the best test (default: that of the newest checkpoint)"
ALGO, ENV = "ppo", "CartPole-v1"
ALGORITHM_NAMES = ("ppo", "recurrent-ppo", "impala", "grpo", "dqn", "r2d2", "sac", "bc", "cql", "continuous-cql")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command such as `train`, given by command-line arguments, and return its exit status.

    `arguments` are by default those of the process. Wrong arguments end the process with status 2.
    """
    chosen, unknown = _make_parser().parse_known_args(arguments)
    parser: argparse.ArgumentParser = chosen.parser
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; see episodes {chosen.command} --help")
    import gymnasium as gym
    import torch

    torch.set_num_threads(1)  # small networks: a second thread only waits for the first
    try:
        return {"train": _train, "evaluate": _evaluate, "play": _play, "export": _export}[chosen.command](chosen)
    except (EpisodeError, gym.error.Error, OSError, TypeError) as error:
        parser.error(str(error))


def _train(chosen: argparse.Namespace) -> int:
    """Run `episodes train`: create or resume a training run, train, print the result, and return exit status 0.

    Raises:
        InvalidArgument: the folder of a new run contains a run already.
    """
    from episode_learners.loggers.run_description import describe_run
    from episode_learners.trainers.episode_keeper import EpisodeKeeper

    if chosen.keep_frames and chosen.keep_episodes is None:
        raise InvalidArgument("--keep-frames without --keep-episodes: frames are kept of kept episodes; give both")
    run, folder = _make_run(chosen)
    if chosen.resume is None and (folder / RUN).exists():
        raise InvalidArgument(
            f"{folder} contains a run: resume it with --resume {folder}, or choose another folder with --logdir"
        )
    trainer = run.make(folder=folder, stop_fn=_make_stop_fn(run, chosen.stop_at))
    with trainer.runner, _make_logger(folder, chosen) as logger, ExitStack() as stack:  # type: ignore[attr-defined]
        trainer.logger = logger
        if chosen.keep_episodes is not None:
            options = {"seed": run.seed, "env_spec": run.env, "frames": chosen.keep_frames}
            keeper = EpisodeKeeper(folder / KEPT, chosen.keep_episodes, **options)
            keeper.check(trainer)
            trainer.hooks.append(stack.enter_context(keeper))
        if chosen.resume is not None:
            _resume(trainer, chosen.stop_at, chosen.allow)
        logger.describe(describe_run(**asdict(run)))
        result = trainer.run()
        if result.num_epochs and result.stopped_by != "interrupt":
            trainer.save_epoch()
    if chosen.json:
        facts = {**asdict(result), "folder": str(folder)}
        say(json.dumps({name: value for name, value in facts.items() if isinstance(value, (str, int, float))}))
        return 0
    say(
        f"{run.algo} on {run.env}: {result.num_steps:,} steps, {result.num_epochs} epochs in {result.seconds:.1f} s "
        f"({result.stopped_by}); best test {result.best_score:.1f} in epoch {result.best_epoch}; stored in {folder}"
    )
    return 0


def _resume(trainer: Trainer[Any], goal: float | None, allow: Sequence[str]) -> None:
    """Continue a training run from its newest checkpoint, or begin it from the start if there is no checkpoint.

    With `goal`, the run stops at once if its best test has reached that score. `allow` are the settings that may
    differ from the checkpoint's.
    """
    if not trainer.resume(allow):
        trainer.logger.resume(-1)
    elif goal is not None:
        trainer.is_stopped = trainer.best_score >= goal  # another goal than that which the run was stopped by


def _make_run(chosen: argparse.Namespace) -> tuple[Run, Path]:
    """Return the `Run` (settings of a training run) that the command-line arguments describe, and the folder of the
    run.
    """
    from episode_learners.run import Run

    if chosen.resume is not None:
        _check_without(chosen, "resume", "a run that is resumed keeps its own", "seed", "algo", "env", "config", "data")
        _check_without(chosen, "resume", "a run that is resumed stays in its folder", "logdir")
        folder = chosen.resume
        run = _read_run(folder)
    else:
        if chosen.config:
            _check_without(chosen, "config", "the file says that", "algo", "env")
        run = Run.of_file(chosen.config) if chosen.config else Run.of_preset(chosen.algo or ALGO, chosen.env or ENV)
        if chosen.seed is not None:
            run.seed = chosen.seed
        if chosen.data is not None:
            run.data = str(chosen.data)
        run.trainer.setdefault("checkpoint_every", 1)
        name = f"{run.algo}-{re.sub('[/:]', '-', run.env.lower())}-seed{run.seed}"
        folder = chosen.logdir or Path(DEFAULT_FOLDER) / name
    if chosen.epochs is not None:
        run.trainer["max_epochs"] = chosen.epochs
    if chosen.runners is not None:
        run.num_runners = chosen.runners
    run.ledger, run.device = run.ledger or chosen.ledger, chosen.device or run.device
    run.explain = run.explain or chosen.explain
    run.renders = chosen.keep_frames
    run.trainer["shows_progress"] = not chosen.quiet
    return run, folder


def _path(text: str) -> Path:
    """Return an argument as a path of this machine, from a path with "~" or a `file://` URL."""
    from episodes.storage.files import local_path

    return local_path(text)


def _check_without(chosen: argparse.Namespace, option: str, reason: str, *destinations: str) -> None:
    """Raise `InvalidArgument` if the user combined `option` with any of the arguments `destinations`.

    The error contains `reason`.
    """
    for destination in destinations:
        if getattr(chosen, destination) is not None:
            raise InvalidArgument(f"--{destination} cannot be combined with --{option}: {reason}; leave it out")


def _read_run(folder: Path) -> Run:
    """Read the settings of a training run from the file `run.json` in its folder.

    Raises:
        FileNotFoundError: the folder has no `run.json`.
        UnreadableData: the file does not contain the description of a run.
    """
    from episode_learners.run import Run

    path = folder / RUN
    if not path.exists():
        advice = "; episodes train writes one. A run of your own trainer is resumed in Python: trainer.resume()"
        raise FileNotFoundError(f"{folder} contains no run: it has no {RUN}{advice}")
    try:
        table = dict(json.loads(path.read_text(encoding="utf-8"))["configuration"])
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableData(f"{path} does not describe a run ({type(error).__name__}: {error})") from error
    return Run.of_table(table, str(path))


def _resume_trainer(folder: Path, device: str | None, *, best: bool) -> Trainer[Any]:
    """Return the trainer of the training run in `folder`, with the state of its newest checkpoint and a single runner
    in this process. With `best`, its policies are those of the best test.

    Raises:
        FileNotFoundError: the folder has no run, or no checkpoint yet.
        InvalidArgument: `best` is True, and the run had no test before its newest checkpoint.
    """
    run = _read_run(folder)
    run.device = device or run.device
    run.num_runners, run.renders = 0, False  # tests and plays in this process
    trainer = run.make(folder=folder)
    if not trainer.resume():
        raise FileNotFoundError(f"{folder} has no checkpoint yet")
    if best:
        trainer.restore_best()
    return trainer


def _evaluate(chosen: argparse.Namespace) -> int:
    """Run `episodes evaluate`: print the evaluation of a trained policy, as text or JSON, and return exit status 0."""
    evaluation = _evaluate_policy(chosen, chosen.seed or 0)
    say(json.dumps(evaluation.as_dict()) if chosen.json else evaluation)
    return 0


def _play(chosen: argparse.Namespace) -> int:
    """Run `episodes play`: let a trained policy play episodes, add the episodes to a data set on disk, and return exit
    status 0.

    Raises:
        InvalidArgument: the data set already has episodes of this seed.
    """
    from episodes.storage import EpisodeDataset, EpisodeWriter
    from episodes.storage.header import is_data_set

    target = chosen.out or chosen.folder / "episodes"
    known: set[str] = set()
    if is_data_set(target):
        stored = EpisodeDataset(target).metadata  # the id of an agent's episode, and of its multi-agent episode
        known = {*stored["id"], *stored["multi_agent_episode_id"]} - {None}
    evaluation = _evaluate_policy(chosen, _fresh_seed(len(known)) if chosen.seed is None else chosen.seed)
    ids = _ids_of(evaluation.episodes)
    twice = [id_ for id_ in ids if id_ in known]
    if twice:
        raise InvalidArgument(
            f"{target} already has {len(twice)} of the {evaluation.num_episodes} episodes of this seed, such as "
            f"{twice[0]}: leave --seed out, give another seed, or write to another data set with --out"
        )
    with EpisodeWriter(target, env_spec=_read_run(chosen.folder).env) as writer:
        writer.add(_with_ids(evaluation.episodes, ids))
    say(f"{evaluation}, stored in {target}")
    return 0


def _ids_of(episodes: EpisodePack | list[MultiAgentEpisode]) -> list[str]:
    """Return ids that follow from what happened in the episodes, so that the same episodes get the same ids again."""
    import numpy as np

    from episodes.tracks import nested

    counts: Counter[str] = Counter()
    ids = []
    for episode in episodes:
        digest = blake2b(digest_size=16)
        for part in getattr(episode, "agent_episodes", {"": episode}).values():
            for leaf in nested.leaves((part.get_observations(), part.get_actions())):
                digest.update(np.ascontiguousarray(leaf).tobytes())
        name = digest.hexdigest()
        ids.append(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return ids


def _with_ids(episodes: EpisodePack | list[MultiAgentEpisode], ids: list[str]) -> Any:
    """Return the episodes of an `Evaluation` with other ids: a pack, or the same list of multi-agent episodes."""
    from episodes import EpisodePack

    if isinstance(episodes, EpisodePack):
        return episodes.replace(ids=ids)
    for episode, id_ in zip(episodes, ids, strict=True):
        episode.id_ = id_
        for agent_id, agent in episode.agent_episodes.items():
            agent.id_, agent.multi_agent_episode_id = f"{id_}_{agent_id}", id_
    return episodes


def _export(chosen: argparse.Namespace) -> int:
    """Run `episodes export`: write the trained policy of a run to an .onnx file (one file per policy for several
    agents), and return exit status 0.
    """
    from connectors.export import export

    target = chosen.out or chosen.folder / "policy.onnx"
    trainer = _resume_trainer(chosen.folder, "cpu", best=chosen.best)
    origin = f"best test (mean return {trainer.best_score:.1f})" if chosen.best else "newest checkpoint"
    with trainer.runner as runner:  # type: ignore[attr-defined]
        options = {"explore": chosen.explore, "num_steps": chosen.steps, "double": not chosen.float32}
        options["tolerance"] = 1e-4 if chosen.float32 else 1e-5
        if hasattr(runner, "actors"):
            files = [target.with_stem(f"{target.stem}-{module_id}") for module_id in runner.actors]
            exported = [
                export(actor, file, **options) for actor, file in zip(runner.actors.values(), files, strict=True)
            ]
        else:
            exported = [export(runner.actor, target, check_on=_read_run(chosen.folder).env, **options)]
    for exported_file in exported:
        parity = exported_file.parity
        say(
            f"{exported_file.path}: {exported_file.num_bytes:,} bytes, equal to the policy of the {origin} in "
            f"{parity.num_steps} steps of {parity.num_episodes} episodes (difference {parity.largest_difference:.1g})"
        )
    return 0


def _fresh_seed(num_known: int) -> int:
    """Return a seed that depends on `num_known`, the number of ids in a data set, so that each call of `episodes play`
    adds new episodes.
    """
    from episode_runners.seeds import independent_seed

    return independent_seed(num_known) if num_known else 0


def _evaluate_policy(chosen: argparse.Namespace, seed: int) -> Evaluation:
    """Play `chosen.episodes` episodes with the trained policy of a run's folder, and return their statistics."""
    from episode_runners import evaluate

    trainer = _resume_trainer(chosen.folder, chosen.device, best=chosen.best)
    with trainer.runner as runner:  # type: ignore[attr-defined]
        return evaluate(runner, num_episodes=chosen.episodes, seed=seed)


def _make_logger(folder: Path, chosen: argparse.Namespace) -> Logger:
    """Return the logger of a training run: CSV files, and optionally TensorBoard and Weights & Biases."""
    from episode_learners.loggers import CSVLogger, MultiLogger, TensorBoardLogger, WandbLogger

    loggers: list[Logger] = [CSVLogger(folder)]
    if chosen.tensorboard:
        loggers.append(TensorBoardLogger(folder))
    if chosen.wandb is not None:
        loggers.append(WandbLogger(folder, project=chosen.wandb))
    return loggers[0] if len(loggers) == 1 else MultiLogger(loggers)


def _make_stop_fn(run: Run, goal: float | None) -> Any:
    """Return a function that ends training if the mean return of a test reaches `goal`, or by default the environment's
    reward threshold. Return None if neither exists, or if the run has no tests.
    """
    import gymnasium as gym

    is_tested = bool(run.trainer.get("num_test_episodes", 1))
    threshold = goal
    if goal is None and not run.modules:
        threshold = gym.spec(run.env.rpartition(":")[2]).reward_threshold
    return None if threshold is None or (goal is None and not is_tested) else lambda score: score >= threshold


class _Parser(argparse.ArgumentParser):
    """Parser whose errors, which quote settings and files of a run, contain no control characters, and have line
    breaks between words in terminals.
    """

    def error(self, message: str) -> Any:
        say_wrapped(f"{self.format_usage()}{self.prog}: error: {message}", err=True)
        self.exit(2)


def _parse_count(text: str) -> int:
    """Convert a command-line argument to an int. Raise `ArgumentTypeError`, which argparse reports, if it is less than
    1.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a count: give an int of at least 1")
    return number


def _parse_rate(text: str) -> float:
    """Convert a command-line argument such as "5/h" to a number. Raise `ArgumentTypeError`, which argparse reports, if
    it is something else, or 0.
    """
    match = re.fullmatch(r"([0-9]{1,6}(\.[0-9]{1,6})?)/h", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: give times per hour, such as 5/h")
    return float(match[1])


def _make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line with the commands `train`, `evaluate`, `play` and `export`."""
    parser = _Parser(prog="episodes", description="Train, evaluate, play and export.")
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train a policy, or resume a run")
    train.set_defaults(parser=train)
    train.add_argument("--algo", choices=ALGORITHM_NAMES, help=f"the algorithm (default: {ALGO})")
    train.add_argument("--env", help=f"a Gymnasium environment id (default: {ENV})")
    train.add_argument("--config", type=_path, help="a TOML file of settings, instead of --algo and --env")
    train.add_argument("--resume", type=_path, metavar="DIR", help="resume the run in this folder")
    train.add_argument(
        "--allow", action="append", default=[], metavar="SETTING", help="accept this changed setting of run.json"
    )
    train.add_argument("--logdir", type=_path, help="folder of the run (default: runs/ALGO-ENV-seedSEED)")
    train.add_argument(
        "--data", type=_path, metavar="DIR", help="the data set that bc, cql and continuous-cql learn from"
    )
    train.add_argument("--seed", type=int, help="seed of the run (default: as in the settings)")
    train.add_argument("--runners", type=int, metavar="N", help="number of Ray processes that sample (on-policy)")
    train.add_argument("--epochs", type=int, help="largest number of epochs")
    train.add_argument("--stop-at", type=float, help="stop at this mean return of a test")
    train.add_argument("--tensorboard", action="store_true", help="also write event files of TensorBoard")
    train.add_argument("--wandb", metavar="PROJECT", help="also send metrics to Weights & Biases (WANDB_MODE=offline)")
    train.add_argument(
        "--ledger", action="store_true", help="record what each update learned from (episodes ledger diff)"
    )
    train.add_argument(
        "--keep-episodes",
        type=_parse_rate,
        metavar="N/h",
        help=f"add the worst, best and a random episode to FOLDER/{KEPT}, N times an hour and at the end",
    )
    train.add_argument(
        "--keep-frames",
        action="store_true",
        help="with --keep-episodes: render each step, 1 to 5 ms, and keep the frames of the kept episodes",
    )
    train.add_argument(
        "--explain",
        action="store_true",
        help="as --ledger, with measurements of each row (episodes explain RUN UPDATE)",
    )
    train.add_argument("--device", help="device of the policy, such as cuda (default: as in the settings)")
    train.add_argument("--json", action="store_true", help="print the result as JSON")
    train.add_argument("--quiet", action="store_true", help="print no progress bar")
    for name, text in (("evaluate", "test the policy of a run"), ("play", "record episodes of the policy of a run")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(parser=command)
        command.add_argument("folder", type=_path, help="folder of the run")
        command.add_argument("--best", action="store_true", help=BEST_HELP)
        command.add_argument("--episodes", type=_parse_count, default=20, help="number of episodes (default: 20)")
        default_seed = "0" if name == "evaluate" else "a different one in each call"
        command.add_argument("--seed", type=int, help=f"seed of the environments (default: {default_seed})")
        command.add_argument("--device", help="device of the policy (default: the device of the training)")
        if name == "evaluate":
            command.add_argument("--json", action="store_true", help="print the result as JSON")
        if name == "play":
            command.add_argument("--out", type=_path, help="the data set (default: FOLDER/episodes)")
    command = commands.add_parser("export", help="write the policy of a run to an .onnx file")
    command.set_defaults(parser=command)
    command.add_argument("folder", type=_path, help="folder of the run")
    command.add_argument("--best", action="store_true", help=BEST_HELP)
    command.add_argument("--out", type=_path, help="the file (default: FOLDER/policy.onnx)")
    command.add_argument("--explore", action="store_true", help="sample actions instead of acting greedily")
    command.add_argument(
        "--steps", type=_parse_count, default=500, help="steps that compare file and policy (default: 500)"
    )
    command.add_argument(
        "--float32", action="store_true", help="compute filters in float32, for devices without float64"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
