"""Inference with an exported policy. This file needs only numpy and onnxruntime: copy it next to the .onnx file.

    policy = ServedPolicy("policy.onnx")
    action = policy.act(observation, first=True)           # at the start of an episode
    action = policy.act(observation, reward)               # afterwards; `reward` is that of the last action

Several environments at once have a leading axis of `num_envs` in observations, rewards, `first` and actions:

    policy = ServedPolicy("policy.onnx", num_envs=8)
    actions = policy(observations, rewards, first)         # first [8]: True where an episode has just begun
"""

import json

import numpy as np

_NOISE = {"exponential": "standard_exponential", "normal": "standard_normal", "uniform": "random"}


class ServedPolicy:
    """Policy loaded from an .onnx file, with the recurrent state of each environment's current episode.

    Args:
        path: the file.
        num_envs: the number of environments that act together.
        seed: of the random numbers, if the policy was exported with explore=True.
        threads: of onnxruntime. One is the fastest for small networks.

    Attributes:
        about: the file's metadata: inputs, spaces, names of observations and actions, versions.
        outputs: all outputs of the last call, by name.
        state: the current state of all episodes, by name.
    """

    def __init__(self, path, num_envs=1, seed=None, threads=1):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["rl_episodes"])
        self.num_envs, self.generator, self.outputs = num_envs, np.random.default_rng(seed), {}
        self._names = [output.name for output in self.session.get_outputs()]
        self._initial = {
            name: np.broadcast_to(np.asarray(value, self.about["inputs"][name][0]), self.about["inputs"][name][1])
            for name, value in self.about["initial_state"].items()
        }
        self.state = {name: np.repeat(array[None], num_envs, 0) for name, array in self._initial.items()}

    def reset(self, first=True):
        """Start new episodes in the environments where `first`, bool [num_envs], is True."""
        first = np.broadcast_to(np.asarray(first, bool), self.num_envs)
        if first.any():
            for name, array in self._initial.items():
                self.state[name] = np.where(first.reshape(-1, *[1] * array.ndim), array, self.state[name])

    def act(self, observation, reward=None, first=False):
        """Return the action for one observation without a batch axis."""
        leaves = {name: np.asarray(leaf)[None] for name, leaf in _leaves(self.about["observation"], observation)}
        outputs = self._run(leaves, reward, first, None)
        return _nested(self.about["action"], {name: array[0] for name, array in outputs.items()})

    def __call__(self, observations, rewards=None, first=False, noise=None):
        """Return the actions [num_envs, ...] for observations [num_envs, ...], in the environment's structure."""
        leaves = dict(_leaves(self.about["observation"], observations))
        return _nested(self.about["action"], self._run(leaves, rewards, first, noise))

    def _run(self, observations, rewards, first, noise):
        inputs = {}
        if "reward" in self.about["inputs"]:
            if rewards is None and not np.all(first):
                raise ValueError("this policy sees rewards: give the rewards of the last actions")
            rewards = np.asarray(0 if rewards is None else rewards, np.float32)
            inputs["reward"] = np.array(np.broadcast_to(rewards, self.num_envs))
        for name in observations.keys() & self.about["inputs"].keys():  # the policy may not read all parts
            inputs[name] = self._checked(name, np.asarray(observations[name]))
        if self.about["noise"]:
            draws = [(getattr(self.generator, _NOISE[kind]), size) for kind, size in self.about["noise"]]
            drawn = [draw((self.num_envs, size), np.float32) for draw, size in draws]
            inputs["noise"] = np.concatenate(drawn, 1) if noise is None else noise
        self.reset(first)
        inputs |= self.state
        rows = [inputs]
        if self.about["batch"] == 1:
            rows = [{name: array[i : i + 1] for name, array in inputs.items()} for i in range(self.num_envs)]
        results = zip(*(self.session.run(None, row) for row in rows), strict=True)
        self.outputs = {name: np.concatenate(parts) for name, parts in zip(self._names, results, strict=True)}
        self.state = {name: self.outputs["next" + name[5:]] for name in self.state}
        return self.outputs

    def _checked(self, name, array):
        dtype, shape = self.about["inputs"][name]
        if array.shape != (self.num_envs, *shape) or (array.dtype.kind == "f" and np.dtype(dtype).kind != "f"):
            raise ValueError(f"{name} is {array.dtype} {array.shape}: give {dtype} {(self.num_envs, *shape)}")
        return np.ascontiguousarray(array, dtype)


def _leaves(names, value):
    """Yield the name and value of each array in nested dicts and tuples."""
    if isinstance(names, str):
        yield names, value
    else:
        for key in names if isinstance(names, dict) else range(len(names)):
            yield from _leaves(names[key], value[key])


def _nested(names, arrays):
    """Return arrays, given by name, as nested dicts and tuples of the structure of `names`."""
    if isinstance(names, dict):
        return {key: _nested(part, arrays) for key, part in names.items()}
    return arrays[names] if isinstance(names, str) else tuple(_nested(part, arrays) for part in names)
