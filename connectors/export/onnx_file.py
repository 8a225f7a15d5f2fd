"""`build_onnx`: converts an actor to an ONNX model whose metadata contain everything needed to serve it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from connectors.actor import Actor
from connectors.export.actor_graph import ActorGraph, explained
from connectors.export.traced_history import ACTIONS, OBSERVATIONS, REWARDS
from episodes import __version__
from episodes.columns import Columns
from episodes.errors import NotExportable, needing
from episodes.format_versions import EXPORTED_MODEL
from episodes.storage import space_json
from episodes.tracks import nested
from episodes.tracks.spaces import dtypes_of, empty_items, keys_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

__all__ = ["METADATA", "build_onnx", "to_bytes"]

METADATA = "rl_episodes"  # the key of the metadata
_NO_SUM = "0" * 64
_MANY = 3  # rows of the traced batch; 1 and 2 are sizes that torch treats as constants


def build_onnx(
    actor: Actor, *, explore: bool, outputs: Sequence[str], batch: int | None, double: bool
) -> tuple[Any, ActorGraph]:
    """Return the ONNX model of an actor, and the torch module from which it was traced.

    The model also has the output "action_dist_inputs", if the policy has it.

    Args:
        explore, outputs, batch, double: as in `export`.

    Raises:
        NotExportable: a space or a part of the actor cannot be represented in an ONNX file.
        MissingExtra: the extra "export" is not installed.
    """
    with needing("export", "export writes ONNX files"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    names = tuple(dict.fromkeys(outputs))
    _check_space("observation_space", actor.observation_space)
    _check_space("action_space", actor.action_space)
    graph = ActorGraph(actor.copy_pipelines(), explore, names)  # tracing runs code of the user, which may keep a state
    num_rows = _MANY if batch is None else batch
    lookback = max(graph.views.lookback, 0)
    observations = nested.map_leaves(torch.from_numpy, empty_items(actor.observation_space, num_rows))
    rewards = torch.zeros(num_rows)
    with torch.no_grad():
        # Run once with a state that has everything that views may read. The second run has only what they did read.
        everything = graph.initial_state({"t": 1, OBSERVATIONS: lookback, ACTIONS: lookback, REWARDS: lookback + 1})
        graph(observations, rewards, _rows(everything, num_rows), None)
        reach = dict(graph.reach)
        initial = graph.initial_state(reach)
        size = sum(size for _, size in graph.draws)
        noise = torch.ones(num_rows, size) if size else None
        inputs = (observations, rewards if reach.get(REWARDS) else None, _rows(initial, num_rows), noise)
        if Columns.ACTION_DIST_INPUTS not in names and _has_distribution_inputs(graph, inputs):
            names = graph.outputs = (*names, Columns.ACTION_DIST_INPUTS)
        model = _trace(graph, inputs, batch)
    _prune(model)
    if double:
        _compute_tanh_in_float64(model)
    else:
        _use_float32(model)
    _remove_debug_info(model)
    metadata = _metadata(actor, graph, initial, _inputs_of(model))
    entry = model.metadata_props.add()
    entry.key = METADATA
    entry.value = json.dumps({**metadata, "batch": batch, "explore": explore, "double": double, "sha256": _NO_SUM})
    return model, graph


def to_bytes(model: ModelProto) -> bytes:
    """Return the bytes of an ONNX model with their SHA-256 sum in the metadata, by which `serve.py` finds damaged
    files. The sum is computed with 64 zeros in its place.
    """
    data = model.SerializeToString()
    digest = hashlib.sha256(data).hexdigest()
    head, key, tail = data.rpartition(b'"sha256": "')
    return head + key + digest.encode() + tail[64:]


def _rows(state: object, num_rows: int) -> Any:
    return nested.map_leaves(lambda leaf: torch.from_numpy(np.repeat(np.asarray(leaf)[None], num_rows, 0)), state)


def _check_space(name: str, space: gym.Space | None) -> None:
    """Raise `NotExportable` unless the space consists of numeric arrays, possibly nested in Dicts with string keys and
    Tuples.
    """
    if space is None:
        raise NotExportable(f"the actor's {name} is not known; give it to Actor")
    keys = [key for key in keys_of(space) if not isinstance(key, str)]
    if keys:
        raise NotExportable(
            f"{name} has the key {keys[0]!r} in a Dict space, and the names in a file are strings; use strings as keys "
            "in the environment, or in a wrapper of it"
        )
    dtypes = dtypes_of(space)
    if dtypes is None or any(dtype is None for dtype in nested.leaves(dtypes)):
        raise NotExportable(
            f"{name} {space} has parts that are not arrays of numbers; an exported file takes only these"
        )


def _has_distribution_inputs(graph: ActorGraph, inputs: tuple[Any, ...]) -> bool:
    """Return True if the policy outputs "action_dist_inputs", so that the graph can return them too."""
    graph.outputs, before = (*graph.outputs, Columns.ACTION_DIST_INPUTS), graph.outputs
    try:
        graph(*inputs)
    except NotExportable:
        return False
    finally:
        graph.outputs = before
    return True


def _trace(graph: ActorGraph, inputs: tuple[Any, ...], batch: int | None) -> Any:
    """Return the ONNX model of a graph, traced with example inputs. The batch size is dynamic unless `batch` is
    given.
    """
    observations, reward, state, noise = inputs
    actions, after, outputs = graph(*inputs)
    input_leaves = nested.flatten(observations, "obs") | ({} if reward is None else {"reward": reward})
    input_leaves |= nested.flatten(state, "state") | ({} if noise is None else {"noise": noise})
    made = nested.flatten(actions, "action") | nested.flatten(after, "next")
    for name, value in outputs.items():
        made |= nested.flatten(value, name)
    rows = torch.export.Dim("rows", min=1)
    shapes = None if batch else nested.map_leaves(lambda leaf: None if leaf is None else {0: rows}, inputs)
    with warnings.catch_warnings(), _quiet(), explained("the actor"):
        warnings.simplefilter("ignore")
        program = torch.export.export(graph, inputs, dynamic_shapes=shapes, strict=False)
        exported: Any = torch.onnx.export(
            program, dynamo=True, input_names=list(input_leaves), output_names=list(made), verbose=False, optimize=True
        )
        return exported.model_proto


@contextlib.contextmanager
def _quiet() -> Any:
    """Context manager that suppresses the ONNX exporter's messages about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


