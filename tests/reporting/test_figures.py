"""Figures show the numbers they are given, whatever the names, and the same bytes each time."""

import io
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

from hidisc.evaluation.classes import Classes
from hidisc.evaluation.predictions import ENCODER, Key, Predictions
from hidisc.reporting.curves import draw_confusion, draw_curves, draw_training
from hidisc.reporting.figures import (
    GREY,
    MARKERS,
    OKABE_ITO,
    FigureFolder,
    break_lines,
    figure_style,
    fit,
    measure,
    palette,
    render,
    shorten,
)
from hidisc.reporting.patch_map import MOST_NAMES, draw_crops, draw_map, find_crop
from tests.evaluation.made import make_predictions

HOSTILE = ("$x_1$", "<script>alert(1)</script>", "W" * 300, "two\nlines\0", "患者 🧫", r"$\frac{1}{", "_hidden")


def texts_of(figure: Figure) -> list[Any]:
    """Every text that is shown, legends and ticks included."""
    found: list[Any] = [*figure.texts, *([figure._suptitle] if figure._suptitle else [])]
    for axes in figure.axes:
        if axes.get_visible():
            found += [*axes.texts, axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
            for number, axis in enumerate((axes.xaxis, axes.yaxis)):
                low, high = sorted(axis.get_view_interval())  # ticks beyond are not drawn
                found += [label for label in axis.get_ticklabels() if low <= label.get_position()[number] <= high]
            legend = axes.get_legend()
            found += legend.get_texts() if legend else []
    return [text for text in found if text.get_text()]


def said(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts_of(figure)]


def legend_of(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def fits(figure: Figure) -> bool:
    """Whether all text is on the page, once it is laid out."""
    canvas = FigureCanvasAgg(figure)
    with figure_style():
        canvas.draw()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts_of(figure)]
    return all(box.x0 >= -1 and box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height + 1 for box in boxes)


def some_predictions(classes: int, units: int = 60, seed: int = 0, names: Iterable[str] = ()) -> Predictions:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, units)
    scores = rng.random((units, classes))
    scores[np.arange(units), truth] += 0.4
    labels = tuple(names) or tuple(f"class {number}" for number in range(classes))
    unit = np.array([f"unit {number}" for number in range(units)], object)
    endpoint = Classes(label="label", classes=labels, positive=0)
    key = Key(ENCODER, "knn", "patient")
    return Predictions(key, endpoint, {"patient": unit}, truth, scores / scores.sum(axis=1, keepdims=True))


# ---- names and colours


def test_names_are_cut_in_the_middle_and_stay_on_one_line() -> None:
    assert shorten("short") == "short"
    assert shorten("0123456789", 10) == "0123456789"
    assert shorten("0123456789A", 10) == "01234…789A"
    assert [len(shorten("x" * 99, most)) for most in range(2, 30)] == list(range(2, 30))
    assert shorten("a\n b\t\0c") == "a b ?c"


def test_texts_fit_the_width_they_are_given() -> None:
    with figure_style():
        for text in ("short", "W" * 300, "i" * 300, "several words " * 20):
            for inches in (0.6, 2.0, 7.0):
                cut = fit(text, inches, 9)
                assert measure(cut, 9, "normal") <= inches
                longer = shorten(text, len(cut) + 1)
                assert cut == text or measure(longer, 9, "normal") > inches - 1e-9  # and no letter shorter than it must
                lines = break_lines(text, inches, 9)
                assert max(measure(line, 9, "normal") for line in lines) <= inches
                assert "…" in "".join(lines) or " ".join(lines) == text.strip()


def test_colours_never_repeat_and_differ_from_the_next() -> None:
    assert palette(3) == list(OKABE_ITO[:3])
    assert palette(8) == list(OKABE_ITO)
    many = palette(60)
    assert len(set(many)) == 60
    assert palette(9) == many[:9]  # a name keeps its colour when others come
    rgb = np.array([to_rgb(colour) for colour in many])
    apart = np.linalg.norm(np.diff(rgb, axis=0), axis=1)
    assert apart[: MOST_NAMES - 1].min() > 0.4  # neighbours are far apart where there is a legend
    assert apart.min() > 0.3
    assert ((rgb.max(axis=1) - rgb.min(axis=1)) > 0.2).all()  # and none is grey
    assert rgb.mean(axis=1).max() < 0.85  # nor too pale to be seen on white


