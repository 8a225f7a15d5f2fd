"""`League`: self-play against frozen copies of earlier policies, with Elo ratings and a payoff matrix."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

import numpy as np

from episode_learners.algorithms.flat_optimizer import copied
from episodes.data_types import AgentID
from episodes.errors import InvalidArgument
from episodes.multi_agent import MultiAgentEpisode

if TYPE_CHECKING:
    from episode_learners.trainers.trainer import Trainer
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["League"]

Rule = Literal["latest", "uniform", "prioritized"]


class League:
    """Trainer hook for self-play: opponents play with frozen weights (snapshots) of the learning policies, and all
    players are rated by their games.

    A player is a learning module as it is now ("main") or a snapshot of it ("main-1", "main-2", ...). After each
    `every` updates, or once a learner wins at least `win_rate` of its latest games against its opponents, the learner's
    weights become a new snapshot. Then each opponent module gets the weights of a snapshot chosen by `rule`, and new
    episodes begin. `mapping_fn` makes the runner's `agent_to_module_mapping_fn`.

    The results of all sampled episodes update the Elo ratings and the payoff matrix. An episode counts for each pair of
    its players: the one with the higher return wins. Checkpoints of the trainer include the league.

    Args:
        learners: ids of the modules that learn.
        opponents: ids of the frozen modules that play as snapshots. Their policies are like the learners'.
        rule: how opponents are chosen. "latest": the newest snapshot. "uniform": each with the same probability.
            "prioritized": with a probability proportional to (1 - the learners' win rate against it) ** `power`.
        every: updates between two snapshots.
        win_rate: share of wins in the latest `window` games that leads to a snapshot before that; None: never.
        window: number of latest games that count for `win_rate`.
        power: see `rule`.
        elo_step: largest change of a rating by one game (K).
        seed: seed of the choices.

    Raises:
        InvalidArgument: `rule` is not one of these names.

    >>> league = League(["main"], ["opponent"])
    >>> league.add_result("main", "main-1", 1.0)  # a win of "main"
    >>> {player: round(rating) for player, rating in league.ratings.items()}
    {'main': 1016, 'main-1': 984}
    >>> names, wins = league.payoff_matrix()
    >>> names, wins.tolist()
    (['main', 'main-1'], [[nan, 1.0], [0.0, nan]])
    """

    def __init__(
        self,
        learners: Sequence[Hashable],
        opponents: Sequence[Hashable],
        *,
        rule: Rule = "prioritized",
        every: int = 10,
        win_rate: float | None = None,
        window: int = 50,
        power: float = 1.0,
        elo_step: float = 32.0,
        seed: int = 0,
    ) -> None:
        if rule not in ("latest", "uniform", "prioritized"):
            raise InvalidArgument(f"League: rule is {rule!r}; it must be 'latest', 'uniform' or 'prioritized'")
        self.learners, self.opponents, self.rule = list(learners), list(opponents), rule
        self.every, self.win_rate, self.window = every, win_rate, window
        self.power, self.elo_step = power, elo_step
        self.generator = np.random.default_rng(seed)
        self.snapshots: dict[str, dict[str, Any]] = {}  # weights by player
        self.players: dict[Hashable, str] = {}  # the snapshot that each opponent module plays as
        self.ratings: dict[str, float] = {}
        self.results: dict[tuple[str, str], list[float]] = {}  # (player, other): [points, games]
        self._latest: list[float] = []  # points of the learners against opponents since the last snapshot
        self._num_updates = 0  # since the last snapshot
        self._returns: dict[str, dict[Any, float]] = {}  # of the agents of ongoing episodes, by episode

    # --- results -----------------------------------------------------------------------------------------------------

    def add_result(self, player: str, opponent: str, points: float) -> None:
        """Add the result of a game, and update both Elo ratings: `points` of `player` are 1 for a win, 0.5 for a draw
        and 0 for a loss.
        """
        for name, opponent_name, scored in ((player, opponent, points), (opponent, player, 1.0 - points)):
            counts = self.results.setdefault((name, opponent_name), [0.0, 0.0])
            counts[0] += scored
            counts[1] += 1.0
        ratings = [self.ratings.setdefault(name, 1000.0) for name in (player, opponent)]
        expected = 1.0 / (1.0 + 10.0 ** ((ratings[1] - ratings[0]) / 400.0))
        self.ratings[player] += self.elo_step * (points - expected)
        self.ratings[opponent] -= self.elo_step * (points - expected)

    def payoff_matrix(self) -> tuple[list[str], np.ndarray]:
        """Return the names of the n players, and the mean points [n, n] of the player of each row against the player of
        each column. It is NaN for pairs without games.
        """
        names = list(self.ratings)
        matrix = np.full((len(names), len(names)), np.nan)
        for (player, opponent), (points, games) in self.results.items():
            matrix[names.index(player), names.index(opponent)] = points / games
        return names, matrix

    def player_of(self, module_id: Hashable) -> str:
        """Return the name of the player (learner or snapshot) whose weights are currently loaded in the module
        `module_id`.
        """
        return self.players.get(module_id, str(module_id))

    def on_collect(self, trainer: Trainer[Any], episodes: Sequence[MultiAgentEpisode]) -> None:
        """Count each sampled episode that has ended as a game between its agents' players. The trainer calls this hook
        after each collection.
        """
        for chunk in episodes:
            returns = self._returns.setdefault(chunk.id_, {})
            for agent_id, value in chunk.get_returns().items():
                returns[agent_id] = returns.get(agent_id, 0.0) + value
            if chunk.is_done:
                scored = [
                    (chunk.module_for(agent_id), value) for agent_id, value in self._returns.pop(chunk.id_).items()
                ]
                for i, (module_id, value) in enumerate(scored):
                    for other_id, other_value in scored[i + 1 :]:
                        self._count_game(module_id, other_id, 0.5 + 0.5 * float(np.sign(value - other_value)))

    def _count_game(self, module_id: Hashable, other_id: Hashable, points: float) -> None:
        """Add the result of a game between the players of two modules, given the points of `module_id`.

        Games before the first snapshot do not count.
        """
        if any(module in self.opponents and module not in self.players for module in (module_id, other_id)):
            return  # before the first snapshot
        player, opponent = self.player_of(module_id), self.player_of(other_id)
        if player != opponent:
            self.add_result(player, opponent, points)
        if (module_id in self.learners) != (other_id in self.learners):
            points = points if module_id in self.learners else 1.0 - points
            self._latest = [*self._latest, points][-self.window :]

    # --- opponents ---------------------------------------------------------------------------------------------------

    def on_update(self, trainer: Any, metrics: Mapping[str, float]) -> None:
        """Take snapshots of the learners and choose new opponents, if `every` updates have passed or the learners win
        often enough. The trainer calls this hook after each update.

        Raises:
            InvalidArgument: an opponent is trained.
        """
        trained = [module_id for module_id in self.opponents if module_id in trainer.algorithm.train_ids]
        if trained:
            raise InvalidArgument(f"League: the opponents {trained} are trained; freeze them in the algorithm")
        self._num_updates += 1
        is_full = len(self._latest) == self.window
        is_better = self.win_rate is not None and is_full and np.mean(self._latest) >= self.win_rate
        if not self.snapshots or self._num_updates >= self.every or is_better:
            self.take_snapshots(trainer)
            self.choose_opponents(trainer)

    def take_snapshots(self, trainer: Any) -> None:
        """Store a copy of each learner's weights as a new player, which starts with the learner's Elo rating."""
        for module_id in self.learners:
            number = 1 + sum(name.rpartition("-")[0] == str(module_id) for name in self.snapshots)
            weights = trainer.algorithm[module_id].policy.state_dict()
            self.snapshots[f"{module_id}-{number}"] = {name: copied(value) for name, value in weights.items()}
            self.ratings[f"{module_id}-{number}"] = self.ratings.setdefault(str(module_id), 1000.0)
        self._num_updates, self._latest = 0, []

    def choose_opponents(self, trainer: Any) -> None:
        """Choose a snapshot for each opponent module by the league's rule, load its weights into the module, and begin
        new episodes.
        """
        names = list(self.snapshots)
        weights = np.ones(len(names))
        if self.rule == "prioritized":
            weights = np.array([(1.0 - self._win_rate_against(name)) ** self.power for name in names]) + 1e-3
        for module_id in self.opponents:
            newest = names[-1 - int(self.generator.integers(len(self.learners)))]  # one of the newest of each learner
            name = newest if self.rule == "latest" else str(self.generator.choice(names, p=weights / weights.sum()))
            self.players[module_id] = name
            trainer.algorithm[module_id].policy.load_state_dict(self.snapshots[name])
        self._returns.clear()
        trainer.begin_new_episodes()

    def _win_rate_against(self, player: str) -> float:
        """Return the mean points of all learners in games against the player `player`, or 0.5 if there was no game."""
        counts = [
            self.results[str(learner), player] for learner in self.learners if (str(learner), player) in self.results
        ]
        points, games = (sum(count[i] for count in counts) for i in range(2))
        return points / games if games else 0.5

    # --- state -------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return snapshots, ratings, results and random state as plain values and tensors, for checkpoints."""
        names = ("snapshots", "players", "ratings", "_latest", "_num_updates")
        results = [[*pair, *counts] for pair, counts in self.results.items()]
        state = {name: getattr(self, name) for name in names}
        return {**state, "results": results, "generator": self.generator.bit_generator.state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. The caller must begin new episodes afterwards, as trainers do
        after each checkpoint.
        """
        for name in ("snapshots", "players", "ratings", "_latest"):
            setattr(self, name, type(state[name])(state[name]))
        self._num_updates = state["_num_updates"]
        self.results = {(player, opponent): [points, games] for player, opponent, points, games in state["results"]}
        self.generator.bit_generator.state = state["generator"]
        self._returns = {}

    def mapping_fn(self, agents: Sequence[Any]) -> Callable[[Any, Any], Hashable]:
        """Return a function for the runner's `agent_to_module_mapping_fn`, by which one of `agents` plays as a learner
        in each episode, and the others as opponents.

        The first half of an episode's id determines the learning agent, its module and the opponents' modules, which
        therefore vary from episode to episode.
        """

        def module_of(agent_id: AgentID, episode: SingleAgentEpisode | MultiAgentEpisode) -> Hashable:
            """Return the id of the module (learner or opponent) that an agent plays with in an episode, computed from
            the episode's id.
            """
            number = crc32(str(episode.id_)[:16].encode())  # the half that follows from the runner's seed
            place = (list(agents).index(agent_id) - number) % len(agents)
            modules = self.learners if place == 0 else self.opponents
            return modules[(number // len(agents) + place) % len(modules)]

        return module_of
