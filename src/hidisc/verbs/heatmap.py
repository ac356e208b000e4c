"""`hidisc heatmap`: the scores of a slide's patches, painted over its thumbnail."""

import difflib
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, write_atomic
from hidisc.ground.text import name_some
from hidisc.patches.store import PatchStore, SlideEntry
from hidisc.reporting.figures import render
from hidisc.reporting.heatmap import draw_heatmap, paint

SUFFIXES = (".png", ".pdf")
_NAMED = 5
"""Names in a sentence at most."""


def heatmap(
    store_path: AnyPath, scores_path: AnyPath, slide: str, out: AnyPath, label: str | None = None, probe: str = "knn"
) -> Path:
    """Write a picture of a slide's patch scores, one panel per class or the class `label` alone; return its path."""
    out = Path(out)
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out {out} is neither a .png nor a .pdf file. Give a name that ends in one of these.")
    store, scores = PatchStore.load(store_path), Scores.load(scores_path)
    entry = _find_slide(store, slide)
    thumbnail = store.thumbnail(entry)
    if thumbnail is None:
        raise UserError(
            f"slide {slide!r} of {store_path} was imported as patches, so it has no thumbnail to paint on. "
            "Heatmaps need a store made by `hidisc prepare`."
        )
    if store.checksum != scores.info.store_checksum:
        raise UserError(
            f"{scores_path} was made of other patches than {store_path} holds now, so its scores would be painted in "
            "the wrong places. Give the store that was embedded, or embed and evaluate this one."
        )
    patches = _read_patches(scores, probe)
    rows = _find_rows(scores, patches, entry)
    classes = _choose_classes(patches, label)

    pixels, downsample = thumbnail
    record = store.record(entry)
    # corners are whole pixels, so that patches that touch are up to this far apart; less would leave seams
    extent = ceil(record.size_px * (record.downsample or 1.0))
    painted = rows & store.are_finest(patches.units.get("mpp"))
    if not painted.any():
        raise UserError(
            f"{scores_path} has no patches of the finest scale of {store_path}, {store.scales[0]:g} um/px, of slide "
            f"{slide!r}, and a heatmap paints these. Embed and evaluate them as well."
        )
    corners = np.stack([patches.units[axis][painted] for axis in ("x", "y")], axis=1)
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
    um_per_px = None if record.mpp is None else record.mpp * downsample
    figure = draw_heatmap(pixels, heats, f"{words.title('slide')} {slide}", captions, truth, um_per_px, words)
    write_atomic(out, render(figure, out.suffix.lower().removeprefix(".")))
    return out


def _find_slide(store: PatchStore, slide: str) -> SlideEntry:
    for entry in store.info.slides:
        if entry.slide == slide:
            return entry
    names = [entry.slide for entry in store.info.slides]
    close = difflib.get_close_matches(slide, names, n=_NAMED, cutoff=0.4)
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
