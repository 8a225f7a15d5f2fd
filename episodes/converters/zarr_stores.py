"""Import of episodes from zarr stores in the layout of diffusion policy: `data/*` and `meta/episode_ends`."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from episodes.converters.accounting import SOURCE, Account
from episodes.converters.array_roles import OF_STEPS, endings, missing_role, names_of_roles
from episodes.converters.contents import Contents
from episodes.converters.flat_steps import FlatSteps
from episodes.converters.format import OTHER_KIND, YES, Format, Recognition
from episodes.converters.loss_report import LossReport
from episodes.converters.source_ids import prefix_of_files
from episodes.errors import EpisodeError, UnreadableData, needing
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.files import local_path

if TYPE_CHECKING:
    import zarr

_ENDS = "meta/episode_ends"
_METADATA = (".zarray", "zarr.json")  # file of an array's metadata in versions 2 and 3


def zarr_episodes(path: str | Path, report: LossReport, prefix: str | None = None) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of a zarr store, a folder or a zip archive, in blocks of rows, and add losses to `report`.

    The array "data/action" has the actions, and "data/reward" the rewards, 0 without. All other arrays in "data" are
    the observations: a dict, if there are several. "meta/episode_ends" has the row after the last one of each episode.
    Attributes and other small values are `custom_data["source"]`. The ids are "zarr-DIGEST/0", "zarr-DIGEST/1" and so
    on, with a digest of the files.

    Raises:
        MissingExtra: zarr is not installed.
        UnreadableData: the store has no such layout, it is damaged, arrays have unequal lengths, or an array is stored
            as a pickle.
    """
    with needing("zarr", "zarr stores need zarr"):
        import zarr
        from zarr.storage import ZipStore
    path = local_path(path)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    _refuse_pickles(path, files)
    ids = prefix_of_files("zarr", files, prefix)
    with ExitStack() as stack:
        try:
            store: Any = str(path)
            if path.is_file():
                store = stack.enter_context(ZipStore(path, mode="r"))
            root = zarr.open_group(store, mode="r")
            yield from _episodes_of(root, path, ids, report)
        except (EpisodeError, MemoryError):
            raise
        except Exception as error:  # of zarr and of each of its codecs
            raise UnreadableData(f"{path}: not a zarr store with data and {_ENDS}: {error!r}") from error


def _refuse_pickles(path: Path, files: list[Path]) -> None:
    """Raise `UnreadableData` if the metadata of an array name a pickle: zarr would open it, and it may run code."""
    try:
        if path.is_file():
            with zipfile.ZipFile(path) as archive:
                metadata = {name: archive.read(name) for name in archive.namelist() if name.endswith(_METADATA)}
        else:
            metadata = {f"{file.relative_to(path)}": file.read_bytes() for file in files if file.name in _METADATA}
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise UnreadableData(f"{path}: a damaged store: {error}; write or download it again") from error
    for name, document in metadata.items():
        if b"pickle" in document.lower():
            raise UnreadableData(
                f"{path}: {name.rpartition('/')[0]!r} is stored as Python objects, a pickle, which may run code; it is "
                "never opened here. Load it yourself, and store its numbers"
            )


def _episodes_of(root: zarr.Group, path: Path, prefix: str, report: LossReport) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes of an open group. Values that are not read are noted in `report`."""
    groups = {name: _arrays_in(group) for name, group in root.groups()}
    stored = Account(groups | {name: _Array(array) for name, array in root.arrays()})
    data, meta = stored.inside("data"), stored.inside("meta")
    names = names_of_roles(tuple(data.values), besides=("observations", "stops"))
    observed = [name for name in sorted(data.values) if name not in names.values()]
    if "actions" not in names or not observed:
        role = "actions" if "actions" not in names else "observations"
        raise UnreadableData(f"{path}: {missing_role(role)} in 'data'; it has {', '.join(map(repr, data.values))}")
    columns = {role: data[names[role]] for role in OF_STEPS if role in names}
    observations = {name: data[name] for name in observed}
    columns["observations"] = observations if len(observed) > 1 else observations[observed[0]]
    custom_data: dict[str, Any] = {}
    known = {role: f"data/{name}" for role, name in names.items()} | {"observations": f"data/{observed[0]}"}
    steps = FlatSteps(str(path), columns, known, {}, report, custom_data)
    rows = {f"data/{name}": data.values[name] for name in names.values()} | {_ENDS: meta["episode_ends"]}
    flags = endings(steps, Account(rows), known | {"stops": _ENDS}, report, path.name)
    data.skip(*names.values())
    for name, array in data.values.items():
        if isinstance(array, _Array) and (missing := array.num_missing()):
            reason = f"{missing} of its chunks are not stored, so their items have zarr's fill value"
            report.add(f"data/{name}", reason, path.name)
    attributes = Account(_attributes_of(root))
    if kept := attributes.kept() | stored.kept():
        custom_data[SOURCE] = kept
    for account in (stored, attributes):
        account.report_rest(report, path.name)
    yield from steps.episodes(prefix, *flags)


class _Array:
    """Array in a zarr store, of which rows are read on demand."""

    def __init__(self, array: zarr.Array) -> None:
        self._array = array
        self.shape, self.dtype = tuple(array.shape), array.dtype
        self.nbytes = array.nbytes

    def num_missing(self) -> int:
        """Return the number of chunks that are not stored."""
        return int(self._array.nchunks - self._array.nchunks_initialized)

    def __getitem__(self, rows: slice | tuple[()]) -> Any:
        return self._array[rows]


def _arrays_in(group: zarr.Group) -> dict[str, Any]:
    """Return the nested arrays in a group by name."""
    return {name: _arrays_in(inner) for name, inner in group.groups()} | {
        name: _Array(array) for name, array in group.arrays()
    }


def _attributes_of(root: zarr.Group) -> dict[str, Any]:
    """Return the attributes of the store, its groups and its arrays, by names such as "data/action.attrs/unit"."""
    attributes = {f"attrs/{key}": value for key, value in root.attrs.items()}
    for name, item in root.members(max_depth=None):
        attributes |= {f"{name}.attrs/{key}": value for key, value in item.attrs.items()}
    return attributes


def _recognize(contents: Contents) -> Recognition:
    places = [f"{_ENDS}/{name}" for name in _METADATA]
    if contents.kind == "directory":
        is_ours = any(map(contents.has, places))
        is_zarr = contents.has(".zgroup") or contents.has("zarr.json")
    elif contents.kind == "zip":
        names = contents.names_of_zip()
        is_ours = any(place in names for place in places)
        is_zarr = ".zgroup" in names or "zarr.json" in names
    else:
        return OTHER_KIND
    return YES if is_ours else Recognition(False, f"a zarr store without {_ENDS!r}" if is_zarr else "")


FORMAT = Format("zarr", "zarr stores of diffusion policy", _recognize, zarr_episodes)
