"""`explain_update`: the steps of a training update, sorted by their share of the loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.columns import Columns
from episodes.errors import InvalidArgument, StepOutOfRange, UnknownKey
from episodes.inspect import formatting
from episodes.inspect.update_measures import (
    ROWS,
    TOKEN,
    WORKER,
    correlation,
    histogram,
    is_constant,
    log_ratios,
    mean,
    name_of,
    row_measures,
    text_of,
    time_ranges,
)
from episodes.returns import discounted_returns
from episodes.storage.ledger import LedgerReader
from episodes.tokens.names import GROUP, GROUP_ID, LOGP
from episodes.tracks.stacking import object_array

if TYPE_CHECKING:
    from episodes.inspect.conversation import Decode
    from episodes.single_agent.episode import SingleAgentEpisode
    from episodes.storage.ledger.ledger_reader import LedgerUpdate

__all__ = ["LearnedStep", "UpdateExplanation", "explain_update"]

LOSS = "loss"
_GROUPS = ("episode", "agent", "time", "turn", "worker")
_TURN = "turn"  # measurement of algorithms whose rows are tokens
_MOST_SHOWN = 20


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
        with np.errstate(invalid="ignore"):  # of infinities
            return self.columns["value_target"] - self.columns["first_value"]

    def by(self, group: str) -> list[dict[str, Any]]:
        """Return one row for each episode, agent, time, turn or worker, with the largest share of the loss first.

        Times are ranges of steps since the beginnings of the episodes: "0", "1", "2-3", "4-7" and so on, in order. If
        several steps have the last time, it is a range of its own, as under a time limit.
        Turns are the steps at one time of an episode, such as the tokens of a turn.

        A row has the name of the group, the workers that sampled it, if they were recorded, the number of its steps,
        its share of the loss, and the means of measurements, except for indices and for measurements that the following
        numbers sum up. "ratio_distance" is the mean of |log(first_ratio)| of the first gradient step, before which the
        policy was not changed: it is 0 if the policy that acted is the one that learns, and NaN if the first gradient
        step had no row of the group. "advantage_agreement" is the correlation of the advantages with value target minus
        value, over the steps of the group: it is close to 1 unless the advantages of the group are wrong.
        "logp_distance" is the mean of |first_logp_difference|: it is close to 0 if the trained model reads the tokens
        that the sampler read.

        If a number is of a part of the steps in any row, the next one is how many of them it is of in each, such as
        "ratio_distance_rows".

        Raises:
            UnknownKey: `group` is not "episode", "agent", "time", "turn" or "worker", or workers were not recorded.
        """
        if group not in _GROUPS:
            raise UnknownKey(f"by({group!r}): no such group; give one of {', '.join(_GROUPS)}")
        if group == WORKER and WORKER not in self.columns:
            raise UnknownKey("by('worker'): the run did not record workers; sample with a GroupRunner")
        names: dict[Any, list[int]] = {}
        if group == "time":
            labels = time_ranges(self.columns["t"], has_last=True)
        elif group == _TURN:
            labels = list(zip(self.columns["episode"].tolist(), self.columns["t"].tolist(), strict=True))
        elif group == WORKER:
            labels = [int(worker) if np.isfinite(worker) else None for worker in self.columns[WORKER].tolist()]
        else:
            labels = self.columns[group].tolist()
        for row, name in enumerate(labels):
            names.setdefault(name, []).append(row)
        known = {name: np.isfinite(values) for name, values in self._row_measures.items()}
        partial = {name: is_known for name, is_known in known.items() if not is_known.all()}
        rows = [self._summary(group, name, rows, partial) for name, rows in names.items()]
        if group == "time":
            return sorted(rows, key=lambda row: int(row[group].split("-")[0]))
        return sorted(rows, key=lambda row: -row["share"])

    def _summary(self, group: str, name: Any, rows: list[int], partial: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the row of `by` for one group. `partial` has the numbers that not all steps have, and which do."""
        means = {key: mean(column[rows]) for key, column in self.columns.items() if key not in (*_FACTS, *_NO_MEANS)}
        heads = {"episode": name[0], "t": name[1]} if group == _TURN else {group: name}
        agents = {agent for agent in self.columns["agent"][rows].tolist() if agent is not None}
        if group == "episode" and agents:
            heads["agent"] = ", ".join(sorted(agents))
        if WORKER in self.columns and group != WORKER:
            workers = {worker for worker in self.columns[WORKER][rows].tolist() if np.isfinite(worker)}
            heads[WORKER] = ", ".join(f"{worker:.0f}" for worker in sorted(workers)) or None
        share = float(np.nansum(self.columns["share"][rows]))
        numbers = {}
        for key, value in {**means, **self._distances(rows)}.items():
            numbers[key] = value
            if key in partial:
                numbers[f"{key}{ROWS}"] = int(partial[key][rows].sum())
        return {**heads, "steps": len(rows), "share": share, **numbers}

    @cached_property
    def _row_measures(self) -> dict[str, np.ndarray]:
        return row_measures(self.columns)

    def _distances(self, rows: Any) -> dict[str, float]:
        """Return those numbers of `by` that are not means of measurements, of the steps with these indices."""
        measures = self._row_measures
        result = {name: mean(measures[name][rows]) for name in ("ratio_distance", "logp_distance") if name in measures}
        if "advantage" in self.columns and self.value_errors is not None:
            result["advantage_agreement"] = correlation(self.columns["advantage"][rows], self.value_errors[rows])
        return result

    def table(self, limit: int = _MOST_SHOWN) -> tuple[list[str], list[list[str]]]:
        """Return the names of the columns and the first `limit` steps as texts, with what was recorded at steps whose
        episodes are known.
        """
        columns = self.rows(limit)
        return list(columns), [
            [text_of(name, value) for name, value in zip(columns, row, strict=True)]
            for row in zip(*columns.values(), strict=True)
        ]

    def rows(self, limit: int = _MOST_SHOWN, decode: Decode | None = None) -> dict[str, list[Any]]:
        """Return the columns of the first `limit` steps, with what was recorded at steps whose episodes are known.
        Other steps have None there.

        Tokens also have "token_id", the "group" of their episode, and, with `decode`, "text".

        Args:
            limit: number of steps.
            decode: function from a list of token ids to text.
        """
        num = min(limit, len(self))
        steps = self[:num]
        known = [_recorded(step, decode) if step.episode is not None else {} for step in steps]
        columns: dict[str, list[Any]] = {}
        for name, column in self.columns.items():
            if name != LOSS and (name != "agent" or any(column)):
                columns[name] = column[:num].tolist()
            if name == "t":
                for key in _RECORDED:
                    if any(key in numbers for numbers in known):
                        columns[key] = [numbers.get(key) for numbers in known]
        return columns

    def summary(self) -> dict[str, float]:
        """Return numbers of the whole update: "steps", "episodes" (those whose ids are known), and, if they were
        measured, the mean "loss", the fraction "clipped", and "kl", "ratio_distance", "logp_distance",
        "advantage_agreement" and "explained_variance".

        "kl" is the mean of ratio - 1 - log(ratio), an estimate of the KL divergence between the policy that acted and
        the policy that learns, as the mean over the gradient steps (Schulman, "Approximating KL Divergence", 2020).
        "explained_variance" is 1 - Var(value target - value) / Var(value target). The others are those of `by`.
        """
        columns = self.columns
        ids = set(columns["episode"].tolist()) - {None}
        numbers: dict[str, float] = {"steps": len(self), "episodes": len(ids)}
        numbers |= {name: mean(columns[name]) for name in (LOSS, "clipped") if name in columns}
        if "ratio" in columns:
            numbers["kl"] = mean(self._row_measures["kl"])
        numbers |= self._distances(np.arange(len(self)))
        if self.value_errors is not None:
            known = np.isfinite(self.value_errors)
            targets = columns["value_target"][known]
            is_known = not is_constant(targets)
            share = float(np.var(self.value_errors[known]) / np.var(targets)) if is_known else float("nan")
            numbers["explained_variance"] = 1 - share
        return numbers

    def histogram(self, name: str, num_bins: int = 30) -> tuple[np.ndarray, np.ndarray]:
        """Return the counts, int64 [n], and edges, float64 [n + 1], of a histogram of the finite values of a column.

        All values are counted. If few of them are far away, the first and the last bin reach to them, and the other
        bins have equal widths. Whole numbers have a bin each, or bins of equally many if more than 64 numbers are near:
        then `num_bins` has no effect, and the edges are halves. Without finite values, both arrays are empty.

        Raises:
            UnknownKey: there is no such column of numbers.
        """
        if name not in self.columns or name in ("episode", "agent"):
            names = ", ".join(key for key in self.columns if key not in ("episode", "agent"))
            raise UnknownKey(f"histogram({name!r}): no such column of numbers; give one of {names}")
        values = np.asarray(self.columns[name], np.float64)
        return histogram(values[np.isfinite(values)], num_bins)

    def realised_returns(self, gamma: float) -> np.ndarray:
        """Return the rewards from each step to the end of its episode, discounted by `gamma` per step, float64 [n].

        It is NaN for steps whose episode is not known or did not terminate in the chunk, since rewards may follow.
        """
        result = np.full(len(self), np.nan)
        returns: dict[int, tuple[Any, np.ndarray]] = {}  # with the chunk, which keeps its id
        for row, (id_, agent, t) in enumerate(zip(*(self.columns[name] for name in _FACTS[1:4]), strict=True)):
            chunk = self._episode_of(id_, agent, int(t))
            if chunk is None or not chunk.is_terminated:
                continue
            if id(chunk) not in returns:
                rewards = np.asarray(chunk.get_rewards(), np.float64)
                ends = {"gamma": gamma, "offsets": [0, len(rewards)]}
                returns[id(chunk)] = chunk, discounted_returns(rewards, [True], [False], **ends)
            result[row] = returns[id(chunk)][1][int(t) - chunk.t_started]
        return result

    def to_html(self, page: str | Path | None = None, limit: int = 1000) -> str:
        """Return an HTML page with charts, the first `limit` steps, and tables of the episodes, agents and times.

        Args:
            page: address of the page of the data set, which `episodes report` and `episodes watch` make. Rows are then
                links to their steps.
            limit: number of steps.
        """
        from episodes.inspect.update_tables import body_of, page_of

        address = None if page is None else str(page) if "://" in str(page) else Path(page).resolve().as_uri()
        return page_of(self.title, body_of(self, None if address is None else lambda _: address, limit))

    @property
    def title(self) -> str:
        """Update, module and number of steps or tokens, as text."""
        of_module = f" of module {self.module}" if self.module else ""
        return f"Update {self.update}{of_module}: {len(self):,} {'tokens' if TOKEN in self.columns else 'steps'}"

    def _repr_html_(self) -> str:
        names, rows = self.table()
        head = "".join(f"<th>{escape(name_of(name, TOKEN in self.columns))}</th>" for name in names)
        lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in rows)
        return f"<h4>{escape(repr(self))}</h4><table><tr>{head}</tr>{lines}</table>"

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


_RECORDED = ("token_id", "text", "group", "reward", "acting_logp", "learning_logp", "acting_value")
_NO_MEANS = ("worker", "token", "first_gradient_step", "first_ratio", "first_logp_difference")  # of `by`
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


def _recorded(step: LearnedStep, decode: Decode | None) -> dict[str, Any]:
    """Return what was recorded at a step whose episode is known, by the names of `UpdateExplanation.rows`."""
    numbers: dict[str, Any] = dict(step.recorded)
    if step.token is not None:
        numbers["token_id"] = step.token_id
        if decode is not None:
            numbers["text"] = formatting.clipped(decode([step.token_id]), 32)
        data = step.episode.custom_data
        if (group := data.get(GROUP_ID, data.get(GROUP))) is not None:
            numbers["group"] = str(group)
    return numbers


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