# ---- confusion


@pytest.mark.parametrize("classes", [2, 7, 20])
def test_confusion_has_counts_and_percent_of_the_row(classes: int) -> None:
    rng = np.random.default_rng(classes)
    counts = rng.integers(0, 3000, (classes, classes))
    names = [f"a long name of a class {number}" for number in range(classes)]
    figure = draw_confusion(counts.tolist(), names, "A title")
    axes = figure.axes[0]
    cells = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    assert len(cells) == classes**2
    for row in range(classes):
        for column in range(classes):
            share = 100 * counts[row, column] / counts[row].sum()
            assert cells[column, row] == f"{counts[row, column]:,}\n{share:.0f} %"
    np.testing.assert_allclose(axes.images[0].get_array(), counts / counts.sum(axis=1, keepdims=True))
    rows = [text.get_text() for text in axes.get_yticklabels()]
    assert rows[0].endswith(f" ({counts[0].sum():,})")
    assert len(rows) == classes
    assert fits(figure)
    canvas = FigureCanvasAgg(figure)
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in axes.texts]
    side = axes.get_window_extent().width / classes
    assert max(box.width for box in boxes) < side  # no number runs into the next cell


def test_a_class_without_units_is_a_row_of_dashes() -> None:
    figure = draw_confusion(((2, 0), (0, 0)), ("a", "b"), "")
    assert [text.get_text() for text in figure.axes[0].texts] == ["2\n100 %", "0\n0 %", "–", "–"]


# ---- curves


def test_two_classes_have_a_line_a_subject_with_scikit_learns_areas() -> None:
    found = {"A": some_predictions(2, seed=1), "B": some_predictions(2, seed=2)}
    for positive in (0, 1):
        roc, precision = draw_curves(found, positive, "t").axes
        for axes, area in ((roc, roc_auc_score), (precision, average_precision_score)):
            values = [100 * area(one.truth == positive, one.scores[:, positive]) for one in found.values()]
            assert legend_of(axes) == [f"{value:.1f}  {name}" for value, name in zip(values, found, strict=True)]
            curves = [line for line in axes.lines if line.get_color() in OKABE_ITO and line.get_alpha() is None]
            assert len(curves) == 2
            for line, value in zip(curves, values, strict=True):
                assert 100 * np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(value)  # drawn = said
        assert {line.get_linestyle() for line in roc.lines[:2]} == {"-", "--"}  # told apart in grey


def test_one_subject_of_many_classes_has_a_line_a_class() -> None:
    found = some_predictions(4)
    roc, precision = draw_curves({"A": found}, 0, "t").axes
    for axes, area in ((roc, roc_auc_score), (precision, average_precision_score)):
        values = [100 * area(found.truth == code, found.scores[:, code]) for code in range(4)]
        assert legend_of(axes) == [f"{value:.1f}  class {code}" for code, value in enumerate(values)]


def test_several_subjects_of_many_classes_have_their_mean_curve() -> None:
    found = {"A": some_predictions(4, 300), "B": some_predictions(4, 300, seed=5)}
    roc, precision = draw_curves(found, 0, "t").axes
    for axes, area in ((roc, roc_auc_score), (precision, average_precision_score)):
        for number, (name, one) in enumerate(found.items()):
            value = 100 * np.mean([area(one.truth == code, one.scores[:, code]) for code in range(4)])
            assert legend_of(axes)[number] == f"{value:.1f}  {name}"
            line = axes.lines[number]
            assert 100 * np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(value, abs=0.3)
    assert [line.get_xydata()[0].tolist() for line in roc.lines[:2]] == [[0, 0], [0, 0]]
    assert [line.get_xydata()[-1].tolist() for line in roc.lines[:2]] == [[1, 1], [1, 1]]


