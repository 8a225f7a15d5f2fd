"""Inference with an exported policy, using only numpy and onnxruntime. Copy this file next to the .onnx file.

    policy = ServedPolicy("policy.onnx")
    action = policy.act(observation, first=True)           # at the start of an episode
    action = policy.act(observation, reward)               # afterwards; `reward` is that of the last action

Several environments at once have a leading axis of `num_envs` in observations, rewards, `first` and actions:

    policy = ServedPolicy("policy.onnx", num_envs=8)
    actions = policy(observations, rewards, first=first)   # first [8]: True where an episode has just begun
"""

import hashlib
import json
from pathlib import Path

import numpy as np

_FORMAT = 1  # of the metadata
_NOISE = {"exponential": "standard_exponential", "normal": "standard_normal", "uniform": "random"}


class ServedPolicy:
    """Policy loaded from an .onnx file, which keeps the recurrent and past state of each environment's current episode.

    Args:
        path: the file.
        num_envs: the number of environments that act together.
        seed: of the random numbers, if the policy was exported with explore=True.
        threads: of onnxruntime. One is the fastest for small networks.

    Raises:
        ValueError: the file is damaged, or was not written by `export`.

    Attributes:
        about: the file's metadata: inputs, spaces, names of observations and actions, versions.
        outputs: all outputs of the last call, by name.
        state: the current state of all episodes, by name.
    """

    def __init__(self, path, num_envs=1, seed=None, threads=1):
        import onnxruntime

        if not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
            raise ValueError(f"num_envs is {num_envs!r}: give 1 or more")
        data = Path(path).expanduser().read_bytes()
        _check_checksum(path, data)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map.get("rl_episodes", "{}"))
        version = self.about.get("format")
        if type(version) is not int or version != _FORMAT:
            raise ValueError(
                f"{path}: format {version!r}; this serve.py reads format {_FORMAT}; export the actor again, and "
                "copy the serve.py of the version that exported it"
            )
        self.num_envs, self.generator, self.outputs = num_envs, np.random.default_rng(seed), {}
        self._names = [output.name for output in self.session.get_outputs()]
        self._forms = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in self.about["inputs"].items()}
        self._initial = {
            name: np.broadcast_to(np.asarray(value, self._forms[name][0]), self._forms[name][1])
            for name, value in self.about["initial_state"].items()
        }
        self.state = {name: np.repeat(array[None], num_envs, 0) for name, array in self._initial.items()}

    def reset(self, first: bool | np.ndarray = True):
        """Start a new episode in each environment for which `first`, bool [num_envs], is True."""
        first = self._checked_first(first)
        if first.any():
            for name, array in self._initial.items():
                self.state[name] = np.where(first.reshape(-1, *[1] * array.ndim), array, self.state[name])

    def act(self, observation, reward=None, *, first=False):
        """Return the action for one observation, both without batch axis, and update the state. It needs
        `num_envs=1`.

        Args:
            observation: of the environment.
            reward: of the last action. It is ignored if the policy does not read rewards.
            first: True at the first observation of an episode. Otherwise the last episode continues.

        Raises:
            ValueError: an argument has a wrong shape or dtype, or contains NaN. The state stays as it was.
        """
        if self.num_envs != 1:
            raise ValueError(f"act is for one environment: call the policy with observations of {self.num_envs}")
        outputs = self._run(observation, reward, first, None, ())
        return _nested(self.about["action"], {name: array[0] for name, array in outputs.items()})

    def __call__(self, observations, rewards=None, *, first=False, noise=None):
        """Return the actions [num_envs, ...] for observations [num_envs, ...], and update the state of all episodes.

        Arguments are those of `act` with a leading axis. `noise` replaces the random numbers, for tests.
        """
        return _nested(self.about["action"], self._run(observations, rewards, first, noise, (self.num_envs,)))

    def _run(self, observations, rewards, first, noise, batch):
        """Run the model on a batch, store its outputs and the next state, and return all outputs by name.

        Raises:
            ValueError: an input is missing, or has another shape or dtype.
        """
        inputs, rows, first = {}, (self.num_envs,), self._checked_first(first)
        for name, leaf in _leaves(self.about["observation"], observations, "obs"):
            if name in self._forms:  # the policy may not read all parts
                inputs[name] = _checked(name, leaf, *self._forms[name], batch, rows)
        if rewards is None and "reward" in self._forms and not first.all():
            raise ValueError("this policy reads rewards: give the rewards of the last actions")
        rewards = np.zeros(batch) if rewards is None else rewards
        if _array(rewards).dtype == bool:
            raise ValueError(f"reward is {rewards!r}: give numbers, and `first` by its name, as in first=True")
        rewards = _checked("reward", rewards, np.dtype(np.float32), (), batch, rows)
        if "reward" in self._forms:
            inputs["reward"] = rewards
        draws = [(getattr(self.generator, _NOISE[kind]), (*rows, size)) for kind, size in self.about["noise"]]
        if draws:
            drawn = noise if noise is not None else np.concatenate([draw(size, np.float32) for draw, size in draws], 1)
            inputs["noise"] = _checked("noise", drawn, *self._forms["noise"], rows, rows)
            self._check_noise(inputs["noise"])
        elif noise is not None:
            raise ValueError("noise was given, and this policy is greedy: export it with explore=True")
        self.reset(first)
        inputs |= self.state
        runs = [inputs]
        if self.about["batch"] == 1:
            runs = [{name: array[i : i + 1] for name, array in inputs.items()} for i in range(self.num_envs)]
        results = zip(*(self.session.run(None, run) for run in runs), strict=True)
        self.outputs = {name: np.concatenate(parts) for name, parts in zip(self._names, results, strict=True)}
        self.state = {name: self.outputs["next" + name[5:]] for name in self.state}
        return self.outputs

    def _check_noise(self, noise):
        """Raise `ValueError` if random numbers are infinite, or not above 0 for an exponential distribution."""
        kinds = np.repeat([kind for kind, _ in self.about["noise"]], [size for _, size in self.about["noise"]])
        if not np.isfinite(noise).all() or (noise[:, kinds == "exponential"] <= 0).any():
            raise ValueError("noise is infinite, or not above 0 where it is exponential: draw it from its distribution")

    def _checked_first(self, first):
        """Return the flags `first` as bool [N], one per environment: True if an episode begins.

        One bool counts for all environments. Raise `ValueError` for anything else than bools.
        """
        flags = _array(first)
        if flags.dtype != bool or flags.shape not in ((), (self.num_envs,)):
            raise ValueError(f"first is {first!r}: give True, False, or an array of {self.num_envs} bools")
        return np.broadcast_to(flags, self.num_envs)


