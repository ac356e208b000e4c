"""Every diagnostic is what two plain loops say, and its sentence says what its value means."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation import diagnostics
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.diagnostics import (
    chance_share,
    diagnose,
    mean_distance,
    neighbour_share,
    sample_patches,
    uniformity,
    unit_means,
    variance_share,
)
from hidisc.evaluation.scores import Diagnostic
from hidisc.evaluation.task import LabelledPatches, Task, choose_task
from hidisc.models.encoder import effective_rank
from hidisc.patches.table import PatchTable
from hidisc.settings.evaluate import EvaluateConfig
from tests.evaluation.made import make_embeddings

LEVELS = ("patient", "slide", "patch")


def unit(vectors: Any) -> NDArray[np.float32]:
    vectors = np.asarray(vectors, np.float64)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@dataclass
class Patch:
    """Who a patch is of, and where the encoder puts it."""

    patient: str
    slide: str
    z: Sequence[float]
    label: int = 0
    site: str | None = None


def side_of(patches: Sequence[Patch], **columns: Sequence[str | None]) -> LabelledPatches:
    """A side of these patches, in their order."""
    names = {
        "patient": [patch.patient for patch in patches],
        "slide": [patch.slide for patch in patches],
        "site": [patch.site for patch in patches],
        **columns,
    }
    table = PatchTable(
        pa.table({name: pa.array(column, pa.string()).dictionary_encode() for name, column in names.items()})
    )
    vectors = np.array([patch.z for patch in patches], np.float32)
    labels = np.array([patch.label for patch in patches], np.int64)
    embeddings = Embeddings(None, None, table, vectors)  # type: ignore[arg-type]
    return LabelledPatches(embeddings, np.arange(len(patches)), labels, 0)


def look(patches: Sequence[Patch], bank: Sequence[Patch] | None = None, **options: Any) -> dict[str, Diagnostic]:
    """Diagnostics by name."""
    levels, has_learned = options.pop("levels", LEVELS), options.pop("has_learned", True)
    queries = side_of(patches, **options)
    endpoint = Classes(label="label", classes=("a", "b", "c"), positive=0)
    task = Task(endpoint, levels, side_of(bank, **options) if bank else queries, queries)
    found = diagnose(task, 0, has_learned)
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert one.meaning.endswith(".")
        assert one.meaning.count(". ") == 0  # one sentence
        assert one.value is None or np.isfinite(one.value)
    return {one.name: one for one in found}


def random_patches(seed: int, count: int = 60, dim: int = 6, spread: float = 1.0) -> list[Patch]:
    """Patients of one or two slides, two sites and three labels, some sites missing; ragged."""
    rng = np.random.default_rng(seed)
    patches = []
    for _ in range(count):
        patient = int(rng.integers(7))
        slide = int(rng.integers(1 + patient % 3))
        site = None if patient == 6 else f"site {patient % 2}"
        z = rng.normal(size=dim) * spread + 1.5 * np.eye(dim)[patient % dim]
        patches.append(Patch(f"P{patient}", f"P{patient}/{slide}", z.tolist(), patient % 3, site))
    return patches


# --- slow oracles ------------------------------------------------------------------------------------------------


def codes_of(names: Sequence[object]) -> NDArray[np.int64]:
    known: dict[object, int] = {}
    return np.array([-1 if name is None else known.setdefault(name, len(known)) for name in names], np.int64)


def slow_distance(z: NDArray[np.float32], shared: NDArray[np.int64], apart: NDArray[np.int64]) -> float | None:
    found = [
        float(((z[i].astype(float) - z[j]) ** 2).sum())
        for i in range(len(z))
        for j in range(len(z))
        if i != j and shared[i] == shared[j] >= 0 and apart[i] != apart[j]
    ]
    return float(np.mean(found)) if found else None


def slow_uniformity(z: NDArray[np.float32]) -> float:
    pairs = [(i, j) for i in range(len(z)) for j in range(len(z)) if i != j]
    return float(np.log(np.mean([np.exp(-2 * ((z[i].astype(float) - z[j]) ** 2).sum()) for i, j in pairs])))


def slow_share(z: NDArray[np.float32], groups: NDArray[np.int64]) -> float:
    """One dimension at a time, from the mean squares of an analysis of variance."""
    z, groups = z[groups >= 0].astype(float), groups[groups >= 0]
    names = sorted(set(groups.tolist()))
    between = within = 0.0
    for name in names:
        members = z[groups == name]
        for dim in range(z.shape[1]):
            between += len(members) * (members[:, dim].mean() - z[:, dim].mean()) ** 2
            within += ((members[:, dim] - members[:, dim].mean()) ** 2).sum()
    mean_square = within / (len(z) - len(names))
    return (between - (len(names) - 1) * mean_square) / (between + within)


def slow_neighbours(z: NDArray[np.float32], groups: NDArray[np.int64], apart: NDArray[np.int64]) -> tuple[float, float]:
    shares, chances = [], []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if apart[j] != apart[i] and groups[j] >= 0]
        hits = [j for j in others if groups[j] == groups[i]]
        if groups[i] < 0 or not hits:
            continue
        nearest = max(others, key=lambda j: float(z[i].astype(float) @ z[j].astype(float)))
        shares.append(float(groups[nearest] == groups[i]))
        chances.append(len(hits) / len(others))
    return float(np.mean(shares)), float(np.mean(chances))


@pytest.fixture(params=range(3))
def ragged(request: pytest.FixtureRequest) -> list[Patch]:
    return random_patches(request.param)


def test_numbers_are_those_of_the_slow_loops(ragged: list[Patch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "_BLOCK", 7)
    found = look(ragged)
    z = unit([patch.z for patch in ragged])
    everyone, itself = np.zeros(len(z), np.int64), np.arange(len(z))
    patient, slide = codes_of([patch.patient for patch in ragged]), codes_of([patch.slide for patch in ragged])
    site, label = codes_of([patch.site for patch in ragged]), np.array([patch.label for patch in ragged])
    strangers = slow_distance(z, everyone, itself)
    expected = {
        "effective rank": effective_rank(torch.from_numpy(z)),
        "collapse": np.mean([z[i] @ z[j] for i in itself for j in itself if i != j]),
        "uniformity: patch": slow_uniformity(z),
        "alignment: patient": slow_distance(z, patient, slide),
        "alignment: slide": slow_distance(z, slide, itself),
        "variance: label": slow_share(z, label),
        "variance: site": slow_share(z, site),
        "variance: patient": slow_share(z, patient),
        "variance: slide": slow_share(z, slide),
        "neighbour of the same patient": slow_neighbours(z, patient, slide)[0],
        "neighbour of the same patient, reference patients": slow_neighbours(z, patient, slide)[0],
        "neighbour of the same site": slow_neighbours(z, site, patient)[0],
        "neighbour of the same label": slow_neighbours(z, label, patient)[0],
    }
    for level, units in (("patient", patient), ("slide", slide)):
        means = unit([z[units == one].mean(axis=0) for one in np.unique(units)])
        expected[f"uniformity: {level}"] = slow_uniformity(means)
    assert {name: one.value for name, one in found.items()} == pytest.approx(expected, rel=1e-4, abs=1e-5)
    chances = {
        "alignment: patient": strangers,
        "alignment: slide": strangers,
        "variance: patient": 0,
        "variance: slide": 0,
        "neighbour of the same patient": slow_neighbours(z, patient, slide)[1],
        "neighbour of the same site": slow_neighbours(z, site, patient)[1],
        "neighbour of the same label": slow_neighbours(z, label, patient)[1],
    }
    assert {name: found[name].chance for name in chances} == pytest.approx(chances, rel=1e-4, abs=1e-5)
    assert list(found)[:3] == ["effective rank", "collapse", "uniformity: patch"]


def test_the_order_of_patches_is_nothing(ragged: list[Patch]) -> None:
    order = np.random.default_rng(0).permutation(len(ragged))
    before, after = look(ragged), look([ragged[place] for place in order])
    for name, one in before.items():
        assert after[name].value == pytest.approx(one.value, abs=1e-5)
        if one.chance is None:
            assert after[name].chance is None
        else:  # labels and sites are dealt out to patients in the order these have
            dealt = name in ("variance: label", "variance: site")
            assert after[name].chance == pytest.approx(one.chance, abs=0.02 if dealt else 1e-5)


def test_the_length_of_vectors_is_nothing(ragged: list[Patch]) -> None:
    rng = np.random.default_rng(0)
    longer = [replace(patch, z=(np.array(patch.z) * rng.uniform(0.1, 9)).tolist()) for patch in ragged]
    before = look(ragged)
    for name, one in look(longer).items():
        assert one.value == pytest.approx(before[name].value, abs=1e-4)


# --- known answers -----------------------------------------------------------------------------------------------


def grid_of(patients: int, slides: int, patches: int, place: Any, **facts: Any) -> list[Patch]:
    """Patches at `place(patient, slide, patch)`; facts are functions of the patient's number."""
    return [
        Patch(f"P{p}", f"P{p}/{s}", place(p, s, k), **{name: fact(p) for name, fact in facts.items()})
        for p in range(patients)
        for s in range(slides)
        for k in range(patches)
    ]


