"""Every connector of the library passes `check_connector`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from connectors import BatchItems, NumpyToTensor, ObservationRewriter, env_to_module, learner, module_to_env
from connectors.connector import Connector
from connectors.pipeline import ConnectorPipeline
from connectors.testing import check_connector
from connectors.views.piece import ViewPiece
from episode_learners import LSTMPolicy, MLPPolicy

VECTOR = gym.spaces.Box(-10, 10, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4, 4, 1), np.uint8)
NESTED = gym.spaces.Dict({"eyes": IMAGE, "joints": gym.spaces.Tuple((VECTOR, gym.spaces.Discrete(4, start=2)))})
CHOICE = gym.spaces.Discrete(3, start=1)
FORCE = gym.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 5], np.float32))
BOTH = gym.spaces.Dict({"choice": CHOICE, "force": FORCE, "keys": gym.spaces.MultiDiscrete([2, 3])})
GOALS = gym.spaces.Dict({"achieved_goal": VECTOR, "desired_goal": VECTOR, "observation": VECTOR})


def mlp() -> Any:
    return MLPPolicy(VECTOR, CHOICE, hidden_sizes=(4,))


def lstm() -> Any:
    return LSTMPolicy(VECTOR, CHOICE, hidden_sizes=(4,), state_size=2)


def padded() -> list[Connector]:
    columns = [learner.AddObservations(), learner.AddNextObservations(), learner.AddColumns()]
    return [*columns, learner.AddTimeDimensionAndZeroPad(max_seq_len=3)]


class WithTime(Connector):
    """Outputs [N, 1, ...] of a recurrent policy."""

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {name: column[:, None] for name, column in batch.items()}


def distance(achieved: np.ndarray, goals: np.ndarray, infos: Any) -> np.ndarray:
    return -np.abs(achieved - goals).sum(axis=-1)


@dataclass
class Case:
    """A connector with the arguments of its check."""

    make: Callable[[], Connector]
    pipeline: str
    options: dict[str, Any] = field(default_factory=dict)  # of `check_connector`; makers of policies and of `before`

    def __str__(self) -> str:
        spaces = [repr(v).split("(")[0] for k, v in self.options.items() if k.endswith("space")]
        return f"{self.pipeline}-{type(self.make()).__name__}" + "".join(f"-{name}" for name in spaces)


def case(pipeline: str, make: Callable[[], Connector], **options: Any) -> Case:
    return Case(make, pipeline, options)


CASES = [
    # learner
    *(case("learner", learner.AddObservations, observation_space=space) for space in (VECTOR, IMAGE, NESTED)),
    *(case("learner", learner.AddNextObservations, observation_space=space) for space in (VECTOR, NESTED)),
    *(case("learner", learner.AddColumns, action_space=space) for space in (CHOICE, FORCE, BOTH)),
    case("learner", lambda: learner.AddColumns(extra_model_outputs=["action_logp"])),
    case("learner", learner.AddInfosFromEpisodesToTrainBatch),
    case("learner", lambda: learner.AddInfos(at="obs")),
    case("learner", lambda: learner.AddInfos(at="new_obs")),
    case("learner", BatchItems),
    case("learner", NumpyToTensor, observation_space=NESTED),
    case("learner", lambda: learner.AddTimeDimensionAndZeroPad(max_seq_len=3), observation_space=NESTED),
    case("learner", learner.AddStates, policy=lstm, before=padded),
    case("learner", lambda: learner.AddPolicyVersions(newest=int)),
    case("learner", lambda: learner.AddPolicyVersions(), before=padded),
    case("learner", lambda: learner.ComputeReturnsToGo(gamma=0.9, allow_cut=True)),
    case("learner", lambda: learner.ComputeReturnsToGo(gamma=0.9, allow_cut=True), before=padded),
    case("learner", learner.NormalizeRewards, rowwise=False),
    case("learner", learner.GeneralizedAdvantageEstimation, policy=mlp),
    case("learner", lambda: learner.GeneralizedAdvantageEstimation(normalize=True), policy=mlp, rowwise=False),
    case("learner", learner.VTrace, policy=mlp, action_space=CHOICE),
    case(
        "learner",
        lambda: learner.HindsightRelabel(compute_reward=distance, seed=0),
        observation_space=GOALS,
        rowwise=False,
    ),
    # env to module
    case("env_to_module", env_to_module.AddObservations, observation_space=NESTED),
    case("env_to_module", env_to_module.AddTimeDimension, observation_space=NESTED),
    case("env_to_module", env_to_module.AddStates, policy=lstm),
    case("env_to_module", BatchItems),
    case("env_to_module", NumpyToTensor, observation_space=NESTED),
    # rewriters, in both
    *(
        case(pipeline, make, observation_space=space)
        for pipeline in ("env_to_module", "learner")
        for make, space in (
            (env_to_module.FlattenObservations, NESTED),
            (env_to_module.MeanStdFilter, VECTOR),
            (lambda: env_to_module.ForEachAgent(env_to_module.MeanStdFilter), VECTOR),
        )
    ),
    # module to env
    *(case("module_to_env", lambda: module_to_env.GetActions(seed=0), action_space=s) for s in (CHOICE, FORCE, BOTH)),
    case("module_to_env", module_to_env.TensorToNumpy, before=lambda: [module_to_env.GetActions(seed=0)]),
    case("module_to_env", module_to_env.UnbatchItems),
    case("module_to_env", module_to_env.RemoveTimeDimension, before=lambda: [WithTime()]),
    *(case("module_to_env", module_to_env.NormalizeAndClipActions, action_space=space) for space in (FORCE, BOTH)),
    case(
        "module_to_env",
        lambda: module_to_env.NormalizeAndClipActions(normalize_actions=False, clip_actions=True),
        action_space=FORCE,
    ),
    *(
        case(
            "module_to_env",
            module_to_env.ListifyForVectorEnv,
            action_space=space,
            before=lambda: [
                module_to_env.GetActions(seed=0),
                module_to_env.TensorToNumpy(),
                module_to_env.NormalizeAndClipActions(),
            ],
        )
        for space in (CHOICE, BOTH)
    ),
]

# Pieces that have no row for a step: they deal agents to modules and back, fill a rollout of environments,
# or have a row for a token.
OTHERS = {"AgentToModuleMapping", "ModuleToAgentUnmapping", "EpisodesToRolloutBuffer", "TokenColumns"}
# Bases, which have nothing to check until somebody derives from them.
BASES = {"MultiAgentObservationPreprocessor", "ObservationPreprocessor"}


@pytest.mark.parametrize("case", CASES, ids=[f"{case}-{number}" for number, case in enumerate(CASES)])
def test_connector_passes_check_connector(case: Case) -> None:
    made = {name: value() if name in ("policy", "before") else value for name, value in case.options.items()}
    check_connector(case.make(), case.pipeline, **made)


def shipped() -> list[str]:
    """Return the names of all connectors in the packages of the three pipelines, without views."""
    names = [BatchItems.__name__, NumpyToTensor.__name__]
    for module in (env_to_module, learner, module_to_env):
        for name in module.__all__:
            value = getattr(module, name)
            is_piece = inspect.isclass(value) and issubclass(value, Connector)
            if is_piece and not issubclass(value, ConnectorPipeline) and not is_view(value):
                names.append(value.__name__)  # some have a second name
    return sorted({*names} - OTHERS - BASES)


def is_view(kind: type) -> bool:
    return issubclass(kind, ViewPiece) and not issubclass(kind, ObservationRewriter)


@pytest.mark.parametrize("name", shipped())
def test_every_connector_is_checked(name: str) -> None:
    assert name in {type(case.make()).__name__ for case in CASES}
