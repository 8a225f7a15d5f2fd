"""Summary, charts and tables of a training update, as HTML."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import numpy as np
from markupsafe import Markup

from episodes.inspect import update_charts as charts
from episodes.inspect.conversation import Decode
from episodes.inspect.formatting import brief_id, clipped, counted, number, page_id
from episodes.inspect.html import template_file, templates
from episodes.inspect.update_measures import (
    FAR,
    LIMITS,
    ROWS,
    STEP_MEASURES,
    TOKEN,
    WORKER,
    Limit,
    histogram,
    name_of,
    row_measures,
    step_measures,
    text_of,
    time_ranges,
    usual_limits,
)

if TYPE_CHECKING:
    from episodes.inspect.update_explanation import UpdateExplanation
    from episodes.inspect.update_rows import Mark

__all__ = ["body_of", "page_of"]

TABLES = ("by-time", "by-agent", "by-turn", "by-worker", "by-episode")
SCRIPTS = ("condition.js", "update.js")
MEANINGS = {
    "episode": "id of the episode; the whole id is shown when pointing at it",
    "t": "time of the step in its episode; of tokens, the turn",
    "share": "part of the absolute loss of the update",
    "loss": "absolute loss of a row, summed over the gradient steps",
    "steps": "number of steps, or of sampled tokens",
    "episodes": "number of episodes with these rows",
    "time": "steps since the beginning of the episode",
    "ratio_distance": "mean |log(first ratio)| of the rows of the first gradient step: 0 if the policy that acted is "
    "the one that learns",
    "ratio_distance_rows": "rows of the first gradient step, of which mean |log ratio| is the mean",
    "advantage_agreement": "correlation of the advantages with value target minus value: close to 1 if they are right",
    "logp_distance": "mean difference of the sampler's and the trainer's log-probabilities: close to 0",
    "kl": "mean of ratio - 1 - log(ratio): an estimate of how far the learning policy moved from the acting one",
    "explained_variance": "1 if values at the first gradient step of each row equal their targets, 0 if they are no "
    "better than a constant",
    "times_learned": "number of rows, of this and earlier updates, with the step",
    "advantage": "as the policy loss used it",
    "first_value": "value (or Q-value) at the first gradient step with the row",
    "value_target": "target of the value, such as a return",
    "first_ratio": "probability of the action for the policy that learns, by that for the policy that acted, at the "
    "first gradient step with the row",
    "first_gradient_step": "number of the first gradient step with the row; at 0 the policy has not changed yet",
    "ratio": "probability of the action for the policy that learns, by that for the policy that acted, as the mean "
    "over all gradient steps",
    "clipped": "fraction of the gradient steps in which clipping changed the loss of the row. A ratio beyond a limit "
    "does not count if its advantage has the sign for which the loss is not clipped there",
    "n_step": "number of rewards in the target",
    "first_logp_difference": "log-probability of the token at the sampler minus that at the trainer",
    "token": "index of the token among the sampled tokens of its turn",
    "token_id": "id of the sampled token",
    "text": "text of the sampled token",
    "group": "group of episodes with the same prompt, whose returns are compared",
    "worker": "index of the runner that sampled the episode",
    "reward": "stored reward of the step",
    "acting_logp": "stored log-probability of the action, for the policy that acted",
    "learning_logp": "the same for the policy that learned from it, at the first gradient step: equal if both saw the "
    "same and had the same weights",
    "acting_value": "stored value of the policy that acted",
    "log_ratio": "|log(first ratio)| of a row of the first gradient step; its mean is `log_ratio` in the table of "
    "episodes",
    "logp_gap": "absolute difference of the sampler's and the trainer's log-probability of the token",
    "value_error": "value minus value target",
    "advantage_error": "advantage times (value target minus value): negative if the advantage has the wrong sign",
}
"""Meanings of the columns."""

LOGGED = {
    "loss": ("loss", "of these rows: |loss|, all gradient steps", "with its sign"),
    "clipped": ("clip_fraction", "of these rows: clipping changed the loss", "ratios beyond the limits"),
    "kl": ("kl", "of these rows: by mean ratios", "by all ratios"),
    "explained_variance": ("explained_variance", "of these rows: by first values", "before the update"),
}
"""Metrics that runs log of nearly the same quantities as the numbers of an update, what the latter are, and what the
metrics are."""
_HEADS = ("episode", "agent", "time", "worker", "t", "token", "token_id", "text", "group")
_BESIDE = ("clipped", "advantage")  # after the numbers of findings
_FIRST = ("steps", *STEP_MEASURES.values(), "share")
_OF_STORED = ("token_id", "text", "group", "reward", "acting_logp", "learning_logp", "acting_value")
_ALWAYS = ("episode", "agent", "time", "worker", "t", "token", "share", "steps")  # drawn if they are constant, too
_MISSING = "—"  # text of a cell without a value
_NO_FINITE = "no row of the group has a finite number"
_NO_CORRELATION = "the group has no two rows whose advantages and whose errors of the value differ"
_NONE_AT_FIRST = "the first gradient step had no row of the group"
_NOT_AT_FIRST = "the row came after the first gradient step, which had changed the policy"
_NOT_MEASURED = "the update measured no number at the row"
_NOT_COMPUTED = "the update did not measure all numbers that it is computed from at the row"
_NOT_STORED = "the run did not store the episode of the row"
_NOT_IN_EPISODE = "the stored episode of the row does not have it"
_NO_NAME = {
    "episode": "the row was recorded without the id of an episode",
    "agent": "the row is of an episode of one agent",
    WORKER: "the row was recorded without a worker",
}
NEARLY_ALL = 0.9  # fraction of rows that stand out, above which a mark tells nothing
NUM_BINS = 30  # of histograms
_FEWEST_KNOWN = 0.25  # part of the rows that know what their step stored, below which the column is not drawn
_NO_NUMBER = 1e-6  # largest absolute value in a column that counts as 0
_ENDS = {"ascending": "smallest first", "descending": "largest first"}
_NEARLY_ZERO = "≈ 0"  # text of a cell with a number that is not 0, but far below those of its column
_SUMMARY = (
    "steps",
    "episodes",
    "loss",
    "clipped",
    "kl",
    "ratio_distance",
    "logp_distance",
    "advantage_agreement",
    "explained_variance",
)

Address = Callable[[str], str]


def page_of(title: str, body: str, about: str = "", nav: str = "") -> str:
    """Return a page in the style of the pages of runs.

    Args:
        title: the title.
        body: content, as HTML.
        about: text beside the title.
        nav: links above the title, as HTML.
    """
    style = template_file("page.css") + template_file("update.css")
    script = Markup("\n").join(map(template_file, SCRIPTS))
    parts = {"title": title, "about": about, "nav": Markup(nav), "body": Markup(body)}
    return templates().get_template("update.html").render(**parts, style=style, script=script)


def body_of(
    explanation: UpdateExplanation,
    address: Address | None = None,
    limit: int = 1000,
    marks: Collection[Mark] = (),
    *,
    found: str = "",
    note: str = "",
    settings: Mapping[str, float] | None = None,
    logged: Mapping[str, float] | None = None,
    decode: Decode | None = None,
    unfolded: Collection[str] = (),
    limits: Sequence[Limit] = (),
    prefix: str = "",
) -> str:
    """Return summary, charts and tables of an update as HTML.

    Args:
        explanation: the update.
        address: function that returns the address of the page with an episode, given its id; "" for no page.
        limit: largest number of steps, and of rows of a group. Steps of stored episodes, and of the rows beyond
            `limits`, are added to the steps.
        marks: cells of the tables of groups that are marked.
        found: what stands out, as HTML.
        note: text above the steps, as HTML.
        settings: numbers of the algorithm's settings by name, such as "clip" and "gamma".
        logged: metrics that the run logged for the update, by name.
        decode: function from a list of token ids to text.
        unfolded: names of tables of groups that are unfolded at first, such as "by-time".
        limits: limits of the findings that the update shows. Rows beyond them are marked, and the columns of steps that
            tell which steps show them are drawn. Tables of groups in which some rows are beyond a limit, and others are
            not, are unfolded, too.
        prefix: of the ids of the sections, if a page has several updates.
    """
    is_of_tokens = TOKEN in explanation.columns
    usual = [one for one in usual_limits(is_of_tokens) if all(one.measure != other.measure for other in limits)]
    opened, folded = [], []
    shown: dict[str, None] = {}
    for name in TABLES:
        group = name.removeprefix("by-")
        if (group == "turn" and not is_of_tokens) or (group == WORKER and WORKER not in explanation.columns):
            continue
        rows = explanation.by(group)
        if len(rows) < 2 and group != "episode":
            continue
        marked = [(cells, names) for table, cells, names in marks if table == name]
        table = _group_table(explanation, group, rows, address, limit, marked, [*limits, *usual])
        beyond = sum(any(one.passed_by(one.number_of(row)) for one in _of_table(limits, name)) for row in rows)
        is_open = name in unfolded or 0 < beyond <= NEARLY_ALL * len(rows)
        title = {"time": "time in all episodes", "turn": "episode and turn"}.get(group, group)
        kind = {"time": "time range"}.get(group, group)
        if is_of_tokens and group == "time":
            title, kind = "turn in all episodes", "turn range"
        (opened if is_open else folded).append(
            f'<section id="{prefix}{name}"><details{" open" * is_open}><summary><h2>By {title}</h2> '
            f"{counted(len(rows), kind)}</summary>{table}</details></section>"
        )
        shown |= dict.fromkeys(rows[0] if rows else ())
    steps, names = _steps(explanation, address, limit, limits, note, decode, f"{prefix}steps")
    shown |= dict.fromkeys(names)
    summary = _summary(explanation, settings or {}, logged or {}, [*limits, *usual], prefix)
    drawn = _charts(explanation, settings or {}, marks, limits)
    columns = f'<section id="{prefix}columns">{legend([*_SUMMARY, *shown])}</section>'
    opened.sort(key=lambda html: not any(f'id="{prefix}{name}"' in html.split(">", 1)[0] for name in unfolded))
    return "".join([found, *opened, summary, drawn, *folded, steps, columns])


def _of_table(limits: Iterable[Limit], name: str) -> list[Limit]:
    """Return the limits that rows of a table are compared with."""
    return [one for one in limits if not one.tables or name in one.tables]


def rows_beyond(explanation: UpdateExplanation, table: str, limit: Limit) -> np.ndarray:
    """Return whether each step of an update is in a row of a table, such as "by-worker", beyond a limit, bool [n]."""
    columns, group = explanation.columns, table.removeprefix("by-")
    if group == "steps":  # not a table of groups
        return np.ones(len(explanation), bool)
    result = np.zeros(len(explanation), bool)
    if group == "time":
        labels = {group: np.array(time_ranges(columns["t"], has_last=True), object)}
    else:
        labels = {name: columns[name] for name in (("episode", "t") if group == "turn" else (group,))}
    for row in explanation.by(group):
        if limit.passed_by(limit.number_of(row)):
            is_in = (np.isnan(x) if row[n] is None and n == WORKER else x == row[n] for n, x in labels.items())
            result |= np.logical_and.reduce([*is_in])
    return result


def _steps(
    explanation: UpdateExplanation,
    address: Address | None,
    limit: int,
    limits: Sequence[Limit],
    note: str,
    decode: Decode | None,
    anchor: str,
) -> tuple[str, list[str]]:
    """Return the section of the steps as HTML, and the names of its columns. The steps are sorted by the column that
    tells which of them show the first finding, or else by their share of the loss. `anchor` is the id of the section.
    """
    is_of_tokens, num = TOKEN in explanation.columns, len(explanation)
    chosen = np.arange(num) < limit
    if num > limit and address is not None:
        chosen |= [id_ is not None and bool(address(id_)) for id_ in explanation.columns["episode"].tolist()]
    for one in limits if num > limit else ():
        name = one.tables[0] if one.tables else "by-episode"
        chosen |= rows_beyond(explanation, name, one)
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(rows >= limit, kind="stable")][: 2 * limit]
    words = counted(num, "row") if len(rows) == num else f"{len(rows):,} of {num:,} rows, with the largest shares"
    words += " and those of episodes that are stored or stand out" * (limit < len(rows) < num)
    rows.sort()
    measures = {key: column[rows] for key, column in step_measures(explanation.columns).items()}
    part = replace(explanation, columns={name: column[rows] for name, column in explanation.columns.items()})
    columns = {name: [None] * len(rows) for name in explanation.rows(0)} | part.rows(len(rows), decode)
    columns |= {name: column.tolist() for name, column in measures.items()}
    ids, agents, times = (part.columns[name].tolist() for name in ("episode", "agent", "t"))
    tokens = part.columns[TOKEN].astype(int).tolist() if is_of_tokens else [None] * len(rows)
    links = [link_to(part, address, *place) for place in zip(ids, agents, times, tokens, strict=True)]
    wanted = {STEP_MEASURES.get(one.measure): one.is_least for one in limits}
    by = next((name for name in wanted if name in measures and np.isfinite(measures[name]).any()), None)
    order = ("share", "descending") if by is None else (by, "ascending" if wanted[by] else "descending")
    if by is not None:
        sizes = measures[by] * (1 if wanted[by] else -1)
        places = np.argsort(np.where(np.isnan(sizes), np.inf, sizes), kind="stable")
        part = replace(part, columns={name: column[places] for name, column in part.columns.items()})
        columns = {name: [values[i] for i in places.tolist()] for name, values in columns.items()}
        links = [links[i] for i in places.tolist()]
    table = table_html(
        columns,
        links,
        missing=lambda name, row: cause_at_step(part, name, row),
        order=order,
        is_of_tokens=is_of_tokens,
        hidden=[name for name in measures if name not in wanted],
        note=f"{escape(words)}. {note}",
        reason="" if by is None else f", since {'the' if len(limits) == 1 else 'a'} finding is about it",
    )
    heading = "Tokens" if is_of_tokens else "Steps"
    html = f'<section id="{anchor}"><h2>{heading}</h2>{table}</section>'
    return html, list(columns)


def _summary(
    explanation: UpdateExplanation,
    settings: Mapping[str, float],
    logged: Mapping[str, float],
    limits: Iterable[Limit],
    prefix: str,
) -> str:
    """Return the numbers of the whole update as HTML, with what the run logged of the same quantities."""
    tiles, used, measures, num = [], set(), row_measures(explanation.columns), len(explanation)
    numbers = explanation.summary()
    if "logp_distance" in numbers:
        numbers.pop("ratio_distance", None)  # nearly the same
    beyond = {one.measure for one in limits if one.measure in numbers and one.passed_by(numbers[one.measure])}
    for name, value in numbers.items():
        text = f"{value:,}" if isinstance(value, int) else _text(name, value)
        count = int(np.isfinite(measures[name]).sum()) if name in measures else num
        beside, meaning = f"<small>{_part_of(count, num)}</small>" * (count < num), meaning_of(name)
        metric, of_rows, of_metric = LOGGED.get(name, ("", "", ""))
        if metric in logged:
            used.add(metric)
            shown = text_of("share" if metric == "clip_fraction" else metric, logged[metric])
            title = "KL" if metric == "kl" else metric.replace("_", " ")
            beside += f"<small>{of_rows}</small><small>learner's {title} <b>{escape(shown)}</b>: {of_metric}</small>"
        tiles.append(
            f'<div title="{escape(_sentence(meaning))}"><dt>{escape(name_of(name))}</dt>'
            f'<dd data-name="{name}"{" class=stands" * (name in beyond)}>{escape(text)}</dd>{beside}</div>'
        )
    others = {name: value for name, value in logged.items() if name not in used}
    notes = [
        f"{title}: " + ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in values.items()) + "."
        for title, values in (("Also logged", others), ("Settings", settings))
        if values
    ]
    if used:
        notes.insert(0, "The learner's numbers are means over minibatches of all epochs, as curves show them.")
    words = f"{escape(' '.join(notes))} " + f'<a href="#{prefix}columns">What the names mean</a>'
    return f'<dl class="numbers">{"".join(tiles)}</dl><p class=note>{words.strip()}.</p>'


def _part_of(count: int, num: int) -> str:
    """Return of how many of the rows of an update a number is, as text."""
    return f"{count:,} of {counted(num, 'row')}"


def _sentence(text: str) -> str:
    """Return a text with a capital."""
    return text[:1].upper() + text[1:]


def meaning_of(name: str) -> str:
    """Return the meaning of a column, "" if it has none."""
    if name.endswith(ROWS) and name not in MEANINGS:
        return f"number of rows that {name_of(name.removesuffix(ROWS))} is computed from; others have not measured it"
    return MEANINGS.get(name, "")


def _charts(
    explanation: UpdateExplanation, settings: Mapping[str, float], marks: Collection[Mark], limits: Sequence[Limit]
) -> str:
    """Return the charts of an update as HTML. The rows that stand out are in a second colour."""
    columns = {**explanation.columns, **step_measures(explanation.columns)}
    parts = []
    accused, whose = _accused(explanation, marks, limits)
    clip: list[float] = []
    if "ratio" in columns:
        low, high = (settings.get(name, settings.get("clip")) for name in ("clip_low", "clip_high"))
        low, high = (low if high is None or low is not None else high), (high if high is not None else low)
        clip = [] if low is None or high is None else [1 - low, 1 + high]
    wanted = [STEP_MEASURES[one.measure] for one in limits if one.measure in STEP_MEASURES]
    for name in dict.fromkeys([*wanted, "ratio", "advantage", "first_logp_difference", "log_prob"]):
        if name not in columns or (name == "first_logp_difference" and "logp_gap" in wanted):
            continue
        values = columns[name].astype(np.float64)
        is_finite = np.isfinite(values)
        counts, edges = histogram(values[is_finite], NUM_BINS)
        chosen, note, words = accused, "", whose
        if name == "ratio":
            note = "Mean over the gradient steps"
            if "clipped" in columns and accused is None:
                chosen, words = columns["clipped"] > 0, "rows that were clipped at some gradient step"
        marked = None
        if chosen is not None and len(counts):
            marked = np.histogram(values[chosen & is_finite], edges)[0]
        parts.append(
            charts.bars(
                name_of(name).capitalize(),
                counts,
                edges,
                marked,
                clip * (name == "ratio"),
                note,
                words,
                column=name,
                num_rows=len(values),
            )
        )
    if {"first_ratio", "first_gradient_step"} <= columns.keys():
        ratios = np.clip(columns["first_ratio"], LIMITS.tiny, LIMITS.max)
        steps, axes = columns["first_gradient_step"], ("gradient step at which rows were first used", "mean")
        title = "|log first ratio| by gradient step"
        known = steps[np.isfinite(steps) & np.isfinite(ratios)]
        has_limit = TOKEN not in columns and bool(len(known)) and known.min() == 0
        sizes = np.abs(np.log(ratios))
        limit = FAR if has_limit else None
        parts.append(charts.means(title, steps, sizes, "first_gradient_step", "", limit, axes))
    last = charts.shares("Share of the loss", columns["share"])
    if explanation.value_errors is not None:
        names = ("value", "value target"), ("first_value", "value_target")
        values, targets = columns["first_value"], columns["value_target"]
        parts.append(
            charts.cells("Value against target", *names[0], values, targets, "", accused, whose, columns=names[1])
        )
        gamma = settings.get("gamma")
        if gamma is not None and 0 <= gamma <= 1:
            returns = explanation.realised_returns(gamma)
            num = len(set(columns["episode"][np.isfinite(returns)].tolist()))
            note = f"Rows of {counted(num, 'stored episode')} that terminated"
            last += charts.cells(
                "Value against return", "value", "realised return", values, returns, note, accused, whose
            )
    parts.append(last)
    return f'<div class="drawn">{"".join(filter(None, parts))}</div>'


def _accused(
    explanation: UpdateExplanation, marks: Collection[Mark], limits: Sequence[Limit]
) -> tuple[np.ndarray | None, str]:
    """Return whether each step is in a row beyond the limits of findings, bool [n], in the first table in which some
    are and many are not, and these rows as text. It is None if no table has such rows.
    """
    found = [table for table, _, _ in marks]
    for one in limits:
        for table in dict.fromkeys([*(one.tables or found), "by-time"]):
            group = table.removeprefix("by-")
            if group == "steps" or (group == WORKER and WORKER not in explanation.columns):
                continue
            is_in = rows_beyond(explanation, table, one)
            if 0 < is_in.sum() <= NEARLY_ALL * len(is_in):
                names = _names(explanation.columns[group][is_in]) if group in ("agent", WORKER) else []
                kind = group if len(names) == 1 else f"{group}s"
                return is_in, f"rows of {kind} {', '.join(names)}".rstrip() + f" with {one.words}"
    return None, ""


def _names(values: np.ndarray) -> list[str]:
    """Return the different values of a column as texts, up to four and dots."""
    names = sorted({f"{value:.0f}" if isinstance(value, float) else str(value) for value in values.tolist()})
    return [clipped(name, 24) for name in names[:4]] + ["..."] * (len(names) > 4)


def _by_size(rows: list[dict[str, Any]], name: str, is_ascending: bool) -> list[dict[str, Any]]:
    """Return rows in the order of a column of numbers, those without a number last."""
    sizes = np.array([float(row[name]) for row in rows]) * (1 if is_ascending else -1)
    return [rows[i] for i in np.argsort(np.where(np.isnan(sizes), np.inf, sizes), kind="stable").tolist()]


def _group_table(
    explanation: UpdateExplanation,
    group: str,
    rows: list[dict[str, Any]],
    address: Address | None,
    limit: int,
    marked: Collection[tuple[Mapping[str, str], Sequence[str]]],
    limits: Iterable[Limit],
) -> str:
    """Return the first `limit` rows of `by(group)` as HTML. Numbers beyond `limits` are marked, unless nearly all rows
    have them, and those in the columns of `marked` in the rows with its cells. Of more episodes or turns than `limit`,
    these rows are shown first, then others with a mark. Rows are sorted by the column of a finding, or
    else by the share of the loss; those of time by time.
    """
    is_of_tokens = TOKEN in explanation.columns
    notes, drawn = [], []

    def led_to(row: Mapping[str, Any]) -> set[str]:
        chosen = (names for cells, names in marked if all(str(row[name]) == cell for name, cell in cells.items()))
        return set[str]().union(*chosen)

    def marked_in(row: Mapping[str, Any]) -> set[str]:
        return led_to(row).union(*(one.columns for one in drawn if one.passed_by(one.number_of(row))))

    led_columns = set[str]().union(*map(led_to, rows))
    limits = _of_table(limits, f"by-{group}")
    for one in limits:
        beyond = sum(one.passed_by(one.number_of(row)) for row in rows)
        if len(rows) > 1 and beyond > NEARLY_ALL * len(rows):
            but = ", except the one the finding leads to" * (not led_columns.isdisjoint(one.columns))
            notes.append(f"Not marked{but}, since in {beyond} of {len(rows)} rows: {one.words}.")
        elif beyond:
            notes.append(f"Marked: {one.words}, in {beyond} of {counted(len(rows), 'row')}.")
            drawn.append(one)
    of_findings = [list(names) for _, names in marked]
    is_by_episode = bool(rows) and "episode" in rows[0]
    if is_by_episode:
        of_findings += [one.columns for one in drawn]
    by = next((names[0] for names in of_findings if len(names) == 1 and names[0] in rows[0]), "share") if rows else ""
    is_least = any(one.is_least for one in limits if one.measure == by)
    sorted_by = None if group == "time" else (by, "ascending" if is_least else "descending")
    left = f" The first {limit} of {len(rows)} rows." if len(rows) > limit else ""
    if sorted_by is not None:
        rows = _by_size(rows, by, is_least)
    if is_by_episode:  # those that show a finding are in the table
        chosen = {id(row) for row in sorted(rows, key=lambda row: (not led_to(row), not marked_in(row)))[:limit]}
        rows = [row for row in rows if id(row) in chosen]
    rows = rows[:limit]
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in names}
    links = [
        link_to(explanation, address, row["episode"], t=row.get("t")) if "episode" in row else None for row in rows
    ]
    marks = {(i, name) for i, row in enumerate(rows) for name in marked_in(row)}
    words = f"{' '.join(notes)}{left} Numbers are means over the rows, except for counts, shares and correlations."
    parts = [name.removesuffix(ROWS) for name in names if name.endswith(ROWS)]
    if parts:
        known = {name: np.isfinite(values).sum() for name, values in row_measures(explanation.columns).items()}
        told = ", ".join(f"{name_of(name)}: {_part_of(known[name], len(explanation))}" for name in parts)
        words += f" Not of all rows: {told}."
    led = {i for i, row in enumerate(rows) if led_to(row)}
    tests = [_test_of(group, row) for row in rows]
    return table_html(
        columns,
        links,
        marks,
        lambda name, _: cause_in_group(name),
        sorted_by,
        is_of_tokens,
        led,
        tests=tests,
        note=escape(words.strip()),
    )


def cause_in_group(name: str) -> str:
    """Return why a row of `UpdateExplanation.by` has no value in a column, as text."""
    causes = {**_NO_NAME, "ratio_distance": _NONE_AT_FIRST, "advantage_agreement": _NO_CORRELATION}
    return causes.get(name, _NO_FINITE)


def cause_at_step(explanation: UpdateExplanation, name: str, row: int) -> str:
    """Return why a step has no value in a column of `UpdateExplanation.rows` or `step_measures`, as text."""
    columns = explanation.columns
    if name in _OF_STORED:
        return _NOT_STORED if explanation[row].episode is None else _NOT_IN_EPISODE
    if name == "log_ratio" and np.isfinite(columns["first_ratio"][row]):
        is_known = np.isfinite(columns["first_gradient_step"][row])
        return _NOT_AT_FIRST if is_known else _NOT_COMPUTED
    if name in STEP_MEASURES.values():
        return _NOT_COMPUTED
    return _NO_NAME.get(name, _NOT_MEASURED)


def _test_of(group: str, row: Mapping[str, Any]) -> str:
    """Return the filter of the steps of a row of `by`, "" if it has no name."""
    if group == "time":
        ends = row[group].split("-")
        return f"t >= {ends[0]} and t <= {ends[-1]}" if len(ends) > 1 else f"t == {ends[0]}"
    tests = []
    for name in ("episode", "t") if group == "turn" else (group,):
        value = row[name]
        if value is None or (isinstance(value, str) and "'" in value and '"' in value):
            return ""
        quote_ = '"' if "'" in str(value) else "'"
        tests.append(f"{name} == {quote_}{value}{quote_}" if isinstance(value, str) else f"{name} == {value}")
    return " and ".join(tests)


def link_to(
    explanation: UpdateExplanation,
    address: Address | None,
    id_: str | None,
    agent: str | None = None,
    t: int | None = None,
    token: int | None = None,
) -> str | None:
    """Return the address of a step, token or episode on the page of the data set, or None if there is none."""
    page = address(id_) if address is not None and id_ is not None else ""
    if not page or id_ is None:
        return None
    first = int(explanation.columns["t"][explanation.columns["episode"] == id_].min()) if t is None else t
    parts = {"id": page_id(id_), "t": first}
    if agent is not None:
        parts["agent"] = page_id(agent)
    if token is not None:
        parts["token"] = token
    return f"{page.split('#')[0]}#{urlencode(parts, quote_via=quote)}"


def table_html(
    columns: Mapping[str, Sequence[Any]],
    links: Sequence[str | None],
    marks: Collection[tuple[int, str]] = (),
    missing: Callable[[str, int], str] = lambda name, row: _NOT_MEASURED,
    order: tuple[str, str] | None = ("share", "descending"),
    is_of_tokens: bool = False,
    led: Collection[int] = (),
    hidden: Collection[str] = (),
    tests: Sequence[str] = (),
    note: str = "",
    reason: str = "",
) -> str:
    """Return a table that can be sorted and filtered as HTML.

    Columns without values, with the same value in all rows, or with the same values as another column, are not drawn.
    Text below the table has their names. Filters know them.

    Args:
        columns: values of each row by name of the column.
        links: address of each row's episode, or None.
        marks: row and column of the cells that stand out.
        missing: function that returns why a cell has no value as text, given the names of its column and its row.
        order: column by which the rows are sorted, and "ascending" or "descending"; None if they are in order of time.
        is_of_tokens: whether the rows are tokens, so that their times are turns.
        led: the rows to which findings lead.
        hidden: columns that only filters know.
        tests: filter of the steps of each row, "" for none, if the rows are groups.
        note: text above the table, as HTML. The order of the rows is told after it, and follows it.
        reason: why the rows are in this order, as text.
    """
    num = len(links)
    marked = {name for _, name in marks}
    of_finding = ([order[0]] if order is not None and order[0] != "share" else []) + sorted(
        marked, key=[*columns].index
    )
    first = list(dict.fromkeys([*_HEADS, *of_finding, *(_BESIDE if of_finding else ()), *_FIRST]))
    first += [name + ROWS for name in first]
    names = sorted(columns, key=lambda name: first.index(name) if name in first else len(first))
    labels = {name: name_of(name, is_of_tokens) for name in names}
    texts = {name: [_text(name, value) for value in columns[name]] for name in names}
    absent = [name for name in names if num and all(text == _MISSING for text in texts[name])]
    is_kept = {*_ALWAYS, *marked, *(order or ())}
    same, equal, rare = [], {}, []
    for name in names:
        if num < 2 or name in absent or name in hidden:
            continue
        known = sum(text != _MISSING for text in texts[name])
        if name in _OF_STORED and known < _FEWEST_KNOWN * num:
            rare.append(f"{name_of(name)} ({known})")
            equal[name] = name
            continue
        others = names[: names.index(name)]
        twin = next((other for other in others if texts[other] == texts[name] and other not in hidden), None)
        if len(set(texts[name])) == 1 and name not in is_kept:
            same.append(name)
        elif twin is not None and twin not in _ALWAYS and twin not in equal:
            less, more = (name, twin) if name not in is_kept else (twin, name)
            if less not in is_kept:
                equal[less] = more
    left_out = {*absent, *same, *equal, *hidden}
    drawn = [name for name in names if name not in left_out]
    notes = []
    if same:
        values = ", ".join(
            f"{name_of(name, is_of_tokens)} {_constant(columns[name][0], texts[name][0])}" for name in same
        )
        notes.append(f"The same in all rows, to 4 digits: {values}.")
    notes += [
        f"In all rows, {name_of(name, is_of_tokens)} equals {name_of(twin)} to 4 digits."
        for name, twin in equal.items()
        if name != twin
    ]
    if absent:
        notes.append(f"Not known for any row: {', '.join(map(name_of, absent))}.")
    if rare:
        notes.append(f"Known for few rows, those of stored episodes, whose pages have them: {', '.join(rare)}.")
    why = {(i, name): missing(name, i) for name in drawn for i in range(num) if texts[name][i] == _MISSING}
    causes: dict[str, dict[str, None]] = {}
    for (_, name), cause in why.items():
        causes.setdefault(cause, {})[labels[name]] = None
    notes += [f"{_MISSING} in {', '.join(of_cause)}: {cause}." for cause, of_cause in causes.items()]
    most = max((float(share) for share in columns.get("share", ())), default=0.0) or 1.0
    is_text = {name: all(value is None or isinstance(value, str) for value in columns[name]) for name in drawn}
    head = "".join(
        f'<th scope="col" data-name="{name}" class="{"text" if is_text[name] else ""}" '
        f'aria-sort="{order[1] if order is not None and name == order[0] else "none"}">'
        f'<button type="button" title="{escape(meaning_of(name))}">{escape(labels[name])}</button></th>'
        for name in drawn
    )
    largest = {name: _largest(columns[name]) for name in drawn if not is_text[name]}
    lines = []
    for i in range(num):
        tags = []
        for name in drawn:
            value, text = columns[name][i], texts[name][i]
            title = why.get((i, name), "")
            if not is_text[name] and value == value and 0 < abs(value or 0) <= _NO_NUMBER * min(largest[name], 1):
                text, title = _NEARLY_ZERO, repr(float(value))
            label = escape(text)
            if name in ("episode", "group") and value is not None:
                label = escape(brief_id(value))
                if name == "episode" and links[i] is not None:
                    label = f'<a href="{escape(str(links[i]))}">{label}</a>'
            kind = " ".join(["text"] * is_text[name] + ["stands"] * ((i, name) in marks) + ["part"] * (name == "share"))
            exact = _exact(value)
            tag = f' class="{kind}"' * bool(kind) + f' data-v="{escape(exact)}"' * (label != escape(exact))
            title = title or exact * (is_text[name] and label != escape(exact))
            tag += f' title="{escape(title)}"' * bool(title)
            if name == "share":
                tag += f' style="--part:{100 * float(value or 0) / most:.1f}%"'
            tags.append(f"<td{tag}>{label}")
        test = f' data-test="{escape(tests[i])}"' if tests and tests[i] else ""
        lines.append(f"<tr{' class=led' * (i in led)}{test}>{''.join(tags)}")
    if any(f">{_NEARLY_ZERO}" in line for line in lines):
        notes.append(f"{_NEARLY_ZERO} : at most a millionth, and at most a millionth of the column's largest number.")
    below = f'<p class="note below">{escape(" ".join(notes))}</p>' if notes else ""
    others = {name: columns[name] for name in names if name in left_out and name not in absent}
    names_of = {name: labels[name] for name in names if name not in absent}
    data = _as_json({"columns": others, "names": names_of})
    hint = escape(_condition_for(columns, [name for name in drawn if not is_text[name]], labels))
    caption = _caption(order, {name: labels[name] for name in drawn}, is_text, reason)
    return (
        f'<div class="rows"><div class="note">{note} {caption}</div><div class="tools" hidden>'
        '<input type="search" aria-label="filter" autocomplete="off" spellcheck="false" '
        f'placeholder="{hint}">'
        '<output></output></div><div class="wide" tabindex="0" role="region" aria-label="table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<button type="button" class="more" hidden></button>{below}'
        f'<script type="application/json">{data}</script></div>'
    )


def _caption(order: tuple[str, str] | None, labels: Mapping[str, str], is_text: Mapping[str, bool], reason: str) -> str:
    """Return the order of the rows of a table as HTML, with buttons for this one and for that by the share of the loss.

    Args:
        order: column by which the rows are sorted, and "ascending" or "descending"; None if they are in order of time.
        labels: names of the columns as they are shown.
        is_text: whether a column has texts.
        reason: why the rows are in this order, as text.
    """
    orders = [one for one in dict.fromkeys([order, ("share", "descending")]) if one is not None and one[0] in labels]
    buttons = "".join(
        f' <button type="button" data-order="{" ".join(one)}"{" hidden" * (one == order)}>'
        f"sort by {escape(labels[one[0]])}</button>"
        for one in orders
    )
    words = "In the order of time"
    if order is not None:
        ends = {"ascending": "a to z", "descending": "z to a"} if is_text.get(order[0]) else _ENDS
        words = f"Sorted by {labels.get(order[0], name_of(order[0]))}, {ends[order[1]]}"
    return f'<span class="order"><span>{escape(words)}</span><span>{escape(reason)}</span>.{buttons}</span>'


def _largest(values: Sequence[Any]) -> float:
    """Return the largest finite absolute value of a column, 0 if it has none."""
    return max((abs(float(x)) for x in values if x is not None and np.isfinite(x)), default=0.0)


def _as_json(value: Any) -> str:
    """Return dicts of lists as JSON in a page, with null for missing numbers and 1e999 for infinity."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_as_json(str(key))}:{_as_json(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_as_json, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value).replace("<", "\\u003c")
    if value is None or value != value:
        return "null"
    return repr(float(value)).replace("inf", "1e999")