def test_patients_that_are_memorised() -> None:
    rng = np.random.default_rng(0)
    found = look(grid_of(5, 2, 4, lambda p, s, k: np.eye(5)[p] + rng.normal(0, 0.01, 5), label=lambda p: p % 2))
    same = found["neighbour of the same patient"]
    assert same.value == 1
    assert same.chance == pytest.approx(4 / 36)
    assert same.meaning == (
        "For 100 % of test patches (11 % by chance), the most similar patch of another slide is of the same patient: "
        "the encoder clearly separates patients."
    )
    assert found["alignment: patient"].value == pytest.approx(0, abs=0.01)
    assert found["alignment: patient"].meaning == (
        "Patches of one patient from different slides are much more similar than random patches, so the "
        "embedding mainly reflects the patient."
    )
    assert found["variance: patient"].value == pytest.approx(1, abs=0.01)
    assert found["uniformity: patient"].value == pytest.approx(-4, abs=0.01)  # orthogonal: distance 2 each
    assert found["uniformity: patient"].meaning == (
        "The mean embeddings of patients are well spread out (0: all are equal, -4: spread over all directions)."
    )


def test_patients_that_are_not_separated() -> None:
    rng = np.random.default_rng(1)
    found = look(
        grid_of(20, 2, 40, lambda p, s, k: rng.normal(size=8), label=lambda p: p % 2, site=lambda p: f"{p % 2}")
    )
    same = found["neighbour of the same patient"]
    assert same.value == pytest.approx(same.chance, abs=0.03)
    assert "the encoder hardly separates patients." in same.meaning
    assert found["alignment: slide"].value == pytest.approx(found["alignment: slide"].chance, rel=0.02)
    assert (
        "are about as similar as random patches, so the embedding hardly reflects the slide."
        in found["alignment: slide"].meaning
    )
    for name in ("label", "site", "patient", "slide"):
        assert found[f"variance: {name}"].value == pytest.approx(0, abs=0.01)
        assert "explains 0 %" in found[f"variance: {name}"].meaning
        assert "no more than by chance." in found[f"variance: {name}"].meaning
    assert "the dimensions are well used" in found["effective rank"].meaning
    assert found["collapse"].meaning.startswith("Not collapsed: two random patches have different embeddings")
    assert "scanner" not in found["neighbour of the same site"].meaning


