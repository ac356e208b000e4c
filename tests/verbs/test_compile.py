"""`compute.compile`: decided once at the start of a run, recorded, and kept when the run goes on."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hidisc.ground.errors import UserError
from hidisc.training import step
from hidisc.training.step import LONG_RUN_STEPS, check_compiler, decide_compile, find_missing_compiler, pays_to_compile
from tests.training.stores import losses, make_store, outcome, tiny, train, train_until


class OnDevice:
    """As much of a Fabric as the decision needs."""

    is_global_zero = True

    def __init__(self, kind: str) -> None:
        self.device = type("Device", (), {"type": kind})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("compile"))


def decide(out: Path, device: str, *changes: str) -> tuple[bool | str, list[str]]:
    said: list[str] = []
    fabric: Any = OnDevice(device)
    return decide_compile(tiny(*changes), out, fabric, said.append).compute.compile, said


def recorded(out: Path) -> Any:
    return yaml.safe_load((out / "config.yaml").read_text())["compute"]["compile"]


@pytest.mark.parametrize("device", ["cuda", "cpu", "mps"])
@pytest.mark.parametrize("steps", [1, LONG_RUN_STEPS - 1, LONG_RUN_STEPS, 100_000])
def test_the_rule(device: str, steps: int) -> None:
    assert pays_to_compile(device, steps) == (device == "cuda" and steps >= 10_000)


def test_auto_is_decided_at_the_start_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = f"optim.steps={LONG_RUN_STEPS}"
    monkeypatch.setattr(step, "find_missing_compiler", lambda _: None)
    assert decide(tmp_path, "cuda", long) == (
        True,
        ["compute.compile=auto: the backbone is compiled, which takes minutes"],
    )
    assert decide(tmp_path, "cuda") == (False, [])
    assert decide(tmp_path, "cpu", long) == (False, [])
    assert decide(tmp_path, "cuda", long, "map.kind=whiten") == ("auto", []), "it has no steps"
    monkeypatch.setattr(step, "find_missing_compiler", lambda _: "the package triton")
    missing = "is not compiled, which would be faster: the package triton is missing"
    assert decide(tmp_path, "cuda", long) == (False, [f"compute.compile=auto: the backbone {missing}"])


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("device", ["cuda", "cpu", "mps"])
def test_auto_goes_on_as_the_run_was_begun_on_any_device(tmp_path: Path, begun: bool, device: str) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"kind": "train", "compute": {"compile": begun}}))
    assert decide(tmp_path, device, f"optim.steps={LONG_RUN_STEPS}") == (begun, [])


def test_a_run_of_the_old_default_goes_on(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was begun with `false`; the same command, whose default is `auto` now, ends with the same bytes."""
    whole = train(store, tmp_path / "whole", "compute.compile=false")
    train_until(3, monkeypatch, store, tmp_path / "run", "compute.compile=false")
    assert outcome(train(store, tmp_path / "run").path) == outcome(whole.path)
    assert recorded(tmp_path / "run") is False


def test_another_wish_is_refused_when_a_run_goes_on(store: Path, tmp_path: Path) -> None:
    train(store, tmp_path / "run", "optim.steps=1")
    with pytest.raises(UserError, match=r"compute.compile: False -> True\). Use the same ones to go on"):
        train(store, tmp_path / "run", "optim.steps=1", "compute.compile=true")


def test_what_is_missing_to_compile_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "which", lambda _: None)
    monkeypatch.setattr(step, "find_spec", lambda _: None)
    assert find_missing_compiler("cuda") == "the package triton"
    assert find_missing_compiler("cpu") == "a C++ compiler"
    check_compiler(tiny("compute.compile=false"), "cpu")
    with pytest.raises(UserError) as caught:
        check_compiler(tiny("compute.compile=true"), "cpu")
    assert str(caught.value) == (
        "compute.compile = true: a C++ compiler is missing on this machine, for cpu. Install it, or train anew "
        "with --set compute.compile=false and a new --out."
    )


@pytest.mark.slow
@pytest.mark.skipif(find_missing_compiler("cpu") is not None, reason="no C++ compiler here")
def test_a_compiled_run_learns_the_same_and_goes_on_compiled(store: Path, tmp_path: Path) -> None:
    plain = train(store, tmp_path / "plain", "optim.steps=2")
    compiled = train(store, tmp_path / "compiled", "optim.steps=2", "compute.compile=true")
    for row, expected in zip(losses(compiled.path), losses(plain.path), strict=True):
        assert row == pytest.approx(expected, rel=1e-3)
    assert recorded(compiled.path) is True
    assert set(compiled.encoder().state_dict()) == set(plain.encoder().state_dict())
