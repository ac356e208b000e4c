"""The page says what the numbers say, escapes all names, and asks nothing of the network."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import beta

from hidisc.evaluation.metrics import Value
from hidisc.evaluation.scores import Diagnostic, Finding, Scores
from hidisc.models.card import NOTHING, UNKNOWN, History
from hidisc.reporting.evaluated import EvaluatedModel
from hidisc.reporting.figures import Drawing, FigureFolder
from hidisc.reporting.html import fill_template
from hidisc.reporting.patch_map import place_on_grid
from hidisc.reporting.sheets import SheetRow, SheetTile
from hidisc.reporting.table import Table
from hidisc.reporting.tables import counts_table, gather_warnings, metrics_table
from hidisc.reporting.verdict import describe, find_verdict
from hidisc.settings.level_names import USUAL
from tests.evaluation.made import make_embeddings
from tests.reporting.browser import open_browser, open_page
from tests.reporting.judged import LACK, LEAK, LEFT, make_scores, with_metric

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(2)</script>",
    "{{ 7 * 7 }}",
    "a" * 300,
    "\u202egnp.exe",
    "مريض 🧠",
    "<!--",
    "\u2028]]>&amp;",
)


class Reader(HTMLParser):
    """What is in a page: elements with their attributes, text by element, and the text that people see."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._within = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._within = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "script":
            self.scripts[-1] += data
        elif self._within != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def render(name: str = "an encoder", **changes: object) -> str:
    """A page with something in every section, all of it called `name`."""
    table = Table(name, ("Method", name), ((name, "1.0"),), (name,))
    shown = SheetTile(PIXEL, name, name, True, 0.5)
    columns = [
        {"key": "label", "title": "class", "names": (name, "b"), "codes": [0, 1, -1]},
        {"key": "patient", "title": "patient", "names": (name,), "codes": [0, 0, 0]},
    ]
    panel = {"name": name, "patch": [0, 1, 2], "x": [0, 3333, 9999], "y": [0, 6666, 3333], "predicted": [0, 0, 1]}
    sprite = {"side": 1, "across": 1, "each": 3}
    drawing = Drawing(name, PIXEL, 300)
    values: dict[str, object] = {
        "title": name,
        "names": (name,),
        "warnings": (),
        "duplicates": ((shown, shown),),
        "verdicts": (),
        "compared": (name,),
        "compared_note": name,
        "abouts": ({"name": name, "facts": ((name, name),), "table": table, "settings": f"a: {name}"},),
        "probes": ({"tables": (table,), "folded": (table,)},),
        "shared_notes": (name,),
        "patients": ((name, table),),
        "files_folder": "files",
        "confusions": ((drawing,),),
        "curves": (drawing,),
        "map": {
            "sentence": name,
            "reasons": (name,),
            "data": {"sprite": sprite, "colours": ("#123456",), "columns": columns, "panels": [panel]},
            "sprites": (PIXEL,),
            "static": (drawing,),
            "crops": (drawing,),
        },
        "sheets": ({"name": name, "right": False, "rows": (SheetRow(shown, name, (shown,)),), "votes": name},),
        "no_sheets": (name,),
        "training": drawing,
        "diagnostics": table,
        "versions": {name: None},
        "settings": f"title: {name}",
        "files": ((name, (("pdf", "files/a%20b.pdf"),)),),
    }
    return fill_template("page.html", USUAL, "page.js", **values | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scores")


@pytest.fixture(scope="module")
def scores(folder: Path) -> Scores:
    return make_scores(folder / "one", make_embeddings(folder / "emb"), name="one")


def subject_of(*scores: Scores, name: str = "one") -> EvaluatedModel:
    return EvaluatedModel(name, scores, (None,) * len(scores), None)


def changed(scores: Scores, **changes: object) -> Scores:
    return Scores(scores.artefact, scores.info.model_copy(update=changes))


# ---- HTML


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_and_never_obeyed(name: str) -> None:
    html = render(name, warnings=(name,))
    plain, hostile = Reader(render("QQ", warnings=("QQ",))), Reader(html)
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    for (_, known), (_, found) in zip(plain.elements, hostile.elements, strict=True):
        assert list(found) == list(known)
    assert hostile.text.count(name) == plain.text.count("QQ") > 20
    data = json.loads(hostile.scripts[0])
    assert data["columns"][0]["names"][0] == name
    assert data["panels"][0]["name"] == name
    assert not set("<>&\u2028\u2029") & set(hostile.scripts[0])
    assert html.count("<script") == html.count("</script") == 2


def test_nothing_is_asked_of_the_network() -> None:
    found = Reader(render())
    loaded = [
        value
        for _, attributes in found.elements
        for key, value in attributes.items()
        if key in ("src", "srcset", "poster", "data", "background")
    ]
    assert loaded
    assert all(value is not None and value.startswith("data:image/") for value in loaded)
    assert found.all("link") == found.all("iframe") == found.all("base") == []
    assert all((link["href"] or "").startswith(("#", "files/")) for link in found.all("a"))
    html = render()
    assert "http://" not in html
    assert "https://" not in html
    assert "url(" not in html
    assert "@import" not in html


def test_only_our_own_script_may_run() -> None:
    found = Reader(render())
    (policy,) = [meta["content"] for meta in found.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(found.scripts[-1].encode()).digest()).decode()
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert [script.get("type") for script in found.all("script")] == ["application/json", None]
    assert not any(key.startswith("on") for _, attributes in found.elements for key in attributes)


def test_the_script_never_reads_names_as_html() -> None:
    script = Reader(render()).scripts[-1]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in script


def test_contents_lead_to_the_sections_there_are() -> None:
    for html in (
        render(),
        render(duplicates=(), map=None, probes=(), sheets=(), no_sheets=(), training=None, diagnostics=None),
    ):
        found = Reader(html)
        sections = [section["id"] for section in found.all("section")]
        assert [f"#{name}" for name in sections] == [link["href"] for link in found.all("a") if link["href"][:1] == "#"]
    assert sections == ["verdict", "evaluated", "patients", "map", "about"]
    assert "There is no map" in found.text


def test_leakage_stands_on_top_and_above_every_table() -> None:
    html = render("b", warnings=("Patient x was seen.",))
    tables = html.count("<table")
    assert tables == 5
    assert html.count('class="alarm again"') == tables
    assert html.count('role="alert"') == 1
    assert html.index('role="alert"') < html.index("<table")
    for piece in html.split("<table")[:-1]:
        assert "Patient x was seen." in piece.rsplit('class="table"', 1)[1]
    assert 'class="alarm' not in render("b")


def test_tables_are_laid_out_as_they_are_meant() -> None:
    table = Table(
        "t", ("Class", "Method", "Value", "Meaning"),
        (("a", "x", "1", "m" * 80), ("a", "y", "2", ""), ("b", "x", "3", "")),
        ("Warning: Leak.", "Warning: x: Leak.", "A note."), lead=2, bold=frozenset({(1, 2)}),
    )  # fmt: skip
    assert table.kinds == ["text first", "text", "", "text long"]
    assert table.blocks == {0: 2, 2: 1}
    html = render("b", diagnostics=table)
    html = html[html.index('id="diagnostics"') : html.index('id="about"')]
    assert re.findall(r"<li><bdi>(.*?)</bdi>", html) == ["A note."]  # warnings stand above the table
    rows = [
        re.findall(r"<(t[hd])[^>]*?( rowspan=\"\d\")?>(?:<span>|<b>)?([^<]*)", row) for row in html.split("<tr>")[2:]
    ]
    assert rows == [
        [("th", ' rowspan="2"', "a"), ("th", "", "x"), ("td", "", "1"), ("td", "", "m" * 80)],
        [("th", "", "y"), ("td", "", "2"), ("td", "", "")],
        [("th", "", "b"), ("th", "", "x"), ("td", "", "3"), ("td", "", "")],
    ]
    assert re.findall(r"<b>(.*?)</b>", html) == ["2"]


@pytest.mark.whole
def test_no_word_of_a_table_is_broken_on_a_phone(tmp_path: Path) -> None:
    """Neither in names nor in sentences, while a name of 300 letters does not push the numbers away."""
    word, sentence = "oligodendroglioma", "Pseudopseudohypoparathyroidism is a word that nobody wants to see in pieces."
    rows = ((word, f"{word} grade", "100.0 [100.0, 100.0]", sentence), ("W" * 300, "x", "0.0", ""))
    table = Table("t", ("Class", "Method", "Accuracy", "Meaning"), rows, lead=2)
    (tmp_path / "page.html").write_text(render("b", diagnostics=table))
    lines = """() => [...document.querySelectorAll('#diagnostics tbody tr:first-child > *')].map(cell => {
        const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT).nextNode();
        return text.data.split(' ').map(word => {
            const range = document.createRange(), start = text.data.indexOf(word);
            range.setStart(text, start); range.setEnd(text, start + word.length);
            return range.getClientRects().length;
        });
    }).flat()"""
    with open_browser() as browser, open_page(browser, tmp_path / "page.html", 390) as watched:
        assert set(watched.page.evaluate(lines)) == {1}
        assert watched.page.locator("#diagnostics tbody th").nth(2).bounding_box()["width"] < 200
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_json_survives_a_script_element() -> None:
    shown = {"sentence": "", "reasons": (), "sprites": (), "static": (), "crops": ()}
    data = {"a": [*HOSTILE, "\ud800"], "b": [1, None, 0.5], "panels": []}
    text = Reader(render(map={**shown, "data": data})).scripts[0]
    assert json.loads(text) == data
    assert text.isascii()
    assert not set("<>&") & set(text)
    with pytest.raises(ValueError):
        render(map={**shown, "data": {"a": float("nan"), "panels": []}})


def test_places_on_the_map_keep_their_proportions() -> None:
    found = place_on_grid(np.array([[0.0, 0.0], [4.0, 2.0], [2.0, 1.0]]))
    assert found[:, 0].tolist() == [0, 9999, 5000]
    assert found[:, 1].tolist() == [2500, 7499, 5000]
    assert place_on_grid(np.ones((3, 2))).tolist() == [[5000, 5000]] * 3


def test_figures_are_written_and_embedded(tmp_path: Path) -> None:
    figures = FigureFolder(tmp_path / "figures", ["../<b>", "", "../<b>x"])
    assert [figures.slug(name) for name in ("../<b>", "", "../<b>x")] == ["1-b", "2", "3-b-x"]
    vector, dots = (figures.add(name, Figure(), name, dots=name == "b") for name in "ab")
    assert vector.uri.startswith("data:image/svg+xml;base64,")
    assert dots.uri.startswith("data:image/png;base64,")
    assert vector.width_px == dots.width_px > 300
    assert figures.names == ["a", "b"]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["a.pdf", "a.png", "b.pdf", "b.png"]


# ---- what it says


def test_the_verdict_is_of_patients_with_its_interval(scores: Scores) -> None:
    verdict = find_verdict(subject_of(scores))
    level = scores.info.find("patient")
    assert level is not None
    accuracy, auroc = verdict.numbers
    value = level.metrics["accuracy"]
    assert value.value is not None
    assert value.low is not None
    assert value.high is not None
    assert accuracy.text == f"{100 * value.value:.1f}"
    assert accuracy.range == f"{100 * value.low:.1f} to {100 * value.high:.1f}"
    assert accuracy.remark == f"95 % interval {accuracy.range}"
    assert (accuracy.low, accuracy.high) == pytest.approx((100 * value.low, 100 * value.high))
    assert accuracy.guess == pytest.approx(100 / 3)
    assert auroc.text == f"{100 * (level.metrics['auroc'].value or 0):.1f}"
    assert auroc.guess == 50
    assert verdict.units == "9 patients"
    assert verdict.judge == "its 180 nearest neighbours"  # the bank has no more
    assert verdict.trust[0] == "It was trained on 9 patients (18 slides); none of the test patients is among them."


def test_the_verdict_over_several_evaluations_is_their_mean(folder: Path, scores: Scores) -> None:
    embeddings = make_embeddings(folder / "emb3")
    others = [make_scores(folder / f"seed{seed}", embeddings, seed=seed, accuracy=0.4) for seed in (1, 2)]
    verdict = find_verdict(subject_of(scores, *others))
    values = [
        100 * (level.metrics["accuracy"].value or 0) for one in (scores, *others) if (level := one.info.find("patient"))
    ]
    number = verdict.numbers[0]
    assert number.value == pytest.approx(np.mean(values))
    assert number.remark == f"mean of 3 evaluations, standard deviation {np.std(values, ddof=1):.1f}"
    assert number.low == pytest.approx(max(0, np.mean(values) - np.std(values, ddof=1)))


def test_an_undefined_number_says_why(scores: Scores) -> None:
    undefined = Value(value=None, why="one class only.")
    asked = changed(scores, judged=tuple(with_metric(row, "auroc", undefined) for row in scores.info.judged))
    number = find_verdict(subject_of(asked)).numbers[1]
    assert (number.text, number.remark, number.value) == ("undefined", "one class only", None)
    assert find_verdict(subject_of(scores, asked)).numbers[1].text == "undefined"  # nor has it a mean
    html = Reader(render(verdicts=(find_verdict(subject_of(asked)),))).text
    assert "AUROC undefined (one class only)." in " ".join(html.split())


def test_a_level_without_units_is_not_the_verdict(scores: Scores) -> None:
    judged = scores.info.judged
    none = tuple(row.model_copy(update={"units": 0}) for row in judged)
    some = tuple(empty if row.level == "patient" else row for row, empty in zip(judged, none, strict=True))
    assert find_verdict(subject_of(changed(scores, judged=some))).units == "18 slides"
    asked = changed(scores, judged=none)
    assert find_verdict(subject_of(asked)).numbers == ()


@pytest.mark.parametrize(
    ("history", "said"),
    [
        (UNKNOWN, "It is not known what this encoder was trained on, so it may have seen these patients."),
        (NOTHING, "It was not trained on any slide."),
        (History(labels_used=("supcon",)), "Labels were used in its training, for: supcon."),
    ],
)
def test_why_to_believe_it_or_not(scores: Scores, history: History, said: str) -> None:
    asked = changed(scores, model=scores.info.model.model_copy(update={"history": history}))
    assert said in find_verdict(subject_of(asked)).trust


def test_all_right_is_not_certain(scores: Scores) -> None:
    """With n of n right the exact binomial interval (Clopper and Pearson) begins at 0.025 ** (1 / n)."""

    def judged(share: float) -> Scores:
        value = Value(value=share, low=share, high=1.0)
        return changed(scores, judged=tuple(with_metric(row, "accuracy", value) for row in scores.info.judged))

    least = 100 * beta.ppf(0.025, 9, 1)
    assert find_verdict(subject_of(judged(1.0))).trust[-1] == (
        "All 9 patients were predicted correctly, so bootstrap resamples show no uncertainty; by the binomial law the "
        f"accuracy may still be as low as {least:.0f} %."
    )
    assert not any("no uncertainty" in text for text in find_verdict(subject_of(judged(8 / 9))).trust)


def test_the_most_important_diagnostics_are_in_the_verdict(scores: Scores) -> None:
    values = {"effective rank": 7.0, "collapse": 0.2}
    values |= {"variance: label": 0.1, "variance: site": 0.3, "variance: patient": 0.4}
    found = [Diagnostic(name=name, value=value, meaning=f"About {name}.") for name, value in values.items()]

    def said(**changes: float | None) -> tuple[str, ...]:
        known = [
            item.model_copy(update={"value": changes.get(item.name.removeprefix("variance: "), item.value)})
            for item in found
        ]
        return find_verdict(subject_of(changed(scores, diagnostics=tuple(known)))).properties

    assert said() == ("About collapse.", "About variance: site.")  # more is seen of the site than of the class
    assert said(label=0.35) == ("About collapse.", "About variance: patient.")
    assert said(site=None) == ("About collapse.", "About variance: patient.")
    assert said(site=None, patient=None) == ("About collapse.",)
    assert find_verdict(subject_of(scores)).properties == ()
    verdict = replace(find_verdict(subject_of(scores)), properties=("It has collapsed.",))
    html = render(verdicts=(verdict,))
    assert html.index('id="verdict"') < html.index("It has collapsed.") < html.index('id="evaluated"')


def test_leaks_and_luck_are_said(scores: Scores) -> None:
    leaky = changed(scores, leakage=(Finding(kind="leak", sentence=LEAK), Finding(kind="note", sentence="Noted.")))
    assert find_verdict(subject_of(leaky)).trust[0] == "Read the warning above before you trust these numbers."
    poor = Value(value=0.35, low=np.nextafter(1 / 3, 1), high=0.4)
    many = tuple(
        with_metric(with_metric(row, "accuracy", poor), "auroc", Value(value=None, why="one class")).model_copy(
            update={"units": 40}
        )
        for row in scores.info.judged
    )
    outcome = find_verdict(subject_of(changed(scores, judged=many))).outcome
    assert outcome is not None
    # an end of the interval that is chance up to rounding is not above chance
    assert outcome.headline == "Not shown: too few patients (40; about 330 would be needed)"
    html = render(verdicts=(find_verdict(subject_of(scores)),))
    few = "Not shown: too few patients (9; about 30 would be needed)"
    assert html.index(few) < html.index("nearest neighbours, <b>")


def test_warnings_name_whom_they_are_about(scores: Scores) -> None:
    leaky = changed(scores, leakage=(Finding(kind="warning", sentence=LEAK), Finding(kind="note", sentence="Noted.")))
    one, two = subject_of(leaky, name="one"), subject_of(scores, name="two")
    assert gather_warnings([one]) == [LEAK]
    assert gather_warnings([one, two]) == [f"one: {LEAK}"]
    assert gather_warnings([one, replace(one, name="two")]) == [LEAK]
    assert gather_warnings([two]) == []


def test_a_class_that_cannot_be_recognised_is_a_warning_and_no_leak(scores: Scores) -> None:
    lacking = subject_of(changed(scores, labels=(LACK, LEFT), leakage=()))
    assert gather_warnings([lacking]) == [LACK.sentence]
    trust = find_verdict(lacking).trust
    assert trust[:2] == (
        "Read the warning above before you trust these numbers.",
        "It was trained on 9 patients (18 slides); none of the test patients is among them.",
    )
    assert dict(describe(lacking))["Leakage"] == "none found"
    for table in (counts_table(lacking), metrics_table([lacking], "knn")):
        assert table.notes[0] == f"Warning: {LACK.sentence}"
        assert LEFT.sentence in table.notes
    html = render(warnings=gather_warnings([lacking]))
    assert "<strong>Warning. Read this before you trust any number on this page.</strong>" in html
    assert "Leakage" not in html


def test_what_was_not_evaluated_has_no_verdict(folder: Path) -> None:
    model = EvaluatedModel("x", (), (make_embeddings(folder / "alone", learned=None),), None)
    verdict = find_verdict(model)
    assert verdict.numbers == ()
    text = " ".join(Reader(render(verdicts=(verdict,))).text.split())
    assert "Embedded, not evaluated: there is a map, but no verdict." in text
    facts = dict(describe(model))
    assert facts["Trained on"] == "not known"
    assert facts["Labels used in training"] == "not known"
    assert facts["Embeddings"] == "360 vectors of 16 numbers, of store"


def test_facts_of_an_evaluation(scores: Scores) -> None:
    facts = describe(subject_of(scores))
    known = dict(facts)
    assert known["Encoder"] == "test_resnet, hidisc, 32 px patches"
    assert known["Trained on"] == "9 patients (18 slides)"
    assert known["Labels used in training"] == "none"
    assert known["Classes"] == "a, b, c"
    assert known["From"] == "made (run)"  # by name: where it lies is nobody's business
    assert known["Reference patients"] == "train of emb"
    assert known["Test patients"] == "test of emb"
    assert known["Patches"] == "all of each slide"
    assert known["Judged by"] == ("its 180 nearest neighbours; a linear probe; attention over the patches of a slide")
    assert ("Leakage", "Slides' checksums were compared.") in facts
    leaky = changed(scores, leakage=(Finding(kind="leak", sentence=LEAK),))
    assert "Leakage" not in dict(describe(subject_of(leaky)))  # it stands on top of the page
    sampled = changed(scores, sampling={"per_slide": 400, "seed": 7}, leakage=())
    known = dict(describe(subject_of(sampled)))
    assert known["Patches"] == "400 of each slide, seed 7"
    assert known["Leakage"] == "none found"


def test_what_lies_above_has_a_name_too(folder: Path) -> None:
    """Scores inside the folder of their embeddings know them as `..`."""
    scores = make_scores(folder / "above/inside", make_embeddings(folder / "above"))
    assert scores.info.embeddings == ".."
    known = dict(describe(subject_of(scores)))
    assert (known["Reference patients"], known["Test patients"]) == ("train of above", "test of above")


def test_a_name_of_timm_is_told_whole(scores: Scores) -> None:
    model = scores.info.model.model_copy(update={"source": "timm:hf-hub:lab/encoder", "kind": "timm"})
    assert dict(describe(subject_of(changed(scores, model=model))))["From"] == "timm:hf-hub:lab/encoder (timm)"
