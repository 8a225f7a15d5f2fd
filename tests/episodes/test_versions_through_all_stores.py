"""Random programs over all kinds of storage keep policy versions and acting pipelines, compared with a list."""

from __future__ import annotations

import copy
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from episodes import EpisodePack, SingleAgentEpisode
from episodes.facts.facts import new_id, random_ids
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, compact

VERSIONS = st.lists(st.integers(-1, 3), max_size=6)  # of steps; -1: nothing is told
PIPELINES = st.sampled_from([None, "{}", '{"views": [["scaled", {"by": 2.0}]]}', '{"views": [["ä", {}]]}'])
MOST = 12  # things in the pool, and episodes in a pack


class Versions(RuleBasedStateMachine):
    """Growing and finished episodes, packs, a replay buffer and a data set. A step's action is its index."""

    @initialize(capacity=st.integers(3, 40), seed=st.integers(0, 3))
    def begin(self, capacity: int, seed: int) -> None:
        self.truth: list[int] = []  # the version of each step, by number
        self.pipelines: list[str | None] = []  # the acting pipeline of each step, by number
        self.pool: list[Any] = []
        self.growing: list[SingleAgentEpisode] = []
        self.fed: list[SingleAgentEpisode] = []  # that go on, chunk by chunk, in the buffer
        self.buffer = EpisodeReplayBuffer(capacity, seed=seed)
        self.folder = Path(tempfile.mkdtemp())
        self.stored: list[int] = []  # the numbers of the steps on disk

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)
            for thing in self.pool:  # nothing that was made of it has changed it
                self.check(thing)

    # --- what is there, against the truth ---

    def check(self, thing: Any) -> None:
        if isinstance(thing, EpisodePack):
            rows = thing.actions[thing.step_rows()]
            assert thing.get_policy_versions().tolist() == self.wanted(rows)
            for episode in thing:
                self.check(episode)
            return
        expected = self.wanted(thing.get_actions())
        known = [version for version in expected if version >= 0]
        assert thing.get_policy_versions().tolist() == expected
        assert thing.policy_versions == ((min(known), max(known)) if known else None)
        for number in thing.get_actions():
            assert thing.acting_pipeline == self.pipelines[int(number)]

    def wanted(self, numbers: Any) -> list[int]:
        return [self.truth[int(number)] for number in numbers]

    def keep(self, thing: Any) -> None:
        self.check(thing)
        if not isinstance(thing, EpisodePack) or len(thing) <= MOST:
            self.pool = [*self.pool, thing][-MOST:]

    def of(self, kind: type) -> list[Any]:
        return [thing for thing in self.pool if isinstance(thing, kind)]

    # --- episodes ---

    def grown(self, episode: SingleAgentEpisode, versions: list[int]) -> SingleAgentEpisode:
        last = self.truth[int(episode.get_actions(-1))] if len(episode) else -1  # acts on where nothing is told
        for version in versions:
            recorded: dict[str, Any] = {"policy_version": version} if version >= 0 else {}
            last = recorded.get("policy_version", last)
            episode.add_env_step(np.ones(1), len(self.truth), 0.5, **recorded)
            self.truth.append(last)
            self.pipelines.append(episode.acting_pipeline)
        return episode

    def begun(self, pipeline: str | None) -> SingleAgentEpisode:
        episode = SingleAgentEpisode()
        episode.acting_pipeline = pipeline
        episode.add_env_reset(np.zeros(1))
        return episode

    @rule(versions=VERSIONS, pipeline=PIPELINES)
    def begin_an_episode(self, versions: list[int], pipeline: str | None) -> None:
        self.growing.append(self.grown(self.begun(pipeline), versions))
        self.keep(self.growing[-1])

    @precondition(lambda self: bool(self.growing))
    @rule(versions=VERSIONS, data=st.data())
    def go_on(self, versions: list[int], data: st.DataObject) -> None:
        self.check(self.grown(data.draw(st.sampled_from(self.growing)), versions))

    @precondition(lambda self: bool(self.growing))
    @rule(data=st.data(), lookback=st.integers(0, 3), versions=VERSIONS, joins=st.booleans())
    def cut_and_join(self, data: st.DataObject, lookback: int, versions: list[int], joins: bool) -> None:
        place = data.draw(st.integers(0, len(self.growing) - 1))
        head = self.growing[place]
        tail = self.growing[place] = self.grown(head.cut(lookback), versions)
        if joins:
            whole = copy.deepcopy(head)
            whole.concat_episode(tail)
            assert len(whole) == len(head) + len(tail)
            self.keep(whole)
        self.check(head)
        self.keep(tail)

    @precondition(lambda self: bool(self.of(SingleAgentEpisode)))
    @rule(data=st.data(), way=st.sampled_from(["finish", "pickle", "copy", "state", "window"]))
    def send_an_episode(self, data: st.DataObject, way: str) -> None:
        episode = data.draw(st.sampled_from(self.of(SingleAgentEpisode)))
        if way == "finish":
            self.keep(copy.deepcopy(episode).to_numpy())
        elif way == "pickle":
            self.keep(pickle.loads(pickle.dumps(episode)))
        elif way == "copy":
            self.keep(copy.deepcopy(episode))
        elif way == "state":
            self.keep(SingleAgentEpisode.from_state(episode.get_state()))
        else:
            first, last = sorted(data.draw(st.tuples(st.integers(0, len(episode)), st.integers(0, len(episode)))))
            self.keep(episode[first:last])

    # --- packs ---

    @precondition(lambda self: bool(self.of(SingleAgentEpisode)))
    @rule(data=st.data())
    def pack(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.of(SingleAgentEpisode)), min_size=1, max_size=5))
        self.keep(EpisodePack.from_episodes(chosen))

    @precondition(lambda self: bool(self.of(EpisodePack)))
    @rule(data=st.data(), way=st.sampled_from(["select", "part", "concat", "pickle", "wire", "copy", "replace"]))
    def send_a_pack(self, data: st.DataObject, way: str) -> None:
        from episodes.transport import wire

        packs = self.of(EpisodePack)
        pack = data.draw(st.sampled_from(packs))
        if way == "select":
            self.keep(pack.select(data.draw(st.lists(st.integers(0, max(len(pack) - 1, 0)), max_size=4 * bool(pack)))))
        elif way == "part":
            self.keep(pack[slice(*sorted(data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))))])
        elif way == "concat":
            self.keep(EpisodePack.concat(data.draw(st.lists(st.sampled_from(packs), min_size=1, max_size=3))))
        elif way == "pickle":
            self.keep(pickle.loads(pickle.dumps(pack, 5)))
        elif way == "wire":
            message = wire.encoded([pack], wire.Schemas())
            self.keep(wire.decoded(wire.layouts_of(message.schema), message.parts())[0])
        elif way == "copy":
            self.keep(pack.copied())
        else:
            self.keep(pack.replace(rewards=pack.rewards + 1.0))

    # --- replay ---

    @rule(data=st.data(), versions=VERSIONS, pipeline=PIPELINES, as_pack=st.booleans())
    def feed(self, data: st.DataObject, versions: list[int], pipeline: str | None, as_pack: bool) -> None:
        """Add a new episode, or the next chunk of an episode in the buffer."""
        place = data.draw(st.integers(0, len(self.fed)))
        if place == len(self.fed):
            self.fed.append(self.begun(pipeline))
        chunk = self.grown(self.fed[place], versions)
        self.fed[place] = chunk.cut(data.draw(st.integers(0, 2)))
        self.buffer.add(EpisodePack.from_episodes([chunk]) if as_pack else [chunk])

    @precondition(lambda self: len(self.buffer) > 0)
    @rule(n_step=st.integers(1, 3), restores=st.booleans())
    def draw(self, n_step: int, restores: bool) -> None:
        if restores:
            restored = EpisodeReplayBuffer(self.buffer.capacity, seed=9)
            restored.set_state(pickle.loads(pickle.dumps(self.buffer.get_state())))
            self.buffer = restored
        keys = ("actions", "policy_version")
        drawn = self.buffer.sample(8, n_step=n_step, keys=keys)
        assert drawn["policy_version"].tolist() == self.wanted(drawn["actions"])
        rows = self.buffer.sample_sequences(3, 4, keys=keys)
        is_real = rows["loss_mask"]
        assert rows["policy_version"][is_real].tolist() == self.wanted(rows["actions"][is_real])
        for thing in (*self.buffer.sample_episodes(2), *self.buffer.iter_packs(), *self.buffer.iter_episodes()):
            self.check(thing)

    # --- disk ---

    @precondition(lambda self: bool(self.pool))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        thing = data.draw(st.sampled_from(self.pool))
        with EpisodeWriter(self.folder / "data") as writer:
            if isinstance(thing, EpisodePack):  # an id belongs to one episode of a data set
                writer.add(thing.replace(ids=random_ids(len(thing))))
            else:
                thing = copy.copy(thing)
                thing.id_ = new_id()
                writer.add([thing])
        rows = thing.actions[thing.step_rows()] if isinstance(thing, EpisodePack) else thing.get_actions()
        self.stored += [int(number) for number in rows]

    @precondition(lambda self: bool(self.stored))
    @rule(compacts=st.booleans())
    def read(self, compacts: bool) -> None:
        if compacts:
            compact(self.folder / "data")
        dataset = EpisodeDataset(self.folder / "data")
        pack = dataset.pack()
        assert pack.actions[pack.step_rows()].tolist() == self.stored
        for thing in (pack, *dataset, *dataset.packs()):
            self.check(thing)
        longest = int(np.argmax(dataset.lengths))
        self.check(dataset.steps(longest, 1, int(dataset.lengths[longest])))
        filled = EpisodeReplayBuffer(100, seed=0)
        filled.add(pack.select(np.unique(pack.ids, return_index=True)[1]))
        for episode in filled.iter_episodes():
            self.check(episode)


TestVersions = Versions.TestCase
TestVersions.settings = settings(max_examples=20, stateful_step_count=25)