# --- the model -------------------------------------------------------------------------------------------------------


def _prune(model: Any) -> None:
    """Remove from an ONNX model all state that no other output depends on, such as a critic's recurrent state."""
    producers = {name: node for node in model.graph.node for name in node.output}
    outputs = {value.name for value in model.graph.output}
    outputs_used = {name for name in outputs if not name.startswith("next/")}
    while True:
        needed = _ancestors(outputs_used, producers)
        states = {value.name for value in model.graph.input if value.name.startswith("state/") and value.name in needed}
        wider = outputs_used | {f"next{name[5:]}" for name in states}
        if wider == outputs_used:
            break
        outputs_used = wider
    for values, keep in (
        (model.graph.output, lambda value: value.name in outputs_used),
        (model.graph.input, lambda value: value.name in needed or not value.name.startswith("state/")),
        (model.graph.initializer, lambda value: value.name in needed),
        (model.graph.node, lambda node: any(name in needed for name in node.output)),
        (model.graph.value_info, lambda value: value.name in needed),
    ):
        remaining = [value for value in values if keep(value)]
        del values[:]
        values.extend(remaining)


def _ancestors(names: set[str], producers: dict[str, Any]) -> set[str]:
    """Return the names of all values that an ONNX graph needs to compute the values `names`, including `names`.

    `producers` has the node that computes each value, by the value's name.
    """
    visited, waiting = set(names), list(names)
    while waiting:
        node = producers.get(waiting.pop())
        inputs = [] if node is None else [*node.input, *_names_in_subgraphs(node)]
        new = [name for name in inputs if name and name not in visited]
        visited.update(new)
        waiting += new
        if node is not None:
            visited.update(node.output)
    return visited


