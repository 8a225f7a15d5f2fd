"""Cards of data sets: their numbers, the YAML block, texts of users, and what a second card changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import InvalidArgument, UnreadableData
from episodes.inspect import write_card
from episodes.inspect.dataset_card import BEGIN, END, histogram
from episodes.inspect.formatting import clipped
from episodes.storage import EpisodeDataset, EpisodeWriter, check, upload


def data_set(path: Path, returns: list[float], **options: Any) -> Path:
    with EpisodeWriter(path, **options) as writer:
        writer.add(
            [
                SingleAgentEpisode.from_arrays(
                    np.zeros((3, 2)),
                    [0, 1],
                    [value, 0.0],
                    terminated=n % 2 == 0,
                    id_=f"e{n}",
                    action_space=spaces.Discrete(2),
                )
                for n, value in enumerate(returns)
            ]
        )
    return path


def front_matter(text: str) -> dict[str, Any]:
    _, block, _ = re.split("^---$", text, maxsplit=2, flags=re.MULTILINE)
    return yaml.safe_load(block)


def rows(text: str) -> dict[str, str]:
    """Return the tables with two columns as one dict."""
    return dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE))


def test_card_has_the_numbers_of_the_data_set(tmp_path: Path) -> None:
    path = data_set(tmp_path / "walks", [1.0, 2.0, 5.0], env_spec="Walk-v0", metadata={"policy": "random"})
    text = write_card(path, license="mit", url="hf://datasets/me/walks").read_text()
    facts = rows(text)
    assert facts["chunks of episodes"] == "3"
    assert facts["complete episodes"] == "2"
    assert facts["steps"] == "6"
    assert facts["endings"] == "1 cut, 2 terminated"
    assert facts["action space"] == "`Discrete(2)`"
    assert (facts["environment"], facts["policy"]) == ("`Walk-v0`", "`random`")
    assert "| `observations` | float64 | [2] |" in text
    assert 'EpisodeDataset("hf://datasets/me/walks")' in text
    assert sum(int(count) for count in re.findall(r"^\S+ to \S+ .* (\d+)$", text, re.MULTILINE)) == 2
    assert front_matter(text) | {"tags": 0} == {
        "pretty_name": "walks",
        "license": "mit",
        "task_categories": ["reinforcement-learning"],
        "tags": 0,
        "size_categories": ["n<1K"],
        "viewer": False,
    }
    assert check(path).problems == []
    assert len(EpisodeDataset(path)) == 3


@pytest.mark.parametrize("text", ["a\n---\nlicense: x", "`|`` <b>", "", "#*_[x](y)", "\x1b[2J\u2028", END, "ü 漢 😀"])
def test_texts_of_users_stay_values(text: str, tmp_path: Path) -> None:
    path = data_set(tmp_path / "d", [1.0], metadata={f"key {text}": text, "last": 3}, env_spec=f"E{text}")
    first = write_card(path, name=text or None, license="mit").read_text()
    block = front_matter(first)
    assert block["pretty_name"] == (clipped(text) or "d")
    assert set(block) == {"pretty_name", "license", "task_categories", "tags", "size_categories", "viewer"}
    assert rows(first)["last"] == "`3`"
    assert not re.search(r"(?<!\\)[<`*_\[]", re.findall("^# .*$", first, re.MULTILINE)[0])
    assert not set(first) & {"\x1b", "\u2028"}
    assert write_card(path).read_text() == first


def test_second_card_keeps_own_text(tmp_path: Path) -> None:
    path = data_set(tmp_path / "d", [1.0])
    file = write_card(path)
    own = file.read_text().replace(BEGIN, f"Recorded by hand.\n\n{BEGIN}").replace(END, f"{END}\n\n## Thanks")
    file.write_text(own)
    data_set(path, [])
    with EpisodeWriter(path) as writer:
        writer.add([SingleAgentEpisode.from_arrays(np.zeros((2, 2)), [0], [1.0], id_="more")])
    text = write_card(path).read_text()
    assert rows(text)["steps"] == "3"
    assert text.split(BEGIN)[0] == own.split(BEGIN)[0]
    assert text.split(END)[1] == own.split(END)[1]


@pytest.mark.parametrize("content", [b"my text\n", END.encode() + BEGIN.encode(), b"\xff\xfe"])
def test_other_readme_is_kept_with_an_error(content: bytes, tmp_path: Path) -> None:
    path = data_set(tmp_path / "d", [1.0])
    (path / "README.md").write_bytes(content)
    with pytest.raises((InvalidArgument, UnreadableData), match=r"README\.md"):
        write_card(path)
    assert (path / "README.md").read_bytes() == content


@pytest.mark.parametrize("license", ["", "a\nb: c", "my own", '"'])
def test_license_is_a_short_name(license: str, tmp_path: Path) -> None:
    path = data_set(tmp_path / "d", [1.0])
    with pytest.raises(InvalidArgument, match=r"^license="):
        write_card(path, license=license)
    assert not (path / "README.md").exists()


def test_card_of_what_is_no_data_set_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnreadableData, match="not a data set"):
        write_card(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_card_of_an_empty_data_set(tmp_path: Path) -> None:
    assert rows(write_card(data_set(tmp_path / "d", [])).read_text())["steps"] == "0"


def test_card_of_games_lists_each_kind_of_agent(tmp_path: Path) -> None:
    game = MultiAgentEpisode(
        observations=[{"a": np.zeros(2), "b": np.zeros(3)}] * 2,
        actions=[{"a": 0, "b": 1.5}],
        rewards=[{"a": 1.0, "b": 2.0}],
        id_="g",
        terminateds={"__all__": True},
    )
    with EpisodeWriter(tmp_path / "d", several_kinds=True) as writer:
        writer.add([game])
    text = write_card(tmp_path / "d").read_text()
    assert rows(text)["games"] == "1"
    assert "## Data of `a`" in text
    assert "## Data of `b`" in text


def test_card_is_uploaded_with_the_data_set(tmp_path: Path) -> None:
    path = data_set(tmp_path / "d", [1.0])
    target = f"file://{tmp_path}/there"
    upload(path, target)
    assert not (tmp_path / "there/README.md").exists()
    for name in ("first", "second"):
        (path / "README.md").unlink(missing_ok=True)
        text = write_card(path, name=name).read_text()
        upload(path, target)
        assert (tmp_path / "there/README.md").read_text() == text
    assert len(EpisodeDataset(target, cache=tmp_path / "cache")) == 1


@given(st.lists(st.floats(), min_size=1, max_size=30))
def test_histogram_counts_every_number_once(values: list[float]) -> None:
    text = histogram(np.array(values))
    assert sum(int(line.rsplit(None, 1)[1]) for line in text.splitlines()) == len(values)
    assert len(text.splitlines()) <= 11
