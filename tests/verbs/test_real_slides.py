"""`prepare` on the real slides of ../shared/data: whole cohorts run, and files of no use say why."""

from pathlib import Path

import numpy as np
import pytest

from hidisc.artefacts.artefact import verify
from hidisc.patches.store import PatchStore
from hidisc.settings.config import load_config
from hidisc.settings.prepare import PrepareConfig
from hidisc.verbs.prepare import prepare

pytestmark = pytest.mark.whole


def test_aperio_regions_are_cut_at_one_scale_whatever_theirs_is(shared_data: Path, tmp_path: Path) -> None:
    config = load_config(PrepareConfig, "small-regions")
    built = prepare(shared_data / "monusac" / "cohort_svs.csv", tmp_path / "store", config, workers=0)
    assert built.info.failures == ()
    assert built.summary()["slides"] == 16
    assert verify(tmp_path / "store") == []
    store = PatchStore.load(tmp_path / "store")
    records = [store.record(slide) for slide in store.info.slides]
    assert {record.reader for record in records} == {"tiles"}
    assert len({record.mpp for record in records}) > 1
    for record in records:
        assert record.downsample == pytest.approx(0.5 / (record.mpp or 0))
        assert record.width is not None
        assert record.boxes <= (record.width * (record.mpp or 0) / 48 + 1) ** 2 * 4
    assert store.read_many(np.arange(len(store))).std() > 20


def test_files_without_scale_and_files_that_are_no_slides_are_refused_by_name(
    shared_data: Path, tmp_path: Path
) -> None:
    slides = {
        "aperio": "cmu-1-small-region.svs",
        "no-mpp": "tcga-cr-7395-two-levels-no-mpp.svs",
        "print-dpi": "generic-four-levels.tiff",
        "dicom": "not-a-slide.dcm",
    }
    rows = [f"P-{name},{name},{shared_data / 'wsi' / file}" for name, file in slides.items()]
    (tmp_path / "cohort.csv").write_text("\n".join(["patient,slide,path", *rows]))
    built = prepare(tmp_path / "cohort.csv", tmp_path / "store", workers=0)
    assert [slide.slide for slide in built.info.slides] == ["aperio"]
    reasons = {failure.slide: failure.reason for failure in built.info.failures}
    for name in ("no-mpp", "print-dpi"):
        assert "does not say how large its pixels are. Put micrometres per pixel into the `mpp` column" in reasons[name]
    assert "It is a DICOM file, but not a whole-slide image" in reasons["dicom"]

    assumed = prepare(
        tmp_path / "cohort.csv",
        tmp_path / "assumed",
        load_config(PrepareConfig, None, ["assume_mpp=0.25", "grid.size_px=100"]),
        workers=0,
    )
    assert [failure.slide for failure in assumed.info.failures] == ["dicom"]
