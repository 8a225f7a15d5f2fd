"""`Run`: the settings of a training run, read from a file, a preset or the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch

import episode_learners as learners
from connectors import Actor, Connector, distribution_for
from connectors.env_to_module import FlattenObservations
from connectors.views.transformer_context import TransformerContext
from connectors.views.view import View
from episode_learners import trainers
from episode_learners.algorithms.config_checks import check_fields, count, flag, whole
from episode_learners.algorithms.replay_algorithm import ReplayAlgorithm
from episode_learners.multi_agent_run import explain_rendering, make_multi_agent_trainer
from episode_learners.networks import Autoregressive
from episode_learners.trainers.trainer import Trainer
from episode_runners import GroupRunner, RayRunnerGroup, SingleAgentEnvRunner, make_vector_env
from episodes.errors import InvalidArgument, UnknownKey, UnreadableData
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.storage import EpisodeDataset
from episodes.storage.files import local_path
from episodes.storage.ledger import Ledger
from episodes.tracks.space_kinds import is_box

__all__ = ["ALGORITHMS", "NETWORKS", "Run", "presets"]

MULTI_AGENT = "multi-agent"  # `algo` of a run with modules
SETTINGS = Path(__file__).parent / "settings"


@dataclass(frozen=True, slots=True)
class _AlgorithmClasses:
    """Classes that belong to an algorithm that can be named in settings: of policy, algorithm, and both
    configurations.
    """

    policy: Callable[..., learners.Policy]
    algorithm: Callable[..., learners.Algorithm]
    config: Callable[..., Any]
    trainer: Callable[..., trainers.OnPolicyConfig | trainers.OffPolicyConfig | trainers.OfflineConfig]


ALGORITHMS: dict[str, _AlgorithmClasses] = {
    "ppo": _AlgorithmClasses(learners.MLPPolicy, learners.PPO, learners.PPOConfig, trainers.OnPolicyConfig),
    "recurrent-ppo": _AlgorithmClasses(learners.LSTMPolicy, learners.PPO, learners.PPOConfig, trainers.OnPolicyConfig),
    "impala": _AlgorithmClasses(learners.MLPPolicy, learners.IMPALA, learners.IMPALAConfig, trainers.OnPolicyConfig),
    "grpo": _AlgorithmClasses(
        learners.MLPPolicy,
        learners.GRPO,
        learners.GRPOConfig,
        partial(trainers.OnPolicyConfig, episodes_per_collect=32),
    ),
    "dqn": _AlgorithmClasses(learners.QPolicy, learners.DQN, learners.DQNConfig, trainers.OffPolicyConfig),
    "r2d2": _AlgorithmClasses(learners.LSTMQPolicy, learners.R2D2, learners.R2D2Config, trainers.OffPolicyConfig),
    "sac": _AlgorithmClasses(learners.SACPolicy, learners.SAC, learners.SACConfig, trainers.OffPolicyConfig),
    "bc": _AlgorithmClasses(learners.MLPPolicy, learners.BC, learners.BCConfig, trainers.OfflineConfig),
    "cql": _AlgorithmClasses(learners.QPolicy, learners.CQL, learners.CQLConfig, trainers.OfflineConfig),
    "continuous-cql": _AlgorithmClasses(
        learners.SACPolicy, learners.ContinuousCQL, learners.ContinuousCQLConfig, trainers.OfflineConfig
    ),
}
"""Algorithms by the name that settings use. `ALGORITHM_NAMES` in `__main__.py` lists the same names, so that
`episodes train --help` does not import torch. A test compares the two.
"""
NETWORKS: dict[str, Callable[..., learners.Policy]] = {
    "mlp": learners.MLPPolicy,
    "encoder": learners.EncoderPolicy,
    "lstm": learners.LSTMPolicy,
    "gru": learners.GRUPolicy,
    "transformer": learners.TransformerPolicy,
}
# what reads observations of any space; others read flat ones
_READ_ANY_SPACE = (
    learners.EncoderPolicy,
    learners.LSTMPolicy,
    learners.GRUPolicy,
    learners.QPolicy,
    learners.LSTMQPolicy,
)
_TABLES = ("policy", "algorithm", "trainer", "buffer", "modules", "agents", "league", "env_kwargs")
_KINDS = {str: "string", dict: "table"}
_DISTRIBUTIONS = {"squashed": partial(distribution_for, squashed=True), "autoregressive": Autoregressive}


@dataclass(kw_only=True)
class Run:
    """Settings of a training run. `make()` creates the trainer with environments, policy and algorithm from the
    settings.

    Attributes:
        algo: name of the algorithm.
        env: id of the environment.
        policy: arguments of the policy, and optionally a `network` of `NETWORKS`, the number of steps of a
            transformer's `context`, and a `distribution` ("squashed" or "autoregressive").
        algorithm: arguments of the algorithm's configuration.
        trainer: arguments of the trainer's configuration.
        buffer: arguments of the replay buffer.
        decay_over: updates until the learning rate is 0; None keeps it constant.
        num_envs: number of environments of each runner.
        num_runners: number of runners in Ray processes (on-policy algorithms; IMPALA learns from each sample when it
            arrives, others from one sample per runner); 0 uses one runner in this process.
        data: directory of a data set, for offline algorithms.
        ledger: whether to record what each update learned from (`episodes.storage.ledger`) in the run's folder.
        explain: whether the ledger also has measurements of each row, such as its loss, for `explain_update`.
        renders: whether environments are made with `render_mode="rgb_array"`, and remote runners send frames to an
            `EpisodeKeeper`.
        modules: with several agents, the settings of each module: `algo`, `policy`, `algorithm`, `decay_over` and
            `frozen`. `algo` of the run is then "multi-agent", and `env` is "package.module:function".
        agents: with several agents, the module id of each pattern of agent ids; by default the first module.
        league: with several agents, the arguments of a `League`, instead of `agents`. Its opponents are frozen.
        env_kwargs: with several agents, the arguments of the environment's function.
    """

    algo: str
    env: str
    seed: int = whole(0)
    num_envs: int = count(8)
    num_runners: int = whole(0)
    device: str = "cpu"
    decay_over: int | None = count(None)
    data: str | None = None
    ledger: bool = flag(False)
    explain: bool = flag(False)
    renders: bool = flag(False)
    policy: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    buffer: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    agents: dict[str, str] = field(default_factory=dict)
    league: dict[str, Any] = field(default_factory=dict)
    env_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in {"algo": str, "env": str, "device": str, **dict.fromkeys(_TABLES, dict)}.items():
            if not isinstance(getattr(self, name), kind):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; it must be a {_KINDS[kind]}")
        check_fields(self)
        if self.modules and self.algo != MULTI_AGENT:
            raise InvalidArgument(f"algo is {self.algo!r} and there are modules: set algo = {MULTI_AGENT!r}")
        if self.algo not in ALGORITHMS and not self.modules:
            raise UnknownKey(f"no algorithm {self.algo!r}; there are {', '.join(ALGORITHMS)}")

    @classmethod
    def of_table(cls, table: Mapping[str, Any], source: str = "the settings") -> Run:
        """Return the `Run` with the settings in a nested dict `table`. `source` names the table in errors.

        Raises:
            UnknownKey: a setting does not exist.
            InvalidArgument: the algorithm or environment is missing, or a setting has a wrong type.
        """
        names = [field.name for field in fields(cls)]
        unknown = set(table) - set(names)
        if unknown:
            raise UnknownKey(f"{source} has {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        missing = {"algo", "env"} - set(table)
        if missing:
            raise InvalidArgument(f"{source} lacks {', '.join(sorted(missing))}")
        return cls(**table)

    @classmethod
    def of_file(cls, path: str | Path) -> Run:
        """Return the `Run` with the settings in a TOML file.

        Raises:
            UnreadableData: the file is not TOML.
            UnknownKey, InvalidArgument: see `of_table`.
        """
        try:
            table = tomllib.loads(local_path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise UnreadableData(f"{path} is not valid TOML: {error}") from error
        return cls.of_table(table, str(path))

    @classmethod
    def of_preset(cls, algo: str, env: str) -> Run:
        """Return the `Run` with tested settings for an algorithm and an environment, or with default settings if no
        file of tested settings exists.
        """
        path = presets().get((algo, env))
        return cls(algo=algo, env=env) if path is None else cls.of_file(path)

    def make(self, **of_trainer: Any) -> Trainer[Any]:
        """Create the trainer of this run, with environments, policies and algorithm as described by the settings.

        Args:
            of_trainer: arguments of `Trainer`, such as `logger`, `folder` and `stop_fn`.

        Raises:
            InvalidArgument: an offline algorithm has no data, or an online one has; a buffer is given for an algorithm
                without one; or the device does not exist.
        """
        if (self.ledger or self.explain) and of_trainer.get("folder") is not None:
            ledger = Ledger(local_path(of_trainer["folder"]) / "ledger", measures_rows=self.explain)
            of_trainer = {"ledger": ledger, **of_trainer}
        if self.modules:
            return make_multi_agent_trainer(self, Run, **of_trainer)
        kind = ALGORITHMS[self.algo]
        config = kind.trainer(**self.trainer)
        if self.buffer and not issubclass(cast(type, kind.algorithm), ReplayAlgorithm):
            raise InvalidArgument(f"{self.algo} learns from no buffer: leave buffer out")
        if isinstance(config, trainers.OfflineConfig) != (self.data is not None):
            wants = "learns from a data set: give its directory as data"
            raise InvalidArgument(f"{self.algo} {wants if self.data is None else 'samples for itself: leave data out'}")
        if self.num_runners and not isinstance(config, trainers.OnPolicyConfig):
            raise InvalidArgument(f"{self.algo} does not sample with several runners: leave num_runners out")
        runner = self.runner()
        algorithm = self.make_algorithm(runner.actor)
        if isinstance(config, trainers.OnPolicyConfig):
            return trainers.OnPolicyTrainer(algorithm, self._make_group_runner(runner), config, **of_trainer)
        if isinstance(config, trainers.OffPolicyConfig):
            return trainers.OffPolicyTrainer(algorithm, runner, self._make_buffer(), config, **of_trainer)  # type: ignore[arg-type]
        return trainers.OfflineTrainer(algorithm, self._load_data(algorithm), config, runner=runner, **of_trainer)

    @property
    def trainer_config(self) -> Any:
        """Class of the trainer's configuration, such as `OnPolicyConfig`, for this run's algorithm."""
        kind = ALGORITHMS[self.algo].trainer
        return kind.func if isinstance(kind, partial) else kind

    def make_algorithm(self, actor: Actor) -> learners.Algorithm:
        """Return the algorithm that trains the policy of `actor`, with the hyperparameters of these settings."""
        kind = ALGORITHMS[self.algo]
        scheduler = None if self.decay_over is None else learners.linear_decay(self.decay_over)
        return kind.algorithm(actor, kind.config(**self.algorithm), scheduler=scheduler, seed=self.seed)

    def make_actor(self, observation_space: gym.Space, action_space: gym.Space, device: str | None = None) -> Actor:
        """Return an actor (a policy with its pipelines) for the given spaces. All actors of a run have the same initial
        weights.

        Raises:
            InvalidArgument: the device is not available, or a setting of the policy is wrong.
            UnknownKey: a network, activation or distribution does not exist.
        """
        generator = torch.Generator().manual_seed(self.seed)
        make_policy = partial(self._policy_class(), generator=generator, **self._policy_arguments(action_space))
        actor = Actor(make_policy, observation_space, action_space, pieces=self._make_pieces(observation_space))
        return actor.to(_check_device(device or self.device))

    def runner(
        self, seed: int | None = None, device: str | None = None, draws_with_torch: bool = False
    ) -> SingleAgentEnvRunner:
        """Return a runner that samples from this run's environments with a new policy. The policies of all runners of a
        run have the same initial weights.

        Args:
            seed: seed of the environments and actions; by default that of the run.
            device: device of the policy; by default that of the run.
            draws_with_torch: sample actions with torch's global generator.
        """
        env = self._make_vector_env()
        actor = self.make_actor(env.single_observation_space, env.single_action_space, device)
        seed = self.seed if seed is None else seed
        if not draws_with_torch:
            return SingleAgentEnvRunner(env, actor, seed=seed)
        pipelines = {"env_to_module": actor.env_to_module, "module_to_env": actor.module_to_env}
        return SingleAgentEnvRunner(env, actor.policy, seed=seed, **pipelines)

    def _make_vector_env(self) -> gym.vector.VectorEnv:
        """Return new environments of this run.

        Raises:
            InvalidArgument: there is no such environment, or it is to render images and cannot.
        """
        if not self.renders:
            return make_vector_env(self.env, self.num_envs)
        with explain_rendering(self.env):
            return make_vector_env(self.env, self.num_envs, env_kwargs={"render_mode": "rgb_array"})

    def _make_group_runner(self, runner: SingleAgentEnvRunner) -> SingleAgentEnvRunner | GroupRunner:
        """Return `runner`, or, if `num_runners` is positive, a `GroupRunner` that samples with parallel runners in Ray
        processes.
        """
        if not self.num_runners:
            return runner
        try:
            group = RayRunnerGroup(partial(remote_runner, asdict(self)), self.num_runners, seed=self.seed)
        except BaseException:
            runner.close()
            raise
        is_asynchronous = ALGORITHMS[self.algo].algorithm is learners.IMPALA
        return GroupRunner(runner, group, is_asynchronous=is_asynchronous)

    def _load_data(self, algorithm: learners.Algorithm) -> Any:
        """Return the data set of an offline run in the form that its algorithm reads: the data set, a sampler or a
        replay buffer.

        Raises:
            InvalidArgument: the data set has other observations than the environment.
        """
        dataset = EpisodeDataset(str(self.data))
        stored, expected_space = dataset.observation_space, algorithm.policy.observation_space
        if stored is not None and stored != expected_space:
            raise InvalidArgument(
                f"{self.data} contains observations of {stored}, the policy in {self.env} sees {expected_space}"
            )
        if not isinstance(algorithm, ReplayAlgorithm):
            return dataset
        if self.buffer:
            return EpisodeReplayBuffer.from_dataset(dataset, seed=self.seed, **self.buffer)
        return dataset.sampler(steps=1, seed=self.seed)

    def _policy_class(self) -> Callable[..., learners.Policy]:
        """Return the policy class of this run: the class named by the setting `network`, or the default class of the
        algorithm.

        Raises:
            UnknownKey: the algorithm has no such network.
        """
        usual, name = ALGORITHMS[self.algo].policy, self.policy.get("network")
        if name is None:
            return usual
        fitting = list(NETWORKS) if usual in NETWORKS.values() else []
        if ALGORITHMS[self.algo].algorithm is not learners.PPO and fitting:
            fitting.remove("transformer")
        if name not in fitting:
            networks = ", ".join(fitting) or "no others than its own"
            raise UnknownKey(f"no network {name!r} for {self.algo}; there are {networks}")
        return NETWORKS[name]

    def _make_pieces(self, space: gym.Space) -> list[Connector | View]:
        """Return the connectors that convert the environment's observations to the policy's input, such as
        flattening.
        """
        policy = self._policy_class()
        pieces: list[Connector | View] = [] if policy in _READ_ANY_SPACE else [*flattening(space)]
        if policy is learners.TransformerPolicy:
            pieces.append(TransformerContext(self.policy.get("context", 20)))
        return pieces

    def _policy_arguments(self, action_space: gym.Space) -> dict[str, Any]:
        """Return the keyword arguments of the policy class, with names of activations and distributions replaced by
        objects.

        Raises:
            InvalidArgument: an argument has a wrong type or does not suit the network.
            UnknownKey: an activation or distribution does not exist.
        """
        arguments = {name: value for name, value in self.policy.items() if name not in ("network", "context")}
        if "context" in self.policy and self._policy_class() is not learners.TransformerPolicy:
            raise InvalidArgument(
                "policy has a context, which only a transformer sees: leave it out, or take that network"
            )
        if not isinstance(arguments.get("hidden_sizes", ()), (list, tuple)):
            raise InvalidArgument(f"hidden_sizes is {arguments['hidden_sizes']!r}; it must be a list of ints")
        if "activation" in arguments:
            arguments["activation"] = _find_activation(arguments["activation"])
        if "distribution" in arguments:
            name = arguments["distribution"]
            if name not in _DISTRIBUTIONS:
                raise UnknownKey(f"no distribution {name!r}; there are {', '.join(_DISTRIBUTIONS)}")
            arguments["distribution"] = _DISTRIBUTIONS[name](action_space)
        return arguments

    def _make_buffer(self) -> EpisodeReplayBuffer:
        """Return the replay buffer that the settings describe. The default capacity is 50,000."""
        numbers = {"capacity": 50_000, **self.buffer}
        if self.algo == "r2d2" and numbers.get("prioritized"):
            numbers.setdefault("unit", "sequence")
        kind = PrioritizedEpisodeReplayBuffer if numbers.pop("prioritized", False) else EpisodeReplayBuffer
        return kind(numbers.pop("capacity"), seed=self.seed, **numbers)


def remote_runner(table: dict[str, Any], index: int, seed: int) -> SingleAgentEnvRunner:
    """Return a runner on the CPU with the settings `table`, for the Ray process number `index` of a `RayRunnerGroup`.

    It samples actions with torch's global generator, which the group seeds whenever new episodes begin.
    """
    run = Run.of_table(table)
    runner = run.runner(seed, "cpu", draws_with_torch=True)
    if run.renders:
        runner.add_hook(trainers.FrameRecorder(sends=True))
    return runner


def _check_device(device: str) -> str:
    """Return the name of a torch device. Raise `InvalidArgument` if the device is not available."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidArgument(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def _find_activation(name: object) -> Any:
    """Return the activation class of `torch.nn` with this name, such as "Tanh".

    Raises:
        UnknownKey: there is no such activation.
    """
    activation = getattr(torch.nn, name, None) if isinstance(name, str) else None
    if not (isinstance(activation, type) and issubclass(activation, torch.nn.Module)):
        raise UnknownKey(f"no activation {name!r}: give the name of one of torch.nn's, such as 'Tanh' or 'ReLU'")
    return activation


def presets() -> dict[tuple[str, str], Path]:
    """Return the TOML files of tested settings, by (name of the algorithm, id of the environment)."""
    paths = {}
    for path in sorted(SETTINGS.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        paths[table["algo"], table["env"]] = path
    return paths


def flattening(space: gym.Space | None) -> list[Connector]:
    """Return the connectors that flatten observations of `space` for a perceptron. The list is empty if observations
    are float vectors already.
    """
    is_ready = is_box(space) and np.issubdtype(space.dtype, np.floating) and len(space.shape) == 1
    return [] if is_ready else [FlattenObservations()]
