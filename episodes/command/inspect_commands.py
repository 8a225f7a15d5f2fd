"""Commands that display a data set: `episodes info`, `show`, `record`, `report` and `watch`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from episodes.command.choosing import chosen_episode, is_of_games, no_episodes, opened
from episodes.command.opening import data_path_or_same, local
from episodes.command.printing import Directory, Json, finite, print_json, print_table, text
from episodes.command.terminal import say, say_wrapped, visible
from episodes.command.track_tables import TrackRow, measured, print_measures, print_tracks, summarized
from episodes.errors import InvalidArgument, MissingExtra, install_advice

if TYPE_CHECKING:
    import gymnasium as gym

    from episodes.inspect.series import Series
    from episodes.multi_agent import MultiAgentEpisode
    from episodes.multi_agent.timeline import Timeline
    from episodes.single_agent import SingleAgentEpisode
    from episodes.storage import EpisodeDataset, GameDataset

Decode = Annotated[str | None, typer.Option(help="Function MODULE:NAME from token ids to text.")]
MOST_GAMES = 200  # in a page
MOST_OTHERS = 5  # agents of a game that are listed


def info(
    directory: Directory,
    stats: Annotated[bool, typer.Option("--stats", help="Statistics of each track, which reads all tracks.")] = False,
    json: Json = False,
) -> None:
    """Print a summary of a data set: its tracks, numbers of episodes and steps, returns, lengths, endings and spaces.

    The ranges of the tracks are those of all episodes of a small data set, else of 8 episodes. Of games whose agents
    are of several kinds, it lists the kinds.
    """
    from episodes.inspect.formatting import counted, size
    from episodes.inspect.schema import read_schema

    dataset = opened(directory)
    found = _facts_of_games(dataset) if is_of_games(dataset) else _facts(dataset)
    facts: dict[str, Any] = {"path": str(directory), **found, "statistics": summarized(measured(dataset))}
    schema = read_schema(dataset)
    tracks = _statistics(dataset) if stats else []
    if json:
        schema_facts = [
            _track_facts(track.series) | {"track": track.path, "space": track.space} for track in schema.tracks
        ]
        print_json(facts | {"schema": schema_facts} | ({"tracks": tracks} if stats else {}))
        return
    of_agents = facts.get("games") and "episodes" in facts  # in a game, each agent has an episode
    lines = {
        f"{name} of agents" if of_agents and name in ("episodes", "steps") else name: facts[name] for name in facts
    }
    for n, kind in enumerate(lines.pop("kinds", ())):
        counts = ", ".join(counted(kind[noun], noun.removesuffix("s")) for noun in ("episodes", "steps"))
        lines[f"kind {n}"] = f"{', '.join(kind['agents'])}: {counts}"
        lines |= {f"kind {n}, {name}": kind[name] for name in ("observation space", "action space")}
    of_defects = ("recovered", "incomplete games")  # 0 is not worth a line
    in_table = (*("mean return", "lowest return", "highest return"), "mean return of complete episodes", "statistics")
    lines = {name: value for name, value in lines.items() if name not in in_table}
    if any(track.space for track in schema.tracks):  # they are in the table of tracks
        lines = {name: value for name, value in lines.items() if name not in ("observation space", "action space")}
    lines["bytes"] = size(facts["bytes"])
    counts_by_name = ("endings", "splits", "unread")
    shown = {
        name: value
        for name, value in lines.items()
        if value not in (None, {}, "") and (value or name not in of_defects)
    }
    print_table(("", ""), [(name, _fact(value, name in counts_by_name)) for name, value in shown.items()])
    if not len(dataset):
        say_wrapped(no_episodes(directory))
        return
    say("")
    print_measures(facts["statistics"])
    say(f"\nranges {schema.extent}")
    print_tracks([TrackRow(track.path, track.item_shape, track.series, track.defects) for track in schema.tracks])
    if tracks:
        say("")
        titles = [{"lowest": "min", "highest": "max"}.get(name, name) for name in tracks[0]]
        print_table(titles, [[text(value) for value in row.values()] for row in tracks])


def _fact(value: object, is_of_counts: bool) -> str:
    """Return a fact as text, whole numbers with separators.

    Args:
        is_of_counts: whether a dict has counts, and not values of a user.
    """
    if isinstance(value, dict) and is_of_counts:
        return text({name: _fact(count, False) for name, count in value.items()})
    return f"{value:,}" if type(value) is int else text(value)


def _facts(dataset: EpisodeDataset) -> dict[str, Any]:
    """Return what `info` prints of a data set of episodes."""
    returns, endings = (dataset.metadata[name].tolist() for name in ("return", "ending"))
    is_done = dataset.metadata["terminated"] | dataset.metadata["truncated"]
    whole = dataset.metadata["episode_return"][dataset.metadata["is_complete"] & is_done].tolist()
    spec = dataset.env_spec
    return {
        "environment": getattr(spec, "id", spec),
        "games": len({*dataset.metadata["multi_agent_episode_id"].tolist()} - {None}) or None,
        "episodes": len(dataset),
        "steps": dataset.num_steps,
        "bytes": dataset.nbytes,
        **_return_facts(returns),
        "complete episodes": len(whole),
        "mean return of complete episodes": _return_facts(whole)["mean return"],
        "endings": {ending: endings.count(ending) for ending in dict.fromkeys(endings)},
        "observation space": _spaces_text(dataset.observation_space),
        "action space": _spaces_text(dataset.action_space),
        "metadata": dataset.user_metadata,
        "splits": {name: len(dataset.split(name)) for name in dataset.splits},
        "recovered": dataset.recovered,
        "unread": dataset.unread,
    }


def _return_facts(returns: list[float]) -> dict[str, float | None]:
    """Return mean, lowest and highest of returns. NaN is skipped, and None is in place of no number and infinities."""
    known = [value for value in returns if value == value]
    numbers = (sum(known) / len(known), min(known), max(known)) if known else (None,) * 3
    return dict(zip(("mean return", "lowest return", "highest return"), map(finite, numbers), strict=True))


def _facts_of_games(dataset: GameDataset) -> dict[str, Any]:
    """Return what `info` prints of a data set of games: returns, endings, and facts of each kind of agents."""
    table, spec = dataset.metadata, dataset.env_spec
    returns, endings = table["return"].tolist(), table["ending"].tolist()
    kinds = [
        {
            "path": str(kind.path),
            "agents": [str(agent) for agent in dict.fromkeys(kind.metadata["agent_id"].tolist())],
            "episodes": len(kind),
            "steps": kind.num_steps,
            "observation space": _spaces_text(kind.observation_space),
            "action space": _spaces_text(kind.action_space),
        }
        for kind in dataset.kinds
    ]
    return {
        "environment": getattr(spec, "id", spec),
        "games": len(dataset),
        "env steps": int(table["length"].sum()),
        "incomplete games": dataset.incomplete,
        "bytes": sum(kind.nbytes for kind in dataset.kinds),
        **_return_facts(returns),
        "endings": {ending: endings.count(ending) for ending in dict.fromkeys(endings)},
        "kinds": kinds,
        "metadata": dataset.user_metadata,
    }


def _spaces_text(space: Any) -> str:
    """Return a nested space as text, "" for None."""
    from episodes.inspect.schema import spaces_text

    return "" if space is None else text(spaces_text(space))


def show(
    directory: Directory,
    episode: Annotated[
        str, typer.Option(help="An id, also of a game, the beginning of an id, or an index; -1 is the last.")
    ] = "0",
    html: Annotated[Path | None, typer.Option(parser=local, help="Write the episode as HTML to this file.")] = None,
    decode: Decode = None,
    json: Json = False,
) -> None:
    """Print shape, dtype, minimum, mean and maximum of each array of one episode, or write an HTML view.

    The turns of a language agent are printed too. A game has a table per agent.
    """
    dataset = opened(directory)
    chosen = chosen_episode(dataset, episode)
    lines, function = _timelines(chosen), _function(decode)
    agents = {agent: line.episode for agent, line in lines.items()}
    if html is not None:
        html.write_text(_page(chosen, function), encoding="utf-8")
        say(f"{html}: {in_a_line(chosen)}")
        return
    if json:
        if not agents:
            print_json(_facts_of_episode(chosen))
            return
        total = finite(chosen.get_return(include_pending=False))
        parts = {str(agent): _facts_of_episode(each) for agent, each in agents.items()}
        print_json({"id": str(chosen.id_), "length": len(chosen), "return": total, "agents": parts})
        return
    say(in_a_line(chosen))
    if (game := getattr(chosen, "multi_agent_episode_id", None)) is not None:
        say_wrapped(_others_of_game(dataset, game, chosen.agent_id))
    if not agents:
        _print_tracks(chosen, function)
    for agent, each in agents.items():
        say(f"\n{agent}: {in_a_line(each)}")
        _print_tracks(each, function, lines[agent])


def _timelines(episode: SingleAgentEpisode | MultiAgentEpisode) -> dict[Any, Timeline]:
    """Return the timeline of each agent of a game, none of the episode of one agent."""
    from episodes.multi_agent import MultiAgentEpisode

    return dict(episode.agents.timelines) if isinstance(episode, MultiAgentEpisode) else {}


def in_a_line(episode: SingleAgentEpisode | MultiAgentEpisode) -> str:
    """Return an episode in a line: id, length, agents, return and ending, as its card begins."""
    from episodes.inspect.formatting import clipped, counted, ended, number, shortened
    from episodes.multi_agent import MultiAgentEpisode
    from episodes.multi_agent.timeline import WAITS

    if isinstance(episode, MultiAgentEpisode):
        lines = episode.agents.timelines.values()
        waiting = sum(line.phase == WAITS for line in lines)
        parts = [counted(len(episode), "env step"), counted(len(lines), "agent")]
        parts += [f"{waiting} pending"] if waiting else []
        is_cut = episode.agents.passed_on is not None
    else:
        parts = [counted(len(episode), "step")]
        parts += [f"agent {clipped(episode.agent_id)}"] if episode.agent_id is not None else []
        is_cut = episode.tracks.is_finished
    facts = episode.facts
    parts[0] += f" from t={facts.t_started}" if facts.t_started else ""
    parts += [f"return {number(episode.get_return())}", ended(facts.ending, is_cut)]
    return f"{type(episode).__name__}({shortened(facts.id_)}: {', '.join(parts)})"


def _others_of_game(dataset: EpisodeDataset, game: object, agent: object) -> str:
    """Return the game of an agent's episode, and the positions of the episodes of its other agents."""
    from episodes.inspect.formatting import clipped

    table = dataset.metadata
    games, agents = table["multi_agent_episode_id"].tolist(), table["agent_id"].tolist()
    others = [(n, each) for n, each in enumerate(agents) if games[n] == game and each != agent]
    names = [f"{clipped(each)} (--episode {n})" for n, each in others[:MOST_OTHERS]]
    names += [f"{len(others) - MOST_OTHERS:,} more"] * (len(others) > MOST_OTHERS)
    rest = f"the other episodes of the game are those of {', '.join(names)}" if others else "no other agent is stored"
    return f"agent {clipped(agent)} of game {clipped(game)}; {rest}"


