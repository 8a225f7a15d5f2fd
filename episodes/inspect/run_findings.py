"""`examine_run`: what stands out in the recorded updates and episodes of a training run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import EpisodeError, InvalidArgument, MissingExtra
from episodes.inspect.calibration import CalibrationBin, value_calibration
from episodes.inspect.doctor.examine import examine
from episodes.inspect.formatting import brief_id, clipped, counted, number
from episodes.inspect.learned_tracks import VALUES, LearnedTracks
from episodes.inspect.update_explanation import LOSS, step_columns, stored_episodes
from episodes.inspect.update_measures import (
    AGREES,
    FAR,
    FAR_OF_TOKENS,
    TOKEN,
    WORKER,
    correlation,
    mean,
    name_of,
    ratio_distances,
    text_of,
    words_of_step,
)
from episodes.inspect.update_rows import Mark, UpdateRow, strongest, strongest_rows, strongest_step
from episodes.storage import EpisodeDataset
from episodes.storage.catalog import SEALED, UNFINISHED
from episodes.storage.files import local_path
from episodes.storage.ledger import LedgerReader
from episodes.storage.runs import KEPT_AS, StoredRun, is_run, read_run
from episodes.tokens.names import LOGP, TRAINER_LOGP

__all__ = ["RunFinding", "RunFindings", "examine_run"]

MOST_UPDATES, MOST_ROWS = 256, 200_000  # the newest ones of a module
MOST_EPISODES = 200  # of a data set, whose log-probabilities of tokens are compared
MOST_NAMES = 3  # in a text
FAR_OF_CORRECTED = 0.5  # the same if the loss corrects for the difference, as with older weights by design
MOST_TOKENS = 12  # in a text
NEARLY_ALL = 0.9  # fraction
SMALL = 0.03  # mean |log ratio| that lower precision or weights of a few updates ago explain
SAME = 1e-5  # mean difference of log-probabilities of the same model in float32
TIMES = 10  # that a difference is larger than in earlier turns, or in other episodes
FEWEST_ROWS, FEWEST_ENDS, FEWEST_STEPS = 32, 5, 4
STAYS = 0.8  # of the largest error at the last step, in a quarter of the updates, if it does not fall
MUCH = 5.0  # times the loss of the next steps
STALE_BY_DESIGN = ("impala",)  # algorithms that correct for policies of other versions
WORKER_OF_DATA = "custom_data/worker"
LOGP_DIFFERENCE = "first_logp_difference"
CHECKS = (
    ({"first_ratio", "first_gradient_step"}, "whether the policy that acted is the one that learns"),
    ({LOGP_DIFFERENCE}, "log-probabilities of tokens"),
    ({"advantage", "first_value", "value_target"}, "signs of advantages"),
    ({"first_value", "value_target"}, "values at a time limit"),
    ({"first_value", "value_target"}, "losses at first steps"),
)  # with the measurements that they need
SHORTEST_LIMIT = 10  # steps
EQUAL_ENDS = "equal_ends"
OF_EQUAL_ENDS = (
    "if a time limit ends them, store truncated=True and terminated=False; "
    "if the task ends there by its rules, this is right"
)

TITLES = {
    "acting_differs": "The policy that acts is not the one that learns",
    "old_policy": "Some episodes come from another policy",
    "advantage_sign": "Advantages have the wrong sign",
    "value_at_limit": "A time limit counts as the end of the task",
    "loss_at_start": "First steps have a large loss",
    "token_logp": "Sampler and trainer disagree on tokens",
    EQUAL_ENDS: "Episodes end at the same step",
}
"""Headlines of kinds of findings, if they are not the kinds with spaces."""

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class RunFinding:
    """Sign of a defect in a training run, which runs without defects do not show.

    Attributes:
        kind: "acting_differs", "old_policy", "advantage_sign", "value_at_limit", "loss_at_start", "token_logp", or a
            kind of the doctor's findings. Of a note it is "equal_ends".
        text: what was found, with numbers.
        advice: where to look for the cause.
        update: number of an update that shows it; None if it is not in an update.
        module: module of the update, or "".
        table: table on the page of the update that shows it: "steps", "by-episode", "by-agent", "by-time", "by-turn" or
            "by-worker".
        data: name of the data set in the folder of the run that shows it, or "".
        episode: id of an episode that shows it, or None.
        agent: agent of the step that shows it, or None.
        t: time of the step that shows it, or None.
        learned_in: number of the update that measured the step, or None.
        step: what was measured at the step, as text.
        others: what the numbers `UpdateRow.others` in `course` are of, such as "earlier turns", or "".
        measure: column of the table with the numbers of `course`, such as "ratio_distance", or the difference of two
            columns, such as "first_value - value_target".
        course: rows of the tables of the examined updates that show the finding best, with their numbers. That of
            `update` is the strongest one, or within 10 % of it and with a stored episode.
    """

    kind: str
    text: str
    advice: str
    update: int | None = None
    module: str = ""
    table: str = "steps"
    data: str = ""
    episode: str | None = None
    agent: str | None = None
    t: int | None = None
    learned_in: int | None = None
    step: str = ""
    others: str = ""
    measure: str = ""
    course: Sequence[UpdateRow] = ()

    @property
    def title(self) -> str:
        """The kind as a headline, such as "Advantages have the wrong sign"."""
        return TITLES.get(self.kind, self.kind.replace("_", " ").capitalize())

    @property
    def column(self) -> str:
        """Name of the number in `course`, as the head of the table has it."""
        return " minus ".join(map(name_of, self.measure.split(" - ")))

    def row_in(self, update: int | None) -> UpdateRow | None:
        """Return the row of an update in `course`, or None if there is none."""
        return next((row for row in self.course if row.update == update), None)

    def shown_in(self, update: int | None) -> str:
        """Return the number of an update in `course` as text, with the row of the table that has it, or "" if there is
        none.
        """
        row = self.row_in(update)
        if row is None:
            return ""
        numbers = row.parts or {self.measure: row.value}
        return f"{', '.join(f'{name_of(name)} {text_of(name, value)}' for name, value in numbers.items())} {row.words}"

    def mark_in(self, update: int | None) -> Mark | None:
        """Return the table of an update, the cells that identify the row that shows the finding, and the columns with
        its numbers, or None if the update has no such row.
        """
        row = self.row_in(update)
        return None if row is None else (self.table, row.row, self.measure.split(" - "))


@dataclass(frozen=True, slots=True)
class RunFindings(Sequence[RunFinding]):
    """Findings of a training run, as a sequence, with texts on what was examined.

    Attributes:
        findings: the findings.
        missing: what the run did not record, and how to record it, as texts.
        extent: what was examined, as text.
        updates: number and module of the measured updates, in their order.
        checked: what could be examined, as texts.
        notes: what may be right or wrong, depending on the task.
        calibration: values that updates had at the steps of stored episodes, and the returns that followed, one line
            for each kind of ending. It has those half of the episodes that were learned from last.
        calibrated: number and updates of these episodes, as text.
        learned: measurements of the updates as tracks of the episodes.
    """

    findings: Sequence[RunFinding]
    missing: Sequence[str]
    extent: str
    updates: Sequence[tuple[int, str]]
    checked: Sequence[str] = ()
    notes: Sequence[RunFinding] = ()
    calibration: Sequence[CalibrationBin] = ()
    calibrated: str = ""
    learned: LearnedTracks = field(default_factory=partial(LearnedTracks, {}), repr=False)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index: Any) -> Any:
        return self.findings[index]

    def __str__(self) -> str:
        lines = [f"examined: {self.extent}"]
        lines += [f"{finding.kind}: {finding.text}\n  do: {finding.advice}" for finding in self.findings]
        lines += [f"note: {note.text}\n  do: {note.advice}" for note in self.notes]
        lines += [f"values of {self.calibrated}, {calibration_text(line)}" for line in self.calibration]
        return "\n".join([*lines, *(f"not recorded: {text}" for text in self.missing)])


def calibration_text(line: CalibrationBin) -> str:
    """Return a line of a calibration as text."""
    return (
        f"{line.ending}: {counted(line.num_steps, 'step')}, mean value {number(line.value, 3)}, mean return that "
        f"followed {number(line.bootstrapped, 3)}, at last steps {number(line.last_value, 3)}"
    )


def examine_run(run: str | Path) -> RunFindings:
    """Return what stands out in a training run: signs of defects in the updates of its ledger and in its episodes.

    A ledger with measured rows (`episodes train --explain`) is searched for episodes of another policy than the one
    that learns, advantages of the wrong sign, values at a time limit that are not those of an end, and a large loss at
    first steps. The newest updates of each module are read. The doctor examines the data sets in the folder of the run
    (`episodes train --keep-episodes`, `episodes play`).

    Args:
        run: the folder of a run.

    Raises:
        InvalidArgument: there is no such folder.
        UnreadableData: the ledger, or the description of a data set, is damaged.
    """
    path = local_path(run)
    if not path.is_dir():
        raise InvalidArgument(f"examine_run: {path} is not a folder; give the folder of a run (train --logdir)")
    stored = read_run(path) if is_run(path) else StoredRun(folder=path, status="")
    algorithm = str(stored.settings.get("algo") or stored.settings.get("algorithm") or "").lower()
    data = stored_episodes(path)
    findings: list[RunFinding] = []
    notes: list[RunFinding] = []
    extent: list[str] = []
    places: list[tuple[int, str]] = []
    pools = _pools(path)
    names: set[str] = set()
    for module, (updates, columns) in pools.items():
        places += [(update, module) for update in updates]
        extent.append(
            f"updates {updates[0]} to {updates[-1]}"
            + f" of {module}" * bool(module)
            + f", {len(columns['t']):,} {_unit(columns)}"
        )
        findings += _of_updates(columns, module, algorithm, data)
        notes += _equal_targets(columns, module, data)
        names |= columns.keys()
    for name, dataset in data.items():
        found, words = _of_data(name, dataset, LOGP_DIFFERENCE not in names)
        words = words.replace(" steps", " turns", 1) if TOKEN in names else words
        findings += found
        notes += _equal_ends(name, dataset)
        extent.append(f"{name}: {words}")
    findings = _joined(findings)
    if any(one.kind in ("value_at_limit", "time_limit_terminates") for one in findings):
        notes = []  # it is known to be a defect
    checked = [words for needed, words in CHECKS if needed <= names] + ["rewards and endings of episodes"] * bool(data)
    learned = LearnedTracks({module: columns for module, (_, columns) in pools.items()})
    gamma = _gamma_of(stored, pools)
    calibration, calibrated = ([], "") if gamma is None else _calibration(learned, data, gamma)
    missing = [*_missing_updates(path, stored, pools), *_missing_measurements(names, algorithm, findings, data)]
    if not data:
        missing.append(
            "episodes, for checks of rewards and endings; train with --keep-episodes 5/h, or episodes play RUN"
        )
    if data and gamma is None and {"first_value", "value_target"} <= names:
        missing.append("one discount of the run, to compare values with returns; a trainer with a folder writes it")
    return RunFindings(
        findings,
        missing,
        "; ".join(extent) or "nothing",
        sorted(places),
        checked,
        notes[:1],
        calibration,
        calibrated,
        learned,
    )


SAME_CAUSE = {"time_limit_terminates": "value_at_limit", "reward_shift": "loss_at_start"}
"""Kinds of findings in episodes, and the kind that the same cause has in updates."""


def _joined(findings: Sequence[RunFinding]) -> list[RunFinding]:
    """Return the findings without those in episodes whose cause a finding in updates has, which tells them too."""
    joined: dict[int, RunFinding] = dict(enumerate(findings))
    for n, one in enumerate(findings):
        same = [k for k, other in joined.items() if other.kind == SAME_CAUSE.get(one.kind)]
        for k in same:
            joined[k] = replace(joined[k], text=f"{joined[k].text}. In the stored data set {one.data}: {one.text}")
        if same:
            del joined[n]
    return list(joined.values())


def _missing_updates(path: Path, stored: StoredRun, pools: Mapping[str, Any]) -> Iterator[str]:
    """Yield which updates of the run in the folder `path` could not be read, as text. `pools` are those of `_pools`."""
    is_open = stored.status.startswith(("running", "killed"))
    if pools and is_open:
        last = max(updates[-1] for updates, _ in pools.values())
        yield f"updates after {last}, which the {stored.status} run had not written; a ledger writes 16 at once"
    elif is_open and (path / "ledger").is_dir() and not has_ledger(path):
        yield f"any update: the {stored.status} run had not written the first 16 of them"
    elif not pools:
        yield (
            "what each update learned from; train with episodes train --explain, or with Ledger(RUN + '/ledger', "
            "measures_rows=True)"
        )


def _missing_measurements(
    names: set[str], algorithm: str, findings: Sequence[RunFinding], data: Mapping[str, Any]
) -> Iterator[str]:
    """Yield which measurements the updates lack, as text.

    Args:
        names: names of the measurements of all updates; none without updates.
        algorithm: name of the algorithm, or "".
        findings: what stands out in the run.
        data: data sets by name.
    """
    if "first_ratio" in names:
        if "first_gradient_step" not in names:
            yield "the gradient step of each row, in this older ledger; record the run again"
        if any(one.kind == "old_policy" for one in findings) and not (
            WORKER in names or any(WORKER_OF_DATA in dataset.metadata for dataset in data.values())
        ):
            yield (
                "which worker sampled an episode; sample with a GroupRunner, or write custom_data['worker'] in an "
                "on_episode_end callback of each worker and keep its episodes"
            )
    if names and "first_value" not in names:
        yield f"values, which {algorithm or 'the algorithm'} does not have; endings are checked in episodes"


def _unit(columns: Columns) -> str:
    """Return what the rows of updates are, as text."""
    if TOKEN in columns:
        return "sampled tokens"
    return "steps" if all(agent is None for agent in columns["agent"].tolist()) else "agent steps"


def _gamma_of(run: StoredRun, modules: Iterable[str]) -> float | None:
    """Return the discount in the settings of a run, or None if they have none, or modules have different ones."""
    found = set()
    for module in modules:
        value = run.settings.get(f"algorithm.gamma/{module}", run.settings.get("algorithm.gamma"))
        try:
            found.add(float(value) if value is not None else -1.0)
        except (TypeError, ValueError):
            return None
    gamma = found.pop() if len(found) == 1 else -1.0
    return gamma if 0 <= gamma <= 1 else None


def _calibration(
    learned: LearnedTracks, data: Mapping[str, EpisodeDataset], gamma: float
) -> tuple[list[CalibrationBin], str]:
    """Return the calibration of the values that updates had at the steps of the newer half of the stored episodes, and
    which episodes these are, as text.
    """
    chosen = []
    for dataset in data.values():
        known = [i for i, id_ in enumerate(dataset.metadata["id"].tolist()) if str(id_) in learned.newest]
        known.sort(key=lambda i: learned.newest[str(dataset.metadata["id"][i])])
        episodes = map(learned.of, map(dataset.__getitem__, known[len(known) // 2 :][-MOST_EPISODES:]))
        chosen += [episode for episode in episodes if learned.has_values(episode)]
    if not chosen:
        return [], ""
    updates = [learned.newest[str(episode.id_)] for episode in chosen]
    words = f"{counted(len(chosen), 'stored episode')} of updates {min(updates)} to {max(updates)}"
    return value_calibration(chosen, values=VALUES, gamma=gamma, num_bins=1), words


def has_ledger(run: Path) -> bool:
    """Return True if the folder of a run has a ledger with updates."""
    folder = run / "ledger"
    return folder.is_dir() and any(file.suffix == SEALED or file.name.endswith(UNFINISHED) for file in folder.iterdir())


def _pools(path: Path) -> dict[str, tuple[list[int], dict[str, np.ndarray]]]:
    """Return the numbers of the newest measured updates, and the columns of all their steps, by module.

    The column "update" has the number of each step's update. Without a ledger the dict is empty.
    """
    if not has_ledger(path):
        return {}
    try:
        reader = LedgerReader(path)
    except MissingExtra:
        return {}
    pools: dict[str, list[dict[str, np.ndarray]]] = {}
    sizes: dict[str, int] = {}
    places = reader.updates
    for i in range(len(places) - 1, -1, -1):
        number_, module = places[i]
        parts = pools.setdefault(module, [])
        if len(parts) >= MOST_UPDATES or sizes.get(module, 0) >= MOST_ROWS:
            continue
        update = reader[i]
        if LOSS in update.measured:
            columns = step_columns(update, reader.ids)
            columns["update"] = np.full(len(columns["t"]), number_)
            parts.append(columns)
            sizes[module] = sizes.get(module, 0) + len(columns["t"])
    result = {}
    for module, parts in pools.items():
        if sum(len(part["t"]) for part in parts):
            shared = [name for name in parts[0] if all(name in part for part in parts)]
            columns = {name: np.concatenate([part[name] for part in parts[::-1]]) for name in shared}
            result[module] = (sorted(int(n) for n in np.unique(columns["update"])), columns)
    return dict(sorted(result.items()))


def _of_updates(
    columns: Columns, module: str, algorithm: str, data: Mapping[str, EpisodeDataset]
) -> Iterator[RunFinding]:
    """Yield the findings in the newest updates of a module."""
    if LOGP_DIFFERENCE in columns:
        yield from _other_tokens(columns, module, data)
    elif "first_ratio" in columns and "first_gradient_step" in columns:
        yield from _other_policies(columns, module, algorithm, data)
    if {"first_value", "value_target"} <= columns.keys():
        errors = columns["first_value"] - columns["value_target"]
        if "advantage" in columns:
            yield from _wrong_signs(columns, -errors, module, data)
        yield from _values_at_limit(columns, errors, module, data)
        yield from _loss_at_start(columns, module, data)


def _other_policies(
    columns: Columns, module: str, algorithm: str, data: Mapping[str, EpisodeDataset]
) -> Iterator[RunFinding]:
    """Find episodes whose actions had other probabilities at acting than at the first gradient step on them."""
    distances = ratio_distances(columns)
    known = np.flatnonzero(np.isfinite(distances))
    if len(known) < FEWEST_ROWS:
        return
    names = np.array([str(name) for name in columns["episode"][known].tolist()], object)
    ids, of_row = np.unique(names, return_inverse=True)
    counts = np.bincount(of_row)
    means = np.bincount(of_row, distances[known]) / counts
    is_far = means > FAR
    rows_far = is_far[of_row]
    if not is_far.any() or rows_far.sum() < FEWEST_STEPS:
        return
    far = float(distances[known][rows_far].mean())
    others = float(distances[known][~rows_far].mean()) if not rows_far.all() else 0.0
    since = _since(columns["t"][known[rows_far]], distances[known][rows_far])
    far_updates, of_update = np.unique(columns["update"][known[rows_far]], return_inverse=True)
    of_updates = np.bincount(of_update, distances[known][rows_far]) / np.bincount(of_update)
    begin = int(far_updates[(of_updates > FAR).argmax()])
    is_first = begin == columns["update"].min()
    among = np.zeros(len(distances), bool)
    among[known[rows_far]] = True

    def evidence(group: str, beside: np.ndarray, others: str) -> dict[str, Any]:
        course = strongest_rows(columns, group, lambda rows: mean(distances[rows]), among, beside=beside)
        shown = strongest_step(columns, np.where(among, distances, np.nan), data)
        return {
            "update": strongest(course, stored=shown.stored).update,
            "module": module,
            "table": f"by-{group}",
            **shown.place,
            "step": words_of_step("ratio_distance", columns, shown.row),
            "others": others,
            "measure": "ratio_distance",
            "course": course,
        }

    when = f"from update {begin} on"
    small = ", a difference as of lower precision at acting or of weights a few updates old" * (far < SMALL)
    if len(ids) > 1 and (is_far.mean() >= NEARLY_ALL or others > FAR / TIMES):  # others differ too, but less
        if algorithm not in STALE_BY_DESIGN:
            yield RunFinding(
                "acting_differs",
                f"{_share(is_far)} measured episodes were sampled by another policy than the one that learns, {when}"
                f"{since}; the mean |log ratio| before the first gradient step over all of them, in all updates, is "
                f"{number(far)}, and 0 if both see the same{small}",
                "compare what the policy sees at acting and at learning: filters and their statistics, preprocessing, "
                "frame stacks, units of actions"
                + ", and whether weights are sent after each update" * (begin > 1)
                + "; old weights are no cause, since no weights are older in update 1" * (is_first and begin == 1)
                + "; if it acts in lower precision or with older weights by design, this is expected" * bool(small),
                **evidence("time" if since else "episode", np.ones(len(distances), bool), "all rows"),
            )
        return
    workers = _workers(columns, known, rows_far, data)
    yield RunFinding(
        "old_policy",
        f"{_share(is_far)} episodes ({rows_far.mean():.0%} of the steps){workers}{',' * bool(workers)} come "
        f"from another policy than the one that learns, {when}{since}; their mean |log ratio| before the first "
        f"gradient step, over all updates, is {number(far)}, that of the others {number(others)}{small}",
        f"check whether new weights reach{workers.removeprefix(', all of')}"
        if workers
        else "find what these episodes share, such as their worker, and whether it receives new weights",
        **evidence("worker" if WORKER in columns else "episode", ~among, "the other episodes"),
    )


def _by_update(updates: np.ndarray, values: np.ndarray) -> list[tuple[int, float]]:
    """Return the number of each update and the mean of its values, given the update and the value of each row [n]."""
    numbers, of_row = np.unique(updates, return_inverse=True)
    means = np.bincount(of_row, values) / np.bincount(of_row)
    return list(zip(numbers.tolist(), means.tolist(), strict=True))


def _stored(ids: Sequence[str], data: Mapping[str, EpisodeDataset]) -> tuple[str, str]:
    """Return the first of the episode ids that a data set has, and the data set's name, or else the first id and ""."""
    for name, dataset in data.items():
        known = set(map(str, dataset.metadata["id"].tolist()))
        for id_ in ids:
            if id_ in known:
                return id_, name
    return str(ids[0]), ""


