"""Pictures of a store: contact sheets, what was kept of each slide, and patches with their random views."""

import base64
import io
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from hidisc.artefacts.artefact import read_manifest
from hidisc.ground.files import find_problem, write_atomic
from hidisc.ground.machine import count_cores
from hidisc.ground.spreadsheet import format_csv
from hidisc.ground.text import count, printable
from hidisc.patches.record import SAMPLES, SlideRecord
from hidisc.patches.store import PatchStore, SlideEntry
from hidisc.patches.table import PatchTable
from hidisc.slides.slide import as_rgb, shrink

if TYPE_CHECKING:
    from torch import Tensor

Colour = tuple[int, int, int]
INK, PAPER, ORANGE = (40, 40, 46), (255, 255, 255), (204, 85, 0)


def add_caption(
    image: Image.Image, text: str, *, size_px: int = 16, right: Sequence[tuple[str, Colour]] = ()
) -> Image.Image:
    """Return the picture with a line above it: `text`, cut to the room there is, and coloured words at the right."""
    font = ImageFont.load_default(size_px)
    bar_px = size_px + 12
    captioned = ImageOps.expand(image, (0, bar_px, 0, 0), PAPER)
    draw = ImageDraw.Draw(captioned)
    room = image.width - 8.0
    for word, colour in reversed(right):
        room -= draw.textlength(word, font)
        draw.text((room + 4, 5), word, fill=colour, font=font)
        room -= 12
    text = printable(text)
    if draw.textlength(text, font) > room:
        fits = bisect_right(range(len(text)), room, key=lambda length: draw.textlength(text[:length] + "...", font))
        text = text[: max(0, fits - 1)] + "..."
    draw.text((4, 5), text, fill=INK, font=font)
    return captioned


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the picture as the bytes of a file of a kind, such as JPEG; `options` are Pillow's."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def to_address(kind: str, data: bytes) -> str:
    """Return data of a kind, such as image/jpeg, as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


KEPT, DROPPED = (0, 132, 80), (214, 69, 38)
COUNTS = "counts.csv"
_LEAST_PX = 640
"""Smallest width of the picture of a slide, so that its caption can be read."""
_QUALITY = 88
_Corners = dict[str, NDArray[np.int32]]
"""By slide, the level-0 corners (N, 2) of its boxes."""


def draw_store(out: Path) -> None:
    """Write `pictures/`: `slides/*.jpg`, `contact_sheet.jpg` and, last, `counts.csv`; the slides on all cores."""
    store = PatchStore.load(out)
    folder = out / "pictures"
    (folder / COUNTS).unlink(missing_ok=True)
    folder.mkdir(exist_ok=True)
    kept, dropped = (_positions(store, table) for table in (store.table, store.dropped()))
    with ThreadPoolExecutor(count_cores()) as pool:  # Pillow lets go of the interpreter while it works
        for _ in pool.map(lambda slide: _draw_slide(store, slide, kept, dropped), store.info.slides):
            pass
    if (sheet := draw_contact_sheet(store)) is not None:
        write_atomic(folder / "contact_sheet.jpg", encode(sheet, "JPEG", quality=_QUALITY))
    write_atomic(folder / COUNTS, _counts(store))


def is_drawn(out: Path) -> bool:
    """Whether the pictures of a finished store were drawn for it and those that still exist have not changed."""
    try:
        manifest = read_manifest(out)
    except ValueError:
        return False
    listed = [file for file in manifest.files if file.path.startswith("pictures/")] if manifest else []
    is_last_there = f"pictures/{COUNTS}" in {file.path for file in listed} and (out / "pictures" / COUNTS).is_file()
    return is_last_there and not any(find_problem(out, file) for file in listed)


def list_pictures(out: Path) -> list[str]:
    """Every file of `pictures/`, relative to the store."""
    found = [*out.glob("pictures/*"), *out.glob("pictures/slides/*")]
    return sorted(path.relative_to(out).as_posix() for path in found if path.is_file())


def _draw_slide(store: PatchStore, slide: SlideEntry, kept: _Corners, dropped: _Corners) -> None:
    """Draw the picture of one slide; an imported slide has no thumbnail to draw on."""
    thumbnail = store.thumbnail(slide)
    if thumbnail is None:
        return
    folder = store.path / "pictures" / "slides"
    folder.mkdir(exist_ok=True)
    record = store.record(slide)
    extent = record.size_px * (record.downsample or 1)
    picture = draw_boxes(*thumbnail, kept.get(slide.slide), dropped.get(slide.slide), extent)
    picture = ImageOps.expand(picture, (0, 0, max(0, _LEAST_PX - picture.width), 0), PAPER)
    if not slide.kept:
        picture = add_caption(picture, explain_no_patches(record))
    counts = (len(corners.get(slide.slide, ())) for corners in (kept, dropped))
    title = "{}: {:,} kept, {:,} dropped".format(slide.slide, *counts)
    captioned = add_caption(picture, title, right=(("kept", KEPT), ("dropped", DROPPED)))
    write_atomic(folder / f"{Path(slide.folder).name}.jpg", encode(captioned, "JPEG", quality=_QUALITY))


def explain_no_patches(record: SlideRecord) -> str:
    """Return why a slide that was cut by `prepare` has no patches."""
    if not record.boxes and not record.glass:
        patch_mpp = (record.mpp or 0) * (record.downsample or 0)
        return (
            f"{record.width:,} x {record.height:,} px at {record.mpp:g} um/px hold no patch of "
            f"{record.size_px} px at {patch_mpp:g} um/px"
        )
    if not record.boxes:
        return f"no tissue found ({count(record.glass, 'square')})"
    glass = f"; {count(record.glass, 'other')} without tissue" if record.glass else ""
    squares = "the only square" if record.boxes == 1 else f"all {record.boxes:,} squares"
    return f"{squares} dropped by the filter{glass}"


def draw_boxes(
    thumbnail: NDArray[np.uint8],
    downsample: float,
    kept: NDArray[np.int32] | None,
    dropped: NDArray[np.int32] | None,
    extent: float,
) -> Image.Image:
    """The thumbnail with boxes (N, 2) of level-0 corners: kept boxes outlined green, dropped boxes struck out red."""
    zoom = 2 if max(thumbnail.shape[:2]) < 900 else 1
    image = Image.fromarray(thumbnail)
    image = image.resize((image.width * zoom, image.height * zoom), Image.Resampling.BICUBIC)
    shade = Image.new("RGBA", image.size)
    draw = ImageDraw.Draw(shade)
    scale = zoom / downsample
    side = extent * scale
    line = max(1, min(4, round(side / 40)))
    for boxes, colour in ((dropped, DROPPED), (kept, KEPT)):
        for x, y in [] if boxes is None else boxes * scale:
            corners = (x + 0.5, y + 0.5, x + side - 1, y + side - 1)
            draw.rectangle(corners, outline=(*colour, 235), fill=(*colour, 18), width=line)
            if colour is DROPPED:
                draw.line(corners, fill=(*colour, 200), width=1)
    return Image.alpha_composite(image.convert("RGBA"), shade).convert("RGB")


def _positions(store: PatchStore, table: PatchTable) -> _Corners:
    """By slide, the corners (N, 2) of its boxes; at several scales those of the finest."""
    corners = np.stack([table.column("x"), table.column("y")], axis=1)
    return {slide: corners[rows] for slide, rows in _find_finest(store, table).items()}


def _find_finest(store: PatchStore, table: PatchTable) -> dict[str, NDArray[np.int64]]:
    """By slide, the rows of its patches of the finest scale."""
    is_finest = np.ones(len(table), bool) & store.are_finest(table.column("mpp"))
    return {slide: rows[is_finest[rows]] for slide, rows in table.rows_by("slide").items()}


def _counts(store: PatchStore) -> bytes:
    """Patients, slides and patches by split and label, as in the paper's dataset tables."""
    split, splits = store.table.codes("split")
    label, labels = store.table.codes("label")
    columns = [store.table.codes(name)[0] for name in ("patient", "slide")]
    counted = []
    for held_in, kind in sorted(set(zip(split.tolist(), label.tolist(), strict=True))):
        rows = (split == held_in) & (label == kind)
        names = (splits[held_in] if held_in >= 0 else "", labels[kind] if kind >= 0 else "")
        counted.append((*names, *(len(np.unique(codes[rows])) for codes in columns), int(rows.sum())))
    return format_csv(["split", "label", "patients", "slides", "patches"], counted).encode()


