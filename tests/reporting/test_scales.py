"""Every scale by itself: the table has all numbers, and the figure shows them where they belong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hidisc.evaluation.metrics import Value
from hidisc.evaluation.scores import Floor, Judged
from hidisc.reporting.curves import draw_scales
from hidisc.reporting.evaluated import EvaluatedModel, gather
from hidisc.reporting.tables import scales_table
from tests.evaluation.made import make_embeddings
from tests.reporting.judged import make_scores, with_metric

ACCURACY = {0.5: 0.9, 1.0: 0.8, 2.0: 0.6}


@pytest.fixture
def model(tmp_path: Path) -> EvaluatedModel:
    """An encoder whose accuracy falls with the scale, at all levels, beside a colour that is not known at 2.0."""
    make_scores(tmp_path / "scores", make_embeddings(tmp_path / "embeddings"))
    (found,) = gather([tmp_path / "scores"])
    (scores,) = found.scores
    judged = list(scores.info.judged)
    for mpp, accuracy in ACCURACY.items():
        judged += [_at(row, "encoder", mpp, accuracy) for row in scores.info.list_levels()]
        judged += [_at(row, "colour", mpp, accuracy - 0.3) for row in scores.info.list_levels() if mpp < 2]
    floors = (Floor(subject="colour", patches=0, ahead={}),)
    info = scores.info.model_copy(update={"judged": tuple(judged), "floors": floors})
    return replace(found, scores=(replace(scores, info=info),))


def _at(row: Judged, subject: str, mpp: float, accuracy: float) -> Judged:
    value = Value(value=accuracy, low=accuracy - 0.1, high=accuracy + 0.05)
    return with_metric(row, "accuracy", value).model_copy(update={"subject": subject, "scale": mpp})


def test_the_table_has_every_scale_and_level(model: EvaluatedModel) -> None:
    rows = scales_table([model]).rows
    assert [row[:4] for row in rows[:4]] == [
        ("0.5 um/px", "made", "Patient", "90.0 [80.0, 95.0]"),
        ("0.5 um/px", "made", "Slide", "90.0 [80.0, 95.0]"),
        ("0.5 um/px", "made", "Patch", "90.0 [80.0, 95.0]"),
        ("0.5 um/px", "made: colour alone", "Patient", "60.0 [50.0, 65.0]"),
    ]
    assert len(rows) == 3 * 3 + 2 * 3


def test_the_figure_shows_accuracy_over_mpp(model: EvaluatedModel) -> None:
    panels = draw_scales([model]).axes
    assert [panel.get_title(loc="left") for panel in panels] == [
        f"{level} accuracy in %" for level in ("Patient", "Slide", "Patch")
    ]
    for panel in panels:
        encoder, _, _, colour = panel.get_lines()  # between them, the ends of the intervals
        np.testing.assert_allclose(encoder.get_xydata(), [(mpp, 100 * value) for mpp, value in ACCURACY.items()])
        np.testing.assert_allclose(colour.get_ydata(), [60, 50, np.nan])
        assert [tick.get_text() for tick in panel.get_xticklabels()] == ["0.5", "1", "2"]