def _names_in_subgraphs(node: NodeProto) -> list[str]:
    """Return the names of the values that the subgraphs of an ONNX node (branches, loop bodies) read."""
    graphs = [
        subgraph for attribute in node.attribute for subgraph in (attribute.g, *attribute.graphs) if subgraph.node
    ]
    return [name for graph in graphs for inner in graph.node for name in (*inner.input, *_names_in_subgraphs(inner))]


def _compute_tanh_in_float64(model: ModelProto) -> None:
    """Replace each Tanh in an ONNX model by a cast to float64, a Tanh and a cast back.

    For float32, the Tanh of onnxruntime is off by up to 4.5 units in the last place, and networks that read their
    own actions amplify that.
    """
    from onnx import TensorProto, helper

    nodes: list[Any] = []
    for node in model.graph.node:
        if node.op_type != "Tanh":
            nodes.append(node)
            continue
        wide, result = f"{node.output[0]}_of_float64", f"{node.output[0]}_in_float64"
        nodes.append(helper.make_node("Cast", [node.input[0]], [wide], to=TensorProto.DOUBLE))
        nodes.append(helper.make_node("Tanh", [wide], [result]))
        nodes.append(helper.make_node("CastLike", [result, node.input[0]], [node.output[0]]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _use_float32(model: ModelProto) -> None:
    """Replace float64 by float32 everywhere in an ONNX model, for devices without float64."""
    from onnx import TensorProto, numpy_helper

    double, single = TensorProto.DOUBLE, TensorProto.FLOAT

    def converted(tensor: TensorProto) -> Any:
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)

    for initializer in model.graph.initializer:
        if initializer.data_type == double:
            initializer.CopyFrom(converted(initializer))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == double:
                attribute.i = single
            if attribute.HasField("t") and attribute.t.data_type == double:
                attribute.t.CopyFrom(converted(attribute.t))
    for values in (model.graph.input, model.graph.output, model.graph.value_info):
        for value in values:
            if value.type.tensor_type.elem_type == double:
                value.type.tensor_type.elem_type = single


def _remove_debug_info(model: ModelProto) -> None:
    """Remove debugging information from an ONNX model, such as stack traces with local paths, which take most of a
    small file.
    """
    for values in (model.graph.node, model.graph.value_info, model.graph.input, model.graph.output):
        for value in values:
            del value.metadata_props[:]
            if hasattr(value, "doc_string"):
                value.doc_string = ""
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    del model.metadata_props[:]


def _inputs_of(model: ModelProto) -> dict[str, tuple[str, list[int]]]:
    """Return the numpy dtype and the shape without batch axis of each input of an ONNX model, by name."""
    from onnx.helper import tensor_dtype_to_np_dtype

    types = {value.name: value.type.tensor_type for value in model.graph.input}
    return {
        name: (tensor_dtype_to_np_dtype(kind.elem_type).name, [axis.dim_value for axis in kind.shape.dim[1:]])
        for name, kind in types.items()
    }


def _metadata(
    actor: Actor, graph: ActorGraph, initial: dict[str, Any], inputs: dict[str, tuple[str, list[int]]]
) -> dict[str, Any]:
    """Return the metadata to store in an ONNX file, as JSON values: inputs, initial state, spaces, policy and
    versions.

    An initial state that consists of zeros is stored as the number 0.
    """
    states = {name: value for name, value in nested.flatten(initial, "state").items() if name in inputs}
    return {
        "format": EXPORTED_MODEL,
        "inputs": inputs,
        "initial_state": {name: np.asarray(value).tolist() if np.any(value) else 0 for name, value in states.items()},
        "noise": graph.draws,
        "observation": nested.skeleton(empty_items(actor.observation_space, 1), "obs"),
        "action": nested.skeleton(empty_items(actor.action_space, 1), "action"),
        "observation_space": space_json.to_json(actor.observation_space, "observation_space"),
        "action_space": space_json.to_json(actor.action_space, "action_space"),
        "policy": type(actor.policy).__name__,
        "pipelines": actor.fingerprint,
        "versions": {"rl-episodes": __version__, "torch": torch.__version__, "numpy": np.__version__},
    }
