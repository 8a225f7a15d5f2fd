"""`episodes info`, `ls`, `show`, `record`, `report` and `watch`: what is in a data set."""

from __future__ import annotations

import json as json_text
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from episodes.command.printing import finite, print_table, text
from episodes.errors import InvalidArgument, MissingExtra

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The data set; a URL, if it is elsewhere.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
COLUMNS = ("id", "length", "return", "ending", "t_started", "agent_id", "module_id")


def info(
    directory: Directory,
    stats: Annotated[bool, typer.Option("--stats", help="Of each track too; it is read once for that.")] = False,
    json: Json = False,
) -> None:
    """What a data set holds: episodes, steps, returns, endings, spaces, and where it is from."""
    from episodes.storage import EpisodeDataset

    dataset = EpisodeDataset(directory)
    rows = _rows(dataset)
    returns, endings = [row["return"] for row in rows], [row["ending"] for row in rows]
    spec = dataset.env_spec
    facts = {
        "path": str(directory),
        "environment": getattr(spec, "id", spec),
        "episodes": len(dataset),
        "steps": dataset.num_steps,
        "bytes": dataset.nbytes,
        "mean return": finite(sum(returns) / len(returns)) if returns else None,
        "lowest return": finite(min(returns, default=None)),
        "highest return": finite(max(returns, default=None)),
        "endings": {ending: endings.count(ending) for ending in dict.fromkeys(endings)},
        "observation space": text(dataset.observation_space),
        "action space": text(dataset.action_space),
        "metadata": dataset.user_metadata,
        "splits": {name: len(dataset.split(name)) for name in dataset.splits},
        "recovered": dataset.recovered,
        "unread": dataset.unread,
    }
    tracks = _statistics(dataset) if stats else []
    if json:
        typer.echo(json_text.dumps(facts | ({"tracks": tracks} if stats else {}), default=str))
        return
    print_table(("", ""), [(name, text(value)) for name, value in facts.items() if value not in (None, {}, 0)])
    if tracks:
        print_table([*tracks[0]], [[text(value) for value in row.values()] for row in tracks])


def ls(
    directory: Directory,
    sort: Annotated[str, typer.Option(help=f"A column: {', '.join(COLUMNS)}.")] = "",
    descending: Annotated[bool, typer.Option("--descending", help="The highest first.")] = False,
    limit: Annotated[int, typer.Option(help="How many rows at most; 0 for all.", min=0)] = 0,
    json: Json = False,
) -> None:
    """A row for each episode."""
    from episodes.storage import EpisodeDataset

    rows = _rows(EpisodeDataset(directory))
    if sort:
        if sort not in COLUMNS:
            raise InvalidArgument(f"--sort {sort}: no such column; there are {', '.join(COLUMNS)}")
        rows.sort(key=lambda row: _order(row[sort]), reverse=descending)
    rows = rows[:limit] if limit > 0 else rows
    if json:
        typer.echo(json_text.dumps([{name: finite(value) for name, value in row.items()} for row in rows]))
        return
    shown = [name for name in COLUMNS if any(row[name] is not None for row in rows)]
    print_table(shown, [[text(row[name]) for name in shown] for row in rows])


def show(
    directory: Directory,
    episode: Annotated[str, typer.Option(help="An id, the beginning of one, or a number; -1 is the last.")] = "0",
    html: Annotated[Path | None, typer.Option(help="Write what a notebook would show to this file.")] = None,
    json: Json = False,
) -> None:
    """One episode: its tracks with shape, dtype, lowest, mean and highest; or as HTML."""
    from episodes.inspect.formatting import clipped, number, shape
    from episodes.inspect.series import of_tracks
    from episodes.storage import EpisodeDataset

    dataset = EpisodeDataset(directory)
    found = dataset[_index(dataset, episode)]
    if html is not None:
        html.write_text(_page(found), encoding="utf-8")
        typer.echo(f"{html}: {found!r}")
        return
    names = ("track", "shape", "dtype", "lowest", "mean", "highest")
    rows = []
    for series in of_tracks(found.tracks):
        stats = [number(value) for value in series.range] if series.is_numeric else [""] * 3
        rows.append((clipped(series.label), shape(series.shape), series.dtype, *stats))
    if json:
        tracks = [dict(zip(names, row, strict=True)) for row in rows]
        facts = {"id": str(found.id_), "length": len(found), "return": finite(found.get_return()), "tracks": tracks}
        typer.echo(json_text.dumps(facts))
        return
    typer.echo(repr(found))
    print_table(names, rows)


