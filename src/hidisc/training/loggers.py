"""Further loggers by name, beside metrics.csv, when they are installed; each writes below the run's folder."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hidisc.ground.errors import UserError


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
        """Write what is left."""
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
        """Send what is left."""
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