def _facts_of_episode(episode: SingleAgentEpisode) -> dict[str, Any]:
    """Return what `show --json` prints of the episode of one agent."""
    from episodes.inspect.series import of_tracks

    facts = {"id": str(episode.id_), "length": len(episode), "return": finite(episode.get_return())}
    if (game := episode.multi_agent_episode_id) is not None:
        facts |= {"agent_id": str(episode.agent_id), "multi_agent_episode_id": str(game)}
    return facts | {"tracks": list(map(_track_facts, of_tracks(episode.tracks)))}


def _print_tracks(
    episode: SingleAgentEpisode, decode: Callable[[list[int]], str] | None, line: Timeline | None = None
) -> None:
    """Print a table of the arrays of an episode, and the turns of a language agent.

    Args:
        line: timeline of the agent in a game.
    """
    from episodes.inspect.conversation import is_conversation, view_conversation
    from episodes.inspect.schema import place_in_episode, with_spaces
    from episodes.inspect.series import of_tracks

    rows = []
    facts, place = episode.facts, place_in_episode(episode, line)
    for series in with_spaces(of_tracks(episode.tracks), facts.observation_space, facts.action_space):
        defects = series.defects_text(partial(place, series)) if series.is_numeric else ""
        rows.append(TrackRow(series.label, series.shape_text, series, defects))
    print_tracks(rows)
    if is_conversation(episode):
        say("")
        if decode is None:
            say_wrapped("turns as token ids; --decode MODULE:NAME, a function from ids to text, prints text")
        say_wrapped(view_conversation(episode, decode=decode))