def _constant(value: Any, text: str) -> str:
    """Return the value of a column that is the same in all rows as text. Rounding errors of 0 are 0."""
    is_zero = isinstance(value, float) and 0 < abs(value) <= _NO_NUMBER
    return "0, up to rounding" if is_zero else text


def _condition_for(columns: Mapping[str, Sequence[Any]], numeric: Sequence[str], labels: Mapping[str, str]) -> str:
    """Return an example of a filter for a table, by its last and its first column with numbers that differ."""
    middles = {}
    for name in numeric:
        known = sorted(float(value) for value in columns[name] if value is not None and np.isfinite(value))
        if known and known[0] < known[-1]:
            middles[name] = known[(len(known) - 1) // 2]
    chosen = dict.fromkeys(chain([*middles][:1], [*middles][-1:]))
    tests = " and ".join(f"{labels[name]} > {_text(name, middles[name])}" for name in chosen)
    return "filter: part of an id" + f", or {tests}" * bool(tests)


def _text(name: str, value: Any) -> str:
    """Return a value of a column as text, or a dash if it is missing."""
    if value is None or value != value:
        return _MISSING
    if isinstance(value, str):
        return clipped(value, 200 if name in ("episode", "group") else 32)
    return text_of(name, float(value) if name == "share" else value)


def _exact(value: Any) -> str:
    """Return a value as text without rounding, "" if it is missing."""
    if value is None or value != value:
        return ""
    return value if isinstance(value, str) else repr(float(value))


def legend(names: Iterable[str]) -> str:
    """Return the meaning of each column as HTML."""
    lines = "".join(
        f"<dt>{escape(name_of(name))} <code>{escape(name)}</code></dt><dd>{escape(meaning_of(name))}</dd>"
        for name in dict.fromkeys(names)
        if meaning_of(name)
    )
    words = "<h2>Columns</h2> what the names mean, and how filters call them"
    return f"<details><summary>{words}</summary><dl>{lines}</dl></details>"
