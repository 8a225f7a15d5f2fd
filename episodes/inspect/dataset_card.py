"""`write_card`: the README.md of a data set, as Hugging Face and other hosts show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument, UnreadableData
from episodes.inspect.formatting import clipped, number, size
from episodes.storage import EpisodeDataset, GameDataset
from episodes.storage.files import local_path, put, read_file
from episodes.storage.games import open_dataset
from episodes.storage.remote.upload import CARD

BEGIN, END = "<!-- begin of the generated part -->", "<!-- end of the generated part -->"
_BINS, _BAR = 10, 40  # rows of a histogram, and characters of its longest bar
_LICENSE = re.compile(r"[A-Za-z0-9.+-]+")
_MOST = 600  # characters of a space or of the metadata
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
_LARGER = ((10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"))


def write_card(
    path: str | Path, *, name: str | None = None, license: str | None = None, url: str | None = None
) -> Path:
    """Write the card of a data set, which is its file README.md, and return the path of the card.

    The card has the numbers of episodes and steps, endings, spaces, arrays, a histogram of returns, and how the data
    were made: environment, metadata, seeds and policy versions. It begins with the YAML block that Hugging Face reads.

    If there is a card already, the generated part between its two comments is replaced, and all other text stays.

    Args:
        path: the data set, a directory of this machine.
        name: the title. By default the name of the directory.
        license: license of the data as Hugging Face names it, such as "cc-by-4.0".
        url: where the data set will be read from, such as "hf://datasets/USER/NAME".

    Raises:
        InvalidArgument: there is a README.md without the two comments, which stays as it is, or `license` has
            characters other than letters, digits, ".", "+" and "-".
        UnreadableData: there is no data set, or it is damaged.
        ChunkMismatch: two chunks have one id and are not of one episode.
    """
    if license is not None and not _LICENSE.fullmatch(license):
        raise InvalidArgument(f"license={license!r}; give the short name of a license, such as 'cc-by-4.0'")
    directory = local_path(path)
    dataset = open_dataset(directory)
    title = clipped(name or directory.resolve().name)
    part = f"{BEGIN}\n\n{_body(dataset, url or directory.name)}\n{END}"
    file = directory / CARD
    if file.exists():
        text = _replaced(file, part)
    else:
        text = f"{_front_matter(dataset, title, license)}\n# {_plain(title)}\n\n{part}\n"
    put(file, text)
    return file


def _replaced(file: Path, part: str) -> str:
    """Return the text of an existing card with another generated part.

    Raises:
        InvalidArgument: the text has no generated part.
        UnreadableData: the text is not UTF-8.
    """
    try:
        before = read_file(file).decode()
    except UnicodeDecodeError as error:
        raise UnreadableData(f"{file} is not UTF-8: {error}; rename it") from error
    start, stop = before.find(BEGIN), before.rfind(END)  # a value may contain the second
    if start < 0 or stop < start:
        raise InvalidArgument(
            f"{file} has no generated part; rename it, or add the two lines {BEGIN} and {END} where the card belongs"
        )
    return before[:start] + part + before[stop + len(END) :]


def _front_matter(dataset: EpisodeDataset | GameDataset, title: str, license: str | None) -> str:
    """Return the YAML block. JSON texts are YAML texts, so that no value can add a line."""
    num_steps = sum(kind.num_steps for kind in _kinds(dataset))
    category = next((words for limit, words in (*_SIZES, *_LARGER) if num_steps < limit), "n>1T")
    lines = [f"pretty_name: {json.dumps(title, ensure_ascii=False)}"]
    if license is not None:
        lines.append(f"license: {json.dumps(license)}")
    lines += ["task_categories: [reinforcement-learning]", "tags: [reinforcement-learning, rl-episodes]"]
    lines += [f"size_categories: [{json.dumps(category)}]", "viewer: false"]
    return "\n".join(["---", *lines, "---", ""])


def _kinds(dataset: EpisodeDataset | GameDataset) -> Sequence[EpisodeDataset]:
    return dataset.kinds if isinstance(dataset, GameDataset) else (dataset,)


def _body(dataset: EpisodeDataset | GameDataset, url: str) -> str:
    """Return the generated part in Markdown."""
    kinds = _kinds(dataset)
    is_games = isinstance(dataset, GameDataset)
    reader = "GameDataset" if is_games else "EpisodeDataset"
    table = dataset.metadata
    source = json.dumps(url, ensure_ascii=False)
    blocks = [
        f"```python\nfrom episodes.storage import {reader}\n\ndataset = {reader}({source})\n```",
        _table(("", ""), _counts(dataset)),
    ]
    for kind in kinds:
        agents = sorted({str(agent) for agent in kind.metadata["agent_id"] if agent is not None}) if is_games else []
        title = f"## Data of {', '.join(map(_code, agents))}" if agents else "## Data"
        blocks += [title, _table(("", ""), _spaces(kind)), _table(("array", "dtype", "shape"), _arrays(kind))]
    returns, what = _returns(table)
    if len(returns):
        blocks += ["## Returns", f"Of {what}:", f"```\n{histogram(returns)}\n```"]
    blocks += ["## How it was made", _table(("", ""), _origin(dataset))]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _counts(dataset: EpisodeDataset | GameDataset) -> Iterable[tuple[str, str]]:
    table = dataset.metadata
    yield ("games" if isinstance(dataset, GameDataset) else "chunks of episodes"), str(len(dataset))
    if isinstance(dataset, EpisodeDataset):
        yield "complete episodes", str(int(_whole(table).sum()))
    yield "steps", str(sum(kind.num_steps for kind in _kinds(dataset)))
    yield "size", size(sum(kind.nbytes for kind in _kinds(dataset)))
    endings, counts = np.unique(np.asarray(table["ending"], str), return_counts=True)
    yield "endings", ", ".join(f"{count} {ending}" for ending, count in zip(endings, counts, strict=True))
    if isinstance(dataset, EpisodeDataset) and dataset.splits:
        yield "splits", ", ".join(f"{_code(name)} ({len(dataset.split(name))})" for name in dataset.splits)


def _whole(table: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which chunks are the last of a complete episode, bool [n]."""
    return np.asarray(table["is_complete"]) & (np.asarray(table["terminated"]) | np.asarray(table["truncated"]))


