"""TrainingLog: the row of numbers that every few steps goes to metrics.csv and to further loggers."""

import time
from pathlib import Path

from lightning_fabric import Fabric

from hidisc.settings.train import TrainConfig
from hidisc.training.loggers import make_loggers
from hidisc.training.metrics import METRICS, Metrics


class TrainingLog:
    """Measures the speed between rows; only the first rank writes."""

    def __init__(self, fabric: Fabric, out: Path, config: TrainConfig, resumed_at: int) -> None:
        self._images = config.batch.images * config.optim.accumulate
        is_first = fabric.global_rank == 0
        self._metrics = Metrics(out / METRICS, resumed_at) if is_first else None
        self._loggers = make_loggers(config.log.to, out) if is_first else []
        self._step, self._since = resumed_at, time.monotonic()
        self.waited = 0.0
        """Seconds spent waiting for data since the last row that was written."""
        self.row: dict[str, float] = {}
        """The last row, for the progress bar."""

    def show(self, step: int, values: dict[str, float]) -> None:
        """Make a row for the progress bar: values and the speed since the last one that was written."""
        elapsed = max(time.monotonic() - self._since, 1e-9)
        speed = {"images_per_s": self._images * (step - self._step) / elapsed, "wait_share": self.waited / elapsed}
        self.row = {"step": step, **values, **speed}

    def write(self, step: int, values: dict[str, float]) -> None:
        """Make a row, and write it to metrics.csv and to the loggers."""
        self.show(step, values)
        if self._metrics:
            self._metrics.add(self.row)
        for logger in self._loggers:
            logger.log({name: value for name, value in self.row.items() if name != "step"}, step)
        self._step, self._since, self.waited = step, time.monotonic(), 0.0

    def close(self) -> None:
        """Let the loggers finish."""
        for logger in self._loggers:
            logger.close()