def _function(name: str | None) -> Any:
    """Import and return the function named "MODULE:NAME". Raise `typer.BadParameter` if it does not exist.

    Returns None for None.
    """
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(
            f"--decode {name}: {error}; give MODULE:NAME, with the module in a folder of PYTHONPATH"
        ) from None
    if not callable(function):
        raise typer.BadParameter(f"--decode {name}: {type(function).__name__} is not a function; give MODULE:NAME")
    return function


def _track_facts(series: Series) -> dict[str, Any]:
    """Return the statistics of a time series as a dict for JSON, in which None replaces NaN and infinities."""
    shape = [None if length < 0 else length for length in series.shape]  # of ragged items
    facts = {"track": series.label, "shape": shape, "dtype": series.dtype}
    if not series.is_numeric:
        return facts
    stats = dict(zip(("lowest", "mean", "highest"), map(finite, series.range), strict=True))
    return facts | stats | series.counts._asdict()


def record(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", parser=local, help="The data set, created if it does not exist.")
    ],
    env: Annotated[str, typer.Option("--env", help="The id of a Gymnasium environment.")],
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the environment and of the actions.")] = 0,
    max_steps: Annotated[int, typer.Option(min=1, help="Truncate an episode after this number of steps.")] = 10_000,
) -> None:
    """Record episodes with random actions into a data set. Ctrl-C stops early and keeps complete episodes."""
    import gymnasium as gym

    from episodes.storage import EpisodeWriter

    try:
        made = gym.make(env)
    except gym.error.Error as error:
        raise InvalidArgument(f"--env {env}: {error}") from error
    made.action_space.seed(seed)
    steps = count = 0
    is_interrupted = False
    with made, EpisodeWriter(directory, env_spec=env, metadata={"policy": "random"}) as writer:
        try:
            for n in _progress(range(episodes), "recording"):
                episode = _random_episode(made, seed + n, max_steps)
                writer.add([episode])
                steps, count = steps + len(episode), count + 1
        except KeyboardInterrupt:
            is_interrupted = True
    say(f"{directory}: {'interrupted after ' if is_interrupted else ''}{count} episodes, {steps} steps")
    raise typer.Exit(130 if is_interrupted else 0)


