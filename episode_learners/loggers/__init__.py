"""Loggers, which write the metrics of a training run to CSV files, TensorBoard or Weights & Biases."""

from __future__ import annotations

from episode_learners.loggers.csv_logger import CSVLogger
from episode_learners.loggers.logger import Logger, MultiLogger
from episode_learners.loggers.tensorboard_logger import TensorBoardLogger
from episode_learners.loggers.wandb_logger import WandbLogger

__all__ = ["CSVLogger", "Logger", "MultiLogger", "TensorBoardLogger", "WandbLogger"]
