"""Act with a policy that rl-episodes exported. This file needs numpy and onnxruntime only: copy it next to the policy.

    policy = ServedPolicy("policy.onnx")
    action = policy.act(observation, first=True)           # at the start of an episode
    action = policy.act(observation, reward)               # afterwards; `reward` is that of the last action

Several environments at once have a leading axis of `num_envs` in observations, rewards, `first` and actions:

    policy = ServedPolicy("policy.onnx", num_envs=8)
    actions = policy(observations, rewards, first)         # first [8]: True where an episode has just begun
"""

import json

import numpy as np

_DTYPES = {"tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2", "tensor(bool)": "?"}
_DTYPES |= {f"tensor({sign}int{bits})": f"{sign or 'i'}{bits // 8}" for sign in ("u", "") for bits in (8, 16, 32, 64)}
_NOISE = {"exponential": "standard_exponential", "normal": "standard_normal", "uniform": "random"}


class ServedPolicy:
    """A policy in an .onnx file, with the state of each environment's episode.

    Args:
        path: the file.
        num_envs: the number of environments that act together.
        seed: of the random numbers, if the policy was exported with explore=True.
        threads: of onnxruntime. One is the fastest for small networks.

    Attributes:
        about: the file's metadata: spaces, structure of observations and actions, versions, result of the check.
        outputs: all outputs of the last call, by name.
        state: the current state of all episodes, by name.
    """

    def __init__(self, path, num_envs=1, seed=None, threads=1):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["rl_episodes"])
        self.num_envs, self.generator = num_envs, np.random.default_rng(seed)
        self._inputs = {
            value.name: (value.shape[1:], np.dtype(_DTYPES[value.type])) for value in self.session.get_inputs()
        }
        self._names = [value.name for value in self.session.get_outputs()]
        self._initial = {
            name: np.broadcast_to(np.asarray(self.about["initial_state"][name], dtype), shape)
            for name, (shape, dtype) in self._inputs.items()
            if name.startswith("state/")
        }
        self.outputs: dict[str, np.ndarray] = {}
        self.state: dict[str, np.ndarray] = {}
        self.reset()

    def reset(self, first=True):
        """Start a new episode in the environments whose `first` is True."""
        first = np.broadcast_to(first, self.num_envs)
        if first.all():
            self.state = {name: np.repeat(array[None], self.num_envs, 0) for name, array in self._initial.items()}
        elif first.any():
            for name, array in self._initial.items():
                self.state[name] = np.where(first.reshape(-1, *[1] * array.ndim), array, np.asarray(self.state[name]))

    def act(self, observation, reward=None, first=False):
        """Return the action for one observation, without a leading axis."""
        actions = self(_mapped(lambda leaf: np.asarray(leaf)[None], observation), reward, first)
        return _mapped(lambda leaf: leaf[0], actions)

    def __call__(self, observations, rewards=None, first=None, noise=None):
        """Return the actions [num_envs, ...] for observations [num_envs, ...], in the environment's structure."""
        first = False if first is None else first
        self.reset(first)
        inputs = dict(self.state)
        self._add_observations(inputs, self.about["observation"], observations)
        if "reward" in self._inputs:
            if rewards is None and not np.all(first):
                raise ValueError("this policy sees rewards: give the rewards of the last actions")
            inputs["reward"] = np.array(np.broadcast_to(0.0 if rewards is None else rewards, self.num_envs), np.float32)
        if "noise" in self._inputs:
            draws = [getattr(self.generator, _NOISE[kind]) for kind, _ in self.about["noise"]]
            sizes = [(self.num_envs, size) for _, size in self.about["noise"]]
            drawn = [draw(size, np.float32) for draw, size in zip(draws, sizes, strict=True)]
            inputs["noise"] = np.concatenate(drawn, 1) if noise is None else noise
        self.outputs = dict(zip(self._names, map(np.asarray, self._run(inputs)), strict=True))
        self.state = {name: self.outputs["next" + name[5:]] for name in self._initial}
        return self._structured(self.about["action"])

    def _run(self, inputs):
        if self.about["batch"] is None or self.about["batch"] == self.num_envs:
            return self.session.run(None, inputs)
        rows = [{name: array[i : i + 1] for name, array in inputs.items()} for i in range(self.num_envs)]
        return [np.concatenate(parts) for parts in zip(*(self.session.run(None, row) for row in rows), strict=True)]

    def _add_observations(self, inputs, names, observations):
        if isinstance(names, str):
            shape, dtype = self._inputs.get(names, (None, None))
            if shape is not None:  # parts of observations that the policy does not read are no inputs
                inputs[names] = np.ascontiguousarray(observations, dtype).reshape(self.num_envs, *shape)
        else:
            for key in names if isinstance(names, dict) else range(len(names)):
                self._add_observations(inputs, names[key], observations[key])

    def _structured(self, names):
        if isinstance(names, str):
            return self.outputs[names]
        if isinstance(names, dict):
            return {key: self._structured(part) for key, part in names.items()}
        return tuple(map(self._structured, names))


def _mapped(function, value):
    if isinstance(value, dict):
        return {key: _mapped(function, part) for key, part in value.items()}
    return tuple(_mapped(function, part) for part in value) if isinstance(value, tuple) else function(value)
