"""`LearnedTracks`: what the updates of a run measured at the steps of its episodes, as tracks of the episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from episodes.inspect.series import LOGP_DIFFERENCE
from episodes.inspect.update_measures import TOKEN, log_ratios, ratio_distances
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.names import LOGP, TRAINER_LOGP
from episodes.tracks.ragged import Ragged

__all__ = ["LearnedTracks"]

KEY = "learner"  # of the tracks, as `explain_episode` names them
VALUES = f"{KEY}/values"
SHARE = "share"
WORKER = "worker"
LOGP_OF_TOKENS = "first_logp_difference"
OF_TOKENS = {"advantage": "advantages", "ratio": "ratios", "clipped": "clipped", SHARE: "shares"}
NAMES = {"first_value": "values", "value_target": "value_targets", "advantage": "advantages"}


class LearnedTracks:
    """Measurements of the updates of a run, by episode and step. Of a step that several updates learned from, the
    newest ones.

    The tracks have the names of `explain_episode`: `learner/values`, `learner/value_targets` and `learner/advantages`
    are those with which the step was learned, and `learner/logp_difference` is the acting policy's log-probability of
    the action minus that of the policy that learned.

    Of each token, conversations have `trainer_logp`, `learner/advantages`, `learner/ratios` and `learner/clipped`
    (means over the gradient steps), `learner/shares` (of the update's absolute loss) and `learner/loss_shares` (the
    same divided by the mean share of a token of the update).

    Args:
        pools: columns of the steps of each module by its name, in the order of the updates. "update" is the number of
            each step's.

    Attributes:
        newest: number of the newest update that learned from each episode, by its id.
        extent: the first and the last update whose steps are known, or None without any.
    """

    def __init__(self, pools: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        self._modules, self._pools = list(pools), [_with_sizes(columns) for columns in pools.values()]
        updates = np.concatenate([np.zeros(0, np.int64), *(columns["update"] for columns in self._pools)])
        self.extent = (int(updates.min()), int(updates.max())) if len(updates) else None
        self._rows: list[dict[Any, list[int]]] = []
        self.newest: dict[str, int] = {}
        for columns in self._pools:
            rows: dict[Any, list[int]] = {}
            for row, name in enumerate(zip(columns["episode"].tolist(), columns["agent"].tolist(), strict=True)):
                rows.setdefault(name, []).append(row)
                if name[0] is not None:
                    self.newest[name[0]] = max(int(columns["update"][row]), self.newest.get(name[0], 0))
            self._rows.append(rows)

    def columns(self, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """Return what was measured of each episode as columns for a table, float64 [n] by name.

        The columns are "update" (the newest one that learned from the episode), "worker" (that sampled it),
        "log_ratio" (mean of |log ratio| at the first gradient step) and "advantage" (mean). The means are those of
        the newest update. A game has those of the steps of all its agents. Unknown numbers are NaN, and a column
        without a number is left out.

        Args:
            ids: ids of episodes or of games [n].
        """
        rows_of: dict[str, list[tuple[int, int]]] = {id_: [] for id_ in ids}
        for pool, by_name in enumerate(self._rows):
            for (id_, agent), rows in by_name.items():
                game = None if id_ is None or agent is None else str(id_).removesuffix(f"_{agent}")
                for name in {id_, game} & rows_of.keys():
                    rows_of[name] += [(pool, row) for row in rows]
        table = {name: np.full(len(ids), np.nan) for name in ("update", WORKER, "log_ratio", "advantage")}
        for i, id_ in enumerate(ids):
            for name, number in self._means(rows_of[id_]).items():
                table[name][i] = number
        return {name: column for name, column in table.items() if np.isfinite(column).any()}

    def _means(self, places: list[tuple[int, int]]) -> dict[str, float]:
        """Return the numbers of `columns` of one episode, given the indices of pools and of rows in them."""
        if not places:
            return {}
        pools = {pool: np.array([row for at, row in places if at == pool]) for pool, _ in places}
        newest = max(int(self._pools[pool]["update"][rows].max()) for pool, rows in pools.items())
        numbers: dict[str, list[np.ndarray]] = {WORKER: [], "log_ratio": [], "advantage": []}
        for pool, rows in pools.items():
            columns = self._pools[pool]
            is_newest = columns["update"][rows] == newest
            for name in (WORKER, "advantage"):
                numbers[name] += [columns[name][rows[is_newest]]] if name in columns else []
            if "first_ratio" in columns:
                part = {name: column[rows[is_newest]] for name, column in columns.items()}
                numbers["log_ratio"].append(ratio_distances(part))
        found = {"update": float(newest)}
        for name, parts in numbers.items():
            known = np.concatenate([np.zeros(0), *parts])
            known = known[np.isfinite(known)]
            if len(known) and (name != WORKER or (known == known[0]).all()):
                found[name] = float(known.mean())
        return found

    def advantages(self, ids: Iterable[str]) -> dict[str, float]:
        """Return the mean advantage of each of these episodes in its newest update, without those that have none."""
        means = {}
        for columns, by_name in zip(self._pools, self._rows, strict=True):
            for id_ in ids if "advantage" in columns else ():
                rows = by_name.get((id_, None), [])
                newest = [columns["advantage"][row] for row in rows if columns["update"][row] == self.newest[id_]]
                if newest and np.isfinite(newest).all():
                    means[id_] = float(np.mean(newest))
        return means

    @staticmethod
    def has_values(episode: SingleAgentEpisode) -> bool:
        """Return True if an episode has the track `learner/values`."""
        return KEY in episode.extra_model_outputs and "values" in episode.get_extra_model_outputs(KEY)

    def of(self, episode: SingleAgentEpisode) -> SingleAgentEpisode:
        """Return a copy of an episode with the tracks, or the episode itself if no update learned from it.

        A track is left out if not all steps have it, except for `learner/logp_difference`, which is NaN at steps that
        were learned after the policy had changed.
        """
        if not len(episode) or KEY in episode.extra_model_outputs:
            return episode
        for _, columns, rows, places in self._rows_of(episode):
            if TOKEN in columns:
                outputs = _of_tokens(columns, rows, places, episode)
            else:
                tracks = _tracks(columns, rows, places, episode)
                outputs = {KEY: tracks} if tracks else {}
            if outputs:
                pack = EpisodePack.from_episodes([episode])
                return pack.replace(extra_model_outputs={**pack.extra_model_outputs, **outputs})[0]
        return episode

    def updates_of(self, episode: SingleAgentEpisode) -> list[tuple[int, str, int]]:
        """Return each update that learned from an episode, its module, and the number of steps of the episode in it."""
        found = []
        for module, columns, rows, places in self._rows_of(episode):
            updates = columns["update"][rows]
            found += [
                (int(update), module, len(np.unique(places[updates == update])))
                for update in np.unique(updates).tolist()
            ]
        return sorted(found)

    def _rows_of(
        self, episode: SingleAgentEpisode
    ) -> Iterator[tuple[str, Mapping[str, np.ndarray], np.ndarray, np.ndarray]]:
        """Yield each module, its columns, their rows [k] of the episode, and the steps of these in the episode [k]."""
        name = str(episode.id_), None if episode.agent_id is None else str(episode.agent_id)
        for module, columns, by_name in zip(self._modules, self._pools, self._rows, strict=True):
            rows = np.array(by_name.get(name, ()), np.int64)
            places = columns["t"][rows] - episode.t_started
            is_here = (places >= 0) & (places < len(episode))
            if is_here.any():
                yield module, columns, rows[is_here], places[is_here]


def _with_sizes(columns: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Return columns with the number of rows of each row's update, if the rows are tokens."""
    if TOKEN not in columns:
        return columns
    _, place, counts = np.unique(columns["update"], return_inverse=True, return_counts=True)
    return {**columns, "num_tokens": counts[place]}