def _since(times: np.ndarray, distances: np.ndarray) -> str:
    """Return from which time on the distances are large, as text; "" if they are large at first steps too."""
    is_first = times == 0
    if not is_first.any() or is_first.all() or distances[is_first].mean() > FAR / 4:
        return ""
    first = int(times[distances > FAR].min())
    return f" from step {first} on (first steps agree)"


def _workers(columns: Columns, rows: np.ndarray, is_far: np.ndarray, data: Mapping[str, EpisodeDataset]) -> str:
    """Return which workers sampled the episodes of the far rows, as text, or "" if that was not recorded.

    Args:
        columns: columns of the updates.
        rows: the compared rows.
        is_far: whether the episode of each compared row is far, bool [len(rows)].
        data: data sets of the run.
    """
    if WORKER in columns:
        of_row: Any = columns[WORKER][rows]
        words = np.array([f"{worker:.0f}" if np.isfinite(worker) else "" for worker in of_row.tolist()], object)
    else:
        workers: dict[str, str] = {}
        for dataset in data.values():
            if WORKER_OF_DATA in dataset.metadata:
                pairs = zip(dataset.metadata["id"].tolist(), dataset.metadata[WORKER_OF_DATA].tolist(), strict=True)
                workers |= {str(id_): str(worker) for id_, worker in pairs if worker is not None}
        words = np.array([workers.get(str(id_), "") for id_ in columns["episode"][rows].tolist()], object)
    far = sorted(set(words[is_far].tolist()) - {""})
    if not far:
        return ""
    return f", all of {'worker' if len(far) == 1 else 'workers'} {_list(far)}"


