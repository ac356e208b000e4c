"""Further loggers: those that are installed write what metrics.csv has, the others are refused by name."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from hidisc.ground.errors import UserError
from hidisc.training.checkpoint import list_checkpoints
from hidisc.training.log import make_loggers
from tests.training.stores import losses, train, train_until


def read_tensorboard(run: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by name."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(run / "tensorboard")).Reload()
    return {name: [(item.step, item.value) for item in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_tensorboard_has_what_metrics_csv_has(store: Path, tmp_path: Path) -> None:
    run = train(store, tmp_path / "run", "log.to=[tensorboard]", "log.every=2")
    seen = read_tensorboard(run.path)
    rows = run.metrics()
    for name in ("loss", "patient", "slide", "patch", "learning_rate", "grad_norm", "effective_rank", "images_per_s"):
        assert [step for step, _ in seen[name]] == [2, 4, 6]
        assert [value for _, value in seen[name]] == pytest.approx([row[name] for row in rows], rel=1e-6)


def test_what_a_stopped_run_wrote_is_there(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_until(3, monkeypatch, store, tmp_path / "run", "log.to=[tensorboard]")
    assert [step for step, _ in read_tensorboard(tmp_path / "run")["loss"]] == [1, 2, 3]


def test_a_logger_changes_nothing(store: Path, tmp_path: Path) -> None:
    for name, to in (("with", "[tensorboard]"), ("without", "[]")):
        train(store, tmp_path / name, f"log.to={to}", "optim.steps=2")
    assert losses(tmp_path / "with") == losses(tmp_path / "without")


def test_mlflow_has_every_row(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    [logger] = make_loggers(["mlflow"], tmp_path)
    for step, loss in ((2, 1.5), (4, 1.25)):
        logger.log({"loss": loss}, step)
    logger.close()
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    [run] = client.search_runs([client.get_experiment_by_name("hidisc").experiment_id])
    assert (run.info.run_name, run.info.status) == (tmp_path.name, "FINISHED")
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(item.step, item.value) for item in history] == [(2, 1.5), (4, 1.25)]


def test_wandb_has_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    [logger] = make_loggers(["wandb"], tmp_path)
    for step, loss in ((2, 1.5), (4, 1.25)):
        logger.log({"loss": loss}, step)
        assert wandb.run.summary["loss"] == loss
    logger.close()
    assert wandb.run is None
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_one_that_is_not_installed(store: Path, tmp_path: Path, name: str) -> None:
    if find_spec(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(UserError) as caught:
        train(store, tmp_path / "run", f"log.to=[{name}]")
    assert str(caught.value) == (
        f"log.to names {name!r}, which is not installed. Run `pip install {name}`, or leave it out."
    )
    assert list_checkpoints(tmp_path / "run") == []
    train(store, tmp_path / "run", "optim.steps=6")  # and left out, the same folder goes on


def test_none_by_default(tmp_path: Path) -> None:
    assert make_loggers((), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
