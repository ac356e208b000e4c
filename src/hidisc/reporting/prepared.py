"""Pictures of a store: kept and dropped squares on every slide, the contact sheet, a table of counts."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hidisc.artefacts.artefact import read_manifest
from hidisc.ground.checksums import find_problem
from hidisc.ground.files import write_atomic
from hidisc.ground.machine import count_cores
from hidisc.ground.spreadsheet import format_csv
from hidisc.ground.text import count
from hidisc.patches.record import SlideRecord
from hidisc.patches.store import PatchStore, SlideEntry
from hidisc.patches.table import PatchTable
from hidisc.reporting.captions import PAPER, add_caption, encode
from hidisc.reporting.contact_sheet import draw_contact_sheet

KEPT, DROPPED = (0, 132, 80), (214, 69, 38)
COUNTS = "counts.csv"
_LEAST_PX = 640
"""Width of a slide's picture at least, so that what is said above it can be read."""
_QUALITY = 88
_Corners = dict[str, NDArray[np.int32]]
"""Level-0 corners (N, 2) of the boxes of each slide."""


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
    sheet = draw_contact_sheet(store)
    if sheet is not None:
        write_atomic(folder / "contact_sheet.jpg", encode(sheet, "JPEG", quality=_QUALITY))
    write_atomic(folder / COUNTS, _counts(store))


def is_drawn(out: Path) -> bool:
    """Whether the pictures of a finished store belong to it, and are as they were drawn or deleted."""
    try:
        manifest = read_manifest(out)
    except ValueError:
        return False
    listed = [file for file in manifest.files if file.path.startswith("pictures/")] if manifest else []
    last = f"pictures/{COUNTS}"
    return (
        any(file.path == last for file in listed)
        and (out / last).is_file()
        and not any(find_problem(out, file) for file in listed)
    )


def list_pictures(out: Path) -> list[str]:
    """Every file of `pictures/`, relative to the store."""
    found = [*out.glob("pictures/*"), *out.glob("pictures/slides/*")]
    return sorted(path.relative_to(out).as_posix() for path in found if path.is_file())


def _draw_slide(store: PatchStore, slide: SlideEntry, kept: _Corners, dropped: _Corners) -> None:
    """The picture of one slide; imported ones have no thumbnail to draw on."""
    thumbnail = store.thumbnail(slide)
    if thumbnail is None:
        return
    folder = store.path / "pictures" / "slides"
    folder.mkdir(exist_ok=True)
    pixels, downsample = thumbnail
    record = store.record(slide)
    extent = record.size_px * (record.downsample or 1)
    picture = draw_boxes(pixels, downsample, kept.get(slide.slide), dropped.get(slide.slide), extent)
    if picture.width < _LEAST_PX:
        padded = Image.new("RGB", (_LEAST_PX, picture.height), PAPER)
        padded.paste(picture)
        picture = padded
    if not slide.kept:
        picture = add_caption(picture, explain_no_patches(record))
    legend = (("kept", KEPT), ("dropped", DROPPED))
    counts = (len(of.get(slide.slide, ())) for of in (kept, dropped))
    title = "{}: {:,} kept, {:,} dropped".format(slide.slide, *counts)
    captioned = add_caption(picture, title, right=legend)
    write_atomic(folder / f"{Path(slide.folder).name}.jpg", encode(captioned, "JPEG", quality=_QUALITY))


def explain_no_patches(record: SlideRecord) -> str:
    """Return why a slide that was cut here has no patches."""
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
    """The thumbnail with boxes (N, 2) of level-0 corners: kept ones outlined green, dropped ones struck out red."""
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
    """Corners (N, 2) of each slide's boxes; of several scales, the places."""
    corners = np.stack([table.column("x"), table.column("y")], axis=1)
    is_shown = np.ones(len(table), bool) & store.are_finest(table.column("mpp"))
    return {slide: corners[rows[is_shown[rows]]] for slide, rows in table.rows_by("slide").items()}


def _counts(store: PatchStore) -> bytes:
    """Patients, slides and patches by split and label, as in the paper's dataset tables."""
    split, splits = store.table.codes("split")
    label, labels = store.table.codes("label")
    columns = [store.table.codes(name)[0] for name in ("patient", "slide")]
    counted = []
    groups = Counter(zip(split.tolist(), label.tolist(), strict=True))
    for (held_in, kind), patches in sorted(groups.items()):
        rows = (split == held_in) & (label == kind)
        patients, slides = (len(np.unique(codes[rows])) for codes in columns)
        names = (splits[held_in] if held_in >= 0 else "", labels[kind] if kind >= 0 else "")
        counted.append((*names, patients, slides, patches))
    return format_csv(["split", "label", "patients", "slides", "patches"], counted).encode()