def record(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the data set is, or will be.")],
    env: Annotated[str, typer.Option("--env", help="The id of a Gymnasium environment.")],
    episodes: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of the environment and of the actions.")] = 0,
    max_steps: Annotated[int, typer.Option(min=1, help="Where an episode is truncated at the latest.")] = 10_000,
) -> None:
    """Write episodes of random actions."""
    import gymnasium as gym

    from episodes.storage import EpisodeWriter

    try:
        made = gym.make(env)
    except gym.error.Error as error:
        raise InvalidArgument(f"--env {env}: {error}") from error
    made.action_space.seed(seed)
    steps = 0
    with made, EpisodeWriter(directory, env_spec=env, metadata={"policy": "random"}) as writer:
        for n in _progress(range(episodes), "recording"):
            played = _played(made, seed + n, max_steps)
            steps += len(played)
            writer.add([played])
    typer.echo(f"{directory}: {episodes} episodes, {steps} steps")


def report(
    directory: Directory,
    html: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Write one page of all episodes: charts, a table, and each episode's tracks and frames. It needs no network."""
    _check_jinja2()
    from episodes.inspect.html_report import write_report
    from episodes.storage import EpisodeDataset

    dataset = EpisodeDataset(directory)
    written = write_report(dataset, html)
    typer.echo(f"{written}: {len(dataset)} episodes, {written.stat().st_size / 1e6:.1f} MB")


def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data set.")],
    port: Annotated[int, typer.Option(help="0 for one that is free.", min=0, max=65535)] = 0,
) -> None:
    """Serve the page of a data set to this machine alone, following its writers, until Ctrl-C."""
    _check_jinja2()
    from episodes.inspect.page_server import PageServer

    server = PageServer(directory, port)
    typer.echo(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("stopped")
    finally:
        server.server_close()


# --- words ------------------------------------------------------------------------------------------------------------


def _rows(dataset: Any) -> list[dict[str, Any]]:
    """A dict for each episode, by `COLUMNS`."""
    from episodes.facts.ending import Ending
    from episodes.inspect.formatting import ended

    table = {name: column.tolist() for name, column in dataset.metadata.items()}
    flags = zip(table["terminated"], table["truncated"], strict=True)
    table["ending"] = [ended(Ending.of(*pair)) for pair in flags]
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*(table[name] for name in COLUMNS), strict=True)]


def _statistics(dataset: Any) -> list[dict[str, Any]]:
    """A dict for each number of each track; one for all of an image."""
    rows = []
    for path, found in dataset.statistics().items():
        columns = {"count": found.count, "nan": found.num_nan, "mean": found.mean, "std": found.std}
        columns |= {"lowest": found.min, "median": found.quantile(0.5), "highest": found.max}
        for place in np.ndindex(found.mean.shape):
            track = "/".join((path, *map(str, place)))
            rows.append({"track": track} | {name: finite(column[place].item()) for name, column in columns.items()})
    return rows


def _order(value: Any) -> tuple[int, Any]:
    """A key that sorts numbers before NaN before words before nothing."""
    if value is None:
        return 3, ""
    if isinstance(value, (int, float)):
        return (1, 0) if value != value else (0, value)
    return 2, str(value)


def _index(dataset: Any, asked: str) -> int:
    """The number of the episode whose id it is, begins so, or that has this number."""
    ids = [str(id_) for id_ in dataset.metadata["id"].tolist()]
    if asked in ids:
        return ids.index(asked)
    if asked.lstrip("-").isdecimal() and -len(ids) <= int(asked) < len(ids):
        return int(asked)
    begun = [n for n, id_ in enumerate(ids) if id_.startswith(asked)]
    if len({ids[n] for n in begun}) != 1:
        raise InvalidArgument(
            f"--episode {asked}: {len(begun)} of {len(ids)} episodes have an id that begins so; give more of it, or a "
            "number (episodes ls lists the ids)"
        )
    return begun[0]


def _check_jinja2() -> None:
    if find_spec("jinja2") is None:
        raise MissingExtra("HTML needs jinja2; install the extra: pip install 'rl-episodes[inspect]'")


def _page(episode: Any) -> str:
    """What a notebook shows of an episode, as a page of its own."""
    _check_jinja2()
    from episodes.inspect.html import single_agent_episode

    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>episode</title><body>{single_agent_episode(episode)}</body></html>"
    )


def _played(env: Any, seed: int, max_steps: int) -> Any:
    """An episode of random actions."""
    from episodes.single_agent import SingleAgentEpisode

    episode = SingleAgentEpisode(observation_space=env.observation_space, action_space=env.action_space)
    observation, told = env.reset(seed=seed)
    episode.add_env_reset(observation, told)
    while not episode.is_done:
        action = env.action_space.sample()
        observation, reward, terminated, truncated, told = env.step(action)
        truncated = truncated or len(episode) + 1 >= max_steps
        episode.add_env_step(observation, action, reward, told, terminated=terminated, truncated=truncated)
    return episode.to_numpy()


def _progress(items: Any, words: str) -> Any:
    """The items, with a bar on stderr where somebody sees it."""
    from rich.console import Console
    from rich.progress import track

    return track(items, words, console=Console(stderr=True), transient=True)