def _wrong_signs(
    columns: Columns, gains: np.ndarray, module: str, data: Mapping[str, EpisodeDataset]
) -> Iterator[RunFinding]:
    """Find agents whose advantages correlate negatively with value target minus value."""
    agents = np.array([str(agent) for agent in columns["agent"].tolist()], object)
    steps = columns.get("first_gradient_step")
    agreement: dict[str, float] = {}
    names, of_row = np.unique(agents, return_inverse=True)
    for number_, agent in enumerate(names.tolist()):
        of_updates = []
        is_agent = of_row == number_
        for update in np.unique(columns["update"][is_agent]).tolist():
            rows = np.flatnonzero(is_agent & (columns["update"] == update))
            fresh = rows if steps is None else rows[steps[rows] == 0]  # before values changed
            rows = fresh if len(fresh) >= FEWEST_STEPS else rows
            value = correlation(columns["advantage"][rows], gains[rows])
            if np.isfinite(value):
                of_updates.append((value, len(rows), update))
        if sum(n for _, n, _ in of_updates) >= FEWEST_ROWS // 2:
            agreement[agent] = float(np.median([value for value, _, _ in of_updates]))
    wrong = [agent for agent, value in agreement.items() if value < AGREES]
    if not wrong:
        return
    right = [agent for agent in agreement if agent not in wrong]
    is_wrong = np.array([agent in wrong for agent in names.tolist()], bool)[of_row]

    def agree(rows: np.ndarray) -> float:
        return correlation(columns["advantage"][rows], gains[rows]) if len(rows) >= FEWEST_STEPS else float("nan")

    for group in ("agent", "time", "episode"):  # the first one whose table the pages of updates have
        course = strongest_rows(columns, group, agree, is_wrong, sign=-1)
        if course:
            break
    else:
        return
    opposite = np.where(is_wrong, -columns["advantage"] * gains, np.nan)
    shown = strongest_step(columns, opposite, data)
    worst = strongest(course, -1, shown.stored)
    is_here = columns["update"] == worst.update
    others = [of_row == number_ for number_, agent in enumerate(names.tolist()) if agent in right]
    least = min((agree(np.flatnonzero(is_here & is_agent)) for is_agent in others), default=float("nan"))
    whose = "" if agents[0] == "None" else f" of {'agent' if len(wrong) == 1 else 'agents'} {_list(wrong)}"
    beside = f"; of {_list(right)} it is {number(least)} or more" if np.isfinite(least) else ""
    yield RunFinding(
        "advantage_sign",
        f"advantages{whose} have the wrong sign: in update {worst.update} their correlation with value target minus "
        f"value is {number(worst.value)}, and should be near 1{beside}",
        "look at the step that standardizes or combines advantages, after value targets were computed",
        worst.update,
        module,
        f"by-{group}",
        **shown.place,
        step=words_of_step("advantage_agreement", columns, shown.row),
        others="the other agents",
        measure="advantage_agreement",
        course=course,
    )


