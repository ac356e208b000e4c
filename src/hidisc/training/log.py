"""`metrics.csv`: its columns and rows; other loggers that receive the same rows."""

import csv
import io
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hidisc.ground.errors import UserError
from hidisc.ground.files import write_atomic
from hidisc.ground.spreadsheet import guard_cell, unguard_cell
from hidisc.settings.train import TrainConfig

if TYPE_CHECKING:  # a report reads metrics.csv without it
    from lightning_fabric import Fabric

METRICS = "metrics.csv"


class Metrics:
    """Rows of numbers by column name; a number is written so that it reads back bit for bit."""

    def __init__(self, path: Path, resumed_at: int) -> None:
        """Keep what was written up to step `resumed_at`; later rows, and a last row that is cut short, are removed."""
        self._path = path
        kept = [row for row in read_metrics(path) if row["step"] <= resumed_at]
        self._columns = list(kept[0]) if kept else []
        write_atomic(path, "".join([self._header(), *map(self._line, kept)]).encode())

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row; the first row names the columns."""
        new = not self._columns
        self._columns = self._columns or list(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write((self._header() if new else "") + self._line(row))

    def _header(self) -> str:
        text = io.StringIO()
        if self._columns:  # the names of levels are the user's
            csv.writer(text, lineterminator="\n").writerow(map(guard_cell, self._columns))
        return text.getvalue()

    def _line(self, row: Mapping[str, float]) -> str:
        return ",".join(repr(row[name]) for name in self._columns) + "\n"


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The complete rows of a metrics file; empty when there is no file."""
    if not path.is_file():
        return []
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
    columns = [unguard_cell(name) for name in next(csv.reader([header.strip()]), [])]
    cells = [line.strip().split(",") for line in lines if line.endswith("\n") and line.count(",") + 1 == len(columns)]
    return [
        {name: int(cell) if name == "step" else float(cell) for name, cell in zip(columns, row, strict=True)}
        for row in cells
    ]


class TrainingLog:
    """Measures the speed between rows; only the first rank writes."""

    def __init__(self, fabric: "Fabric", out: Path, config: TrainConfig, resumed_at: int) -> None:
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
        """Make a row for the progress bar: values, and the speed since the last written row."""
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


class TensorBoard:
    """Files of events that TensorBoard reads."""

    def __init__(self, run: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(run / "tensorboard")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the row of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write the values that are still in memory."""
        self._writer.close()


class Wandb:
    """A run of the project `hidisc`; wandb's own settings say where it is sent."""

    def __init__(self, run: Path) -> None:
        import wandb

        self._run = wandb.init(project="hidisc", name=run.name, dir=run)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the row of a step."""
        self._run.log(dict(values), step=step, commit=True)

    def close(self) -> None:
        """Send the values that are still in memory."""
        self._run.finish()


class MLflow:
    """A run of the experiment `hidisc`, at MLFLOW_TRACKING_URI or below the run."""

    def __init__(self, run: Path) -> None:
        from mlflow import MlflowClient

        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer ones refuse to write to a folder otherwise
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or (run.absolute() / "mlruns").as_uri())
        known = self._client.get_experiment_by_name("hidisc")
        experiment = known.experiment_id if known else self._client.create_experiment("hidisc")
        self._run_id = self._client.create_run(experiment, run_name=run.name).info.run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the row of a step."""
        for name, value in values.items():
            self._client.log_metric(self._run_id, name, value, step=step)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)


Logger = TensorBoard | Wandb | MLflow
_LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}


def make_loggers(names: Sequence[str], run: Path) -> list[Logger]:
    """The loggers of these names."""
    loggers = []
    for name in names:
        try:
            loggers.append(_LOGGERS[name](run))
        except ImportError as error:
            raise UserError(
                f"log.to names {name!r}, which is not installed. Run `pip install {name}`, or leave it out."
            ) from error
    return loggers