def test_classes_at_right_angles_explain_all() -> None:
    found = look(grid_of(6, 2, 3, lambda p, s, k: np.eye(3)[p % 3], label=lambda p: p % 3))
    assert found["variance: label"].value == pytest.approx(1)
    assert found["neighbour of the same label"].value == pytest.approx(1)
    assert found["neighbour of the same label"].chance == pytest.approx(6 / 30)
    # the two patients of a class are in one place, and the nearest may be of either
    assert found["neighbour of the same patient"].value == pytest.approx(3 / 9)
    assert "; the label alone explains most of that." in found["variance: patient"].meaning


def test_a_collapsed_encoder_is_called_so_and_knows_nobody() -> None:
    for patches in (
        grid_of(4, 2, 5, lambda p, s, k: [3.0, 4.0, 0.0], label=lambda p: p % 2, site=lambda p: f"{p % 2}"),
        grid_of(4, 2, 5, lambda p, s, k: [0.0, 0.0, 0.0], label=lambda p: p % 2, site=lambda p: f"{p % 2}"),
    ):
        found = look(patches)
        assert found["collapse"].value == pytest.approx(1)
        assert found["collapse"].meaning.startswith("COLLAPSED: ")
        assert found["effective rank"].value == pytest.approx(1)
        assert "all embeddings lie along one line" in found["effective rank"].meaning
        assert found["uniformity: patch"].value == pytest.approx(0, abs=1e-5)
        assert "are close together" in found["uniformity: patch"].meaning
        assert found["variance: patient"].value is None
        assert "the embeddings do not vary" in found["variance: patient"].meaning
        assert found["alignment: slide"].meaning == "Patches of one slide have the same embedding, as all patches have."
        for name in ("patient", "site", "label"):
            same = found[f"neighbour of the same {name}"]
            assert same.value == pytest.approx(same.chance)
            assert "hardly" in same.meaning