def _values_at_limit(
    columns: Columns, errors: np.ndarray, module: str, data: Mapping[str, EpisodeDataset]
) -> Iterator[RunFinding]:
    """Find values at the last step of the longest episodes that differ from their targets far more than elsewhere."""
    all_columns, all_errors = columns, errors
    is_new = columns["update"] >= np.quantile(np.unique(columns["update"]), 0.75)  # with values as good as they are
    columns, errors = {name: column[is_new] for name, column in columns.items()}, errors[is_new]
    last = columns["t"].max()
    is_last = columns["t"] == last
    is_end = all_columns["t"] == last
    quarters = np.array_split(_by_update(all_columns["update"][is_end], all_errors[is_end]), 4)
    sizes = np.array([part[:, 1].mean() if len(part) > 1 else np.nan for part in quarters])
    if not abs(sizes[-1]) >= STAYS * (np.sign(sizes[-1]) * sizes).max():
        return  # values are not learned yet, or are just being learned
    ids = {(id_, agent) for id_, agent in zip(columns["episode"][is_last], columns["agent"][is_last], strict=True)}
    learned = set(zip(columns["episode"].tolist(), columns["agent"].tolist(), strict=True))
    if last < FEWEST_STEPS or len(ids) < FEWEST_ENDS or is_last.all():
        return
    here, rest = errors[is_last], errors[~is_last]
    excess = abs(here.mean() - rest.mean())
    noise = max(rest.std(), 4 * here.std() / np.sqrt(len(ids)))
    value, target = (float(columns[name][is_last].mean()) for name in ("first_value", "value_target"))
    if excess <= noise or max(abs(target), abs(rest.mean())) >= 0.5 * abs(value):  # or values are not learned yet
        return
    sign, parts = int(np.sign(here.mean())), ("first_value", "value_target")
    course = strongest_rows(all_columns, "time", lambda rows: mean(all_errors[rows]), is_end, sign, parts)
    shown = strongest_step(all_columns, np.where(is_end, sign * all_errors, np.nan), data)
    best = strongest(course, sign, shown.stored)
    value, target = (best.parts[name] for name in parts)
    yield RunFinding(
        "value_at_limit",
        f"{len(ids)} of the {len(learned)} episodes of the newest updates end at the same step t={last}; "
        f"in update {best.update}, the mean value at "
        f"t={best.row['time']} is {number(value)} and its target {number(target)}: a time limit counts as the end of "
        "the task",
        "store a time limit as truncated=True and terminated=False, so that the target has the value after it",
        best.update,
        module,
        "by-time",
        **shown.place,
        step=words_of_step("first_value - value_target", all_columns, shown.row),
        others="all other steps",
        measure="first_value - value_target",
        course=course,
    )