def _spaces(kind: EpisodeDataset) -> Iterable[tuple[str, str]]:
    for name, space in (("observation space", kind.observation_space), ("action space", kind.action_space)):
        yield name, "unknown" if space is None else _code(space)


def _arrays(kind: EpisodeDataset) -> Iterable[tuple[str, str, str]]:
    for path, field in kind.stored_header.tracks.items():
        yield _code(path), str(np.dtype(field.dtype)), str(list(field.shape))


def _returns(table: Mapping[str, np.ndarray]) -> tuple[np.ndarray, str]:
    """Return the returns of complete episodes, float64 [n], or if there are none, of all chunks; and their subject."""
    if "is_complete" not in table:
        return np.asarray(table["return"], float), "games"
    whole = _whole(table)
    if whole.any():
        return np.asarray(table["episode_return"], float)[whole], "complete episodes"
    return np.asarray(table["return"], float), "chunks of episodes"


def histogram(values: np.ndarray) -> str:
    """Return a histogram of numbers [n] as text, one line per bin, with a line for numbers that are not finite.

    >>> print(histogram(np.array([0.0, 1.0, 1.0, 4.0, np.nan])))
    0 to 0.4   ████████████████████                     1
    0.4 to 0.8                                          0
    0.8 to 1.2 ████████████████████████████████████████ 2
    1.2 to 1.6                                          0
    1.6 to 2                                            0
    2 to 2.4                                            0
    2.4 to 2.8                                          0
    2.8 to 3.2                                          0
    3.2 to 3.6                                          0
    3.6 to 4   ████████████████████                     1
    not finite ████████████████████                     1
    """
    finite = values[np.isfinite(values)]
    rows: list[tuple[str, int]] = []
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
        if low == high:
            rows.append((number(low), len(finite)))
        else:
            scale = max(abs(low), abs(high))  # of numbers whose difference is larger than the largest float
            counts, edges = np.histogram(finite / scale, _BINS, (low / scale, high / scale))
            names = [number(float(f"{edge * scale:.4g}")) for edge in edges]
            rows += [(f"{a} to {b}", int(n)) for a, b, n in zip(names[:-1], names[1:], counts, strict=True)]
    if len(finite) < len(values):
        rows.append(("not finite", len(values) - len(finite)))
    widest, highest = max(len(name) for name, _ in rows), max(count for _, count in rows)
    return "\n".join(f"{name:{widest}} {'█' * -(-count * _BAR // highest):{_BAR}} {count}" for name, count in rows)


def _origin(dataset: EpisodeDataset | GameDataset) -> Iterable[tuple[str, str]]:
    spec = dataset.env_spec
    yield "environment", "unknown" if spec is None else _code(getattr(spec, "id", spec))
    for key, value in sorted(getattr(spec, "kwargs", {}).items()):
        yield f"argument {_code(key)} of the environment", _code(value)
    for key, value in dataset.user_metadata.items():
        yield _plain(str(key)), _code(value)
    first = _kinds(dataset)[0]
    if len(first):
        for key, value in _dict(_dict(first[0].custom_data).get("source")).items():
            yield f"{_plain(str(key))} (of the source)", _code(value)
    for kind in _kinds(dataset)[:1]:
        table = kind.metadata
        lowest, highest = np.asarray(table["policy_version_min"]), np.asarray(table["policy_version_max"])
        if (lowest >= 0).any():
            yield "policy versions", f"{lowest[lowest >= 0].min()} to {highest.max()}"
        seeds = np.asarray(table["seed"])
        if (seeds >= 0).any():
            yield "seeds of resets", f"{seeds[seeds >= 0].min()} to {seeds.max()}"
        yield "writers", str(len(np.unique(np.asarray(table["writer"], str))))


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _plain(text: str) -> str:
    """Return a text of the data set in one line, without characters that Markdown or HTML give a meaning."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&~])", r"\\\1", clipped(text, _MOST))


def _code(value: object) -> str:
    """Return a value as one line of code in a Markdown table."""
    text = clipped(value, _MOST).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text or not text.strip() else ""
    return f"{fence}{space}{text}{space}{fence}"