def test_chance_is_the_diagonal_and_the_share_of_positives() -> None:
    found = make_predictions([1, 0, 0, 0], np.array([[0.2, 0.8], [0.7, 0.3], [0.6, 0.4], [0.9, 0.1]]))
    roc, precision = draw_curves({"A": found, "B": found}, 1, "t").axes
    assert [line.get_xydata().tolist() for line in roc.lines if line.get_color() == GREY] == [[[0, 0], [1, 1]]]
    assert [line.get_ydata()[0] for line in precision.lines if line.get_color() == GREY] == [0.25]
    unequal = make_predictions([1, 1, 0, 0], found.scores)
    _, precision = draw_curves({"A": found, "B": unequal}, 1, "t").axes
    chance = [(line.get_ydata()[0], line.get_color()) for line in precision.lines if line.get_alpha() is not None]
    assert chance == [(0.25, OKABE_ITO[0]), (0.5, OKABE_ITO[1])]  # each in its own colour


def test_classes_without_a_curve_are_named_and_left_out() -> None:
    scores = np.random.default_rng(0).random((6, 3))
    one_missing = make_predictions([0, 1, 0, 1, 0, 1], scores)
    roc, _ = draw_curves({"A": one_missing}, 0, "t").axes
    assert [name.split("  ")[0] == "–" for name in legend_of(roc)] == [False, False, True]
    roc, _ = draw_curves({"A": one_missing, "B": one_missing}, 0, "t").axes
    value = np.mean([roc_auc_score(one_missing.truth == code, scores[:, code]) for code in (0, 1)])
    assert legend_of(roc) == [f"{100 * value:.1f}  {name} (2 of 3 classes)" for name in "AB"]
    alone = make_predictions([1, 1], np.array([[0.2, 0.8], [0.7, 0.3]]))
    roc, precision = draw_curves({"A": alone}, 1, "t").axes
    assert legend_of(roc) == legend_of(precision) == ["–  A"]


def test_a_curve_of_very_many_patches_is_thinned() -> None:
    roc, precision = draw_curves({"A": some_predictions(2, 30_000)}, 1, "t").axes
    assert max(len(line.get_xdata()) for axes in (roc, precision) for line in axes.lines) < 2500
    value = float(legend_of(precision)[0].split("  ")[0])
    line = precision.lines[0]
    assert 100 * np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(value, abs=0.1)


# ---- maps


def test_map_has_a_colour_and_a_marker_a_name() -> None:
    xy = np.random.default_rng(0).normal(size=(50, 2))
    codes = np.arange(50) % 6 - 1  # -1: no name
    axes = draw_map(xy, codes, [f"n{number}" for number in range(5)], "By class").axes[0]
    unnamed, *named = axes.collections
    np.testing.assert_array_equal(unnamed.get_offsets(), xy[codes == -1])
    for code, dots in enumerate(named):
        np.testing.assert_array_equal(dots.get_offsets(), xy[codes == code])
        np.testing.assert_allclose(dots.get_facecolor()[0][:3], to_rgb(OKABE_ITO[code]))
    assert legend_of(axes) == [f"n{number}" for number in range(5)]
    assert len({dots.get_paths()[0].vertices.tobytes() for dots in named}) == 5
    assert len(MARKERS) == len(OKABE_ITO)
    assert axes.figure._suptitle.get_text() == "By class"


def test_a_map_of_very_many_names_has_no_legend() -> None:
    xy, codes = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % (MOST_NAMES + 1)
    axes = draw_map(xy, codes, [f"n{number}" for number in range(MOST_NAMES + 1)], "").axes[0]
    assert axes.get_legend() is None
    assert len(axes.collections) == 1 + MOST_NAMES + 1
    assert len({dots.get_facecolor().tobytes() for dots in axes.collections[1:]}) == MOST_NAMES + 1


@pytest.mark.parametrize("count", [0, 1])
def test_maps_of_almost_nothing(count: int) -> None:
    xy, codes = np.zeros((count, 2)), np.zeros(count, int)
    assert render(draw_map(xy, codes, ["a"], "t"), "png")
    assert render(draw_crops(xy, codes, np.array(["P"] * count, object), ["a", "b"]), "png")


