"""The lists of patients and of slides: results as evaluated, and facts of slides that lost all their patches."""

import csv
from pathlib import Path

from hidisc.evaluation.scores import Scores
from hidisc.explorer import answers
from hidisc.explorer.requests import EmptyRequest, OverlayRequest
from hidisc.explorer.session import Session, open_session
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.prepare import prepare


def test_patients_are_told_as_evaluated(session: Session, scores: Scores) -> None:
    judged = scores.predictions("knn", "patient")
    expected = {
        name: (judged.classes[code], round(float(row.max()), 3), "right" if code == truth else "wrong")
        for name, code, row, truth in zip(
            judged.units["patient"], judged.predicted, judged.scores, judged.truth, strict=True
        )
    }
    patients = session.list_patients()
    found = {one["patient"]: (one["predicted"], one["score"], one["result"]) for one in patients if one["predicted"]}
    assert found == expected
    assert sum(one["slides"] for one in patients) == len(session.slides)
    assert sum(one["patches"] for one in patients) == len(session.store)
    lines = list(csv.DictReader(answers.write_patients(session, EmptyRequest()).lstrip("\ufeff").splitlines()))
    assert [line["patient"] for line in lines] == [one["patient"] for one in patients]


def test_a_slide_without_patches_keeps_its_class_site_and_split(tmp_path: Path) -> None:
    config = PrepareConfig.model_validate({"grid": {"size_px": 48}})
    cohort = draw_cohort(tmp_path, patients=4, slides=1, fields=4, field_px=48, seed=0)
    prepare(cohort, tmp_path / "store", config, workers=0)
    opened = open_session(tmp_path / "store", [], None, lambda _: None)
    before, contrast = opened.list_slides(), opened.store.table.column("pixel_std")
    largest = sorted(float(contrast[rows].max()) for rows in opened.rows_of_slide)
    between = {"min_pixel_std": (largest[0] + largest[1]) / 2}
    strict = config.model_copy(update={"filter": config.filter.model_copy(update=between)})
    prepare(cohort, tmp_path / "strict", strict, workers=0)
    session = open_session(tmp_path / "strict", [], None, lambda _: None)
    after = session.list_slides()
    (emptied,) = [number for number, slide in enumerate(after) if slide["patches"] == 0]
    for name in ("label", "split", "site"):
        assert [slide[name] for slide in after] == [slide[name] for slide in before]
    remark = answers.tell_overlay(session, OverlayRequest(slide=emptied, by="label"))["remark"]
    assert remark == "Nothing is painted: this slide has no patches, because all its boxes were dropped."
