"""`hidisc heatmap`: what was said of every patch of a slide, painted over its thumbnail."""

import difflib
from collections.abc import Iterable
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hidisc.evaluation.predictions import Predictions
from hidisc.evaluation.scores import Scores
from hidisc.ground.errors import UserError
from hidisc.ground.files import write_atomic
from hidisc.ground.paths import AnyPath
from hidisc.patches.store import PatchStore, SlideEntry
from hidisc.reporting.figures import render
from hidisc.reporting.heatmap import draw_heatmap, paint

SUFFIXES = (".png", ".pdf")
_NAMED = 5
"""Names in a sentence."""


def heatmap(
    store_path: AnyPath, scores_path: AnyPath, slide: str, out: AnyPath, label: str | None = None, probe: str = "knn"
) -> None:
    """Write a picture of a slide's patch scores, a panel a class, or of the class `label` alone."""
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
    corners = np.stack([patches.units[axis][rows] for axis in ("x", "y")], axis=1)
    heats = {
        patches.classes[code]: paint(pixels.shape[:2], downsample, corners, extent, patches.scores[rows, code])
        for code in classes
    }
    truth, pooled = _pool(scores, probe, patches, rows, entry)
    said = f"{patches.classes[int(pooled.argmax())]!r} ({100 * pooled.max():.0f} %)"
    captions = (
        f"patient {entry.patient}, truth {'of several labels' if truth is None else repr(truth)}, predicted {said}",
        f"{scores.info.model.name}, {probe}, {int(rows.sum()):,} patches",
        *(f"Warning: {sentence}" for sentence in scores.info.warnings),
    )
    figure = draw_heatmap(pixels, heats, f"Slide {slide}", captions, truth)
    write_atomic(out, render(figure, out.suffix.lower().removeprefix(".")))


def _find_slide(store: PatchStore, slide: str) -> SlideEntry:
    for entry in store.info.slides:
        if entry.slide == slide:
            return entry
    names = [entry.slide for entry in store.info.slides]
    close = difflib.get_close_matches(slide, names, n=_NAMED, cutoff=0.4)
    hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else f"There are {_some(names)}."
    raise UserError(f"{slide!r} is no slide of {store.path}. {hint}")


def _read_patches(scores: Scores, probe: str) -> Predictions:
    """What an probe said of every patch."""
    asked = {item.name: item for item in scores.info.probes}
    if probe not in asked:
        raise UserError(f"{scores.path} has no probe {probe!r}. It has {', '.join(asked)}.")
    if asked[probe].level("patch") is None:
        found = ", ".join(level.level for level in asked[probe].levels)
        raise UserError(
            f"{probe!r} in {scores.path} says nothing of single patches (only of: {found}), so there is nothing to "
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
        asked = ", ".join(scores.info.config.get("queries", ())) or "unknown"
        raise UserError(
            f"slide {entry.slide!r} is not among the queries of {scores.path} (splits: {asked}). "
            f"Some that are: {_some(dict.fromkeys(patches.units['slide'].tolist()))}."
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
    """The slide's label (None: several) and scores (L,), as evaluated; where it was not, those of its patches."""
    if any(item.name == probe and item.level("slide") for item in scores.info.probes):
        slides = scores.predictions(probe, "slide")
        for place in np.flatnonzero(slides.units["slide"] == entry.slide):
            return slides.classes[slides.truth[place]], slides.scores[place]
    labels = {patches.classes[code] for code in patches.truth[rows]}
    return labels.pop() if len(labels) == 1 else None, patches.scores[rows].mean(axis=0)


def _some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - _NAMED:,} more" if len(listed) > _NAMED else ""
    return ", ".join(map(repr, listed[:_NAMED])) + more