def _equal_targets(columns: Columns, module: str, data: Mapping[str, EpisodeDataset]) -> Iterator[RunFinding]:
    """Note that the longest episodes end at one step, and that nothing is expected after it: their value targets there
    are equal, which is the case after a termination.
    """
    if not {"first_value", "value_target"} <= columns.keys():
        return
    last = int(columns["t"].max())
    is_last = columns["t"] == last
    names = [str(id_) for id_ in columns["episode"][is_last].tolist()]
    targets, others = columns["value_target"][is_last], columns["value_target"][~is_last]
    if last + 1 < SHORTEST_LIMIT or len(set(names)) < FEWEST_ENDS or len(np.unique(columns["update"][is_last])) < 2:
        return
    size = max(float(np.abs(targets).max()), 1e-3)
    if not (np.ptp(targets) <= 1e-6 * size and others.std() > 1e-3 * size):
        return  # values of states that differ are part of the targets, or no value differs
    episode, holder = _stored(names, data)
    yield RunFinding(
        EQUAL_ENDS,
        f"{len(set(names))} of {len(set(columns['episode'].tolist()))} episodes end at the same step "
        f"t={last}, none later, and their value target there is always "
        f"{number(float(targets[0]), 3)}: nothing is expected after it",
        OF_EQUAL_ENDS,
        int(columns["update"][is_last][-1]),
        module,
        "by-time",
        data=holder,
        episode=episode,
        t=last,
    )