def report(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A data set, also in another format, or the folder of a run.")
    ],
    html: Annotated[Path, typer.Option(parser=local, help="The file to write.")],
    doctor: Annotated[bool, typer.Option("--doctor", help="List what `episodes doctor` finds on the page.")] = False,
    decode: Decode = None,
) -> None:
    """Write a single HTML page that shows all episodes: charts, a table, arrays and frames. It works offline.

    Of games whose agents are of several kinds, it shows the first 200, with a timeline for each agent. The progress is
    shown on stderr. Ctrl-C leaves the file as it was. Of a training run, the page shows what stands out, and explains
    the updates that show it.
    """
    _check_jinja2()
    from episodes.inspect.training_page import is_run
    from episodes.storage.header import is_data_set

    if is_run(Path(directory)) and not is_data_set(Path(directory)):
        from episodes.inspect.run_findings_page import run_report

        html.write_text(run_report(Path(directory)), encoding="utf-8")
        say(f"{html}: run {Path(directory).name}")
        return
    from episodes.inspect.doctor.examine import examine
    from episodes.inspect.html import games_page
    from episodes.inspect.html_report import write_report

    dataset = opened(directory)
    if is_of_games(dataset):
        if doctor:
            raise InvalidArgument(
                f"--doctor: {directory} has agents of several kinds; give one kind: {dataset.kinds[0].path}"
            )
        html.write_text(games_page(dataset, MOST_GAMES), encoding="utf-8")
        say(f"{html}: {len(dataset)} games, {html.stat().st_size / 1e6:.1f} MB")
        return
    function = _function(decode)
    try:
        with _bar(f"reading {dataset.path}", len(dataset)) as (describe, advance):
            if doctor:
                describe("examining")
            findings = examine(dataset) if doctor else None
            describe("writing")
            file = write_report(dataset, html, advance, findings, function)
    except KeyboardInterrupt:
        say(f"interrupted: {html} is not written")
        raise typer.Exit(130) from None
    say(f"{file}: {len(dataset)} episodes, {file.stat().st_size / 1e6:.1f} MB")


