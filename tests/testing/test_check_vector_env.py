"""`check_vector_env` accepts valid environments, and names the fault of each broken one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from episodes.errors import ContractViolation, InvalidArgument
from episodes.testing import check_vector_env

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
MODES = [NEXT, SAME, DISABLED]


class Walk(VectorEnv):
    """Valid environment: a walk on a line that terminates at 6 and is truncated after 9 steps.

    Subclasses are broken by a change to the results of `step` or `reset`.
    """

    def __init__(self, mode: AutoresetMode, num_envs: int = 3) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.mode, self.num_envs = mode, num_envs
        self.single_observation_space = gym.spaces.Box(-9999, 9999, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.ended = np.zeros(num_envs, bool)

    def __repr__(self) -> str:
        return "Walk"

    @property
    def seen(self) -> np.ndarray:
        return np.stack([self.place, self.place + self.t], axis=1).astype(np.float32)

    def begin(self, mask: np.ndarray) -> None:
        self.place[mask] = self.np_random.integers(0, 3, self.num_envs)[mask]
        self.t[mask] = 0
        self.ended[mask] = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._np_random = np.random.default_rng(seed)
        mask = (options or {}).get("reset_mask")
        if mask is None:
            self.place, self.t = np.zeros(self.num_envs, int), np.zeros(self.num_envs, int)
            mask = np.ones(self.num_envs, bool)
        self.begin(mask)
        return self.seen, {"place": self.place.copy(), "_place": mask.copy()}

    def step(self, actions: Any) -> Any:
        resets = self.ended.copy() if self.mode is NEXT else np.zeros(self.num_envs, bool)
        going = ~resets & ~(self.ended if self.mode is DISABLED else resets)
        self.place[going] += np.asarray(actions)[going]
        self.t[going] += 1
        terminateds, truncateds = (self.place >= 6) & going, (self.t >= 9) & going
        rewards = np.where(going, self.place / 8, 0.0)
        self.begin(resets)
        self.ended = terminateds | truncateds
        infos: dict[str, Any] = {"place": self.place.copy(), "_place": np.ones(self.num_envs, bool)}
        if self.mode is SAME and self.ended.any():
            ended = self.ended.copy()
            infos["final_obs"], infos["_final_obs"] = self.seen, ended
            infos["final_info"], infos["_final_info"] = {"place": self.place.copy(), "_place": ended}, ended
            self.begin(ended)
        return self.seen, rewards, terminateds, truncateds, infos


class Changed(Walk):
    """A walk whose results are changed by a function of the environment and the row."""

    def __init__(self, mode: AutoresetMode, change: Callable[..., Any]) -> None:
        super().__init__(mode)
        self.change = change

    def step(self, actions: Any) -> Any:
        return self.change(self, *super().step(actions))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1"])
def test_check_vector_env_accepts_gymnasium(mode: AutoresetMode, env_id: str) -> None:
    env = gym.make_vec(env_id, 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    check_vector_env(env, num_steps=120)


@pytest.mark.parametrize("mode", MODES)
def test_check_vector_env_accepts_async_envs(mode: AutoresetMode) -> None:
    env = gym.make_vec("CartPole-v1", 2, vectorization_mode="async", vector_kwargs={"autoreset_mode": mode})
    check_vector_env(env, num_steps=60)
    env.close()


def test_check_vector_env_accepts_native_cartpole() -> None:
    check_vector_env(CartPoleVectorEnv(num_envs=3), num_steps=120)


@pytest.mark.parametrize("mode", MODES)
def test_check_vector_env_accepts_valid_env(mode: AutoresetMode) -> None:
    check_vector_env(Walk(mode))
    check_vector_env(Walk(mode), mode, actions=lambda observations: (observations[:, 0] % 3).astype(np.int64))


def test_check_vector_env_checks_nested_leaves() -> None:
    class Nested(gym.Env):
        observation_space = gym.spaces.Dict(
            {
                "place": gym.spaces.Discrete(50),
                "eyes": gym.spaces.Tuple((gym.spaces.Box(0, 255, (2, 2), np.uint8),) * 2),
            }
        )
        action_space = gym.spaces.Dict({"move": gym.spaces.Discrete(2), "force": gym.spaces.Box(-1, 1, (2,))})

        def seen(self) -> Any:
            eye = np.full((2, 2), self.place, np.uint8)
            return {"place": np.int64(self.place), "eyes": (eye, eye + 1)}

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.place = int(self.np_random.integers(9))
            return self.seen(), {}

        def step(self, action: Any) -> Any:
            self.place += 1 + int(action["move"])
            return self.seen(), float(action["force"].sum()), self.place > 20, False, {}

    for mode in MODES:
        check_vector_env(SyncVectorEnv([Nested] * 2, autoreset_mode=mode), num_steps=60)


def edited(**changes: Callable[..., Any]) -> Callable[..., Any]:
    """Return a change of single parts of a step's result, by name."""
    names = ("observations", "rewards", "terminateds", "truncateds", "infos")

    def change(env: Walk, *answer: Any) -> Any:
        parts = dict(zip(names, answer, strict=True))
        return tuple(changes[name](parts[name], parts, env) if name in changes else parts[name] for name in names)

    return change