def _check_checksum(path, data):
    """Raise `ValueError` if the bytes of a file differ from the bytes that `export` wrote."""
    head, key, tail = data.rpartition(b'"sha256": "')
    if not key:
        raise ValueError(f"{path} was not written by rl-episodes, or is damaged: export it again, or copy it again")
    if hashlib.sha256(head + key + b"0" * 64 + tail[64:]).hexdigest().encode() != tail[:64]:
        raise ValueError(f"{path} is damaged: its bytes differ from those that were exported. Copy it again")


def _array(value):
    """Return a value as an array. Lists of different lengths become an array of objects, which checks reject."""
    try:
        return np.asarray(value)
    except ValueError:  # lists of different lengths
        return np.empty((), object)


def _checked(name, value, dtype, shape, batch, rows):
    """Return `value` in the dtype `dtype`, after a check of its shape and numbers. Raise `ValueError` otherwise.

    The value has the shape [*batch, *shape], and the result [*rows, *shape].
    """
    array = _array(value)
    if array.shape != (*batch, *shape) or array.dtype.kind not in ("biuf" if dtype.kind == "f" else "biu"):
        raise ValueError(f"{name} is {array.dtype} {array.shape}: give {dtype} {(*batch, *shape)}")
    result = np.ascontiguousarray(array, dtype)
    if dtype.kind != "f" and result.dtype != array.dtype and (result != array).any():
        raise ValueError(f"{name} is {array.tolist()}, which {dtype} cannot hold")
    if dtype.kind == "f" and np.isnan(result).any():
        raise ValueError(f"{name} is NaN in {np.isnan(result).sum()} of {result.size} numbers: give numbers")
    return result.reshape(*rows, *shape)


def _leaves(names, value, path):
    """Yield name and value of each array in nested dicts and tuples `value`, whose structure is given by `names`.

    Raises:
        ValueError: `value` is nested otherwise.
    """
    if isinstance(names, str):
        yield names, value
        return
    keys = list(names) if isinstance(names, dict) else list(range(len(names)))
    parts = dict(enumerate(value)) if isinstance(value, (tuple, list)) else value
    if not isinstance(parts, dict) or set(parts) != set(keys):
        given = f"the parts {list(parts)}" if isinstance(parts, dict) else f"no parts, but is a {type(value).__name__}"
        raise ValueError(f"{path} has {given}: give {keys}")
    for key in keys:
        yield from _leaves(names[key], parts[key], f"{path}/{key}")


def _nested(names, arrays):
    """Return the arrays, given by name in a dict, in the nested structure of dicts and tuples given by `names`."""
    if isinstance(names, dict):
        return {key: _nested(part, arrays) for key, part in names.items()}
    return arrays[names] if isinstance(names, str) else tuple(_nested(part, arrays) for part in names)
