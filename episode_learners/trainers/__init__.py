"""Trainers: run sampling, policy updates, tests, logging and checkpoints, epoch by epoch."""

from __future__ import annotations

from episode_learners.trainers.episode_keeper import EpisodeKeeper
from episode_learners.trainers.frame_recorder import FrameRecorder
from episode_learners.trainers.off_policy import OffPolicyConfig, OffPolicyTrainer
from episode_learners.trainers.offline import OfflineConfig, OfflineTrainer
from episode_learners.trainers.on_policy import OnPolicyConfig, OnPolicyTrainer
from episode_learners.trainers.rllib_callbacks import RLModuleSpec
from episode_learners.trainers.video_hook import VideoHook

__all__ = [
    "EpisodeKeeper",
    "FrameRecorder",
    "OffPolicyConfig",
    "OffPolicyTrainer",
    "OfflineConfig",
    "OfflineTrainer",
    "OnPolicyConfig",
    "OnPolicyTrainer",
    "RLModuleSpec",
    "VideoHook",
]
