"""`hidisc report`: Embeddings and Scores -> a page with figures; `hidisc heatmap`: the scores of a slide, painted."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import CONFIG, MANIFEST, make, open_artefact, read_kind
from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.files import LOCK, AnyPath, full_disk_said, relate, write_atomic
from hidisc.ground.progress import Say, ignore
from hidisc.ground.text import find_nearest, name_some
from hidisc.patches.store import PatchStore, SlideEntry
from hidisc.reporting.compose import compose
from hidisc.reporting.evaluated import gather
from hidisc.reporting.figures import render
from hidisc.reporting.heatmap import draw_heatmap, paint
from hidisc.settings.report import ReportConfig

_OWN = (LOCK, CONFIG, MANIFEST)
"""Files of the life cycle."""


def report(paths: Sequence[AnyPath], out: AnyPath, config: ReportConfig | None = None, say: Say = ignore) -> Path:
    """Write the page `out`, last, and `STEM_files/` beside it with every figure and table; a finished one stays."""
    config, out = config or ReportConfig(), Path(out)
    judged = [Path(path) for path in paths]
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out} is not a page. Give a name that ends in .html.")
    files, page = out.with_name(f"{out.stem}_files"), f"../{out.name}"
    if out.exists() and read_kind(files) != "report":
        raise UserError(f"{out} is there already and is not overwritten. Give another --out, or delete it.")
    models = gather(judged)
    inputs = {relate(path, files): _checksum(path) for path in judged}
    with (
        full_disk_said("What it is made from is as it was"),
        make(files, "report", config, inputs) as work,
    ):
        if out.exists() and page in (work.find_problems() or {}):
            raise UserError(f"{out} has been changed since it was written. Delete it to have it made anew.")
        if not work.is_finished(say):
            write_atomic(out, compose(models, files, config, say).encode("utf-8", "replace"))
            made = sorted(path for path in files.rglob("*") if path.is_file() and path.name not in _OWN)
            work.finish([page, *(path.relative_to(files).as_posix() for path in made)])
    return out


def _checksum(path: Path) -> str:
    """Of what makes scores or embeddings whole, which names all the rest of them."""
    return open_artefact(path, "evaluate", "embed", check=()).checksum


_PICTURES = (".png", ".pdf")
_NAMED = 5
"""Names in a sentence at most."""


def heatmap(
    store_path: AnyPath,
    scores_path: AnyPath,
    slide: str,
    out: AnyPath,
    label: str | None = None,
    probe: str = "knn",
    *,
    cohort: AnyPath | None = None,
) -> Path:
    """Write a picture of a slide's patch scores, one panel per class or the class `label` alone; return its path.

    Features that were imported stand in the place of the store; `cohort` then says where the slide files are.
    """
    out = Path(out)
    if out.suffix.lower() not in _PICTURES:
        raise UserError(f"--out {out} is neither a .png nor a .pdf file. Give a name that ends in one of these.")
    scores = Scores.load(scores_path)
    store = _open_patches(Path(store_path), cohort, scores)
    entry = _find_slide(store, slide)
    thumbnail = store.thumbnail(entry)
    if thumbnail is None and read_kind(Path(store_path)) == "embed":
        raise UserError(
            f"the features in {store_path} were imported without pictures. Give the slide file of {slide!r} to paint "
            "on: --cohort cohort.csv, a CSV with the columns patient, slide and path."
        )
    if thumbnail is None:
        raise UserError(
            f"slide {slide!r} of {store_path} was imported as patches, so it has no thumbnail to paint on. "
            "Heatmaps need a store made by `hidisc prepare`."
        )
    patches = _read_patches(scores, probe)
    rows = _find_rows(scores, patches, entry)
    classes = _choose_classes(patches, label)

    pixels, downsample = thumbnail
    geometry = store.geometry(entry)
    # corners are whole pixels, so that patches that touch are up to this far apart; less would leave seams
    extent = ceil(geometry.extent or 1.0)
    painted = rows & store.are_finest(patches.units.get("mpp"))
    if not painted.any():
        raise UserError(
            f"{scores_path} has no patches of the finest scale of {store_path}, {store.scales[0]:g} um/px, of slide "
            f"{slide!r}, and a heatmap paints these. Embed and evaluate them as well."
        )
    corners = np.stack([patches.units[axis][painted] for axis in ("x", "y")], axis=1)
    if (corners < 0).any():
        raise UserError(f"where the patches of slide {slide!r} lie is not known: its feature file had no coordinates.")
    heats = {
        patches.classes[code]: paint(pixels.shape[:2], downsample, corners, extent, patches.scores[painted, code])
        for code in classes
    }
    truth, pooled = _pool(scores, probe, patches, rows, entry)
    truth_text = "of several labels" if truth is None else repr(truth)
    predicted = f"{patches.classes[int(pooled.argmax())]!r} ({100 * pooled.max():.0f} %)"
    words = store.info.level_names
    scales = "" if painted.sum() == rows.sum() else f" of all scales; painted are those of {store.scales[0]:g} um/px"
    captions = (
        f"{words.word('patient')} {entry.patient}, truth {truth_text}, predicted {predicted}",
        f"{scores.info.model.name}, {probe}, {words.count(int(rows.sum()), 'patch')}{scales}",
        *(f"Warning: {sentence}" for sentence in scores.info.warnings),
    )
    um_per_px = None if geometry.mpp is None else geometry.mpp * downsample
    figure = draw_heatmap(pixels, heats, f"{words.title('slide')} {slide}", captions, truth, um_per_px, words)
    write_atomic(out, render(figure, out.suffix.lower().removeprefix(".")))
    return out


def _open_patches(path: Path, cohort: AnyPath | None, scores: Scores) -> PatchStore:
    """The store, or the patches of features that were imported, with their slide files."""
    if read_kind(path) != "embed":
        if cohort is not None:
            raise UserError("--cohort goes with features that were imported; a store has pictures of its own.")
        return scores.open_store(path)
    from hidisc.embeddings.feature_patches import FeaturePatches  # and the readers of slides
    from hidisc.slides.cohort import find_files

    embeddings = Embeddings.load(path)
    if embeddings.info.store is not None:
        raise UserError(f"{path} holds embeddings that were made from a store. Give the store.")
    scores.refuse_changed("the embeddings", embeddings)
    return FeaturePatches(embeddings, find_files(Path(cohort)) if cohort is not None else {})


def _find_slide(store: PatchStore, slide: str) -> SlideEntry:
    for entry in store.info.slides:
        if entry.slide == slide:
            return entry
    names = [entry.slide for entry in store.info.slides]
    close = find_nearest(slide, names, _NAMED)
    hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else f"There are {name_some(names, _NAMED)}."
    raise UserError(f"{slide!r} is no slide of {store.path}. {hint}")


def _read_patches(scores: Scores, probe: str) -> Predictions:
    """What a probe predicted for every patch."""
    if probe not in scores.info.probes:
        raise UserError(f"{scores.path} has no probe {probe!r}. It has {', '.join(scores.info.probes)}.")
    if scores.info.find("patch", probe) is None:
        levels = ", ".join(row.level for row in scores.info.list_levels(probe))
        raise UserError(
            f"{probe!r} in {scores.path} has no scores of single patches (only of: {levels}), so there is nothing to "
            "paint. Choose another probe, or evaluate with levels that end in patch."
        )
    patches = scores.predictions(probe, "patch")
    if "slide" not in patches.units:
        raise UserError(
            f"{scores.path} was evaluated without slides (levels {', '.join(scores.info.levels)}), so it is not known "
            "which patches are of which. Evaluate with levels=[patient, slide, patch]."
        )
    return patches


def _find_rows(scores: Scores, patches: Predictions, entry: SlideEntry) -> NDArray[np.bool_]:
    """(N,) which patches are of the slide."""
    rows: NDArray[np.bool_] = patches.units["slide"] == entry.slide
    if not rows.any():
        splits = ", ".join(scores.info.config.get("queries", ())) or "unknown"
        slides = dict.fromkeys(patches.units["slide"].tolist())
        raise UserError(
            f"slide {entry.slide!r} is not of the test patients of {scores.path} (splits: {splits}). "
            f"Some that are: {name_some(slides, _NAMED)}."
        )
    return rows


def _choose_classes(patches: Predictions, label: str | None) -> list[int]:
    if label is None:
        return list(range(len(patches.classes)))
    if label not in patches.classes:
        raise UserError(f"--label {label!r} is none of the classes: {', '.join(patches.classes)}.")
    return [patches.classes.index(label)]


def _pool(
    scores: Scores, probe: str, patches: Predictions, rows: NDArray[np.bool_], entry: SlideEntry
) -> tuple[str | None, NDArray[np.float64]]:
    """The slide's label (None: several) and scores (L,) as evaluated, or the mean of its patches where it was not."""
    if scores.info.find("slide", probe) is not None:
        slides = scores.predictions(probe, "slide")
        for row in np.flatnonzero(slides.units["slide"] == entry.slide):
            return slides.classes[slides.truth[row]], slides.scores[row]
    labels = {patches.classes[code] for code in patches.truth[rows]}
    return labels.pop() if len(labels) == 1 else None, patches.scores[rows].mean(axis=0)