def _equal_ends(name: str, dataset: EpisodeDataset) -> Iterator[RunFinding]:
    """Note that the longest stored episodes terminate at one step, and that no episode is truncated."""
    table = dataset.metadata
    ends = (table["t_started"] + table["length"])[table["terminated"]]
    if not len(ends) or table["truncated"].any():
        return
    longest = int(ends.max())
    counts = np.bincount(ends)
    if longest < SHORTEST_LIMIT or counts[longest] < 3 or counts[longest] <= 2 * counts[:longest].max():
        return
    at = np.flatnonzero(table["terminated"] & (table["t_started"] + table["length"] == longest))
    yield RunFinding(
        EQUAL_ENDS,
        f"{counts[longest]} of {len(ends)} stored episodes terminate after exactly {longest} steps, none later",
        OF_EQUAL_ENDS,
        data=name,
        episode=str(table["id"][at[0]]),
        t=longest - 1,
    )


def _loss_at_start(columns: Columns, module: str, data: Mapping[str, EpisodeDataset]) -> Iterator[RunFinding]:
    """Find a loss at first steps that is much larger than at the steps after them."""
    is_first, is_next = columns["t"] == 0, (columns["t"] > 0) & (columns["t"] < FEWEST_STEPS)
    loss = np.abs(columns[LOSS])
    if is_first.sum() < FEWEST_STEPS * 2 or is_next.sum() < FEWEST_STEPS * 2 or columns["t"].max() < FEWEST_STEPS:
        return
    share = loss[is_first].sum() / max(loss.sum(), 1e-30)
    if loss[is_first].mean() <= MUCH * loss[is_next].mean() or share < 2 * is_first.mean() or share < 0.1:
        return
    of_steps = dict(_by_update(columns["update"], is_first))  # the fraction of first steps
    course = [
        replace(row, others=of_steps[row.update])
        for row in strongest_rows(columns, "time", lambda rows: float(np.nansum(columns["share"][rows])), is_first)
    ]
    shown = strongest_step(columns, np.where(is_first, columns["share"], np.nan), data)
    best = strongest(course, stored=shown.stored)
    yield RunFinding(
        "loss_at_start",
        f"first steps of episodes have {text_of('share', best.value)} of the loss of update {best.update} and are "
        f"{text_of('share', best.others)} of its steps; over all updates, a first step has "
        f"{number(loss[is_first].mean() / loss[is_next].mean())} times the loss of the steps after it",
        "look at the rewards of first steps: the reward of an episode's last step may arrive one step late",
        best.update,
        module,
        "by-time",
        **shown.place,
        step=words_of_step("share", columns, shown.row),
        others="their share of the steps",
        measure="share",
        course=course,
    )


