"""List of all benchmarks, in the order of the printed table."""

from __future__ import annotations

from benchmarks import (
    actors,
    batches,
    calls,
    capture,
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
    measuring_rows,
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
    *capture.FIGURES,
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
    *measuring_rows.FIGURES,
)


def select_figures(names: list[str]) -> list[Figure]:
    """Return the benchmarks that `names` select, by full name (`replay/uniform`) or by leading part (`replay`). Without
    names, return all benchmarks.

    Raises:
        ValueError: no benchmark has one of the names.
    """
    if not names:
        return list(FIGURES)
    unknown = [name for name in names if not any(has_name(figure, name) for figure in FIGURES)]
    if unknown:
        known = sorted({figure.name.split("/")[0] for figure in FIGURES})
        raise ValueError(
            f"no figure is called {', '.join(unknown)}; groups: {', '.join(known)} (--list shows all names)"
        )
    return [figure for figure in FIGURES if any(has_name(figure, name) for name in names)]


def has_name(figure: Figure, name: str) -> bool:
    """Return True if `name` is the full name of a benchmark, or a leading part of the full name."""
    return figure.name == name or figure.name.startswith((f"{name}/", f"{name} "))
