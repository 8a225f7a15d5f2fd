"""Loggers of a run's metrics."""

from __future__ import annotations

from episode_learners.loggers.csv_logger import CSVLogger
from episode_learners.loggers.logger import Logger, MultiLogger
from episode_learners.loggers.tensorboard_logger import TensorBoardLogger
from episode_learners.loggers.wandb_logger import WandbLogger

__all__ = ["CSVLogger", "Logger", "MultiLogger", "TensorBoardLogger", "WandbLogger"]
