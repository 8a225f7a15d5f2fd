"""`check_vector_env`: checks the results of a vector environment, above all those at episode ends."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from episodes.errors import InvalidArgument
from episodes.recorder.boundaries import checked_mode
from episodes.recorder.env_turns import EnvTurns
from episodes.testing.contract import brief, violation
from episodes.testing.row_format import (
    check_array,
    check_infos,
    check_item,
    check_observations,
    check_scalars,
    item_of,
)
from episodes.tracks import nested
from episodes.tracks.spaces import irregular_part, varying_shapes_error

if TYPE_CHECKING:
    from episodes.data_types import Items

Actions = Callable[[Any], Any]  # observations [N, ...] -> actions [N, ...]


def check_vector_env(
    env: VectorEnv,
    autoreset_mode: AutoresetMode | str | None = None,
    *,
    num_steps: int = 500,
    seed: int = 0,
    actions: Actions | None = None,
    reproducible: bool = True,
    reuses_buffers: bool = False,
) -> None:
    """Check that the results of a vector environment fit its spaces and autoreset mode.

    The first violation is raised as `ContractViolation`.

    The check takes `num_steps` steps three times: to inspect each row, to compare two runs with one seed, and, with
    next-step autoreset, to check that actions of reset rows are ignored. The environment stays open.

    Args:
        env: the vector environment.
        autoreset_mode: mode of an environment without `metadata["autoreset_mode"]`.
        num_steps: number of steps, enough for some episodes to end.
        seed: seed of the resets.
        actions: function from observations [N, ...] to actions [N, ...], by default samples of the action space.
        reproducible: True if after `reset(seed=...)` the same actions give the same rows.
        reuses_buffers: True if the environment may write to arrays that it returned earlier. The recorders of this
            library copy rows; most code of users does not.

    Raises:
        ContractViolation: names what was expected, what was found, the environment and the step (the reset is step 0).
        InvalidArgument: no episode ended, so autoreset could not be checked.
        ShapeMismatch: with next-step autoreset, actions have several shapes.

    >>> import gymnasium
    >>> check_vector_env(gymnasium.make_vec("CartPole-v1", num_envs=2), num_steps=50)
    """
    mode = _mode_of(env, autoreset_mode)
    if mode is AutoresetMode.NEXT_STEP and (part := irregular_part(env.single_action_space)) is not None:
        raise varying_shapes_error("action_space", part)
    turns = EnvTurns([env])
    turns.begin()
    try:
        _check(env, mode, num_steps, seed, actions, reproducible, reuses_buffers)
    finally:
        turns.end()


def _check(
    env: VectorEnv,
    mode: AutoresetMode,
    num_steps: int,
    seed: int,
    actions: Actions | None,
    reproducible: bool,
    reuses_buffers: bool,
) -> None:
    """Run the checks of `check_vector_env`, whose arguments these are."""
    watch = _Watch(env, mode, reuses_buffers)
    env.action_space.seed(seed)
    first = watch.run(seed, num_steps, actions or (lambda observations: env.action_space.sample()))
    watch.check_endings(num_steps)
    if not reproducible:
        return
    rerun = _Watch(env, mode, reuses_buffers).run(seed, num_steps, _replayed(first))
    watch.check_same(first, rerun, "the same rows after the same seed and actions", "draw from self.np_random only")
    if mode is AutoresetMode.NEXT_STEP:
        second_run = _Watch(env, mode, reuses_buffers).run(seed, num_steps, _replayed(first, watch.other_on_resets))
        watch.check_same(first, second_run, "the action of a reset row to be ignored", "it changes what comes after it")


def _mode_of(env: VectorEnv, mode_argument: AutoresetMode | str | None) -> AutoresetMode:
    """Return the autoreset mode from the metadata of the environment, or from the argument if it has none."""
    requested = None if mode_argument is None else checked_mode(mode_argument)
    stated = (env.metadata or {}).get("autoreset_mode")
    if stated is None:
        if requested is None:
            raise violation(str(env), "metadata['autoreset_mode']", "none", "state it there, or give autoreset_mode=")
        return requested
    try:
        mode = checked_mode(stated)
    except InvalidArgument as error:
        raise violation(str(env), "a mode in metadata['autoreset_mode']", str(error)) from None
    if requested not in (None, mode):
        raise violation(str(env), f"autoreset mode {requested}", f"{mode} in its metadata")
    return mode


_FIRST_OBSERVATIONS = {
    AutoresetMode.NEXT_STEP: "in the row after an ending (next-step autoreset)",
    AutoresetMode.SAME_STEP: "in the row of an ending, and the last one in infos['final_obs'] (same-step autoreset)",
    AutoresetMode.DISABLED: "from reset(options={'reset_mask': mask}) (autoreset disabled)",
}


@dataclass(frozen=True)
class _Row:
    """Copy of the results of one step of a vector environment."""

    actions: Any  # None for the reset
    observations: Any
    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    is_reset: np.ndarray  # [N] bool: no step, but the reset that follows an ending

    @property
    def dones(self) -> np.ndarray:
        return self.terminateds | self.truncateds


def _replayed(rows: list[_Row], changed: Callable[[_Row], Any] | None = None) -> Actions:
    """Return a function that returns the recorded actions of one vector step after another.

    With `changed`, the actions of a step with resets are replaced by `changed(row)`.
    """
    remaining = iter(rows[1:])

    def next_actions(observations: Items) -> Any:
        """Return the actions of the next recorded vector step. In a step with resets, `changed` replaces them if it
        is given.
        """
        row = next(remaining)
        return changed(row) if changed is not None and row.is_reset.any() else copy.deepcopy(row.actions)

    return next_actions


class _Watch:
    """Wrapper that steps a vector environment and checks each result."""

    def __init__(self, env: VectorEnv, mode: AutoresetMode, reuses_buffers: bool) -> None:
        self.env = env
        self.mode = mode
        self.num_envs = env.num_envs
        self.space = env.single_observation_space
        self.reuses_buffers = reuses_buffers
        self.step = 0
        self.ages = np.zeros(self.num_envs, int)
        self.returned: list[tuple[str, np.ndarray, np.ndarray]] = []  # name, array, copy: of the newest call
        self.infos: Any = None  # of the newest call
        self.endings = 0
        self.resets = 0  # that followed an ending
        self.resets_like_endings = 0  # those whose observation is the last one of the episode before
        self.observations_differ = False

    def broken(self, expected: str, actual: str, advice: str = "", **place: object) -> Exception:
        return violation(str(self.env), expected, actual, advice, step=self.step, **place)

    # --- stepping --------------------------------------------------------------------------------------------

    def run(self, seed: int, num_steps: int, actions: Actions) -> list[_Row]:
        """Reset the environment, take `num_steps` steps, and return copies of the checked results."""
        nothing = np.zeros(self.num_envs)
        observations = self.reset(seed=seed)
        done = nothing.astype(bool)
        rows = [_Row(None, copy.deepcopy(observations), nothing, done, done, done)]
        for self.step in range(1, num_steps + 1):
            rows.append(self.next_row(rows[-1], actions(observations)))
            observations = rows[-1].observations
        return rows

    def reset(self, **arguments: Any) -> Any:
        """Reset the environment, and return the observations after checking that they fit the space."""
        answer = self.env.reset(**arguments)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self.broken("reset to return (observations, infos)", brief(answer))
        observations, infos = answer
        self.check_buffers(infos)
        check_observations(self.space, observations, self.num_envs, self.broken)
        check_infos(infos, self.num_envs, self.broken)
        self.remember(observations=observations, infos=infos)
        return observations

    def next_row(self, last: _Row, actions: Items) -> _Row:
        """Take one step, and return the checked result. With autoreset disabled, ended environments are reset."""
        earlier = copy.deepcopy(actions)
        answer = self.env.step(actions)
        if not nested.equal(actions, earlier):
            raise self.broken("actions to be left as they are", "that step wrote to them", "copy them first")
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise self.broken("step to return (observations, rewards, terminateds, truncateds, infos)", brief(answer))
        observations, rewards, terminateds, truncateds, infos = answer
        check_observations(self.space, observations, self.num_envs, self.broken)
        check_scalars(rewards, terminateds, truncateds, self.num_envs, self.broken)
        check_infos(infos, self.num_envs, self.broken)
        self.check_buffers(infos)
        flags = {"terminateds": terminateds, "truncateds": truncateds}
        self.remember(observations=observations, rewards=rewards, infos=infos, **flags)
        resets = last.dones if self.mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        row = _Row(earlier, *copy.deepcopy((observations, rewards, terminateds, truncateds)), resets)
        self.check_time_limit(row)
        self.observations_differ = self.observations_differ or not nested.equal(row.observations, last.observations)
        return self.after_endings(last, row, infos)

    def after_endings(self, last: _Row, row: _Row, infos: dict[str, Any]) -> _Row:
        """Check the result of one vector step by the rules of the autoreset mode.

        Returns `row`, with reset observations if autoreset is disabled and environments were reset here.
        """
        if self.mode is AutoresetMode.NEXT_STEP:
            self.check_reset_row(last, row)
        elif self.mode is AutoresetMode.SAME_STEP:
            self.check_finals(row, infos)
        elif "final_obs" in infos:
            raise self.broken(
                "no infos['final_obs'] (autoreset disabled)", "one, as of an environment that resets itself"
            )
        elif row.dones.any():
            return replace(row, observations=self.reset_ended(row))
        return row

    # --- buffers ---------------------------------------------------------------------------------------------

    def remember(self, **returned: object) -> None:
        """Keep the arrays that a call returned together with copies, in order to detect later changes."""
        self.infos = returned["infos"]
        self.returned = [
            (name, array, array.copy())
            for name, array in nested.flatten(returned).items()
            if isinstance(array, np.ndarray) and array.dtype != object
        ]

    def check_buffers(self, infos: object) -> None:
        """Raise `ContractViolation` if the environment modified the arrays that its previous call returned."""
        if self.reuses_buffers:
            return
        changed = [name for name, array, earlier in self.returned if not nested.equal(array, earlier)]
        if infos is self.infos and infos:
            changed.append("infos")
        if changed:
            raise self.broken(
                f"the {changed[0]} of the call before to stay as they were",
                "that this call wrote to them",
                "return copies, or state reuses_buffers=True",
            )

    # --- endings ---------------------------------------------------------------------------------------------

    def check_time_limit(self, row: _Row) -> None:
        """Raise `ContractViolation` if an episode reaches the environment's time limit and is not truncated."""
        limit = getattr(self.env.spec, "max_episode_steps", None)
        self.ages = np.where(row.is_reset, 0, self.ages + 1)
        for env in np.flatnonzero(self.ages >= (limit or np.inf)).tolist():
            if not row.truncateds[env]:
                actual = "terminated only" if row.terminateds[env] else "an episode that goes on"
                raise self.broken(
                    f"a truncation after max_episode_steps={limit}", actual, "a time limit truncates", environment=env
                )
        self.endings += int(np.count_nonzero(row.dones))
        if self.mode is not AutoresetMode.NEXT_STEP:
            self.ages[row.dones] = 0

    def check_reset_row(self, last: _Row, row: _Row) -> None:
        """Raise `ContractViolation` unless the step after an ending is a reset, with reward 0 and flags False."""
        for env in np.flatnonzero(row.is_reset).tolist():
            actual = f"reward {row.rewards[env]}, terminated={row.terminateds[env]}, truncated={row.truncateds[env]}"
            if row.rewards[env] != 0 or row.dones[env]:
                raise self.broken(
                    "reward 0 and no flags in the row after an ending (next-step autoreset)",
                    actual,
                    "that row is a reset, and no step",
                    environment=env,
                )
            self.compare_reset(item_of(self.space, last.observations, env), item_of(self.space, row.observations, env))

    def check_finals(self, row: _Row, infos: dict[str, Any]) -> None:
        """Raise `ContractViolation` unless `infos` has the last observations of ended environments (same-step
        autoreset).
        """
        done = row.dones
        for key in ("final_obs", "final_info"):
            mask = infos.get(f"_{key}")
            if mask is None or (key not in infos and not done.any()):
                continue
            check_array(mask, f"infos['_{key}']", (self.num_envs,), bool, self.broken)
            if (mask != done).any():
                env = int(np.flatnonzero(mask != done)[0])
                raise self.broken(f"infos['_{key}'] to be true for ended environments", str(mask[env]), environment=env)
        for env in np.flatnonzero(done).tolist():
            final = self.final_observation(infos, env)
            check_item(self.space, final, "infos['final_obs']", self.broken, environment=env)
            self.compare_reset(final, item_of(self.space, row.observations, env))
            if "final_info" not in infos and any(not key.lstrip("_").startswith("final_") for key in infos):
                raise self.broken(
                    "infos['final_info'], since an episode ended and there are infos",
                    f"only {list(infos)}",
                    "without it, it is unknown whether infos belong to the ended or to the next episode",
                    environment=env,
                )

    def final_observation(self, infos: dict[str, Any], env: int) -> Any:
        """Return the last observation of environment `env` from `infos["final_obs"]`."""
        finals = infos.get("final_obs")
        if finals is None:
            raise self.broken(
                "infos['final_obs'] where an episode ends (same-step autoreset)",
                f"infos with {list(infos)}",
                "the last observation is lost",
                environment=env,
            )
        if isinstance(finals, np.ndarray) and finals.dtype == object:
            if finals[env] is None:
                raise self.broken("an observation in infos['final_obs']", "None", environment=env)
            return finals[env]
        try:
            return item_of(self.space, finals, env)
        except (KeyError, IndexError, TypeError, ValueError):
            raise self.broken(
                f"infos['final_obs'] to hold an item of {self.space}", brief(finals), environment=env
            ) from None

    def reset_ended(self, row: _Row) -> Any:
        """Reset those environments that ended, and return the observations of all environments."""
        mask = row.dones
        observations = copy.deepcopy(self.reset(options={"reset_mask": mask.copy()}))
        for env in range(self.num_envs):
            before, after = (item_of(self.space, rows, env) for rows in (row.observations, observations))
            if mask[env]:
                self.compare_reset(before, after)
            elif not nested.equal(before, after):
                raise self.broken(
                    "an environment that options['reset_mask'] leaves out to stay as it was",
                    "another observation",
                    "reset only the environments of the mask",
                    environment=env,
                )
        return observations

    def compare_reset(self, last: object, first: object) -> None:
        """Count a reset, and whether its observation equals the last observation of the ended episode."""
        self.resets += 1
        self.resets_like_endings += nested.equal(last, first)

    def check_endings(self, num_steps: int) -> None:
        """Check that episodes have ended in the run, and that resets returned new observations.

        Raises:
            InvalidArgument: no episode ended in `num_steps` steps.
            ContractViolation: after all endings the observation of the reset was the last observation.
        """
        if not self.endings:
            raise InvalidArgument(
                f"{self.env}: no episode ended in {num_steps} steps, so nothing is known of its {self.mode}; "
                "give a larger num_steps, or actions that end an episode"
            )
        if self.observations_differ and self.resets and self.resets == self.resets_like_endings:
            raise self.broken(
                f"the observation of a reset {_FIRST_OBSERVATIONS[self.mode]}",
                f"the last observation of the episode that ended, after each of {self.resets} endings",
            )

    # --- runs beside each other ------------------------------------------------------------------------------

    def check_same(self, first: list[_Row], second_rows: list[_Row], expected: str, advice: str) -> None:
        """Raise `ContractViolation` at the first step at which the results of two runs differ."""
        for self.step, rows in enumerate(zip(first, second_rows, strict=True)):
            for name in ("observations", "rewards", "terminateds", "truncateds"):
                a, b = (getattr(row, name) for row in rows)
                if nested.equal(a, b):
                    continue
                space = self.space if name == "observations" else spaces.Space()  # of one number per environment
                envs = range(self.num_envs)
                env = next(i for i in envs if not nested.equal(item_of(space, a, i), item_of(space, b, i)))
                raise self.broken(expected, f"other {name}", advice, environment=env)

    def other_on_resets(self, row: _Row) -> Any:
        """Return the recorded actions, but random actions for environments that are being reset."""
        drawn = self.env.action_space.sample()
        return nested.map_leaves(
            lambda old, new: np.where(row.is_reset.reshape(-1, *[1] * (old.ndim - 1)), new, old).astype(old.dtype),
            copy.deepcopy(row.actions),
            drawn,
        )