def test_many_points_are_stored_as_pixels() -> None:
    xy = np.random.default_rng(0).normal(size=(2001, 2))
    codes = np.zeros(2001, int)
    many, few = (
        render(draw_map(xy, codes, ["a"], ""), "svg"),
        render(draw_map(xy[:2000], codes[:2000], ["a"], ""), "svg"),
    )
    assert b"<image" in many
    assert b"<image" not in few
    assert len(many) < len(few)


def test_crop_is_the_smallest_square_with_most_of_the_points() -> None:
    rng = np.random.default_rng(0)
    cluster, far = rng.normal(size=(70, 2)), rng.normal(size=(30, 2)) * 4 + 50
    centre, half = find_crop(np.concatenate([far, cluster]))
    inside = np.abs(np.concatenate([far, cluster]) - centre).max(axis=1) <= half
    assert 60 <= inside.sum() < 70
    assert not inside[:30].any()
    points = rng.random((25, 2))
    slow = min(sorted(np.abs(points - middle).max(axis=1))[14] for middle in points)  # 15 of 25
    assert find_crop(points)[1] == pytest.approx(1.05 * slow)
    centre, half = find_crop(np.full((9, 2), 3.0))
    assert centre.tolist() == [3.0, 3.0]
    assert half > 0
    many = rng.normal(size=(5000, 2))
    centre, half = find_crop(many)
    assert np.mean(np.abs(many - centre).max(axis=1) <= half) == pytest.approx(0.62, abs=0.03)


