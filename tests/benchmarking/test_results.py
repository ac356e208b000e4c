"""Claims, tables beside the published ones, the page: from scores whose numbers are known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hidisc.benchmarking.cells import FAILED, SuiteCell, plan_cells
from hidisc.benchmarking.claims import Checked, check_claim
from hidisc.benchmarking.results import gather_models, write_results
from hidisc.benchmarking.tables import beside_table, cells_table, claims_table
from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.compare import compare
from hidisc.reporting.curves import draw_axis
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.table import DASH, metric_values
from hidisc.settings.benchmark import ClaimConfig, SuiteConfig
from hidisc.settings.config import load_config
from hidisc.settings.evaluate import BootstrapConfig
from tests.evaluation.made import make_embeddings
from tests.reporting.browser import open_browser, open_page
from tests.reporting.judged import LEAK, make_scores

ACCURACY = {"SimCLR": 0.4, "HiDisc-Patch": 0.4, "HiDisc-Slide": 0.85, "HiDisc-Patient": 0.9, "SupCon": 0.98}


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    return make_embeddings(tmp_path_factory.mktemp("made") / "e", patients=24, slides=2, patches=6)


def suite_of(*changes: str, name: str = "weak") -> SuiteConfig:
    return load_config(SuiteConfig, name, ["small.changes=[optim.steps=10]", "seeds=2", "floors=false", *changes])


def finish(cell: SuiteCell, embeddings: Embeddings, accuracy: float, *, leak: bool = False) -> None:
    """What a finished training leaves, but for the training."""
    for point in cell.points:
        share = accuracy * point.step / cell.train.optim.steps
        make_scores(
            cell.scores(point),
            embeddings,
            name=cell.row.name,
            group=cell.row.name,
            seed=cell.seed,
            sampling_seed=point.sampling,
            accuracy=share,
            probes=("knn",),
            leak=leak,
            labels_used=("supcon",) if cell.row.name == "SupCon" else (),
        )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, embeddings: Embeddings) -> tuple[SuiteConfig, list[SuiteCell], Path]:
    """The suite `weak`, all finished."""
    suite, tmp_path = suite_of(), tmp_path_factory.mktemp("weak")
    cells = plan_cells(suite, suite.small, tmp_path)
    for cell in cells:
        finish(cell, embeddings, ACCURACY[cell.row.name])
    return suite, cells, tmp_path


def named(suite: SuiteConfig, cells: list[SuiteCell]) -> dict[str, EvaluatedModel]:
    return {model.name: model for _, model in gather_models(suite, cells, Path())}


def mean_accuracy(model: EvaluatedModel, level: str) -> float:
    found = [scores.predictions("knn", level) for scores in model.scores]
    return float(np.mean([(one.truth == one.predicted).mean() for one in found]))


def test_claims_are_held_not_held_or_not_measured(done: tuple[SuiteConfig, list[SuiteCell], Path]) -> None:
    suite, cells, _ = done
    models = named(suite, cells)
    found = [check_claim(claim, models, suite.evaluate) for claim in suite.claims]
    assert [item.outcome for item in found][:3] == ["held", "held", "held"]
    for item in found:
        assert item.difference
        value, low, high = item.difference.value, item.difference.low, item.difference.high
        assert value is not None
        assert low is not None
        assert high is not None
        sides = (models[name] for name in (item.claim.better, item.claim.than))
        better, than = (mean_accuracy(model, item.claim.level) for model in sides)
        assert value == pytest.approx(better - than)
        assert (item.outcome == "held") == (low > 0)
    backwards = ClaimConfig(text="", better="SimCLR", than="HiDisc-Patient")
    assert check_claim(backwards, models, suite.evaluate).outcome == "not held"
    no_better = backwards.model_copy(update={"expect": "no better"})
    assert check_claim(no_better, models, suite.evaluate).outcome == "held"
    del models["SimCLR"]
    absent = check_claim(backwards, models, suite.evaluate)
    assert (absent.outcome, absent.found) == ("not measured", "SimCLR has no finished training")


def claim_of(suite: SuiteConfig, cells: list[SuiteCell], **changes: str) -> Checked:
    """What became of the claim that HiDisc-Patient is better than SimCLR."""
    claim = ClaimConfig(text="", better="HiDisc-Patient", than="SimCLR").model_copy(update=changes)
    return check_claim(claim, named(suite, cells), suite.evaluate)


def finish_rows(
    tmp_path: Path, embeddings: Embeddings, suite: SuiteConfig, accuracy: dict[str, tuple[float, ...]]
) -> list[SuiteCell]:
    """Finished trainings of some rows, with the accuracy of each seed."""
    cells = plan_cells(suite, suite.small, tmp_path)
    for cell in cells:
        if cell.seed < len(accuracy.get(cell.row.name, ())):
            finish(cell, embeddings, accuracy[cell.row.name][cell.seed])
    return cells


@pytest.mark.parametrize("expect", ["better", "no better"])
@pytest.mark.parametrize("seeds", [(1, 1), (2, 1), (1, 2)])
def test_one_training_is_not_a_method(
    tmp_path: Path, embeddings: Embeddings, seeds: tuple[int, int], expect: str
) -> None:
    rows = {"HiDisc-Patient": (0.95, 0.94)[: seeds[0]], "SimCLR": (0.3, 0.31)[: seeds[1]]}
    suite = suite_of()
    cells = finish_rows(tmp_path, embeddings, suite, rows)
    found = claim_of(suite, cells, expect=expect)
    assert found.outcome == "one training, not a method"
    assert found.difference
    assert found.difference.low is not None
    assert found.difference.low > 0
    words = {(1, 1): "one training each", (2, 1): "2 and 1 trainings", (1, 2): "1 and 2 trainings"}[seeds]
    assert found.found.startswith("HiDisc-Patient is better than SimCLR in patch accuracy by ")
    assert found.found.endswith(f"; 36 patients; {words})")
    notes = claims_table([found], []).notes
    assert notes[-1] == (
        "One training, not a method: a method has one finished training only, so the interval cannot show how much "
        "another seed would change the result. Finish the others, or run the suite with --set seeds=3 and a new --out."
    )


def test_starting_weights_need_no_second_seed(tmp_path: Path, embeddings: Embeddings) -> None:
    suite = suite_of()
    cells = finish_rows(tmp_path, embeddings, suite, {"HiDisc-Patient": (0.95, 0.94), "SimCLR": (0.3,)})
    models = named(suite, cells)
    (one,) = models["SimCLR"].scores
    card = one.info.model.model_copy(update={"seed": None})
    frozen = replace(models["SimCLR"], scores=(replace(one, info=one.info.model_copy(update={"model": card})),))
    claim = ClaimConfig(text="", better="HiDisc-Patient", than="SimCLR")
    assert check_claim(claim, models, suite.evaluate).outcome == "one training, not a method"
    assert check_claim(claim, models | {"SimCLR": frozen}, suite.evaluate).outcome == "held"


def test_samples_of_patches_do_not_make_one_training_a_method(tmp_path: Path, embeddings: Embeddings) -> None:
    suite = suite_of("per_slide=4", "samplings=3", "seeds=1")
    cells = finish_rows(tmp_path, embeddings, suite, {"HiDisc-Patient": (0.95,), "SimCLR": (0.3,)})
    assert len(named(suite, cells)["SimCLR"].scores) == 3
    assert claim_of(suite, cells).outcome == "one training, not a method"


def test_seeds_that_scatter_do_not_hold_a_claim(tmp_path: Path, embeddings: Embeddings) -> None:
    """Over draws of patients alone the difference of the means is clear; two of three trainings make it."""
    suite = suite_of("seeds=3")
    rows = {"HiDisc-Patient": (0.95, 0.9, 0.3), "SimCLR": (0.5, 0.5, 0.5)}
    cells = finish_rows(tmp_path, embeddings, suite, rows)
    models = named(suite, cells)
    alone = compare(
        *([[one.predictions("knn", "patch") for one in models[name].scores]] for name in rows),
        suite.evaluate.bootstrap,
        0,
    )["accuracy"]
    assert alone.verdict == "better"
    found = claim_of(suite, cells)
    assert found.outcome == "cannot tell"
    assert claim_of(suite, cells, expect="no better").outcome == "held"  # the interval does not lie above 0
    assert found.found.startswith("no clear difference between HiDisc-Patient and SimCLR in patch accuracy: ")
    assert found.found.endswith("; 36 patients; 3 trainings each)")
    assert claims_table([found], []).notes == (
        "Held: the interval of the difference (bootstrap resamples of the same patients for both methods and of the "
        "trainings of each) lies above 0, as claimed. Not held: it lies below 0. Cannot tell: it contains 0. A claim "
        "that a method is no better is held unless the interval lies above 0.",
    )
    page = write_results(suite, cells, tmp_path, "small").read_text()
    assert '<span class="outcome cannot-tell">cannot tell</span>' in page
    assert "not held</span>" not in page
    assert ".outcome.cannot-tell" not in page  # in the colour of text; only what is not held is red


def test_a_claim_without_an_interval_is_not_measured(done: tuple[SuiteConfig, list[SuiteCell], Path]) -> None:
    suite, cells, _ = done
    without = suite.evaluate.model_copy(update={"bootstrap": BootstrapConfig(resamples=0)})
    found = check_claim(suite.claims[0], named(suite, cells), without)
    assert found.outcome == "not measured"
    assert "no interval" in found.found
    other_level = suite.claims[0].model_copy(update={"level": "site"})
    assert check_claim(other_level, named(suite, cells), suite.evaluate).outcome == "not measured"


def test_published_numbers_stand_beside_ours(done: tuple[SuiteConfig, list[SuiteCell], Path]) -> None:
    suite, cells, _ = done
    table = beside_table(suite, named(suite, cells), "weak_aug")
    assert table.columns == ("Level", "Method", "Source", "Accuracy", "MCA", "AUROC")
    rows = {row[:3]: row[3:] for row in table.rows}
    assert rows["Patch", "SimCLR", "paper, SRH"] == ("31.5 (2.3)", "23.1 (1.9)", DASH)
    assert rows["Patient", "SimCLR", "paper, SRH"] == ("40.2 (6.9)", "28.9 (4.5)", DASH)
    assert rows["Patch", "SupCon †", "paper, TCGA"] == ("85.4 (0.4)", DASH, "92.0 (0.2)")
    assert rows["Patient", "SupCon †", "paper, TCGA"] == ("88.4 (0.8)", DASH, "95.2 (0.4)")
    ours = 100 * mean_accuracy(named(suite, cells)["HiDisc-Patient"], "patch")
    assert rows["Patch", "HiDisc-Patient", "here"][0].startswith(f"{ours:.1f} (")
    bold = {(table.rows[row][:3], column) for row, column in table.bold}
    best = {
        at: {name for (level, name, source), column in bold if (level, source, column) == (at, "paper, SRH", 3)}
        for at in ("Patch", "Patient")
    }
    assert best["Patch"] == {"HiDisc-Patient"}  # the paper's own bold type; SupCon learned from labels
    assert best["Patient"] == {"HiDisc-Slide", "HiDisc-Patient"}


def test_levels_stand_below_each_other(done: tuple[SuiteConfig, list[SuiteCell], Path]) -> None:
    suite, cells, _ = done
    models = named(suite, cells)
    table = beside_table(suite, models, "weak_tcga_extended")
    assert table.columns[:3] == ("Level", "Method", "Source")
    assert table.blocks == {0: 10, 10: 10, 20: 10}
    assert [row[0] for row in table.rows] == ["Patch"] * 10 + ["Slide"] * 10 + ["Patient"] * 10
    assert table.rows[-1][:4] == ("Patient", "SupCon †", "paper, TCGA", "88.4 (0.8)")
    srh = beside_table(suite, models, "weak_srh_extended")
    supcon = [row for row in srh.rows if row[1:3] == ("SupCon †", "paper, SRH")]
    assert supcon[0][3] == "90.0 (0.2)"  # the paper calls it supervised there
    table.to_latex("x"), table.to_markdown(), table.to_csv()


def test_what_failed_and_what_is_missing_is_said(tmp_path: Path, embeddings: Embeddings) -> None:
    suite = suite_of("seeds=1")
    cells = plan_cells(suite, suite.small, tmp_path)
    finish(cells[3], embeddings, 0.9)
    cells[0].folder.mkdir(parents=True)
    (cells[0].folder / FAILED).write_text("the loss is not finite <b>")
    fates = [row[-1] for row in cells_table(cells).rows]
    assert fates == ["failed: the loss is not finite <b>", "not finished", "not finished", "finished", "not finished"]
    page = write_results(suite, cells, tmp_path, "small").read_text()
    assert "1 of 5 trainings finished, 1 failed." in page
    assert "the loss is not finite &lt;b&gt;" in page
    assert "not measured" in page
    table = beside_table(suite, named(suite, cells), "weak_aug")
    assert table.rows[0] == ("Patch", "SimCLR", "here", *[DASH] * 3)


def test_with_nothing_finished_there_are_no_numbers(tmp_path: Path) -> None:
    suite = suite_of("seeds=1")
    page = write_results(suite, plan_cells(suite, suite.small, tmp_path), tmp_path, "small").read_text()
    assert "No training is finished, so there are no numbers." in page
    assert {path.stem for path in (tmp_path / "tables").iterdir()} == {"trainings"}


def test_leakage_stands_above_everything(tmp_path: Path, embeddings: Embeddings) -> None:
    suite = suite_of("seeds=1")
    cells = plan_cells(suite, suite.small, tmp_path)
    for cell in cells[:2]:
        finish(cell, embeddings, 0.9, leak=True)
    page = write_results(suite, cells, tmp_path, "small").read_text()
    assert page.count(LEAK) >= 5
    for name in ("results", "paper-weak-aug", "claims"):
        assert LEAK in (tmp_path / "tables" / f"{name}.md").read_text().replace("\\", "")


def test_the_page_asks_nothing_of_the_network(done: tuple[SuiteConfig, list[SuiteCell], Path]) -> None:
    suite, cells, out = done
    page = write_results(suite, cells, out, "small").read_text()
    assert "<title>Weak augmentation</title>" in page
    assert 'src="http' not in page
    assert "10 of 10 trainings finished." in page
    for name in ("results", "claims", "trainings", "paper-weak-aug", "paper-weak-srh-extended"):
        for ending in ("csv", "md", "tex"):
            assert (out / "tables" / f"{name}.{ending}").is_file()
            assert f'href="tables/{name}.{ending}"' in page
    figures = sorted(path.name for path in (out / "figures").glob("*.png"))
    assert len(figures) == 10
    assert "confusion-4-hidisc-patient-patch.png" in figures


def test_a_curve_is_drawn_over_the_steps(tmp_path: Path, embeddings: Embeddings) -> None:
    suite = load_config(SuiteConfig, "iterations", ["small.changes=[optim.steps=100]", "evaluation_points=[0.5, 1.0]"])
    cells = plan_cells(suite, suite.small, tmp_path)
    finish(cells[0], embeddings, 0.9)
    placed = gather_models(suite, cells, Path())
    assert [(at, model.name) for at, model in placed] == [
        (50.0, "HiDisc-Patient, 50 steps"),
        (100.0, "HiDisc-Patient, 100 steps"),
    ]
    write_results(suite, cells, tmp_path, "small")
    assert (tmp_path / "figures" / "axis.pdf").is_file()


def test_a_wide_axis_is_logarithmic_and_names_its_places(done: tuple[SuiteConfig, list[SuiteCell], Path]) -> None:
    suite, cells, _ = done
    models = list(named(suite, cells).values())
    figure = draw_axis(list(zip((1.0, 0.1, 1e-3), models, strict=False)), "learning rate", "knn")
    figure.canvas.draw()
    for panel, metric in zip(figure.axes, ("accuracy", "mca"), strict=True):
        assert panel.get_xscale() == "log"
        assert [tick.get_text() for tick in panel.get_xticklabels()] == ["0.001", "0.1", "1"]
        drawn = panel.containers[0].lines[0].get_ydata()
        expected = [100 * np.mean(metric_values(model, "knn", "patch", metric)) for model in models[2::-1]]
        assert list(drawn) == pytest.approx(expected)
    narrow = draw_axis(list(zip((10.0, 20.0), models, strict=False)), "steps", "knn")
    assert narrow.axes[0].get_xscale() == "linear"


def test_samplings_are_averaged_with_seeds(tmp_path: Path, embeddings: Embeddings) -> None:
    suite = suite_of("per_slide=4", "samplings=3")
    cells = plan_cells(suite, suite.small, tmp_path)
    for cell in cells:
        finish(cell, embeddings, 0.9)
    models = named(suite, cells)
    assert {len(model.scores) for model in models.values()} == {6}
    sampled = {(one.info.model.seed, one.info.sampling["seed"]) for one in models["SimCLR"].scores}
    assert sampled == {(seed, draw) for seed in range(2) for draw in range(3)}


@pytest.mark.whole
def test_a_browser_shows_the_page_on_a_desk_and_on_a_phone(
    done: tuple[SuiteConfig, list[SuiteCell], Path], tmp_path: Path
) -> None:
    suite, cells, _ = done
    bad = "<script>alert(1)</script>"
    claims = (suite.claims[0].model_copy(update={"text": bad}), *suite.claims[1:])
    some = [*cells[:4], *cells[5:8]]  # two seeds of all but HiDisc-Patient, which has one, and SupCon, which has none
    page = write_results(suite.model_copy(update={"claims": claims, "title": bad}), some, tmp_path, "small")
    with open_browser() as browser:
        for width in (1280, 360):
            with open_page(browser, page, width) as watched:
                outcomes = watched.page.locator(".claims .outcome").all_text_contents()
                alone = "one training, not a method"
                assert outcomes == [alone, alone, "held", alone, "not measured"]
                assert watched.page.locator(".outcome.one-training-not-a-method").count() == 3
                assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
                broken = watched.page.evaluate("[...document.images].filter(image => !image.naturalWidth).length")
                assert (broken, watched.errors, watched.requests) == (0, [], [])
                assert watched.page.locator(".claims b").first.text_content() == bad