def watch(
    paths: Annotated[list[str], typer.Argument(metavar="DIR...", help="A data set, or the folders of runs.")],
    port: Annotated[int, typer.Option(help="0 for a free port.", min=0, max=65535)] = 0,
    decode: Decode = None,
) -> None:
    """Serve a web page of a data set or of training curves on this machine until Ctrl-C.

    The page follows the processes that write.
    """
    _check_jinja2()
    from episodes.inspect.page_server import PageServer

    server = PageServer(*map(data_path_or_same, paths), port=port, decode=_function(decode))
    say(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        server.server_close()


# --- helpers ----------------------------------------------------------------------------------------------------------


def _statistics(dataset: EpisodeDataset | GameDataset) -> list[dict[str, Any]]:
    """Return the rows of a table of statistics: one row for each component of each time series of a data set.

    Items of more than 256 numbers, such as images, have one row for all their numbers.
    """
    import numpy as np

    from episodes.storage import GameDataset

    if isinstance(dataset, GameDataset):
        return [{"kind": n} | row for n, kind in enumerate(dataset.kinds) for row in _statistics(kind)]
    rows = []
    for path, stats in dataset.statistics().items():
        columns = {"count": stats.count, "nan": stats.num_nan, "mean": stats.mean, "std": stats.std}
        columns |= {"lowest": stats.min, "median": stats.quantile(0.5), "highest": stats.max}
        for place in np.ndindex(stats.mean.shape):
            track = "/".join((path, *map(str, place)))
            rows.append({"track": track} | {name: finite(column[place].item()) for name, column in columns.items()})
    return rows


def _check_jinja2() -> None:
    """Raise `MissingExtra` if jinja2, which HTML needs, is not installed."""
    if find_spec("jinja2") is None:
        raise MissingExtra(f"HTML needs jinja2; {install_advice('inspect')}")


def _page(episode: SingleAgentEpisode | MultiAgentEpisode, decode: Callable[[list[int]], str] | None) -> str:
    """Return the notebook view of an episode as a complete HTML page."""
    _check_jinja2()
    from episodes.inspect.html import multi_agent_episode, page, single_agent_episode
    from episodes.multi_agent import MultiAgentEpisode

    if isinstance(episode, MultiAgentEpisode):
        return page("game", multi_agent_episode(episode))
    return page("episode", single_agent_episode(episode, decode))


def _random_episode(env: gym.Env, seed: int, max_steps: int) -> Any:
    """Run an environment with random actions for one episode, and return the episode."""
    from episodes.single_agent import SingleAgentEpisode

    episode = SingleAgentEpisode(observation_space=env.observation_space, action_space=env.action_space)
    observation, info = env.reset(seed=seed)
    episode.add_env_reset(observation, info)
    while not episode.is_done:
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        truncated = truncated or len(episode) + 1 >= max_steps
        episode.add_env_step(observation, action, reward, info, terminated=terminated, truncated=truncated)
    return episode.to_numpy()


def _progress(items: Collection[Any], description: str) -> Iterator[Any]:
    """Yield the items while a progress bar shows their number, if stderr is a terminal."""
    with _bar(description, len(items)) as (_, advance):
        for n, item in enumerate(items):
            yield item
            advance(n + 1)


@contextmanager
def _bar(description: str, total: int) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Context manager that shows a progress bar at once, if stderr is a terminal.

    It yields a function that replaces the description, and a function that sets the number of items that are done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(visible(description), total=total)
        yield (
            lambda text: progress.update(task, description=visible(text)),
            lambda done: progress.update(task, completed=done),
        )