def _of_data(name: str, dataset: EpisodeDataset, compares_tokens: bool) -> tuple[list[RunFinding], str]:
    """Return the findings in a data set of a run, and what was examined. Log-probabilities of tokens are compared if
    `compares_tokens` is True.
    """
    try:
        problems = examine(dataset)
    except EpisodeError as error:
        return [], f"not examined ({clipped(error)})"
    findings = [
        RunFinding(
            each.kind,
            clipped(each.evidence, 300)
            + f" (seen {each.times:,} times)" * (each.times > 1 and not each.evidence.startswith(f"{each.times} of ")),
            each.advice,
            data=name,
            episode=None if each.episode is None else str(each.episode),
            t=_step_of(dataset, each.episode, each.step),
        )
        for each in problems
        if each.kind != "duplicate_episode" or KEPT_AS not in dataset.metadata  # the best ones are often equal
    ]
    if compares_tokens:
        findings += _tokens_of_data(name, dataset)
    agents = dataset.metadata.get("agent_id")
    is_game = agents is not None and any(agent is not None for agent in agents.tolist())
    episodes = counted(len(dataset), "episode") + " of single agents" * is_game
    return (
        findings,
        f"{episodes}, {problems.extent.replace(' steps', ' agent steps', 1) if is_game else problems.extent}",
    )


def _step_of(dataset: EpisodeDataset, episode: Any, t: int | None) -> int | None:
    """Return the step of an episode that a finding of the doctor names, or the last step if it names the end."""
    table = dataset.metadata
    rows = _rows_of(table, str(episode)) if episode is not None and t is not None else []
    return t if not rows or t is None else min(t, int((table["t_started"] + table["length"])[rows].max()) - 1)


def _rows_of(table: Columns, id_: str) -> list[int]:
    """Return the rows of a table of episodes with this id."""
    return [i for i, other in enumerate(table["id"].tolist()) if str(other) == id_]


def _tokens_of_data(name: str, dataset: EpisodeDataset) -> Iterator[RunFinding]:
    """Find turns of stored episodes whose tokens have other log-probabilities at the sampler than at the trainer."""
    parts: list[tuple[np.ndarray, int, str]] = []
    for i in range(min(len(dataset), MOST_EPISODES)):
        episode: Any = dataset[i]
        if not {LOGP, TRAINER_LOGP} <= set(getattr(episode, "extra_model_outputs", {})):
            continue
        for t in range(len(episode)):
            pair = [np.asarray(episode.get_extra_model_outputs(key, t), np.float64) for key in (LOGP, TRAINER_LOGP)]
            parts.append((pair[0] - pair[1], episode.t_started + t, str(episode.id_)))
    if parts:
        sizes = [len(part) for part, _, _ in parts]
        turns = np.repeat([t for _, t, _ in parts], sizes)
        ids = np.repeat(np.array([id_ for _, _, id_ in parts], object), sizes)
        differences = np.concatenate([part for part, _, _ in parts])
        yield from _far_tokens(turns, differences, ids, FAR_OF_TOKENS, {name: dataset})


