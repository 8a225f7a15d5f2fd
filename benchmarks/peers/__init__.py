"""Workloads of other libraries, written as their documentation shows. Each workload imports its library when it is
prepared.
"""

RLLIB = ("ray.rllib",)
SB3 = ("stable_baselines3",)
TIANSHOU = ("tianshou",)
TORCHRL = ("torchrl",)
CPPRB = ("cpprb",)
MINARI = ("minari", "h5py")
LEROBOT = ("datasets",)  # LeRobot's way is written out: its package is not needed
ECHO = ("echo",)
RSL_RL = ("rsl_rl", "git", "onnx")