def overwritten(observations: np.ndarray, parts: Any, env: Walk) -> np.ndarray:
    env.buffer = getattr(env, "buffer", observations)
    env.buffer[:] = observations
    return env.buffer


def without(*keys: str) -> Callable[..., Any]:
    return lambda infos, parts, env: {key: value for key, value in infos.items() if key not in keys}


def final_is_the_rows(infos: dict[str, Any], parts: Any, env: Walk) -> dict[str, Any]:
    return infos | ({"final_obs": parts["observations"].copy()} if "final_obs" in infos else {})


def same_dict(infos: dict[str, Any], parts: Any, env: Walk) -> dict[str, Any]:
    env.infos = getattr(env, "infos", {})
    env.infos.update(infos)
    return env.infos


BROKEN = {
    "rewards [N, 1]": (
        NEXT,
        edited(rewards=lambda r, p, e: r[:, None]),
        r"rewards to be .* \[3\], found float64 \[3, 1\]",
    ),
    "integer rewards": (NEXT, edited(rewards=lambda r, p, e: r.astype(int)), r"floating \[3\], found int64 \[3\]"),
    "NaN rewards": (
        SAME,
        edited(rewards=lambda r, p, e: r + np.nan),
        r"step 1, environment 0\): expected a finite reward",
    ),
    "a list of rewards": (NEXT, edited(rewards=lambda r, p, e: r.tolist()), "found a list"),
    "observations of another dtype": (
        NEXT,
        edited(observations=lambda o, p, e: o.astype(float)),
        r"float32 \[3, 2\], found float64",
    ),
    "observations of another shape": (
        NEXT,
        edited(observations=lambda o, p, e: o[:, :1]),
        r"\[3, 2\], found float32 \[3, 1\]",
    ),
    "observations outside the space": (
        NEXT,
        edited(observations=lambda o, p, e: o - 20000),
        "inside Box.*widen the space",
    ),
    "flags of integers": (
        SAME,
        edited(terminateds=lambda t, p, e: t.astype(int)),
        r"terminateds to be a numpy array bool",
    ),
    "one array for both flags": (SAME, edited(truncateds=lambda t, p, e: p["terminateds"]), "did not terminate"),
    "a buffer used again": (
        NEXT,
        edited(observations=overwritten),
        "observations of the call before.*reuses_buffers=True",
    ),
    "one dict of infos": (NEXT, edited(infos=same_dict), "infos of the call before"),
    "a list of infos": (NEXT, edited(infos=lambda i, p, e: [i]), "list of dicts is no vector info"),
    "infos of other environments": (
        NEXT,
        edited(infos=lambda i, p, e: {"x": np.zeros(2)}),
        r"infos\['x'\] to have a row",
    ),
    "masks of numbers": (
        NEXT,
        edited(infos=lambda i, p, e: i | {"_place": np.ones(3)}),
        r"infos\['_place'\] to be .* bool",
    ),
    "rewards for resets": (
        NEXT,
        edited(rewards=lambda r, p, e: r + 1),
        "reward 0 and no flags in the row after an ending",
    ),
    "flags on resets": (
        NEXT,
        edited(terminateds=lambda t, p, e: t | (e.t == 0)),
        "reward 0 and no flags.*found reward 0.0, terminated=True",
    ),
    "no final observation": (SAME, edited(infos=without("final_obs", "_final_obs")), r"infos\['final_obs'\] where"),
    "no final info": (SAME, edited(infos=without("final_info", "_final_info")), r"infos\['final_info'\], since"),
    "the reset as the final observation": (
        SAME,
        edited(infos=final_is_the_rows),
        "the last one in infos.*found the last",
    ),
    "a final mask that is wrong": (
        SAME,
        edited(infos=lambda i, p, e: i | ({"_final_obs": ~i["_final_obs"]} if "_final_obs" in i else {})),
        r"infos\['_final_obs'\] to be true for ended environments",
    ),
    "final observations with None": (
        SAME,
        edited(infos=lambda i, p, e: i | ({"final_obs": np.full(3, None)} if "final_obs" in i else {})),
        "found None",
    ),
    "four values": (NEXT, lambda env, *answer: answer[:4], "step to return"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_check_vector_env_rejects_broken_row(name: str) -> None:
    mode, change, message = BROKEN[name]
    with pytest.raises(ContractViolation, match=rf"^Walk \(step \d+.*: expected .*{message}|{message}"):
        check_vector_env(Changed(mode, change))


class ActsOnResets(Walk):
    """Environment that takes the action of a reset row as a step."""

    def step(self, actions: Any) -> Any:
        resets = self.ended.copy()
        answer = super().step(actions)
        self.place[resets] += np.asarray(actions)[resets]
        return self.seen, *answer[1:]


class NeverResets(Walk):
    """Environment that keeps its state instead of a reset."""

    def begin(self, mask: np.ndarray) -> None:
        if not self.t.any():
            super().begin(mask)
        self.ended[mask] = False


class ResetsAll(Walk):
    """Environment that resets all copies, whatever the mask."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


class DrawsElsewhere(Walk):
    """Environment with a start that does not follow from the seed."""

    def begin(self, mask: np.ndarray) -> None:
        super().begin(mask)
        self.place[mask] = int.from_bytes(np.random.bytes(1)) % 4  # noqa: NPY002


class WritesActions(Walk):
    """Environment that writes to the given actions."""

    def step(self, actions: Any) -> Any:
        answer = super().step(actions)
        actions[:] = 0
        return answer


class Unlimited(Walk):
    """Environment that reports a time limit as a termination."""

    spec = gym.envs.registration.EnvSpec("Walk-v0", max_episode_steps=9)

    def step(self, actions: Any) -> Any:
        observations, rewards, terminateds, truncateds, infos = super().step(actions * 0)
        return observations, rewards, terminateds | truncateds, truncateds & False, infos


class SaysNothing(Walk):
    """Environment without an autoreset mode in its metadata."""

    def __init__(self, mode: AutoresetMode) -> None:
        super().__init__(mode)
        self.metadata = {}


@pytest.mark.parametrize(
    ("broken", "mode", "message"),
    [
        (ActsOnResets, NEXT, "the action of a reset row to be ignored, found other observations"),
        (NeverResets, NEXT, r"after an ending \(next-step autoreset\), found the last observation"),
        (NeverResets, SAME, "in the row of an ending"),
        (NeverResets, DISABLED, "autoreset disabled"),
        (ResetsAll, DISABLED, "reset_mask.*leaves out to stay as it was"),
        (DrawsElsewhere, SAME, "the same rows after the same seed and actions.*draw from self.np_random"),
        (WritesActions, SAME, "actions to be left as they are"),
        (Unlimited, NEXT, r"environment \d\): expected a truncation after max_episode_steps=9, found terminated only"),
        (SaysNothing, NEXT, r"metadata\['autoreset_mode'\], found none; state it there"),
    ],
)
def test_check_vector_env_rejects_broken_autoreset(broken: type[Walk], mode: AutoresetMode, message: str) -> None:
    with pytest.raises(ContractViolation, match=message):
        check_vector_env(broken(mode))


@pytest.mark.parametrize(
    ("says", "does"), [(NEXT, SAME), (NEXT, DISABLED), (SAME, NEXT), (SAME, DISABLED), (DISABLED, SAME)]
)
def test_check_vector_env_rejects_wrong_mode(says: AutoresetMode, does: AutoresetMode) -> None:
    env = Walk(does)
    env.metadata = {"autoreset_mode": says}
    with pytest.raises(ContractViolation):
        check_vector_env(env)
    with pytest.raises(ContractViolation, match="in its metadata"):
        check_vector_env(env, does)


def test_check_vector_env_accepts_allowed_variants() -> None:
    check_vector_env(Changed(NEXT, edited(observations=overwritten)), reuses_buffers=True)
    check_vector_env(DrawsElsewhere(SAME), reproducible=False)
    check_vector_env(SaysNothing(SAME), "SameStep")


def test_check_vector_env_without_endings_raises() -> None:
    with pytest.raises(InvalidArgument, match=r"no episode ended in 5 steps.*larger num_steps"):
        check_vector_env(Walk(NEXT), num_steps=5, actions=lambda observations: np.zeros(3, int))
