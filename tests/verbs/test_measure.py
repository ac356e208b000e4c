"""`hidisc doctor --measure`: rates are measured by running the real thing, and needs are counts divided by rates."""

import json
from pathlib import Path

import pytest

from hidisc.settings.config import load_config
from hidisc.settings.train import TrainConfig
from hidisc.verbs import measure as verb
from hidisc.verbs.measure import CohortSize, Rates, as_record, describe_needs, estimate_needs, measure_machine
from tests.commands import Forks
from tests.training.stores import make_store, tiny

RATES = Rates(
    device="cuda",
    cores=8,
    backbone="resnet50",
    size_px=300,
    cut=50,
    read=2000,
    views=4000,
    train=1000,
    embed=2000,
    search=1e9,
    stored_bytes=40_000,
    pixel_bytes=270_000,
    width=2048,
    model_bytes=100_000_000,
    image_bytes=150_000_000,
)


def test_needs_are_counts_divided_by_rates() -> None:
    config = load_config(TrainConfig, "hidisc-patient+tcga", [])  # 448 images, 60,000 steps
    needs = {need.step: need for need in estimate_needs(RATES, CohortSize(), config)}
    assert needs["prepare"].hours == pytest.approx(11_300_000 / 50 / 3600)
    assert needs["prepare"].disk_gb == pytest.approx(452)
    assert needs["train"].hours == pytest.approx(448 * 60_000 / 1000 / 3600)
    assert needs["train"].memory_gb == pytest.approx(448 * 0.15 + 0.4)
    assert needs["train, reading"].hours == pytest.approx(448 * 60_000 / 2 / 2000 / 3600)
    assert needs["train, reading"].memory_gb == pytest.approx(11.3e6 * 36e-9 + (4 + 2) * 224 * 270_000e-9)
    assert (needs["embed"].hours, needs["embed"].disk_gb) == pytest.approx((11_300_000 / 2000 / 3600, 92.5696))
    assert needs["evaluate"].hours == pytest.approx(136_240 * 544_960 / 1e9 / 3600)
    assert {step: need.on for step, need in needs.items()} == {
        "prepare": "core",
        "train": "cuda",
        "train, reading": "core",
        "embed": "cuda",
        "evaluate": "cuda",
    }


def test_twice_the_work_takes_twice_as_long() -> None:
    one, two = (estimate_needs(RATES, CohortSize(), tiny(f"optim.steps={steps}")) for steps in (500, 1000))
    assert two[1].hours == pytest.approx(2 * one[1].hours)
    assert two[0] == one[0]


def test_a_store_is_measured_and_its_cohort_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SECONDS", 0.0), ("FIELDS", 1), ("BANK", 300), ("QUERIES", 10), ("NEIGHBOURS", 5)):
        monkeypatch.setattr(verb, name, value)
    store, config = make_store(tmp_path), tiny()
    rates, size, needs = measure_machine(store, config, device="cpu")
    assert size == CohortSize(slides=16, patches=96, reference=72, test=24)
    assert (rates.device, rates.backbone, rates.size_px, rates.pixel_bytes) == ("cpu", "test_resnet", 32, 32 * 32 * 3)
    assert min(rates.cut, rates.read, rates.views, rates.train, rates.embed, rates.search) > 0
    assert rates.stored_bytes > 0
    assert needs == estimate_needs(rates, size, config)
    assert rates.image_bytes > 3 * 32 * 32 * 4  # at least the view itself
    text = describe_needs(rates, size, needs, config)
    assert "16 slides, 96 patches, 192 images of training; evaluation of 24 patches against 72:" in text
    assert json.loads(json.dumps(as_record(rates, size, needs)))["cohort"]["patches"] == 96


def test_a_recipe_without_measuring_is_refused(forks: Forks) -> None:
    ended = forks.run("doctor", "--recipe", "hidisc-patient")
    assert ended.code == 2
    assert "hidisc: --recipe and --set say what to measure: add --measure." in ended.said