def _other_tokens(columns: Columns, module: str, data: Mapping[str, EpisodeDataset]) -> Iterator[RunFinding]:
    """Find turns of the updates whose tokens had other log-probabilities at the sampler than at the trainer."""
    steps = columns.get("first_gradient_step")
    rows = np.arange(len(columns["t"])) if steps is None else np.flatnonzero(steps == 0)  # before the policy changed
    differences, ratios = columns[LOGP_DIFFERENCE][rows], columns["first_ratio"][rows]
    is_corrected = bool(np.all(np.abs(ratios - 1) < FAR)) and bool(np.any(np.abs(differences) > FAR))
    limit = FAR_OF_CORRECTED if is_corrected else FAR_OF_TOKENS
    ids = np.array([str(name) for name in columns["episode"][rows].tolist()], object)
    for one in _far_tokens(columns["t"][rows], differences, ids, limit, data):
        sizes = np.abs(columns[LOGP_DIFFERENCE])
        is_known = np.isin(np.arange(len(sizes)), rows)
        is_later = columns["t"] >= (one.t or 0)
        among, beside = is_known & is_later, is_known & ~is_later
        course = strongest_rows(columns, "turn", lambda turn, sizes=sizes: mean(sizes[turn]), among, beside=beside)
        of_step = (columns["t"] == one.t) & (np.array([*map(str, columns["episode"].tolist())], object) == one.episode)
        known = {str(id_) for dataset in data.values() for id_ in dataset.metadata["id"].tolist()}
        stored = {
            int(columns["update"][row])
            for row in np.flatnonzero(among).tolist()
            if str(columns["episode"][row]) in known
        }
        yield replace(
            one,
            update=strongest(course, stored=stored).update,
            learned_in=None if not of_step.any() else int(columns["update"][of_step].max()),
            module=module,
            table="by-turn",
            others="earlier turns",
            measure="logp_distance",
            course=course,
        )


def _far_tokens(
    turns: np.ndarray, differences: np.ndarray, ids: np.ndarray, limit: float, data: Mapping[str, EpisodeDataset]
) -> Iterator[RunFinding]:
    """Find the turn from which on the sampler's and the trainer's log-probabilities of tokens differ: the first one
    whose mean difference is above `limit`, or large and `TIMES` that of the turns before it.

    Args:
        turns: turn of each token [n].
        differences: its log-probability at the sampler minus that at the trainer [n].
        ids: id of its episode, as texts in an object array [n].
        limit: largest mean difference that rounding explains.
        data: data sets with some of the episodes.
    """
    known = np.isfinite(differences)
    turns, differences, ids = turns[known], np.abs(differences[known]), ids[known]
    numbers, of_token = np.unique(turns, return_inverse=True)
    sums, counts = np.bincount(of_token, differences), np.bincount(of_token)
    means, earlier = sums / counts, np.cumsum(sums)[:-1] / np.cumsum(counts)[:-1]
    is_far = means > limit
    is_far[1:] |= (means[1:] > TIMES * earlier) & (means[1:] > np.where(earlier < SAME, FAR, FAR_OF_TOKENS))
    if not is_far.any():
        return
    place = int(is_far.argmax())
    first, rows = int(numbers[place]), turns >= numbers[place]
    before = f"; before it differs by {number(float(earlier[place - 1]))}" if place else ""
    stored = {str(id_): name for name, dataset in data.items() for id_ in dataset.metadata["id"].tolist()}
    names, of_row = np.unique(ids[turns == first], return_inverse=True)
    worst = np.bincount(of_row, differences[turns == first]) / np.bincount(of_row)
    worst[[name not in stored for name in names.tolist()]] -= worst.max() + 1  # if others are stored
    episode = str(names[worst.argmax()])
    seen = _tokens_before(data[stored[episode]], episode, first) if episode in stored else ""
    yield RunFinding(
        "token_logp",
        f"from turn {first} on the sampler's log-probability of a token differs from the trainer's by "
        f"{number(float(differences[rows].mean()))} on average{before}{seen}",
        "compare the token ids that the sampler saw with the recorded ones right before that turn: a chat template, a "
        "tokenizer" + ("" if place and earlier[place - 1] < SAME else ", or other weights"),
        data=stored.get(episode, ""),
        episode=episode,
        t=first,
        step="mean |logp difference| of the turn "
        f"{number(mean(differences[turns == first][of_row == worst.argmax()]))}",
    )


def _tokens_before(dataset: EpisodeDataset, id_: str, turn: int) -> str:
    """Return the recorded tokens between the sampled tokens of the turn before `turn` and those of `turn`, as text."""
    for i in _rows_of(dataset.metadata, id_):
        episode: Any = dataset[i]
        if episode.t_started <= turn < episode.t_started + len(episode):
            tokens = np.asarray(episode.get_observations(turn - episode.t_started)).tolist()
            if not tokens:
                return "; no token is recorded right before it"
            shown = " ".join(map(str, tokens[-MOST_TOKENS:]))
            cut = "... " * (len(tokens) > MOST_TOKENS)
            return f"; the recorded tokens right before it are {cut}{shown} (episode {brief_id(id_)})"
    return ""


def _share(flags: np.ndarray) -> str:
    """Return how many of the flags are set as text, such as "3 of 12"."""
    return f"{int(flags.sum())} of {len(flags)}"


def _list(names: Sequence[str]) -> str:
    """Return the first names as text."""
    shown = ", ".join(clipped(name, 24) for name in names[:MOST_NAMES])
    return shown + f" and {len(names) - MOST_NAMES} more" * (len(names) > MOST_NAMES)