def test_crops_colour_a_class_by_patient_and_leave_others_pale() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], 40)
    patients = np.array([f"P{label}-{number % 4}" for number, label in enumerate(labels)], object)
    xy = rng.normal(size=(80, 2)) * 0.4 + labels[:, None]
    figure = draw_crops(xy, labels, patients, ["a", "b", "c"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a", "b", "c"]
    assert figure.axes[2].get_xlabel() == "no patches"
    for code, axes in enumerate(figure.axes[:2]):
        others, own = axes.collections
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        shown = (xy[:, 0] >= left) & (xy[:, 0] <= right) & (xy[:, 1] >= low) & (xy[:, 1] <= high)
        mine = shown & (labels == code)
        assert mine.sum() >= 24
        np.testing.assert_array_equal(own.get_offsets(), xy[mine])
        np.testing.assert_array_equal(others.get_offsets(), xy[shown & (labels != code)])
        colours = {
            patient: {tuple(row) for row in own.get_facecolor()[patients[mine] == patient]}
            for patient in set(patients[mine])
        }
        assert all(len(found) == 1 for found in colours.values())
        assert len(set.union(*colours.values())) == len(colours) == 4
        assert axes.get_xlabel() == f"4 patients, {100 * mine.sum() / 40:.0f} % of its patches"


# ---- training


def rows_of(steps: int, **columns: float) -> list[dict[str, float]]:
    return [{"step": 10 * step, "loss": 3.0 / step, **columns, "learning_rate": 0.1} for step in range(1, steps + 1)]


def test_training_shows_terms_rank_and_accuracy() -> None:
    nan = float("nan")
    first = [
        row | {"knn_accuracy": 0.5 if row["step"] % 20 == 0 else nan, "effective_rank": 4.0}
        for row in rows_of(6, patient=1.0, patch=0.5)
    ]
    second = [row | {"effective_rank": 9.0, "grad_norm": 1.0} for row in rows_of(3)]
    figure = draw_training({"one": first, "two": second, "none": []})
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == [
        "Loss of one",
        "Loss of two",
        "Effective rank",
        "Accuracy of neighbours",
    ]
    assert [legend_of(axes) for axes in panels] == [["loss", "patient", "patch"], ["loss"], ["one", "two"], ["one"]]
    assert panels[0].lines[0].get_ydata().tolist() == [row["loss"] for row in first]
    assert panels[2].lines[1].get_xydata().tolist() == [[10, 9], [20, 9], [30, 9]]
    assert panels[3].lines[0].get_xydata().tolist() == [[20, 0.5], [40, 0.5], [60, 0.5]]  # looks only, no gaps


def test_a_training_of_one_row_or_none_is_drawn() -> None:
    figure = draw_training({"one": rows_of(1)})
    assert figure.axes[0].lines[0].get_marker() == "o"
    assert render(figure, "png")
    assert render(draw_training({}), "png")


# ---- any name, the same bytes, no state


def draw_all(names: tuple[str, ...], *kinds: str) -> dict[str, Figure]:
    """Every kind of figure, or some, with these names; there are at least two."""
    count = len(names)
    rng = np.random.default_rng(0)
    xy, codes = rng.normal(size=(40, 2)), np.arange(40) % count
    found = some_predictions(count, names=names)
    drawers: dict[str, Callable[[], Figure]] = {
        "confusion": lambda: draw_confusion(np.eye(count, dtype=int).tolist(), names, names[0]),
        "classes": lambda: draw_curves({names[0]: found}, 0, names[0]),
        "models": lambda: draw_curves(dict.fromkeys(names, found), 0, names[0]),
        "map": lambda: draw_map(xy, codes, names, names[0]),
        "crops": lambda: draw_crops(xy, codes, np.array(names, object)[codes], names),
        "training": lambda: draw_training({name: rows_of(2, **{name: 1.0}) for name in names}),
    }
    return {kind: drawers[kind]() for kind in kinds or drawers}


def test_hostile_names_are_harmless(recwarn: pytest.WarningsRecorder) -> None:
    for kind, figure in draw_all(HOSTILE).items():
        assert fits(figure), kind
        assert all(not text.get_parse_math() for text in texts_of(figure)), kind
        for text in said(figure):
            lines = 1 if kind not in ("confusion", "classes", "models", "map") else 2  # counts, titles
            assert text.count("\n") < lines, kind
            assert len(text) < 130, kind
        assert any("$x_1$" in text for text in said(figure)), kind
        assert any("_hidden" in text for text in said(figure)), kind
    assert legend_of(draw_all(("a", "_b"), "map")["map"].axes[0]) == ["a", " _b"]
    assert [str(warning.message) for warning in recwarn] == []


def test_hostile_names_stay_out_of_the_svg() -> None:
    svg = render(draw_all(HOSTILE, "confusion")["confusion"], "svg")
    assert b"<script" not in svg
    ET.fromstring(svg)


def test_long_titles_take_two_lines_at_most() -> None:
    for title in ("word " * 80, "W" * 300, "short"):
        figure = draw_confusion(((1, 0), (0, 1)), ("a", "b"), title)
        assert figure._suptitle.get_text().count("\n") == (title.startswith("word"))
        assert fits(figure)


def test_the_same_figure_is_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        for name, figure in draw_all(("a", "b"), "map", "classes").items():
            render(figure, "svg") if folder == "two" else None  # what was written before makes no difference
            FigureFolder(tmp_path / folder, ()).save(name, figure)
            (tmp_path / folder / f"{name}.svg").write_bytes(render(figure, "svg"))
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["classes.pdf", "classes.png", "classes.svg", "map.pdf", "map.png", "map.svg"]
    for name in files:
        data = (tmp_path / "one" / name).read_bytes()
        assert data == (tmp_path / "two" / name).read_bytes()
        assert b"CreationDate" not in data
        assert b"matplotlib" not in data.lower().replace(b"matplotlib.org", b"") or name.endswith("svg")
        assert b"<dc:date>" not in data
    assert Image.open(tmp_path / "one" / "map.png").width > 1000


def test_the_users_own_style_and_pyplot_are_left_alone() -> None:
    before = matplotlib.rcParams.copy()

    def draw() -> bytes:
        return render(draw_map(np.zeros((3, 2)), np.zeros(3, int), ["a_b"], "t"), "png")

    expected = draw()
    matplotlib.rcParams["text.usetex"] = True  # no TeX is installed: drawing with it would fail
    matplotlib.rcParams["axes.facecolor"] = "red"
    try:
        assert draw() == expected
        assert matplotlib.rcParams["text.usetex"] is True
    finally:
        matplotlib.rcParams.update(before)
    code = "import sys, hidisc.reporting.figures as f; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_picture_opens() -> None:
    picture = Image.open(io.BytesIO(render(draw_training({"a": rows_of(3)}), "png")))
    assert picture.size[0] == pytest.approx(3.3 * 200, abs=1)
