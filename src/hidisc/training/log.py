"""TrainingLog: the row of numbers that every few steps goes to metrics.csv and to further loggers."""

import time
from pathlib import Path

from lightning.fabric import Fabric

from hidisc.settings.train import TrainConfig
from hidisc.training.loggers import make_loggers
from hidisc.training.metrics import METRICS, Metrics


class TrainingLog:
    """Counts time between rows; only the first rank writes."""

    def __init__(self, fabric: Fabric, out: Path, config: TrainConfig, resumed_at: int) -> None:
        self._images = config.batch.images * config.optim.accumulate
        is_first = fabric.global_rank == 0
        self._metrics = Metrics(out / METRICS, resumed_at) if is_first else None
        self._loggers = make_loggers(config.log.to, out) if is_first else []
        self._step, self._since, self.waited = resumed_at, time.monotonic(), 0.0
        self.row: dict[str, float] = {}
        """The last row."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Add the speed since the last row and write it; `waited` seconds of it were spent waiting for data."""
        elapsed = max(time.monotonic() - self._since, 1e-9)
        speed = {
            "images_per_s": self._images * (step - self._step) / elapsed,
            "wait_share": self.waited / elapsed,
        }
        self.row = {"step": step, **values, **speed}
        if self._metrics:
            self._metrics.add(self.row)
        for logger in self._loggers:
            logger.log_metrics(values | speed, step)
        self._step, self._since, self.waited = step, time.monotonic(), 0.0

    def close(self) -> None:
        """Let the loggers finish."""
        for logger in self._loggers:
            logger.finalize("success")
