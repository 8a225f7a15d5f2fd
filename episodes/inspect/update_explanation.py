"""`explain_update`: the steps of a training update, sorted by their share of the loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import numpy as np

from episodes.columns import Columns
from episodes.errors import InvalidArgument, StepOutOfRange, UnknownKey
from episodes.inspect import formatting
from episodes.storage.ledger import LedgerReader
from episodes.tokens.names import LOGP
from episodes.tracks.stacking import object_array

if TYPE_CHECKING:
    from episodes.single_agent.episode import SingleAgentEpisode
    from episodes.storage.ledger.ledger_reader import LedgerUpdate

__all__ = ["LearnedStep", "UpdateExplanation", "explain_update"]

LOSS = "loss"
_GROUPS = ("episode", "agent", "time", "turn", "worker")
_WORKER = "worker"
_TURN, TOKEN = "turn", "token"  # measurements of algorithms whose rows are tokens
_MOST_SHOWN = 20
_FEWEST_ENDS = 5
_ORDER = (*_GROUPS, "steps", "share", "ratio_distance", "advantage_agreement")  # first columns on a page


@dataclass(frozen=True, slots=True)
class LearnedStep:
    """A step from which an update learned, or a sampled token of a conversation, whose turns are steps.

    Attributes:
        share: the step's share of the absolute loss of the update, in 0..1.
        id_: id of its episode, or None if it is unknown.
        agent_id: id of its agent as text, or None.
        t: its time in the episode, modulo 2**32.
        stop: time after the last step of which the update used the reward: `t + n` of an n-step return.
        times_learned: number of rows of this and earlier updates of the module in which the step (or token) was.
        measurements: other measurements by name, such as "advantage".
        episode: the episode (or the agent's part of it), or None if the data set does not have it.
    """

    share: float
    id_: str | None
    agent_id: str | None
    t: int
    stop: int
    times_learned: int
    measurements: Mapping[str, float]
    episode: Any = None

    @property
    def observation(self) -> Any:
        """Observation at which the step's action was chosen, such as a frame.

        Raises:
            InvalidArgument: the episode is not known.
            StepOutOfRange: the episode does not have the step.
        """
        return self._in_episode().get_observations(self.t - self.episode.t_started)

    @property
    def token(self) -> int | None:
        """Index of the sampled token in its turn `t`, or None if the update did not learn from tokens."""
        index = self.measurements.get(TOKEN)
        return None if index is None else int(index)

    @property
    def token_id(self) -> int:
        """Token that was sampled.

        Raises:
            InvalidArgument: the episode is not known, or the update did not learn from tokens.
            StepOutOfRange: the episode does not have the token.
        """
        if self.token is None:
            raise InvalidArgument("LearnedStep.token_id: the update learned from steps, not from tokens; read episode")
        tokens = self._in_episode().get_actions(self.t - self.episode.t_started)
        if self.token >= len(tokens):
            raise StepOutOfRange(f"token {self.token}: the turn t={self.t} of {self.episode!r} has {len(tokens)}")
        return int(tokens[self.token])

    @property
    def recorded(self) -> dict[str, float]:
        """Numbers that acting stored at the step, beside those of the learner: "reward", "acting_value" if the runner
        recorded values, and "acting_logp" and "learning_logp": the log-probability of the action (or token) for the
        policy that acted, and for the policy that learned from it, at the first gradient step.

        Raises:
            InvalidArgument: the episode is not known.
            StepOutOfRange: the episode does not have the step.
        """
        episode = self._in_episode()
        at = self.t - episode.t_started
        numbers = {"reward": float(episode.get_rewards(at))}
        token, outputs = self.token, episode.extra_model_outputs
        for name, key in (
            ("acting_value", Columns.VF_PREDS),
            ("acting_logp", Columns.ACTION_LOGP if token is None else LOGP),
        ):
            if key in outputs:
                value = np.asarray(episode.get_extra_model_outputs(key, at))
                value = value if token is None else value[token : token + 1]
                if value.size == 1 and value.dtype.kind in "biuf":
                    numbers[name] = float(value.item())
        if "acting_logp" in numbers:
            difference = self.measurements.get("first_logp_difference")
            if difference is None and "first_ratio" in self.measurements:
                difference = -float(log_ratios({"first_ratio": np.array(self.measurements["first_ratio"])}))
            if difference is not None:
                numbers["learning_logp"] = numbers["acting_logp"] - difference
        return numbers

    @property
    def rewards(self) -> np.ndarray:
        """Rewards of the step's window, from `t` to `stop`, [n].

        Raises:
            InvalidArgument: the episode is not known.
            StepOutOfRange: the episode does not have the step.
        """
        start = self._in_episode().t_started
        return np.asarray(self.episode.get_rewards(slice(self.t - start, self.stop - start)))

    def realised_return(self, gamma: float) -> float:
        """Return the sum of the recorded rewards from the step to the end of the chunk, discounted by `gamma` per step.
        Nothing is added for the time after the chunk.

        Raises:
            InvalidArgument: the episode is not known.
            StepOutOfRange: the episode does not have the step.
        """
        start = self._in_episode().t_started
        rewards = np.asarray(self.episode.get_rewards(slice(self.t - start, None)), np.float64)
        return float(rewards @ gamma ** np.arange(len(rewards)))

    def _in_episode(self) -> Any:
        """Return the episode.

        Raises:
            InvalidArgument: it is not known.
            StepOutOfRange: it does not have the step.
        """
        if self.episode is None:
            raise InvalidArgument(
                f"episode {self.id_} is not known; give explain_update the data set that has it, as episodes="
            )
        start = self.episode.t_started
        if not start <= self.t < start + len(self.episode):
            raise StepOutOfRange(
                f"t={self.t}: {self.episode!r} has steps t={start} ... {start + len(self.episode) - 1}"
            )
        return self.episode


@dataclass(frozen=True, eq=False)
class UpdateExplanation(Sequence[LearnedStep]):
    """Steps of one training update, sorted by their share of its loss. `explanation[0]` taught most.

    Attributes:
        update: number of the update.
        module: its module, or "".
        columns: arrays of all steps in this order, [n] each: "share", "episode" (ids), "agent", "t", "times_learned",
            and the measurements of the algorithm.
        episodes: chunks of episodes by id, if a data set was given.

    | measurement | meaning |
    |---|---|
    | "loss" | the step's part of the absolute loss, summed over the gradient steps |
    | "advantage" | as the policy loss used it, for example standardized |
    | "first_value" | the value (or Q-value) at the first gradient step with the row |
    | "value_target" | its target, such as the return of GAE or the n-step target |
    | "first_ratio" | probability of the action under the policy that learns, divided by that under the policy that
      acted, at the first gradient step; 1 if both are the same |
    | "first_gradient_step" | number of that gradient step in the update, 0 for the first one. At 0 the policy has not
      changed yet |
    | "ratio" | the ratio of probabilities, as the mean over all gradient steps |
    | "clipped" | fraction of the gradient steps in which the ratio was clipped |
    | "n_step" | number of rewards in the target |
    | "first_logp_difference" | of tokens: log-probability that the sampler recorded, minus that of the trained model at
      the first gradient step |
    | "token" | index of the token among the sampled tokens of its turn `t` |
    | "worker" | index of the runner that sampled the episode, in a group of runners |
    """

    update: int
    module: str
    columns: Mapping[str, np.ndarray]
    episodes: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.columns["t"])

    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(len(self))[row]]
        if not -len(self) <= row < len(self):
            raise StepOutOfRange(f"row {row}: update {self.update} learned from {len(self)} steps")
        values: dict[str, Any] = {name: column[row] for name, column in self.columns.items()}
        share, id_, agent_id, t, times = (values.pop(name) for name in _FACTS)
        t = int(t)
        length = values.get("n_step", 1)
        stop = t + (int(length) if np.isfinite(length) else 1)
        numbers = {name: float(value) for name, value in values.items()}
        return LearnedStep(
            float(share), id_, agent_id, t, stop, int(times), numbers, self._episode_of(id_, agent_id, t)
        )

    def _episode_of(self, id_: str | None, agent_id: str | None, t: int) -> Any:
        """Return the chunk that contains a step, or None if no data set with it was given."""
        for chunk in self.episodes.get(id_, ()) if id_ is not None else ():
            agents = getattr(chunk, "agent_episodes", None)
            if agents is not None:
                chunk = next((part for name, part in agents.items() if str(name) == agent_id), None)
            elif chunk.agent_id is not None and str(chunk.agent_id) != agent_id:
                continue
            if chunk is not None and chunk.t_started <= t < chunk.t_started + len(chunk):
                return chunk
        return None

    @cached_property
    def value_errors(self) -> np.ndarray | None:
        """Value target minus value of each step [n], which is the advantage before it is standardized, or None if the
        algorithm has no values."""
        if not {"first_value", "value_target"} <= self.columns.keys():
            return None
        return self.columns["value_target"] - self.columns["first_value"]

    def by(self, group: str) -> list[dict[str, Any]]:
        """Return one row for each episode, agent, time, turn or worker, with the largest share of the loss first.

        Times are ranges of steps since the beginnings of the episodes: "0", "1", "2-3", "4-7" and so on, in order. If
        several steps have the last time, it is a range of its own, as under a time limit.
        Turns are the steps at one time of an episode, such as the tokens of a turn.

        A row has the name of the group, the number of its steps, its share of the loss, and the means of all
        measurements. "ratio_distance" is the mean of |log(first_ratio)| of the first gradient step, before which the
        policy was not changed: it is 0 if the policy that acted is the one that learns, and NaN if the first gradient
        step had no row of the group. "advantage_agreement" is the correlation of the advantages with value target minus
        value, over the steps of the group: it is close to 1 unless the advantages of the group are wrong.
        "logp_distance" is the mean of |first_logp_difference|: it is close to 0 if the trained model reads the tokens
        that the sampler read.

        Raises:
            UnknownKey: `group` is not "episode", "agent", "time", "turn" or "worker", or workers were not recorded.
        """
        if group not in _GROUPS:
            raise UnknownKey(f"by({group!r}): no such group; give one of {', '.join(_GROUPS)}")
        if group == _WORKER and _WORKER not in self.columns:
            raise UnknownKey("by('worker'): the run did not record workers; sample with a GroupRunner")
        names: dict[Any, list[int]] = {}
        if group == "time":
            labels = time_ranges(self.columns["t"], has_last=True)
        elif group == _TURN:
            labels = list(zip(self.columns["episode"].tolist(), self.columns["t"].tolist(), strict=True))
        elif group == _WORKER:
            labels = [int(worker) if np.isfinite(worker) else None for worker in self.columns[_WORKER].tolist()]
        else:
            labels = self.columns[group].tolist()
        for row, name in enumerate(labels):
            names.setdefault(name, []).append(row)
        rows = [self._summary(group, name, rows) for name, rows in names.items()]
        if group == "time":
            return sorted(rows, key=lambda row: int(row[group].split("-")[0]))
        return sorted(rows, key=lambda row: -row["share"])

    def _summary(self, group: str, name: Any, rows: list[int]) -> dict[str, Any]:
        """Return the row of `by` for one group."""
        columns = {key: column[rows] for key, column in self.columns.items() if key not in (*_FACTS, _WORKER)}
        means = {key: _mean(column) for key, column in columns.items()}
        heads = {"episode": name[0], "t": name[1]} if group == _TURN else {group: name}
        agents = {agent for agent in self.columns["agent"][rows].tolist() if agent is not None}
        if group == "episode" and agents:
            heads["agent"] = ", ".join(sorted(agents))
        result = {**heads, "steps": len(rows), "share": float(np.nansum(self.columns["share"][rows])), **means}
        if "first_ratio" in columns:
            result["ratio_distance"] = _mean(ratio_distances(columns))
        if "first_logp_difference" in columns:
            result["logp_distance"] = _mean(np.abs(columns["first_logp_difference"]))
        if "advantage" in columns and self.value_errors is not None:
            result["advantage_agreement"] = correlation(columns["advantage"], self.value_errors[rows])
        return result

    def table(self, limit: int = _MOST_SHOWN) -> tuple[list[str], list[list[str]]]:
        """Return the names of the columns and the first `limit` steps as texts, with what was recorded at steps whose
        episodes are known.
        """
        shown = [name for name in self.columns if name != LOSS and (name != "agent" or any(self.columns[name]))]
        num = min(limit, len(self))
        known = [step.recorded if step.episode is not None else {} for step in self[:num]]
        recorded = [name for name in _RECORDED if any(name in numbers for numbers in known)]
        place = shown.index("t") + 1
        names = [*shown[:place], *recorded, *shown[place:]]
        rows = [
            [text_of(name, known[row].get(name) if name in recorded else self.columns[name][row]) for name in names]
            for row in range(num)
        ]
        return names, rows

    def to_html(self, page: str | Path | None = None, limit: int = 1000) -> str:
        """Return an HTML page with the first `limit` steps, and tables of the episodes, agents and times.

        Args:
            page: address of the page of the data set, which `episodes report` and `episodes watch` make. Rows are then
                links to their steps.
            limit: number of steps.
        """
        return page_of(self.title, self.tables(_address_of(page), limit))

    @property
    def title(self) -> str:
        """Update, module and number of steps, as text."""
        return f"Update {self.update}{f' of module {self.module}' if self.module else ''}: {len(self)} steps"

    def tables(self, address: Callable[[str], str] | None, limit: int = 1000, at: Collection[int] = ()) -> str:
        """Return the tables of groups and steps as HTML.

        Args:
            address: function that returns the address of the page with an episode, given its id; "" for no page.
            limit: number of steps.
            at: times whose rows are marked.
        """
        parts = []
        groups = [group for group, name in ((_TURN, TOKEN), (_WORKER, _WORKER)) if name in self.columns]
        for group in ("time", "agent", *groups, "episode"):
            summary = self.by(group)
            if len(summary) > 1 or group == "episode":
                parts.append((f"by-{group}", self._group_table(group, summary, address, limit, at)))
        names, rows = self.table(limit)
        ids, agents, times = (self.columns[name] for name in ("episode", "agent", "t"))
        tokens = self.columns[TOKEN].astype(int).tolist() if TOKEN in self.columns else [None] * len(rows)
        links = [self._link(address, ids[row], agents[row], int(times[row]), tokens[row]) for row in range(len(rows))]
        parts.append(("steps", _html_table("Steps", names, rows, links, self.columns["share"][: len(rows)])))
        columns = dict.fromkeys(["share", *(name for row in self.by("time")[:1] for name in row), *names])
        parts.append(("columns", legend(columns)))
        left_out = len(self) - len(rows)
        note = f"<p>{left_out} steps with smaller shares are left out.</p>" if left_out else ""
        return "".join(f'<section id="{name}">{table}</section>' for name, table in parts) + note

    def _group_table(
        self,
        group: str,
        summary: list[dict[str, Any]],
        address: Callable[[str], str] | None,
        limit: int,
        at: Collection[int],
    ) -> str:
        """Return the first `limit` rows of `by(group)` as HTML. Cells that stand out are marked. Of episodes and
        turns, rows with a mark come first.
        """
        if summary and "episode" in summary[0]:
            summary = sorted(summary, key=lambda row: not any(stands_out(*item) for item in row.items()))
        summary = summary[:limit]
        names = list(summary[0]) if summary else []
        names.sort(key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
        cells = [[text_of(name, row[name]) for name in names] for row in summary]
        links = [self._link(address, row["episode"], t=row.get("t")) if "episode" in row else None for row in summary]
        here = set(map(str, at))
        marks = [
            [stands_out(name, row[name]) or (name in _MARKED and row.get("time") in here) for name in names]
            for row in summary
        ]
        return _html_table(f"By {group}", names, cells, links, np.array([row["share"] for row in summary]), marks)

    def _link(
        self,
        address: Callable[[str], str] | None,
        id_: str | None,
        agent: str | None = None,
        t: int | None = None,
        token: int | None = None,
    ) -> str | None:
        """Return the address of a step, token or episode on the page of the data set, or None if there is none."""
        page = address(id_) if address is not None and id_ is not None else ""
        if not page or id_ is None:
            return None
        first = int(self.columns["t"][self.columns["episode"] == id_].min()) if t is None else t
        parts = {"id": formatting.page_id(id_), "t": first}
        if agent is not None:
            parts["agent"] = formatting.page_id(agent)
        if token is not None:
            parts["token"] = token
        return f"{page.split('#')[0]}#{urlencode(parts, quote_via=quote)}"

    def _repr_html_(self) -> str:
        names, rows = self.table()
        return _html_table(repr(self), names, rows, [None] * len(rows), self.columns["share"][: len(rows)])

    def __str__(self) -> str:
        names, rows = self.table()
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [names, *rows]
        ]
        return "\n".join([repr(self), *lines])

    def __repr__(self) -> str:
        return (
            f"UpdateExplanation(update {self.update}{f' of {self.module}' if self.module else ''}: {len(self)} steps)"
        )


_LIMITS = np.finfo(np.float32)  # of ratios
_MARKED = ("time", "first_value", "value_target")  # cells of a time that shows a finding
_RECORDED = ("reward", "acting_logp", "learning_logp", "acting_value")
_FACTS = ("share", "episode", "agent", "t", "times_learned")


def explain_update(
    run: str | Path | LedgerReader,
    update: int,
    *,
    module: str | None = None,
    episodes: Iterable[SingleAgentEpisode] | str | Path | None = None,
) -> UpdateExplanation:
    """Explain a training update: return the steps that it learned from, sorted by their share of the loss.

    The run was recorded by `episodes train --explain`, or by a trainer with `Ledger(path, measures_rows=True)`.

    Args:
        run: the folder of a run, a ledger, or its reader.
        update: number of the update. Negative numbers count from the last one.
        module: name of the module, if several learn.
        episodes: a data set, its path, or episodes, to look up the steps. By default the data sets in the folder of
            the run, such as that of `episodes train --keep-episodes`.

    Raises:
        UnreadableData: there is no ledger, or it is damaged.
        StepOutOfRange: the ledger does not have the update.
        InvalidArgument: several modules learned in the update, and none is given; or its rows were not measured.
    """
    reader = run if isinstance(run, LedgerReader) else LedgerReader(run)
    index, name = _find(reader, update, module)
    chosen = reader[index]
    if LOSS not in chosen.measured:
        raise InvalidArgument(
            f"update {chosen.update} of {reader.path}: its rows were not measured; train with episodes train --explain "
            "or with Ledger(path, measures_rows=True)"
        )
    times = _times_learned(reader, index, name)
    columns = step_columns(chosen, reader.ids, times)
    order = np.argsort(-columns["share"], kind="stable")
    in_order = {key: column[order] for key, column in columns.items()}
    return UpdateExplanation(
        chosen.update, name, in_order, chunks_by_id(_opened(reader, episodes), in_order["episode"])
    )


def _find(reader: LedgerReader, update: int, module: str | None) -> tuple[int, str]:
    """Return the position of an update in a ledger, and its module."""
    places = reader.updates
    numbers = sorted({number for number, name in places if module is None or name == module})
    if not numbers:
        modules = ", ".join(sorted({repr(name) for _, name in places}))
        raise InvalidArgument(f"module {module!r}: the ledger has no update of it; give one of {modules or 'none'}")
    number = numbers[update] if -len(numbers) <= update < 0 else update
    here = [i for i, (n, name) in enumerate(places) if n == number and (module is None or name == module)]
    if not here:
        raise StepOutOfRange(f"update {update}: the ledger has updates {numbers[0]} to {numbers[-1]}")
    if len(here) > 1:
        names = ", ".join(repr(places[i][1]) for i in here)
        raise InvalidArgument(f"update {update}: modules {names} learned; give one of them as module")
    return here[0], places[here[0]][1]


def _steps(update: LedgerUpdate) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the measured steps of an update: the index of the row, the number of the episode and the time of each."""
    width = update.measured[LOSS].shape[1] if update.measured else 1
    rows, offsets = np.divmod(np.arange(len(update.content) * width), width)
    if update.measured:
        is_measured = np.isfinite(update.measured[LOSS]).ravel()
        rows, offsets = rows[is_measured], offsets[is_measured]
        if _TURN in update.measured:  # rows are tokens, several of one turn
            times = update.measured[_TURN].ravel()[is_measured]
            return rows, update.episode[rows], np.where(np.isfinite(times), times, 0).astype(np.int64)
    return rows, update.episode[rows], update.t[rows].astype(np.int64) + offsets


def _times_learned(reader: LedgerReader, index: int, module: str) -> np.ndarray:
    """Return how often each step of the update at `index` was learned from until then, int64 [n]."""
    steps = [_keyed_steps(reader[i]) for i, (_, name) in enumerate(reader.updates[: index + 1]) if name == module]
    chosen, agents = steps[-1]  # of tokens, agent and token
    counts: Counter[Any] = Counter()
    for keys, of_agents in steps:
        rows = np.flatnonzero(np.isin(keys, chosen))
        counts.update(zip(keys[rows].tolist(), of_agents[rows].tolist(), strict=True))
    times = [counts[key] for key in zip(chosen.tolist(), agents.tolist(), strict=True)]
    return np.where(chosen >= 0, np.array(times, np.int64), 1)


def _keyed_steps(update: LedgerUpdate) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for the episode and time of each measured step, negative if unknown, and the steps' agents. For
    tokens, the second are pairs of agent and token.
    """
    rows, episode, t = _steps(update)
    agents = np.full(len(rows), None, object) if update.agents is None else update.agents[rows]
    if TOKEN in update.measured:
        tokens = update.measured[TOKEN].ravel()[np.isfinite(update.measured[LOSS]).ravel()]
        agents = object_array(list(zip(agents.tolist(), tokens.tolist(), strict=True)))
    return np.where(episode >= 0, (episode << 32) + t, -1), agents


def step_columns(update: LedgerUpdate, ids: Sequence[str], times: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the columns of `UpdateExplanation` of a measured update, in the order of its batch.

    Args:
        update: the update, as a `LedgerReader` reads it.
        ids: the reader's ids of episodes.
        times: how often each step was learned from, int64 [n]; 1 by default.
    """
    rows, episode, t = _steps(update)
    times = np.ones(len(rows), np.int64) if times is None else times
    is_measured = np.isfinite(update.measured[LOSS]).ravel()
    measured = {name: column.ravel()[is_measured].astype(np.float64) for name, column in update.measured.items()}
    measured.pop(_TURN, None)  # it is `t`
    total = np.abs(measured[LOSS]).sum()
    share = np.abs(measured[LOSS]) / total if total else np.zeros(len(rows))
    names = np.array([*ids, None], object)[episode]  # the last one is of unknown episodes, -1
    agents = np.full(len(rows), None, object) if update.agents is None else update.agents[rows]
    return dict(zip(_FACTS, (share, names, agents, t, times), strict=True)) | measured


def stored_episodes(run: Path) -> dict[str, Any]:
    """Return the data sets of episodes in the folder of a run, by the names of their folders, without those whose
    agents are of several kinds.
    """
    from episodes.storage import EpisodeDataset
    from episodes.storage.games import open_dataset
    from episodes.storage.header import NAME

    datasets = {file.parent.name: open_dataset(file.parent) for file in sorted(run.glob(f"*/{NAME}"))}
    return {name: dataset for name, dataset in datasets.items() if isinstance(dataset, EpisodeDataset)}


def _opened(reader: LedgerReader, episodes: Iterable[SingleAgentEpisode] | str | Path | None) -> list[Any]:
    """Return sources of episodes to look up steps in: those given, or the data sets in the folder of the run."""
    from episodes.storage import EpisodeDataset

    if episodes is None:
        return list(stored_episodes(reader.path.parent).values())
    return [EpisodeDataset(episodes) if isinstance(episodes, (str, Path)) else episodes]


def chunks_by_id(sources: Iterable[Any], wanted: np.ndarray) -> dict[str, list[Any]]:
    """Return those chunks of several sources whose ids are in `wanted`, by id. Of a data set only these are read."""
    ids = {id_ for id_ in wanted.tolist() if id_ is not None}
    chunks: dict[str, list[Any]] = {}
    for episodes in sources:
        metadata = getattr(episodes, "metadata", None)
        if metadata is not None:
            places = [i for i, id_ in enumerate(metadata["id"].tolist()) if str(id_) in ids]
            episodes = map(episodes.__getitem__, places)
        for episode in episodes:
            if str(episode.id_) in ids:
                chunks.setdefault(str(episode.id_), []).append(episode)
    return chunks


def log_ratios(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return log(first_ratio) of each step, or NaN if earlier gradient steps of the update had changed the policy.

    A ratio that float32 rounds to 0 or infinity counts as the nearest number, whose logarithm is about -87 or 89.
    """
    logarithms = np.log(np.clip(columns["first_ratio"], _LIMITS.tiny, _LIMITS.max))
    steps = columns.get("first_gradient_step")
    return logarithms if steps is None else np.where(steps == 0, logarithms, np.nan)


def ratio_distances(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return |log(first_ratio)| of each step, as `log_ratios`."""
    return np.abs(log_ratios(columns))


def time_ranges(times: np.ndarray, has_last: bool = False) -> list[str]:
    """Return the range of each time, whose beginnings are 0 and the powers of 2.

    Args:
        times: times of steps, int [n].
        has_last: whether the last time is a range of its own, if at least five steps have it.

    >>> time_ranges(np.array([0, 1, 3, 4, 100]))
    ['0', '1', '2-3', '4-7', '64-127']
    """
    last = int(times.max()) if has_last and len(times) and (times == times.max()).sum() >= _FEWEST_ENDS else -1
    names = {}
    for t in np.unique(times).tolist():
        n = t.bit_length()
        begin, end = (n, n) if n < 2 else (1 << n - 1, (1 << n) - 1)
        end = last - 1 if begin < last <= end else end
        names[t] = str(t) if t == last or begin == end else f"{begin}-{end}"
    return [names[t] for t in times.tolist()]


FAR = 0.003  # mean |log ratio| of another policy; rounding of float32 gives 1e-6, of TF32 up to 1e-3
AGREES = -0.3  # lowest correlation of advantages with value target minus value that is no sign of a defect


def stands_out(name: str, value: Any) -> bool:
    """Return True for a summary of a group, such as "ratio_distance", that runs without defects do not have."""
    return bool((name == "ratio_distance" and value > FAR) or (name == "advantage_agreement" and value < AGREES))


def _mean(column: np.ndarray) -> float:
    """Return the mean of the numbers that are finite, or NaN."""
    finite = column[np.isfinite(column)]
    return float(finite.mean()) if len(finite) else float("nan")


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two columns, or NaN if one is constant."""
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 2 or not a.std() or not b.std():
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def text_of(name: str, value: Any) -> str:
    """Return a value of the column `name` as text."""
    if name == "share":
        return f"{100 * value:.2f} %"
    if isinstance(value, (float, np.floating)):
        return formatting.number(float(value))
    return "" if value is None else formatting.clipped(value, 32)


MEANINGS = {
    "share": "part of the absolute loss of the update",
    "loss": "absolute loss of a step, summed over the gradient steps; curves show the mean over a minibatch",
    "steps": "number of steps, or of sampled tokens",
    "time": "steps since the beginning of the episode",
    "ratio_distance": "mean |log(first ratio)|: 0 if the policy that acted is the one that learns; a dash if no row "
    "was in the first gradient step",
    "advantage_agreement": "correlation of the advantages with value target minus value: close to 1 if they are right",
    "logp_distance": "mean difference of the sampler's and the trainer's log-probabilities: close to 0",
    "times_learned": "number of rows, of this and earlier updates, with the step",
    "advantage": "as the policy loss used it",
    "first_value": "value (or Q-value) at the first gradient step with the row",
    "value_target": "target of the value, such as a return",
    "first_ratio": "probability of the action for the policy that learns, by that for the policy that acted",
    "first_gradient_step": "number of the first gradient step with the row; at 0 the policy has not changed yet",
    "ratio": "the same as first ratio, mean over all gradient steps",
    "clipped": "fraction of the gradient steps in which the ratio was clipped",
    "n_step": "number of rewards in the target",
    "first_logp_difference": "log-probability of the token at the sampler minus that at the trainer",
    "token": "index of the token in its turn",
    "worker": "index of the runner that sampled the episode",
    "reward": "stored reward of the step",
    "acting_logp": "stored log-probability of the action, for the policy that acted",
    "learning_logp": "the same for the policy that learned from it, at the first gradient step: equal if both saw the "
    "same and had the same weights",
    "acting_value": "stored value of the policy that acted",
}
"""Meaning of the columns of the tables."""


def legend(names: Iterable[str]) -> str:
    """Return the meaning of each column as HTML."""
    lines = "".join(
        f"<dt>{escape(n.replace('_', ' '))}</dt><dd>{escape(MEANINGS[n])}</dd>" for n in names if n in MEANINGS
    )
    return f"<details><summary>Columns</summary><dl>{lines}</dl></details>"


def _html_table(
    title: str,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    links: Sequence[str | None],
    shares: np.ndarray,
    marks: Sequence[Sequence[bool]] | None = None,
) -> str:
    """Return a table as HTML. The bar behind a row's share has its length. `marks` are the cells that stand out."""
    most = max([float(share) for share in shares], default=0.0) or 1.0
    head = "".join(
        f'<th title="{escape(MEANINGS.get(name, ""))}">{escape(name.replace("_", " "))}</th>' for name in names
    )
    lines = []
    for number, (cells, link, share) in enumerate(zip(rows, links, shares, strict=True)):
        tags = []
        for place, (name, cell) in enumerate(zip(names, cells, strict=True)):
            text = escape(cell) if cell != "NaN" else "-"
            if link is not None and name == "episode":
                text = f'<a href="{escape(link)}">{text}</a>'
            if marks is not None and marks[number][place]:
                tags.append(f"<td class=mark>{text}</td>")
            elif name == "share":
                width = 100 * float(share) / most
                tags.append(
                    f'<td style="background:linear-gradient(to right,#60a5fa66 {width:.1f}%,#0000 0)">{text}</td>'
                )
            else:
                tags.append(f"<td>{text}</td>")
        lines.append(f"<tr>{''.join(tags)}</tr>")
    return f"<h2>{escape(title)}</h2><div class=wide><table><tr>{head}</tr>{''.join(lines)}</table></div>"


def _address_of(page: str | Path | None) -> Callable[[str], str] | None:
    """Return the function that `tables` needs, of one page with all episodes."""
    if page is None:
        return None
    address = str(page) if "://" in str(page) else Path(page).resolve().as_uri()
    return lambda _: address


def page_of(title: str, body: str) -> str:
    """Return a page of tables, given as HTML."""
    return _PAGE.format(title=escape(title), style=_STYLE, body=body)


_STYLE = (
    ":root{color-scheme:light dark}body{font:14px/1.45 system-ui,sans-serif;margin:16px}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 12px}dt{font-weight:600}dd{margin:0}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "th,td{padding:2px 10px;text-align:right;white-space:nowrap}th{opacity:.7;font-weight:500}"
    "tr{border-bottom:1px solid #8883}h1{font-size:20px}h2{font-size:16px}.mark{background:#f59e0b55;font-weight:600}"
    ".finding{border-left:3px solid #f59e0b;padding-left:8px;max-width:90ch}"
    "s{opacity:.5;text-decoration:none}"
    "nav{display:flex;flex-wrap:wrap;gap:4px 16px}section:target>h2{text-decoration:underline #f59e0b 3px}"
    "section{scroll-margin-top:34px}nav{position:sticky;top:0;padding:4px 0;background:Canvas;z-index:1}"
    "p{max-width:90ch}small{display:block}a{color:#2563eb}"
    "@media(prefers-color-scheme:dark){a{color:#60a5fa}}"
)
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    '<link rel="icon" href="data:,"><title>{title}</title><style>{style}</style><h1>{title}</h1>{body}</html>'
)
