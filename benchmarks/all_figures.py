"""List of all benchmarks, in the order of the table."""

from __future__ import annotations

from benchmarks import (
    actors,
    batches,
    calls,
    connectors,
    data_parallel,
    data_sets,
    disk_draws,
    export,
    getters,
    gpu,
    growing,
    infos,
    learning,
    looking,
    memory,
    multi_agent,
    ragged,
    recording,
    replay,
    rllib,
    sampling,
    storage,
    time_to_goal,
    tokens,
    transport,
    transport_figures,
)
from benchmarks.figure import Figure

FIGURES: tuple[Figure, ...] = (
    *growing.FIGURES,
    *getters.FIGURES,
    *sampling.FIGURES,
    *learning.FIGURES,
    *data_parallel.FIGURES,
    *time_to_goal.FIGURES,
    *recording.FIGURES,
    *infos.FIGURES,
    *tokens.FIGURES,
    *batches.FIGURES,
    *connectors.FIGURES,
    *gpu.FIGURES,
    *calls.FIGURES,
    *multi_agent.FIGURES,
    *rllib.FIGURES,
    *replay.FIGURES,
    *memory.FIGURES,
    *ragged.FIGURES,
    *storage.FIGURES,
    *data_sets.FIGURES,
    *disk_draws.FIGURES,
    *transport.FIGURES,
    *transport_figures.FIGURES,
    *actors.FIGURES,
    *export.FIGURES,
    *looking.FIGURES,
)


def chosen(names: list[str]) -> list[Figure]:
    """Return the benchmarks whose name or leading part (`replay`, `replay/uniform`) is given, by default all.

    Raises:
        ValueError: there is no benchmark of that name.
    """
    if not names:
        return list(FIGURES)
    unknown = [name for name in names if not any(goes_by(figure, name) for figure in FIGURES)]
    if unknown:
        known = sorted({figure.name.split("/")[0] for figure in FIGURES})
        raise ValueError(
            f"no figure is called {', '.join(unknown)}; rooms: {', '.join(known)} (--list shows all names)"
        )
    return [figure for figure in FIGURES if any(goes_by(figure, name) for name in names)]


def goes_by(figure: Figure, name: str) -> bool:
    """Return True if a name is the name of the benchmark, or a leading part of the name."""
    return figure.name == name or figure.name.startswith((f"{name}/", f"{name} "))
