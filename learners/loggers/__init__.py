"""Where a run's numbers go."""

from __future__ import annotations

from learners.loggers.csv_logger import CSVLogger
from learners.loggers.logger import Logger, MultiLogger
from learners.loggers.run_description import describe_run
from learners.loggers.tensorboard_logger import TensorBoardLogger
from learners.loggers.wandb_logger import WandbLogger

__all__ = ["CSVLogger", "Logger", "MultiLogger", "TensorBoardLogger", "WandbLogger", "describe_run"]
