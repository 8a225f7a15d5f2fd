"""`export`: writes an actor to one .onnx file, which acts on raw observations without this library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from connectors.actor import Actor
from connectors.export.onnx_file import build_onnx, to_bytes
from connectors.export.parity import Parity, Source, check_parity
from connectors.fingerprint import JOINT, stamped
from episodes.errors import InvalidArgument, NotExportable, WrongType, rejected_type
from episodes.storage.files import local_path
from episodes.tracks.validation import checked_count, checked_number

__all__ = ["export"]

_TEMPLATE = Path(__file__).with_name("serve.py")


@dataclass(frozen=True, slots=True)
class Export:
    """Result of `export`: the .onnx file, its size, its inputs and outputs, and its comparison with the actor.

    Attributes:
        path: the file.
        num_bytes: its size.
        inputs, outputs: the names of the graph's inputs and outputs.
        parity: the comparison with the actor.
    """

    path: Path
    num_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parity: Parity


def export(
    actor: Actor,
    path: str | os.PathLike[str],
    *,
    check_on: Source = None,
    explore: bool = False,
    outputs: Sequence[str] = (),
    batch: int | None = None,
    double: bool = True,
    num_steps: int = 500,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> Export:
    """Write an actor to one .onnx file, with its preprocessing, statistics and recurrent state.

    The file takes raw observations and gives environment actions. `serve.py`, which is copied next to it, runs it with
    numpy and onnxruntime. Before the file gets its name, it acts next to the actor and is compared with it.

    Args:
        actor: with the statistics that it has now. Several agents: export the actor of each module.
        path: the file, with the suffix .onnx.
        check_on: what observations the comparison uses: an environment's id, a function that makes an environment, or
            recorded episodes with the environment's own observations. By default they are sampled from the space.
        explore: sample actions from an input of noise. By default the file acts greedily.
        outputs: names of further outputs, such as "action_logp" and "action_dist_inputs".
        batch: 1 for a file that takes one observation at a time, for connectors that need that. By default any number.
        double: False: compute in float32 where filters compute in float64, for devices without it.
        num_steps: steps of the comparison.
        tolerance: of the comparison, relative to the largest magnitude. Use about 1e-4 with `double=False`.
        seed: of the comparison.

    Raises:
        NotExportable: a connector, view or policy has no form in the file, which is named with file and line; or the
            file acts otherwise than the actor. There is no file then, and a previous one stays as it was.
        StateMismatch: the policy was trained in other pipelines, or its filters have no statistics.
        MissingExtra: the extra "export" is not installed.
        WrongType: `actor` is not an actor.
        InvalidArgument: the path does not end in .onnx, its folder does not exist, `check_on` has no episodes, or
            another argument has a value that is not allowed.

    >>> from gymnasium import spaces
    >>> from connectors.env_to_module import FrameStacking
    >>> from episode_learners import LSTMPolicy
    >>> actor = Actor(LSTMPolicy, spaces.Box(-1, 1, (3,)), spaces.Discrete(2), pieces=[FrameStacking(num_frames=4)])
    >>> export(actor, "/tmp/lstm.onnx").inputs  # doctest: +SKIP
    ('obs', 'state/past/observations', 'state/module/actor/h', 'state/module/actor/c')
    """
    if not isinstance(actor, Actor):
        raise WrongType(
            f"export: {rejected_type(actor, Actor)} is not an actor; give Actor(policy, ...), or runner.actor"
        )
    target = local_path(path)
    if target.suffix != ".onnx":
        raise InvalidArgument(f"export: {target} does not end in .onnx")
    if not target.parent.is_dir():
        raise InvalidArgument(f"export: the folder {target.parent} does not exist; create it")
    num_steps, seed = checked_count("num_steps", num_steps), checked_count("seed", seed, 0)
    tolerance = checked_number("tolerance", tolerance, 0.0)
    if isinstance(outputs, str):
        raise InvalidArgument(f"export: outputs is {outputs!r}; give a list of names, as in outputs=[{outputs!r}]")
    if batch not in (None, 1) or batch is True:
        raise InvalidArgument(f"export: batch is {batch!r}; give 1, or None for any number of observations")
    _check_joint(actor)
    actor.check()
    model, _ = build_onnx(actor, explore=explore, outputs=outputs, batch=batch, double=double)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(to_bytes(model))
        parity = check_parity(
            partial, actor, check_on, num_steps=num_steps, tolerance=tolerance, explore=explore, seed=seed
        )
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    shutil.copyfile(_TEMPLATE, target.with_name("serve.py"))
    names = tuple(value.name for value in model.graph.input), tuple(value.name for value in model.graph.output)
    return Export(target, target.stat().st_size, *names, parity)


def _check_joint(actor: Actor) -> None:
    """Raise `NotExportable` if the policy was trained with preprocessors that combine the observations of several
    agents.
    """
    joint = [name for name, _ in (stamped(actor.policy) or {}).get(JOINT, ())]
    if joint:
        raise NotExportable(
            f"connector {', '.join(joint)} reads the observations of all agents (joint=), and an exported file takes "
            "the observations of one agent; compute its output in a wrapper of the environment, and train with that "
            "environment"
        )