def test_random_weights_have_not_collapsed() -> None:
    """An untrained network often gives nearly equal vectors; nobody is to train a baseline again."""
    alike = grid_of(4, 2, 5, lambda p, s, k: [3.0, 4.0, 0.0], label=lambda p: p % 2)
    meaning = look(alike, has_learned=False)["collapse"].meaning
    assert "COLLAPSED" not in meaning
    assert meaning.endswith("as is usual of random weights; this is a baseline, and nothing is wrong.")


@pytest.mark.parametrize(
    ("place", "start"),
    [
        (lambda rng: [10, *rng.normal(0, 0.1, 60)], "COLLAPSED: "),  # cosine above 0.99, in many directions
        (lambda rng: [rng.choice([-1, 1]), 0, 0, 0, 0], "COLLAPSED: "),  # one line, two ends
        (lambda rng: [10, *rng.normal(0, 1.2, 4)], "Not collapsed, but any two patches have similar embeddings"),
        (lambda rng: [1, *rng.normal(0, 1, 4)], "Not collapsed: two random patches have different embeddings"),
    ],
)
def test_how_near_to_collapse(place: Any, start: str) -> None:
    rng = np.random.default_rng(0)
    assert look(grid_of(4, 2, 20, lambda p, s, k: place(rng)))["collapse"].meaning.startswith(start)


def test_many_numbers_that_say_the_same() -> None:
    rng = np.random.default_rng(0)
    wide = np.linalg.qr(rng.normal(size=(200, 3)))[0]
    found = look(grid_of(4, 2, 30, lambda p, s, k: wide @ rng.normal(size=3)))
    assert found["effective rank"].value == pytest.approx(3, abs=0.2)
    assert found["effective rank"].meaning == (
        "Of 200 directions in which embeddings could differ, about 3.0 are used: many dimensions carry the same "
        "information."
    )


def test_slides_in_part_and_slides_repelled() -> None:
    rng = np.random.default_rng(0)
    part = look(grid_of(3, 2, 30, lambda p, s, k: np.eye(6)[2 * p + s] + rng.normal(0, 0.4, 6)))
    assert (
        "are more similar than random patches, so the embedding partly reflects the slide."
        in part["alignment: slide"].meaning
    )
    few = look(grid_of(2, 2, 3, lambda p, s, k: np.eye(3)[k]))
    assert "are partly spread out" in few["uniformity: patch"].meaning
    odd = look(grid_of(2, 2, 2, lambda p, s, k: np.eye(4)[k]))
    assert odd["alignment: slide"].value > odd["alignment: slide"].chance
    assert (
        "are less similar than random patches, so the embedding does not reflect the slide."
        in odd["alignment: slide"].meaning
    )


