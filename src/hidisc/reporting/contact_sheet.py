"""The contact sheet of a store: sample patches of its slides, with a mark on slides whose stain is in doubt."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from hidisc.ground.text import count
from hidisc.patches.record import SAMPLES, SlideRecord
from hidisc.patches.store import PatchStore, SlideEntry
from hidisc.reporting.captions import ORANGE, PAPER, add_caption
from hidisc.slides.display import as_rgb, shrink

FAR_DEG = 15.0
"""Angle from the median stain vector of the cohort beyond which a slide is marked.

Chosen on MoNuSAC, 171 regions of 46 patients from many hospitals. Half of its regions are within 6 degrees, nine of ten
within 14. All 12 beyond 15 degrees are unlike the others to the eye: blood or pigment instead of eosin, one cell alone,
or colours of another scanner. From 14 degrees down ordinary H&E is among them.
"""
_LEAST_SLIDES = 5
"""With fewer slides a median does not say what is usual."""
_SLIDES, _LEAST_OTHERS, _MOST_MARKED = 24, 6, 96
"""Slides on the sheet, unless more are marked; unmarked ones to compare with; JPEG cannot be of any height."""
_ACROSS, _GAP_PX = 3, 16


def draw_contact_sheet(store: PatchStore) -> Image.Image | None:
    """Return sample patches of 24 slides, each under its name and label; None where no slide has patches.

    Slides whose stain is in doubt come first, framed in orange, all of them (96 at most); the others are spread over
    the cohort. Slides cut here are shown as scanned (above) and as stored (below), imported patches as stored.
    """
    slides = {slide.slide: slide for slide in store.info.slides if slide.kept}
    if not slides:
        return None
    finest = _count_finest(store)
    problems = find_stain_problems(
        [(slide.model_copy(update={"kept": finest[slide.slide]}), store.record(slide)) for slide in slides.values()]
    )
    marked = list(problems)[:_MOST_MARKED]
    others = [slide for slide in slides if slide not in problems]
    spread = np.linspace(0, len(others) - 1, min(max(_SLIDES - len(marked), _LEAST_OTHERS), len(others)))
    chosen = [slides[name] for name in (*marked, *(others[index] for index in spread.round().astype(int)))]

    labels = _find_labels(store)
    tiles = []
    for slide in chosen:
        tile = _draw_samples(store, slide)
        if labels or problems:
            mark = [(problems[slide.slide], ORANGE)] if slide.slide in problems else []
            tile = add_caption(tile, labels.get(slide.slide, ""), size_px=12, right=mark)
        tiles.append(add_caption(tile, slide.slide, size_px=12))
    across = min(_ACROSS, len(tiles))
    wide, tall = (length + _GAP_PX for length in tiles[0].size)
    sheet = Image.new("RGB", (across * wide + _GAP_PX, -(-len(tiles) // across) * tall + _GAP_PX), PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (slide, tile) in enumerate(zip(chosen, tiles, strict=True)):
        row, column = divmod(number, across)
        left, top = _GAP_PX + column * wide, _GAP_PX + row * tall
        sheet.paste(tile, (left, top))
        if slide.slide in problems:
            draw.rectangle((left - 5, top - 5, left + tile.width + 4, top + tile.height + 4), outline=ORANGE, width=3)
    if problems:
        shown = "all" if len(marked) == len(problems) else f"the worst {len(marked)}"
        text = f"orange: stain not estimated, or more than {FAR_DEG:g} degrees from the median of all slides"
        text += f" ({count(len(problems), 'slide')} of {len(slides):,}, {shown} shown)"
        sheet = add_caption(sheet, store.info.level_names.speak(text))
    scanned = any((store.path / slide.folder / SAMPLES).is_file() for slide in chosen)
    text = "upper rows: as scanned; lower rows: as stored" if scanned else "patches as stored"
    return add_caption(sheet, store.info.level_names.speak(text))


def find_stain_problems(slides: Sequence[tuple[SlideEntry, SlideRecord]]) -> dict[str, str]:
    """Return, by slide, why its stain is in doubt, the worst first; slides of which nothing is to be said are left out.

    Either the stains could not be estimated, or the haematoxylin or the eosin vector is more than `FAR_DEG` degrees
    from the median of that vector over the slides.
    """
    problems = {}
    failed = [(record.stain_fallbacks, slide) for slide, record in slides if record.stain_fallbacks]
    for patches, slide in sorted(failed, key=lambda pair: -pair[0] / max(pair[1].kept, 1)):
        part = f" in {count(patches, 'patch')}" if patches < slide.kept else ""
        problems[slide.slide] = f"stain not estimated{part}"
    estimated = [(slide.slide, record.stain["vectors"]) for slide, record in slides if record.stain]
    if len(estimated) < _LEAST_SLIDES:
        return problems
    vectors = np.array([pair[1] for pair in estimated])  # (slides, 3, 2): columns haematoxylin and eosin, of length 1
    median = np.median(vectors, axis=0)
    median /= np.linalg.norm(median, axis=0)
    degrees = np.degrees(np.arccos(np.clip((vectors * median).sum(axis=1), -1, 1)))  # (slides, 2)
    for row in np.argsort(-degrees.max(axis=1), kind="stable"):
        if (largest := degrees[row].max()) > FAR_DEG:
            stain = ("haematoxylin", "eosin")[degrees[row].argmax()]
            problems[estimated[row][0]] = f"stain far from the others ({stain}: {largest:.0f} degrees)"
    return problems


def _count_finest(store: PatchStore) -> dict[str, int]:
    """How many patches of the finest scale each slide has; stains are counted by these."""
    is_finest = np.ones(len(store), bool) & store.are_finest(store.table.column("mpp"))
    return {slide: int(is_finest[rows].sum()) for slide, rows in store.table.rows_by("slide").items()}


def _find_labels(store: PatchStore) -> dict[str, str]:
    """The labels of each slide's patches by slide, in one text; slides without one are left out."""
    slide_codes, slides = store.table.codes("slide")
    label_codes, labels = store.table.codes("label")
    found: dict[str, list[str]] = {}
    for slide, label in np.unique(np.stack([slide_codes, label_codes], axis=1), axis=0).tolist():
        if label >= 0:
            found.setdefault(slides[slide], []).append(labels[label])
    return {slide: ", ".join(sorted(names)) for slide, names in found.items()}


def _draw_samples(store: PatchStore, slide: SlideEntry) -> Image.Image:
    """A few patches of a slide in a strip: before and after where it was cut here, else as they are stored."""
    strip = store.path / slide.folder / SAMPLES
    if strip.is_file():
        with Image.open(strip) as image:
            return image.convert("RGB").resize((image.width * 2 // 3, image.height * 2 // 3), Image.Resampling.LANCZOS)
    codes, names = store.table.codes("slide")
    first = int(np.searchsorted(codes, names.index(slide.slide)))  # a slide's patches follow each other
    shown = [as_rgb(store.read(row)) for row in range(first, first + min(4, slide.kept))]
    shown += [np.full_like(shown[0], 255)] * (4 - len(shown))
    return Image.fromarray(np.concatenate([shrink(patch, 100) for patch in shown], axis=1))
