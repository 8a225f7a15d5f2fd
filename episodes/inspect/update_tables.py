"""Summary, charts and tables of a training update, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import numpy as np
from markupsafe import Markup

from episodes.inspect import update_charts as charts
from episodes.inspect.conversation import Decode
from episodes.inspect.formatting import brief_id, clipped, counted, number, page_id
from episodes.inspect.html import template_file, templates
from episodes.inspect.update_measures import TOKEN, WORKER, name_of, stands_out, text_of

if TYPE_CHECKING:
    from episodes.inspect.update_explanation import UpdateExplanation
    from episodes.inspect.update_rows import Mark

__all__ = ["body_of", "page_of"]

SCRIPTS = ("condition.js", "update.js")
MEANINGS = {
    "episode": "id of the episode; the whole id is shown when pointing at it",
    "t": "time of the step in its episode; of tokens, the turn",
    "share": "part of the absolute loss of the update",
    "loss": "absolute loss of a row, summed over the gradient steps; curves show the mean over a minibatch",
    "steps": "number of steps, or of sampled tokens",
    "episodes": "number of episodes with these rows",
    "time": "steps since the beginning of the episode",
    "ratio_distance": "mean |log(first ratio)| of the rows of the first gradient step: 0 if the policy that acted is "
    "the one that learns",
    "advantage_agreement": "correlation of the advantages with value target minus value: close to 1 if they are right",
    "logp_distance": "mean difference of the sampler's and the trainer's log-probabilities: close to 0",
    "kl": "mean of ratio - 1 - log(ratio): an estimate of how far the learning policy moved from the acting one",
    "explained_variance": "1 if values equal their targets, 0 if they are no better than a constant",
    "times_learned": "number of rows, of this and earlier updates, with the step",
    "advantage": "as the policy loss used it",
    "first_value": "value (or Q-value) at the first gradient step with the row",
    "value_target": "target of the value, such as a return",
    "first_ratio": "probability of the action for the policy that learns, by that for the policy that acted, at the "
    "first gradient step with the row",
    "first_gradient_step": "number of the first gradient step with the row; at 0 the policy has not changed yet",
    "ratio": "probability of the action for the policy that learns, by that for the policy that acted, as the mean "
    "over all gradient steps",
    "clipped": "fraction of the gradient steps in which the ratio was clipped",
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
}
"""Meanings of the columns."""

_FIRST = ("episode", "agent", "time", "worker", "t", "token", "token_id", "text", "group", "steps", "share")
_OF_STORED = ("token_id", "text", "group", "reward", "acting_logp", "learning_logp", "acting_value")
_ALWAYS = ("episode", "agent", "time", "worker", "t", "token", "share", "steps")  # drawn if they are constant, too
_MISSING = "—"  # text of a cell without a value
_NOT_AT_FIRST = (
    f"{_MISSING} : not measured. Mean |log ratio| needs a row in the first gradient step, a correlation two rows that "
    "differ."
)
_NOT_STORED = f"{_MISSING} : not known, since the run did not store the episode of the row."
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
    decode: Decode | None = None,
    unfolded: Collection[str] = (),
    prefix: str = "",
) -> str:
    """Return summary, charts and tables of an update as HTML.

    Args:
        explanation: the update.
        address: function that returns the address of the page with an episode, given its id; "" for no page.
        limit: largest number of steps, and of rows of a group.
        marks: cells of the tables of groups that are marked.
        found: what stands out, as HTML.
        note: text above the steps, as HTML.
        settings: numbers of the algorithm's settings by name, such as "clip" and "gamma".
        decode: function from a list of token ids to text.
        unfolded: names of tables of groups that are unfolded at first, such as "by-time".
        prefix: of the ids of the sections, if a page has several updates.
    """
    is_of_tokens = TOKEN in explanation.columns
    parts = [_summary(explanation), found, _charts(explanation, settings or {})]
    shown: dict[str, None] = {}
    for group in ("time", "agent", "turn", "worker", "episode"):
        if (group == "turn" and not is_of_tokens) or (group == WORKER and WORKER not in explanation.columns):
            continue
        rows = explanation.by(group)
        if len(rows) < 2 and group != "episode":
            continue
        name = f"by-{group}"
        marked = [(cells, names) for table, cells, names in marks if table == name]
        table = _group_table(explanation, group, rows, address, limit, marked)
        is_open = " open" if name in unfolded else ""
        kinds = {"time": "time range"}
        parts.append(
            f'<section id="{prefix}{name}"><details{is_open}><summary><h2>By {group}</h2> '
            f"{counted(len(rows), kinds.get(group, group))}</summary>{table}</details></section>"
        )
        shown |= dict.fromkeys(rows[0] if rows else ())
    columns = explanation.rows(limit, decode)
    shown |= dict.fromkeys(columns)
    num = min(limit, len(explanation))
    ids, agents, times = (explanation.columns[name] for name in ("episode", "agent", "t"))
    tokens = explanation.columns[TOKEN].astype(int).tolist() if is_of_tokens else [None] * num
    links = [link_to(explanation, address, ids[row], agents[row], int(times[row]), tokens[row]) for row in range(num)]
    words = f"The {num} rows with the largest shares" if num < len(explanation) else counted(num, "row")
    left = f" of {len(explanation):,}" if num < len(explanation) else ""
    order = f"{words}{left}, sorted by share of the loss."
    parts.append(
        f'<section id="{prefix}steps"><h2>{"Tokens" if is_of_tokens else "Steps"}</h2>'
        f"<p class=note>{escape(order)} {note}</p>"
        f"{table_html(columns, links, missing=_NOT_STORED, is_of_tokens=is_of_tokens)}</section>"
    )
    parts.append(f'<section id="{prefix}columns">{legend([*_SUMMARY, *shown])}</section>')
    return "".join(parts)


def _summary(explanation: UpdateExplanation) -> str:
    """Return the numbers of the whole update as HTML."""
    lines = []
    is_of_tokens = TOKEN in explanation.columns
    for name, value in explanation.summary().items():
        mark = " class=stands" if stands_out(name, value, is_of_tokens) else ""
        text = f"{value:,}" if isinstance(value, int) else _text(name, value)
        words = {"loss": "mean loss", "clipped": "clipped share"}.get(name, name_of(name))
        lines.append(
            f'<div title="{escape(MEANINGS.get(name, ""))}"><dt>{escape(words)}</dt>'
            f'<dd data-name="{name}"{mark}>{escape(text)}</dd></div>'
        )
    return f'<dl class="numbers">{"".join(lines)}</dl>'


def _charts(explanation: UpdateExplanation, settings: Mapping[str, float]) -> str:
    """Return the charts of an update as HTML."""
    columns = explanation.columns
    parts = []
    clipped_rows = columns["clipped"] > 0 if "clipped" in columns else None
    limits: list[float] = []
    if "ratio" in columns:
        low, high = (settings.get(name, settings.get("clip")) for name in ("clip_low", "clip_high"))
        low, high = (low if high is None else high if low is None else low), (low if high is None else high)
        limits = [] if low is None or high is None else [1 - low, 1 + high]
    for name in ("ratio", "advantage", "first_logp_difference", "log_prob"):
        if name not in columns:
            continue
        counts, edges = explanation.histogram(name)
        marked, note = None, ""
        if name == "ratio":
            note = "Mean over the gradient steps"
            if clipped_rows is not None and len(counts):
                values = columns[name].astype(np.float64)
                marked = np.histogram(values[clipped_rows & np.isfinite(values)], edges)[0]
                note += ". Orange: rows that were clipped at some gradient step"
            if limits:
                note += f". Dashed: the clip limits {number(limits[0])} and {number(limits[1])}"
        parts.append(charts.bars(name_of(name).capitalize(), counts, edges, marked, limits * (name == "ratio"), note))
    if explanation.value_errors is not None:
        values, targets = columns["first_value"], columns["value_target"]
        parts.append(charts.cells("Value against its target", "value", "value target", values, targets))
        gamma = settings.get("gamma")
        if gamma is not None and 0 <= gamma <= 1:
            returns = explanation.realised_returns(gamma)
            note = "Rows of terminated episodes that are stored. "
            parts.append(charts.cells("Value against return", "value", "realised return", values, returns, note))
    parts.append(charts.shares("Share of the loss", columns["share"]))
    return f'<div class="drawn">{"".join(filter(None, parts))}</div>'


def _group_table(
    explanation: UpdateExplanation,
    group: str,
    rows: list[dict[str, Any]],
    address: Address | None,
    limit: int,
    marked: Collection[tuple[Mapping[str, str], Sequence[str]]],
) -> str:
    """Return the first `limit` rows of `by(group)` as HTML. Cells that stand out are marked, and those in the columns
    of `marked` in the rows with its cells. Of episodes and turns, these rows come first, then others with a mark.
    """
    is_of_tokens = TOKEN in explanation.columns

    def led_to(row: Mapping[str, Any]) -> set[str]:
        chosen = (names for cells, names in marked if all(str(row[name]) == cell for name, cell in cells.items()))
        return set[str]().union(*chosen)

    def marked_in(row: Mapping[str, Any]) -> set[str]:
        return {name for name, value in row.items() if stands_out(name, value, is_of_tokens)} | led_to(row)

    is_sorted = group != "time"
    order = "Sorted by share of the loss." if is_sorted else "In the order of time."
    if rows and "episode" in rows[0]:
        rows = sorted(rows, key=lambda row: (not led_to(row), not marked_in(row)))
        if marked_in(rows[0]):
            is_sorted = False
            order = "Rows that stand out first, then sorted by share of the loss."
    left = f" The first {limit} of {len(rows)} rows." if len(rows) > limit else ""
    rows = rows[:limit]
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in names}
    links = [
        link_to(explanation, address, row["episode"], t=row.get("t")) if "episode" in row else None for row in rows
    ]
    marks = {(i, name) for i, row in enumerate(rows) for name in marked_in(row)}
    note = (
        f"<p class=note>{order}{left} Numbers are means over the rows, except for counts, shares and correlations.</p>"
    )
    led = {i for i, row in enumerate(rows) if led_to(row)}
    return note + table_html(columns, links, marks, _NOT_AT_FIRST, is_sorted, is_of_tokens, led)


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
    missing: str = "",
    is_sorted: bool = True,
    is_of_tokens: bool = False,
    led: Collection[int] = (),
) -> str:
    """Return a table that can be sorted and filtered as HTML.

    Columns without values, with the same value in all rows, or with the same values as another column, are not drawn.
    Text below the table has their names.

    Args:
        columns: values of each row by name of the column.
        links: address of each row's episode, or None.
        marks: row and column of the cells that stand out.
        missing: text that explains cells without a value.
        is_sorted: whether the rows are sorted by share.
        is_of_tokens: whether the rows are tokens, so that their times are turns.
        led: the rows to which findings lead.
    """
    num = len(links)
    names = sorted(columns, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    texts = {name: [_text(name, value) for value in columns[name]] for name in names}
    absent = [name for name in names if num and all(text == _MISSING for text in texts[name])]
    marked = {name for _, name in marks}
    same, equal = [], []
    for name in names:
        if num < 2 or name in absent or name in _ALWAYS or name in marked:
            continue
        twin = next((other for other in names[: names.index(name)] if texts[other] == texts[name]), None)
        if len(set(texts[name])) == 1:
            same.append(name)
        elif twin is not None and twin not in _ALWAYS:
            equal.append((name, twin))
    hidden = {*absent, *same, *(name for name, _ in equal)}
    drawn = [name for name in names if name not in hidden]
    notes = []
    if same:
        values = ", ".join(f"{name_of(name, is_of_tokens)} {texts[name][0]}" for name in same)
        notes.append(f"The same in all rows, to 4 digits: {values}.")
    notes += [f"In all rows, {name_of(name, is_of_tokens)} equals {name_of(twin)} to 4 digits." for name, twin in equal]
    if absent:
        notes.append(f"Not known for any row: {', '.join(map(name_of, absent))}.")
    if any(_MISSING in texts[name] for name in drawn):
        notes.append(missing)
    most = max((float(share) for share in columns.get("share", ())), default=0.0) or 1.0
    is_text = {name: all(value is None or isinstance(value, str) for value in columns[name]) for name in drawn}
    labels = {name: escape(name_of(name, is_of_tokens)) for name in drawn}
    head = "".join(
        f'<th scope="col" data-name="{name}" class="{"text" if is_text[name] else ""}" '
        f'aria-sort="{"descending" if name == "share" and is_sorted else "none"}">'
        f'<button type="button" title="{escape(MEANINGS.get(name, ""))}">{labels[name]}</button></th>'
        for name in drawn
    )
    lines = []
    for i in range(num):
        tags = []
        for name in drawn:
            value, text = columns[name][i], texts[name][i]
            label = escape(text)
            if name in ("episode", "group") and value is not None:
                label = escape(brief_id(value))
                if name == "episode" and links[i] is not None:
                    label = f'<a href="{escape(str(links[i]))}">{label}</a>'
            style = f' style="--part:{100 * float(value or 0) / most:.1f}%"' if name == "share" else ""
            kind = " ".join(["text"] * is_text[name] + ["stands"] * ((i, name) in marks) + ["part"] * (name == "share"))
            exact = _exact(value)
            title = f' title="{escape(exact)}"' if is_text[name] and label != escape(exact) else ""
            tags.append(f'<td class="{kind}" data-v="{escape(exact)}"{title}{style}>{label}</td>')
        lines.append(f"<tr{' class=led' * (i in led)}>{''.join(tags)}</tr>")
    note = " ".join(filter(None, notes))
    below = f'<p class="note below">{escape(note)}</p>' if note else ""
    return (
        '<div class="rows"><div class="tools" hidden><input type="search" aria-label="filter" autocomplete="off" '
        'spellcheck="false" placeholder="filter: part of an id, or t &lt; 10 and share &gt; 0.01">'
        '<output></output></div><div class="wide" tabindex="0" role="region" aria-label="table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<button type="button" class="more" hidden></button>{below}</div>'
    )


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
        f"<dt>{escape(name_of(name))} <code>{escape(name)}</code></dt><dd>{escape(MEANINGS[name])}</dd>"
        for name in dict.fromkeys(names)
        if name in MEANINGS
    )
    words = "<h2>Columns</h2> what the names mean, and how filters call them"
    return f"<details><summary>{words}</summary><dl>{lines}</dl></details>"