def test_sites_that_are_seen() -> None:
    rng = np.random.default_rng(0)

    def place(p: int, s: int, k: int) -> NDArray[np.float64]:
        return 3 * np.eye(8)[p % 2] + rng.normal(size=8)

    found = look(grid_of(8, 2, 10, place, site=lambda p: f"site {p % 2}", label=lambda p: p // 4))
    assert found["neighbour of the same site"].value > 0.95
    assert (
        "clearly separates sites, so predictions may rest on the scanner or the stain."
        in found["neighbour of the same site"].meaning
    )
    assert "so the embedding reflects the site more than the label." in found["variance: site"].meaning
    assert found["variance: site"].value > 0.3 > found["variance: site"].chance > 0
    assert "no more than by chance." in found["variance: label"].meaning


def test_labels_that_are_seen() -> None:
    rng = np.random.default_rng(0)
    found = look(grid_of(30, 1, 8, lambda p, s, k: 1.3 * np.eye(4)[p % 2] + rng.normal(size=4), label=lambda p: p % 2))
    assert "; labels assigned to patients at random would explain" in found["variance: label"].meaning
    assert "partly separates labels." in found["neighbour of the same label"].meaning


def test_a_bank_known_better_than_the_queries() -> None:
    rng = np.random.default_rng(0)
    strangers = grid_of(5, 2, 6, lambda p, s, k: rng.normal(size=5))
    known = grid_of(5, 2, 6, lambda p, s, k: np.eye(5)[p] + rng.normal(0, 0.01, 5))
    name = "neighbour of the same patient, reference patients"
    found = look(strangers, known)[name]
    assert found.value == 1
    assert found.meaning.endswith(
        "clearly separates patients, better than test patients: if the encoder was trained on the reference patients, "
        "it has memorised them."
    )
    assert "memorised" not in look(known, strangers)[name].meaning
    assert "memorised" not in look(known, known)[name].meaning


# --- what cannot be said -----------------------------------------------------------------------------------------


def test_one_slide_a_patient() -> None:
    rng = np.random.default_rng(0)
    found = look(grid_of(4, 1, 5, lambda p, s, k: rng.normal(size=4), label=lambda p: p % 2))
    same = found["neighbour of the same patient"]
    assert (same.value, same.chance) == (None, None)
    assert same.meaning == "No test patient has two slides with patches, so this cannot be measured."
    assert "No reference patient has" in found["neighbour of the same patient, reference patients"].meaning
    assert found["alignment: patient"].value is None
    assert found["alignment: patient"].meaning == (
        "No patient has two slides in the sample, so there is no pair to measure."
    )
    assert found["alignment: slide"].value is not None


def test_one_patient_one_slide_one_site_one_label() -> None:
    rng = np.random.default_rng(0)
    found = look(grid_of(1, 1, 6, lambda p, s, k: rng.normal(size=4), site=lambda p: "here"))
    assert (
        found["uniformity: patient"].meaning
        == "There are fewer than two patients, so there is no distance between them."
    )
    assert {name for name in found if name.startswith("variance")} == {"variance: patient", "variance: slide"}
    assert found["variance: slide"].value is None
    assert found["neighbour of the same site"].meaning == "The test patients have 1 site, so this cannot be measured."
    assert found["neighbour of the same label"].meaning == "The test patients have 1 label, so this cannot be measured."


def test_no_site_and_sites_of_one_patient_each() -> None:
    rng = np.random.default_rng(0)
    found = look(grid_of(3, 2, 4, lambda p, s, k: rng.normal(size=4)))
    assert found["neighbour of the same site"].meaning == "The test patients have no site, so this cannot be measured."
    assert "variance: site" not in found
    found = look(grid_of(3, 2, 4, lambda p, s, k: rng.normal(size=4), site=lambda p: f"{p}"))
    assert found["neighbour of the same site"].meaning == "No site has two test patients, so this cannot be measured."
    # a site and its only patient cannot be told apart
    assert found["variance: site"].chance == pytest.approx(found["variance: site"].value)
    assert "no more than by chance." in found["variance: site"].meaning


def test_one_patch_a_slide() -> None:
    rng = np.random.default_rng(0)
    found = look(grid_of(3, 2, 1, lambda p, s, k: rng.normal(size=4)))
    assert found["variance: slide"].value is None
    assert "or one patch per slide, or" in found["variance: slide"].meaning
    assert found["alignment: slide"].meaning == (
        "No slide has two patches in the sample, so there is no pair to measure."
    )
    assert found["alignment: patient"].value is not None


def test_embeddings_that_are_not_finite_are_left_out_and_said() -> None:
    rng = np.random.default_rng(0)
    patches = grid_of(3, 2, 4, lambda p, s, k: rng.normal(size=4))
    broken = [*patches, Patch("P0", "P0/0", [np.nan, 0, 0, 0]), Patch("P1", "P1/0", [np.inf, 0, 0, 0])]
    found, whole = look(broken), look(patches)
    assert {name: one.value for name, one in found.items()} == {name: one.value for name, one in whole.items()}
    assert found["collapse"].meaning.endswith("; left out: 2 patches whose embeddings are not finite.")
    none = look(broken[-2:])
    assert none["collapse"].value is None
    assert none["collapse"].meaning == "Too few embeddings to compare: 0 test patches with finite ones."


# --- any hierarchy, any names, any size --------------------------------------------------------------------------


def test_a_deeper_hierarchy() -> None:
    patches = [patch for patch in random_patches(3) if patch.site is not None]
    found = look(patches, levels=("site", "patient", "slide", "patch"))
    z = unit([patch.z for patch in patches])
    site, patient = codes_of([patch.site for patch in patches]), codes_of([patch.patient for patch in patches])
    assert found["alignment: site"].value == pytest.approx(slow_distance(z, site, patient), rel=1e-4)
    assert "Patches of one site from different patients are " in found["alignment: site"].meaning
    assert found["variance: site"].value == pytest.approx(slow_share(z, site), rel=1e-4)
    assert found["variance: site"].chance != 0
    assert list(found).count("variance: site") == 1


def test_a_shallower_hierarchy() -> None:
    patches = random_patches(4)
    found = look(patches, levels=("patient", "patch"))
    z, patient = unit([patch.z for patch in patches]), codes_of([patch.patient for patch in patches])
    assert found["alignment: patient"].value == pytest.approx(slow_distance(z, patient, np.arange(len(z))), rel=1e-4)
    assert not any("slide" in name for name in found)
    assert found["neighbour of the same patient"].value is not None
    assert not any(name.startswith("alignment") for name in look(patches, levels=("patch",)))


def test_a_level_of_ones_own() -> None:
    patches = random_patches(5)
    region = [f"{number % 4}" if number % 5 else None for number in range(len(patches))]
    found = look(patches, levels=("patient", "slide", "region", "patch"), region=region)
    z = unit([patch.z for patch in patches])
    # region 1 of one slide is not region 1 of another; patches without one belong to none
    names = [None if name is None else (patch.slide, name) for patch, name in zip(patches, region, strict=True)]
    assert found["variance: region"].value == pytest.approx(slow_share(z, codes_of(names)), rel=1e-4)
    expected = slow_distance(z, codes_of(names), np.arange(len(z)))
    assert found["alignment: region"].value == pytest.approx(expected, rel=1e-4)


def test_one_slide_name_under_two_patients_is_two_slides() -> None:
    rng = np.random.default_rng(0)
    patches = [
        Patch(f"P{p}", f"{s}", rng.normal(size=4).tolist()) for p in range(3) for s in range(2) for _ in range(4)
    ]
    clear = [replace(patch, slide=f"{patch.patient}/{patch.slide}") for patch in patches]
    assert look(patches) == look(clear)


def test_names_of_any_kind() -> None:
    rng = np.random.default_rng(0)
    odd = ["<script>", "'; --", "\n", "", "𝔓"]
    patches = [
        Patch(odd[p], f"{odd[s]}{odd[p]}", rng.normal(size=3).tolist(), p % 2, odd[p % 2])
        for p in range(5)
        for s in range(2)
        for _ in range(3)
    ]
    assert all(one.value is not None for one in look(patches).values())


def test_what_is_made_like_a_cohort(tmp_path: Path) -> None:
    made = make_embeddings(tmp_path / "made", signal=2.0, patients=8)
    task = choose_task(made, made, EvaluateConfig())
    found = {one.name: one for one in diagnose(task, seed=0)}
    assert diagnose(task, seed=0) == tuple(found.values())
    assert found["variance: label"].value > 0.5 > found["variance: label"].chance > 0
    assert found["neighbour of the same label"].value > 0.9
    assert found["neighbour of the same site"].value < 0.7


def test_a_large_side_is_drawn_alike_of_every_patient() -> None:
    rng = np.random.default_rng(0)
    sizes = (3, 50, 200, 400)
    patches = [
        Patch(f"P{p}", f"P{p}/0", rng.normal(size=2).tolist()) for p, size in enumerate(sizes) for _ in range(size)
    ]
    side = side_of(patches)
    sample = sample_patches(side, LEVELS, seed=1, most=153)
    assert np.bincount(sample.patients).tolist() == [3, 50, 50, 50]
    np.testing.assert_array_equal(sample.z, sample_patches(side, LEVELS, seed=1, most=153).z)
    assert (sample.z != sample_patches(side, LEVELS, seed=2, most=153).z).any()
    assert np.linalg.norm(sample.z, axis=1) == pytest.approx(1)
    whole = sample_patches(side, LEVELS, seed=1)
    np.testing.assert_allclose(whole.z, unit([patch.z for patch in patches]), atol=1e-6)


# --- the functions themselves ------------------------------------------------------------------------------------


def test_distances_of_nobody() -> None:
    z = unit(np.eye(3))
    nobody = np.full(3, -1)
    assert mean_distance(z, nobody, np.arange(3)) is None
    assert mean_distance(z, np.zeros(3, np.int64), np.zeros(3, np.int64)) is None
    assert mean_distance(z, np.zeros(3, np.int64), np.arange(3)) == pytest.approx(2)
    assert uniformity(z[:1]) is None
    assert uniformity(np.array([[1, 0], [-1, 0]], np.float32)) == pytest.approx(-8)
    assert len(unit_means(z, nobody)) == 0
    assert variance_share(z, nobody) is None
    assert neighbour_share(z @ z.T, nobody, np.arange(3)) is None


def test_labels_dealt_out_in_every_way() -> None:
    """The mean over all deals, by the slow share, of patients with 2, 3 and 5 patches."""
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(5), (2, 3, 5, 2, 4))
    z = unit(rng.normal(size=(len(patients), 4)) + 2 * rng.normal(size=(5, 4))[patients])
    labels = np.array([0, 1, 1, 2, 0])
    every = [slow_share(z, np.array(dealt)[patients]) for dealt in permutations(labels)]
    found = np.mean([chance_share(z, labels[patients], patients, np.random.default_rng(seed)) for seed in range(20)])
    assert np.mean(every) > 0.1
    assert found == pytest.approx(np.mean(every), abs=0.02)
    several = labels[patients].copy()
    several[0] = 2  # a patient of two labels
    assert chance_share(z, several, patients, rng) == 0


def test_ties_count_in_parts() -> None:
    """The first patch has three nearest, of which one is of its group."""
    z = unit([[1, 0], [1, 0], [1, 0], [1, 0], [0, 1]])
    groups, apart = np.array([0, 0, 1, 2, 0]), np.arange(5)
    found_of_last = 2 / 4  # at right angles to all others
    rounding = 2e-7 * np.random.default_rng(0).random((5, 5), np.float32)
    for cosines in (z @ z.T, z @ z.T - rounding):
        found = neighbour_share(cosines, groups, apart)
        assert found == pytest.approx(((1 / 3 + 1 / 3 + found_of_last) / 3, 2 / 4))
