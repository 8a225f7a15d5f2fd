"""Command `episodes runs`, and the part of `episodes diff` that compares two training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from episodes.command.opening import local
from episodes.command.printing import Json, print_json, print_table, text
from episodes.command.terminal import say, say_wrapped
from episodes.errors import InvalidArgument

if TYPE_CHECKING:
    from episodes.storage.runs import StoredRun

MOST_SETTINGS = 8  # columns of settings
COLUMNS = ("run", "status", "steps", "best test", "last test", "seconds")


def runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=local, help="A folder that contains runs.")] = Path(
        "runs"
    ),
    json: Json = False,
) -> None:
    """List training runs, the best test first: results, status, and the settings that differ between the runs."""
    from episodes.storage.runs import differing, find_runs, rank

    found = sorted(find_runs(directory), key=rank)
    if not found:
        raise InvalidArgument(f"{directory}: no runs in it; episodes train --logdir {directory}/NAME creates one")
    if json:
        print_json([run.as_dict() for run in found])
        return
    tables = [run.settings for run in found if run.settings]
    names = _by_spread(differing(tables), tables)
    names, others = names[:MOST_SETTINGS], names[MOST_SETTINGS:]
    titles = _short(names)
    rows = [[*_cells(run, directory), *(text(run.settings.get(name, "-")) for name in names)] for run in found]
    print_table((*COLUMNS, *titles), rows)
    if others:
        say(f"{len(others)} more settings differ; episodes diff of two runs prints them, and --json all settings")


def print_comparison(a: StoredRun, b: StoredRun) -> None:
    """Print two runs, which of them had the better test, and the settings that differ."""
    print_table(COLUMNS, [_cells(run, None) for run in (a, b)])
    say_wrapped(verdict(a, b))
    settings = _differing_settings(a, b)
    if settings:
        rows = [[name, *("-" if value is None else text(value) for value in pair)] for name, pair in settings.items()]
        print_table(("setting", str(a.folder), str(b.folder)), rows)
    else:
        say("all settings are equal")


def comparison(a: StoredRun, b: StoredRun) -> dict[str, Any]:
    """Return a comparison of two runs as JSON values."""
    from episodes.storage.runs import better

    settings = _differing_settings(a, b)
    differs = bool(settings) or results_differ(a, b)
    return {"a": a.as_dict(), "b": b.as_dict(), "better": better(a, b), "settings": settings, "differs": differs}


def _differing_settings(a: StoredRun, b: StoredRun) -> dict[str, list[Any]]:
    """Return the settings, versions and commits that differ, by name, as pairs. None: the run does not have it."""
    from episodes.storage.runs import differing

    tables = [{**run.settings, **run.code} for run in (a, b)]
    return {name: [table.get(name) for table in tables] for name in differing(tables)}


def results_differ(a: StoredRun, b: StoredRun) -> bool:
    """Return True if two runs have different counts or scores. Durations are not compared."""
    names = ("num_epochs", "num_steps", "num_updates", "best_score", "best_epoch", "last_score")
    return any(getattr(a, name) != getattr(b, name) for name in names)


def verdict(a: StoredRun, b: StoredRun) -> str:
    """Return one line that says which run was better, or why this is not known."""
    from episodes.storage.runs import better, same_environment

    for run in (a, b):
        if run.best_score is None:
            return f"{run.folder} has no test, so the runs cannot be compared"
    if not same_environment(a, b):
        return "the environments differ, so the tests cannot be compared"
    name = better(a, b)
    if name is None:
        return f"both had the same best test, {text(a.best_score)}"
    best, other = (a, b) if name == "a" else (b, a)
    return (
        f"{best.folder} was better: best test {text(best.best_score)} in epoch {best.best_epoch}, against "
        f"{text(other.best_score)} in epoch {other.best_epoch}"
    )


def _cells(run: StoredRun, parent: Path | None) -> list[str]:
    """Return the cells of a run's row in a table. Folders are given relative to `parent`."""
    folder = run.folder if parent is None or run.folder == parent else run.folder.relative_to(parent)
    steps = "" if run.num_steps is None else f"{run.num_steps:,}"
    seconds = "" if run.seconds is None else f"{run.seconds:.1f}"
    return [str(folder), text(run.status), steps, text(run.best_score), text(run.last_score), seconds]


def _by_spread(names: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names with those first that most tables have, because other algorithms have other settings."""
    return sorted(names, key=lambda name: -sum(name in table for table in tables))


def _short(names: Sequence[str]) -> list[str]:
    """Return names without the part before the last dot, unless two would be equal.

    >>> _short(["algorithm.gamma", "trainer.size", "policy.size", "seed"])
    ['gamma', 'trainer.size', 'policy.size', 'seed']
    """
    last = [name.rpartition(".")[2] for name in names]
    return [short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)]
