"""Roles of arrays with a row per step, by their usual names, and the endings of the episodes in them."""

from __future__ import annotations

import numpy as np

from episodes.converters.accounting import Account
from episodes.converters.flat_steps import FlatSteps
from episodes.converters.loss_report import LossReport
from episodes.errors import UnreadableData

ROLES = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "obs_next", "next_states", "next_state"),
    "terminated": ("terminals", "terminal", "terminated", "terminateds", "terminations"),
    "truncated": ("timeouts", "timeout", "truncated", "truncateds", "truncations"),
    "done": ("dones", "done", "dones_float"),
    "starts": ("episode_starts", "is_first"),
    "masks": ("masks",),
    "stops": ("episode_ends",),
    "lengths": ("episode_lengths", "traj_lengths"),
}
"""Names of arrays by role. The first known name of a role is its array of each role."""
OF_STEPS = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated", "done")
"""Roles of arrays with a row per step."""


def names_of_roles(names: tuple[str, ...], besides: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the name of the array of each role of `ROLES`, by role, without the roles `besides`."""
    roles = {role: known for role, known in ROLES.items() if role not in besides}
    found = {role: next((name for name in known if name in names), None) for role, known in roles.items()}
    return {role: name for role, name in found.items() if name is not None}


def missing_role(role: str) -> str:
    """Return text on an array that is missing, with its usual names."""
    return f"no array of {role} ({', '.join(map(repr, ROLES[role]))})"


def endings(
    steps: FlatSteps, stored: Account, names: dict[str, str], report: LossReport, where: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which steps terminated, which were truncated, and which are the last of their episode, bool [N] each.

    What the arrays do not mark is added to `report`.
    """
    num = steps.num_rows
    terminated, truncated, done = (steps.flags(role) for role in ("terminated", "truncated", "done"))
    ends = np.zeros(num, bool)
    for role in ("stops", "lengths"):
        if role in names:
            rows = np.asarray(stored[names[role]][()]).reshape(-1)
            ends |= last_rows(rows if role == "stops" else np.cumsum(rows), num, steps.where, names[role])
    for role in ("starts", "masks"):
        if role in names and stored[names[role]].shape not in ((num,), (num, 1)):
            raise UnreadableData(f"{steps.where}: {names[role]!r} needs one number per step, of {num} steps")
    if "starts" in names:
        starts = np.asarray(stored[names["starts"]][()]).reshape(-1).astype(bool)
        ends[:-1] |= starts[1:]
    if "masks" in names:
        zero = np.asarray(stored[names["masks"]][()]).reshape(-1) == 0
        terminated, done = zero, done | terminated
    elif "terminated" in names and not {"rewards", "truncated", "done"} & names.keys():
        reason = f"{names['terminated']!r} marks the ends of trajectories, as there are no rewards; taken as truncated"
        report.add("whether it terminated", reason, where)
        terminated, truncated = np.zeros(num, bool), terminated
    elif "done" in names and "terminated" not in names:
        if "truncated" not in names:
            reason = f"{names['done']!r} does not tell a time limit from a termination; all are terminations"
            report.add("truncations", reason, where)
        terminated = done & ~truncated
    elif "terminated" in names and not {"truncated", "done", "stops", "lengths", "starts"} & names.keys():
        reason = "the file has no 'timeouts', so steps before and after a time limit may be in one episode"
        report.add("truncations", reason, where)
    truncated = truncated | (done & ~terminated)
    if not {"terminated", "truncated", "done", "masks"} & names.keys():
        report.add("endings", "the data mark none; the episodes count as cut", where)
    return terminated, truncated, ends


def last_rows(stops: np.ndarray, num: int, where: str, name: str) -> np.ndarray:
    """Return which rows are the last one of an episode, bool [num].

    Args:
        stops: the row after the last one of each episode, int [E], ascending.
        num: number of rows.
        where: name of the source, for errors.
        name: name of the array with the ends, for errors.

    Raises:
        UnreadableData: the ends are no whole numbers, do not ascend, or the last one is not `num`.
    """
    if stops.ndim != 1 or stops.dtype.kind not in "iu" or (np.diff(stops.astype(np.int64)) < 0).any():
        raise UnreadableData(f"{where}: {name!r} holds no ascending whole numbers; these are the ends of the episodes")
    if num != (int(stops[-1]) if len(stops) else 0) or (len(stops) and int(stops[0]) < 0):
        last = int(stops[-1]) if len(stops) else 0
        raise UnreadableData(f"{where}: by {name!r} the episodes have {last} steps, the arrays have {num}")
    ends = np.zeros(num, bool)
    ends[stops[stops > 0].astype(np.int64) - 1] = True
    return ends