FAR_DEG = 15.0
"""Angle from the median stain vector of the cohort beyond which a slide is marked.

Chosen on MoNuSAC, 171 regions of 46 patients from many hospitals. Half of its regions are within 6 degrees, nine of ten
within 14. All 12 beyond 15 degrees are unlike the others to the eye: blood or pigment instead of eosin, one cell alone,
or colours of another scanner. From 14 degrees down ordinary H&E is among them.
"""
_LEAST_SLIDES = 5
"""Fewest slides whose median stain says which stain is usual."""
_SLIDES, _LEAST_OTHERS, _MOST_MARKED = 24, 6, 96
"""Slides on the sheet, fewest unmarked slides to compare with, and most marked slides: a JPEG has a largest height."""
_ACROSS, _SHEET_GAP_PX = 3, 16


def draw_contact_sheet(store: PatchStore) -> Image.Image | None:
    """Return sample patches of 24 slides, each under its name and label; None where no slide has patches.

    Slides whose stain is in doubt come first, framed in orange, all of them (96 at most); the others are spread over
    the cohort. Slides cut here are shown as scanned (above) and as stored (below), imported patches as stored.
    """
    slides = {slide.slide: slide for slide in store.info.slides if slide.kept}
    if not slides:
        return None
    finest = _find_finest(store, store.table)  # by whose patches stains are counted
    problems = find_stain_problems(
        [(slide.model_copy(update={"kept": len(finest[name])}), store.record(slide)) for name, slide in slides.items()]
    )
    marked = list(problems)[:_MOST_MARKED]
    others = [slide for slide in slides if slide not in problems]
    spread = np.linspace(0, len(others) - 1, min(max(_SLIDES - len(marked), _LEAST_OTHERS), len(others)))
    chosen = [slides[name] for name in (*marked, *(others[index] for index in spread.round().astype(int)))]

    labels, words = _find_labels(store), store.info.level_names
    tiles = []
    for slide in chosen:
        tile = _draw_samples(store, slide)
        if labels or problems:
            mark = [(problems[slide.slide], ORANGE)] if slide.slide in problems else []
            tile = add_caption(tile, labels.get(slide.slide, ""), size_px=12, right=mark)
        tiles.append(add_caption(tile, slide.slide, size_px=12))
    across = min(_ACROSS, len(tiles))
    wide, tall = (length + _SHEET_GAP_PX for length in tiles[0].size)
    sheet = Image.new("RGB", (across * wide + _SHEET_GAP_PX, -(-len(tiles) // across) * tall + _SHEET_GAP_PX), PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (slide, tile) in enumerate(zip(chosen, tiles, strict=True)):
        row, column = divmod(number, across)
        left, top = _SHEET_GAP_PX + column * wide, _SHEET_GAP_PX + row * tall
        sheet.paste(tile, (left, top))
        if slide.slide in problems:
            draw.rectangle((left - 5, top - 5, left + tile.width + 4, top + tile.height + 4), outline=ORANGE, width=3)
    if problems:
        shown = "all" if len(marked) == len(problems) else f"the worst {len(marked)}"
        text = f"orange: stain not estimated, or its colour more than {FAR_DEG:g} degrees from the median of all"
        text += f" {words.plural('slide')} ({words.count(len(problems), 'slide')} of {len(slides):,}, {shown} shown)"
        sheet = add_caption(sheet, text)
    scanned = any((store.path / slide.folder / SAMPLES).is_file() for slide in chosen)
    text = "upper rows: as scanned; lower rows: as stored" if scanned else f"{words.plural('patch')} as stored"
    return add_caption(sheet, text)


def find_stain_problems(slides: Sequence[tuple[SlideEntry, SlideRecord]]) -> dict[str, str]:
    """Return, by slide, why its stain is in doubt, the worst first; slides with a usual stain are left out.

    Either the stains could not be estimated, or the haematoxylin or the eosin vector is more than `FAR_DEG` degrees
    from the median of that vector over the slides.
    """
    problems = {}
    failed = [(record.stain_fallbacks, slide) for slide, record in slides if record.stain_fallbacks]
    for patches, slide in sorted(failed, key=lambda pair: -pair[0] / max(pair[1].kept, 1)):
        where = f" in {count(patches, 'patch')}" if patches < slide.kept else ""
        problems[slide.slide] = f"stain not estimated{where}"
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
            problems[estimated[row][0]] = f"unusual {stain} ({largest:.0f} degrees from usual)"
    return problems


def _find_labels(store: PatchStore) -> dict[str, str]:
    """By slide, the labels of its patches as one text; slides without labels are left out."""
    labels = store.table.column("label")
    named = {slide: set(labels[rows]) - {None} for slide, rows in store.table.rows_by("slide").items()}
    return {slide: ", ".join(sorted(names)) for slide, names in named.items() if names}


def _draw_samples(store: PatchStore, slide: SlideEntry) -> Image.Image:
    """A strip of a few patches of a slide: as scanned and as stored if `prepare` cut it, else as stored."""
    strip = store.path / slide.folder / SAMPLES
    if strip.is_file():
        with Image.open(strip) as image:
            return image.convert("RGB").resize((image.width * 2 // 3, image.height * 2 // 3), Image.Resampling.LANCZOS)
    codes, names = store.table.codes("slide")
    first = int(np.searchsorted(codes, names.index(slide.slide)))  # a slide's patches follow each other
    shown = [shrink(as_rgb(store.read(row)), 100) for row in range(first, first + min(4, slide.kept))]
    return Image.fromarray(np.concatenate([*shown, *[np.full_like(shown[0], 255)] * (4 - len(shown))], axis=1))


MIN_TILE_PX, MAX_TILE_PX = 128, 224
"""Longer side of a picture on the panel: small patches are enlarged, large ones shrunk."""
DARK = 0.25
"""A patch is brightened when nearly all of it is darker: 8-bit tissue is not, 12 bits stored in 16 are."""
GAP_PX, APART_PX, TITLE_PX = 4, 14, 16


def draw_views(originals: "Tensor", views: "Tensor", *local: "Tensor", out: Path) -> None:
    """Write a PNG with one row per patch: the patch (N, C, H, W) itself, then its views (N, V, C, H, W), all in [0, 1].

    Views are shown in the size of the patch, those of other sizes too.

    One channel is shown as grey, two as red and green, of more the first three. Patches that fill little of [0, 1], as
    16-bit ones may, are brightened together with their views, so that these can be compared.
    """
    titles = ["patch", *(f"view {number}" for number in range(1, views.shape[1] + 1))]
    titles += [f"local {number}" for of_size in local for number in range(1, of_size.shape[1] + 1)]
    rows = [
        _draw_row(patch, [view for of_size in made for view in of_size])
        for patch, *made in zip(originals, views, *local, strict=True)
    ]
    wide, tall = rows[0][0].size if rows else (MIN_TILE_PX, MIN_TILE_PX)
    left = [APART_PX + number * (wide + GAP_PX) + (APART_PX - GAP_PX) * (number > 0) for number in range(len(titles))]
    top = [APART_PX + TITLE_PX + 8 + number * (tall + GAP_PX) for number in range(len(rows) + 1)]
    panel = Image.new("RGB", (left[-1] + wide + APART_PX, top[-1] - GAP_PX + APART_PX), PAPER)
    draw, font = ImageDraw.Draw(panel), ImageFont.load_default(TITLE_PX)
    for x, title in zip(left, titles, strict=True):
        draw.text((x + wide / 2, APART_PX + TITLE_PX / 2), title, fill=INK, font=font, anchor="mm")
    for y, tiles in zip(top, rows, strict=False):
        for x, tile in zip(left, tiles, strict=True):
            panel.paste(tile, (x, y))
    write_atomic(out, encode(panel, "PNG"))


def _draw_row(patch: "Tensor", views: Sequence["Tensor"]) -> list[Image.Image]:
    """A patch (C, H, W) and its views, each (C, h, w), as pictures of one size and brightness."""
    pictures = [image.detach().cpu().permute(1, 2, 0).numpy() for image in (patch, *views)]  # (H, W, C) each
    bright = float(np.percentile(pictures[0], 99.8))
    gain = 1 / bright if 0 < bright < DARK else 1.0
    height, width = pictures[0].shape[:2]
    scale = min(max(height, width, MIN_TILE_PX), MAX_TILE_PX) / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    shown = [as_rgb((picture * (255 * gain)).round().clip(0, 255).astype(np.uint8)) for picture in pictures]
    return [Image.fromarray(rgb).resize(size, Image.Resampling.LANCZOS) for rgb in shown]
