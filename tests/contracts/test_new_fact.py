"""A new fact of an episode, as in the docstring of `FACTS`: each place carries it, or names it.

The new fact is written into a copy of the package, which a process of its own imports.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.code_rules import ROOT

FACTS = "facts/facts.py"
NEW_FACT = {
    '    "acting_pipeline": FactKind.TEXT,\n': '    "difficulty": FactKind.KIND,\n',
    "    acting_pipeline: str | None = None": "    difficulty: Any = None\n",
    "    acting_pipelines: Any = None": "    difficulties: Any = None\n",
}
"""Lines of facts.py, and what is written behind each of them."""

PLACES = """
import copy, json, pickle, sys
from pathlib import Path

import numpy as np
from gymnasium import spaces

from episodes import EpisodePack, SingleAgentEpisode
from episodes.converters import formats, rllib_states
from episodes.converters.loss_report import LossReport, report_dropped_facts
from episodes.converters.ray_data import complete_table
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.transport.wire import Schemas, decoded, encoded, layouts_of

assert sys.modules["episodes"].__file__.startswith(sys.path[0])
folder, value = Path(sys.argv[1]), eval(sys.argv[2])
episode = SingleAgentEpisode.from_arrays(
    np.zeros((5, 2), np.float32),
    np.arange(4),
    np.ones(4),
    terminated=True,
    id_="e0",
    agent_id="a",
    observation_space=spaces.Box(-1, 1, (2,), np.float32),
    action_space=spaces.Discrete(4),
)
episode.facts = episode.facts._replace(difficulty=value)
start, end = episode[:2], episode[2:]
pack = EpisodePack.from_episodes([start, end])
with EpisodeWriter(folder / "data") as writer:
    writer.add(pack)
dataset = EpisodeDataset(folder / "data")
buffer, restored = EpisodeReplayBuffer(20), EpisodeReplayBuffer(20)
buffer.add(episode)
restored.set_state(copy.deepcopy(buffer.get_state()))
message = encoded([pack], Schemas())
start.concat_episode(end)
carriers = {
    "packs": pack[1],
    "slices of packs": pack[1:][0],
    "selections": pack.select([1, 0])[0],
    "concatenations": EpisodePack.concat([pack, pack])[3],
    "slices": end,
    "joined chunks": start,
    "pickled episodes": pickle.loads(pickle.dumps(episode)),
    "pickled packs": pickle.loads(pickle.dumps(pack))[1],
    "states": SingleAgentEpisode.from_state(episode.get_state()),
    "files": dataset[1],
    "messages": decoded(layouts_of(message.schema), [bytes(part) for part in message.parts()])[0][1],
    "replay": next(buffer.iter_episodes()),
    "states of replay": next(restored.iter_episodes()),
}
assert dataset.metadata["difficulty"].tolist() == [value, value]
lost = [name for name, carrier in carriers.items() if carrier.facts.difficulty != value]

def write(name):
    target = "new-fact/data-v0" if name == "minari" else folder / name
    return formats.write([episode], target, name)

def in_report(convert):
    report = LossReport()
    convert(report)
    return report

reports = {
    **{name: write(name) for name in ("lerobot", "minari", "parquet")},
    "tables for Ray": in_report(lambda report: complete_table(pack, report)),
    "RLlib": in_report(lambda report: rllib_states.state_of(episode, report)),
    "others": in_report(lambda report: report_dropped_facts(report, episode, "it")),
}
silent = [name for name, report in reports.items() if "difficulty" not in {loss.what for loss in report}]
print(json.dumps({"lost": lost, "silent": silent, "reports": len(reports)}))
"""


def copied_package(folder: Path, more: dict[str, dict[str, str]]) -> Path:
    """Copy the package to `folder`, and write each text of `more` (by file and line) behind that line."""
    shutil.copytree(ROOT / "episodes", folder / "episodes", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "rl_episodes.py", folder)
    for name, additions in more.items():
        lines = (folder / "episodes" / name).read_text().splitlines(keepends=True)
        for start, text in additions.items():
            (place,) = (i for i, line in enumerate(lines) if line.startswith(start.rstrip("\n")))
            lines.insert(place + 1, text)
        (folder / "episodes" / name).write_text("".join(lines))
    return folder


def run(package: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (package / "script.py").write_text(code)
    command = [sys.executable, str(package / "script.py"), *arguments]
    environment = {"PATH": "", "HOME": str(package), "MINARI_DATASETS_PATH": str(package / "minari")}
    return subprocess.run(command, capture_output=True, text=True, cwd=package, env=environment, timeout=300)


@pytest.mark.parametrize(("kind", "value"), [("TEXT", "hard"), ("OPTIONAL_ID", ("hard", 1))])
def test_a_new_fact_is_carried_or_reported(kind: str, value: object, tmp_path: Path) -> None:
    new = {line: text.replace("KIND", kind) for line, text in NEW_FACT.items()}
    package = copied_package(tmp_path / "package", {FACTS: new})
    result = run(package, PLACES, str(tmp_path), repr(value))
    assert not result.returncode, result.stderr
    assert json.loads(result.stdout) == {"lost": [], "silent": [], "reports": 6}


@pytest.mark.parametrize("module", ["episodes.storage.episode_rows", "episodes.transport.facts_codec"])
def test_a_new_kind_of_facts_is_rejected_where_it_has_no_form(module: str, tmp_path: Path) -> None:
    new = {line: text.replace("KIND", "DECIMAL") for line, text in NEW_FACT.items()}
    new |= {'    TEXT = "text"': '    DECIMAL = "decimal"\n', "_MAKE |=": "_MAKE |= {FactKind.DECIMAL: objects}\n"}
    package = copied_package(tmp_path / "package", {FACTS: new})
    use = "\nfrom episodes.storage.episode_rows import row_fields\nrow_fields()" if "rows" in module else ""
    result = run(package, f"import episodes.facts\nprint('facts')\nimport {module}{use}")
    assert result.returncode
    assert "DECIMAL" in result.stderr
    assert result.stdout == "facts\n"
