"""The paper's numbers, as the paper prints them."""

import re
from collections import Counter

import pytest

from hidisc.benchmarking.claims import Published, read_published
from hidisc.settings.benchmark import SuiteConfig
from hidisc.settings.config import list_recipes, load_config
from tests.conftest import SHARED

PAPER = SHARED / "paper" / "hidisc-cvpr2023.tex"
NUMBER = re.compile(r"(\d+\.\d)(?: ?\((\d+\.\d)\))?")


def read_tex(table: str) -> Counter[tuple[str, str]]:
    """(row, number) of every cell of a table in the paper's source; a row's name is what stands before its numbers."""
    environments = re.findall(r"\\begin{table\*?}.*?\\end{table\*?}", PAPER.read_text(), re.S)
    (text,) = [found for found in environments if f"\\label{{tab:{table}}}" in found]
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        cells = [re.sub(r"\\cite{[^}]*}|\\(?!tbf|textbf)\w+({[^}]*})?", "", cell).strip() for cell in line.split("&")]
        places = [place for place, cell in enumerate(cells) if NUMBER.search(cell)]
        if len(places) < 3 or "caption" in line:
            continue
        if float_name(cells[places[0]]) and table == "tcga_tune_lr":  # rates with a point point like results
            places = places[1:]
        name = " ".join(cell for cell in cells[: places[0]] if cell)
        for place in places:
            mean, sd = NUMBER.search(cells[place]).groups()  # type: ignore[union-attr]
            found[name, f"{mean} ({sd})" if sd else mean] += 1
    return found


def float_name(cell: str) -> bool:
    return cell in ("0.01", "0.001", "0.0001")


@pytest.mark.skipif(not PAPER.is_file(), reason="needs the paper's source")
@pytest.mark.parametrize("table", sorted({item.table for item in read_published()}))
def test_every_number_is_in_the_paper_and_every_number_of_the_paper_is_here(table: str) -> None:
    ours = Counter((item.row, item.text) for item in read_published() if item.table == table)
    assert ours == read_tex(table)


def test_extended_tables_repeat_the_short_ones() -> None:
    """The paper prints most numbers twice; levels and metrics that were read wrongly would not agree."""
    numbers = {(i.table, i.dataset, i.row, i.level, i.metric): i.text for i in read_published()}
    checked, differ = 0, []
    for short, extended in [("main", "main_{}_extended"), ("weak_aug", "weak_{}_extended")]:
        for (table, dataset, *rest), text in numbers.items():
            if table == short:
                names = [name for name in (rest[0], "Supervised") if name != "SupCon" or dataset == "TCGA"]
                again = numbers[extended.format(dataset.lower()), dataset, names[0], *rest[1:]]  # type: ignore[index]
                if again != text:
                    differ.append((dataset, *rest, text, again))
                checked += 1
    assert checked == 104
    assert differ == [("TCGA", "HiDisc-Patch", "patient", "accuracy", "61.2 (4.2)", "61.2 (4.0)")]  # the paper's own


def test_no_number_is_there_twice_and_all_are_percentages() -> None:
    every = read_published()
    assert len({(i.table, i.dataset, i.row, i.level, i.metric) for i in every}) == len(every) == 869
    assert all(0 < float(item.mean) <= 100 for item in every)


def test_rows_are_found_by_name_or_by_number() -> None:
    item = Published("t", "SRH", "1E-3", "patch", "mca", "79.0", "")
    assert item.is_of(["0.001"])
    assert not item.is_of(["0.01"])
    assert not item.is_of(["SimCLR"])
    assert item.text == "79.0"
    assert Published("t", "SRH", "SimCLR", "patch", "mca", "1.0", "0.1").is_of(["BYOL", "simclr"])


@pytest.mark.parametrize("suite", [name for name in list_recipes("benchmark") if name != "tcga"])
def test_every_row_of_the_papers_tables_is_a_row_of_the_suite(suite: str) -> None:
    config = load_config(SuiteConfig, suite, [])
    printed = [item for item in read_published() if item.table in config.paper]
    assert {item.table for item in printed} == set(config.paper)
    for item in printed:
        assert any(item.is_of(row.paper_names) for row in config.rows), item.row
