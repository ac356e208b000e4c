"""Further loggers by name, beside metrics.csv, when they are installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hidisc.ground.errors import UserError

_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def make_loggers(names: Sequence[str], run: Path) -> list[Any]:
    """Lightning loggers, each with `log_metrics` and `finalize`, that write below the run's folder."""
    return [_make(name, run) for name in names]


def _make(name: str, run: Path) -> Any:
    from lightning.pytorch import loggers

    try:
        if name == "tensorboard":
            return loggers.TensorBoardLogger(save_dir=run, name="", version="tensorboard")
        if name == "wandb":
            return loggers.WandbLogger(name=run.name, save_dir=run, project="hidisc")
        return loggers.MLFlowLogger(experiment_name="hidisc", run_name=run.name, save_dir=str(run / "mlruns"))
    except (ImportError, ModuleNotFoundError) as error:
        raise UserError(
            f"log.to names {name!r}, which is not installed. Run `pip install {_PACKAGES[name]}`, or leave it out."
        ) from error