def _of_tokens(
    columns: Mapping[str, np.ndarray], rows: np.ndarray, places: np.ndarray, episode: SingleAgentEpisode
) -> dict[str, Any]:
    """Return what was measured at each token of a conversation, given the rows of tokens and their turns [k].

    `trainer_logp` is NaN for tokens that were learned after the policy had changed. All are NaN for tokens that were
    not learned, such as those of turns in the lookback.
    """
    pack, names = EpisodePack.from_episodes([episode]), episode.extra_model_outputs
    sampled = pack.actions
    if not isinstance(sampled, Ragged) or sampled.ndim != 2:
        return {}
    offsets, lengths = sampled.bounds, sampled.lengths
    places, tokens = places + episode.tracks.lookback, columns[TOKEN][rows].astype(np.int64)
    is_here = tokens < lengths[places]
    rows, at = rows[is_here], (offsets[places] + tokens)[is_here]

    def track(numbers: np.ndarray) -> np.ndarray:
        """Return numbers of the rows at the places of their tokens; the last one counts, which is the newest."""
        values = np.full(offsets[-1], np.nan)
        values[at] = numbers
        return values

    measured = {name: track(columns[key][rows]) for key, name in OF_TOKENS.items() if key in columns}
    if SHARE in columns:
        measured["loss_shares"] = track((columns[SHARE] * columns["num_tokens"])[rows])
    outputs: dict[str, Any] = {}
    measured = {name: values for name, values in measured.items() if np.isfinite(values).any()}
    if measured:
        outputs[KEY] = {name: Ragged(values.astype(np.float32), offsets) for name, values in measured.items()}
    logp = pack.extra_model_outputs.get(LOGP)
    if isinstance(logp, Ragged) and logp.ndim == 2 and TRAINER_LOGP not in names and LOGP_OF_TOKENS in columns:
        differences = columns[LOGP_OF_TOKENS][rows]
        if "first_gradient_step" in columns:
            differences = np.where(columns["first_gradient_step"][rows] == 0, differences, np.nan)
        trainer = logp.flat.astype(np.float64) - track(differences)
        if np.isfinite(trainer).any():
            outputs[TRAINER_LOGP] = Ragged(trainer.astype(np.float32), offsets)
    return outputs


def _tracks(
    columns: Mapping[str, np.ndarray], rows: np.ndarray, places: np.ndarray, episode: SingleAgentEpisode
) -> dict[str, np.ndarray]:
    """Return the tracks of an episode by name, float64 [lookback + T], given its rows and their steps [k]."""
    lookback, tracks = episode.tracks.lookback, {}
    measured = {name: columns[key][rows] for key, name in NAMES.items() if key in columns}
    if "first_ratio" in columns:
        measured[LOGP_DIFFERENCE] = -log_ratios({name: column[rows] for name, column in columns.items()})
    for name, numbers in measured.items():
        track = np.full(lookback + len(episode), np.nan)
        track[lookback + places] = numbers  # the last one counts, which is the newest
        is_known = np.isfinite(track[lookback:])
        if is_known.all() or (name == LOGP_DIFFERENCE and is_known.any()):
            tracks[name] = track
    return tracks
