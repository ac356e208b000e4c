"""Pictures of a store: kept and dropped boxes on every slide, a sheet before and after stain, a table of counts."""

import io
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from hidisc.artefacts.artefact import read_manifest
from hidisc.ground.checksums import find_problem
from hidisc.ground.files import write_atomic
from hidisc.ground.machine import count_cores
from hidisc.ground.spreadsheet import format_csv
from hidisc.patches.record import SAMPLES
from hidisc.patches.store import PatchStore, SlideEntry
from hidisc.patches.table import PatchTable
from hidisc.slides.display import as_rgb, shrink

KEPT, DROPPED, INK, PAPER = (0, 132, 80), (214, 69, 38), (40, 40, 46), (255, 255, 255)
COUNTS = "counts.csv"
_SHEET_SLIDES = 24
_Corners = dict[str, NDArray[np.int32]]
"""Level-0 corners (N, 2) of the boxes of each slide."""


def draw_store(out: Path) -> None:
    """Write `pictures/`: `slides/*.jpg`, `contact_sheet.jpg` and, last, `counts.csv`; the slides on all cores."""
    store = PatchStore.load(out)
    folder = out / "pictures"
    (folder / COUNTS).unlink(missing_ok=True)
    folder.mkdir(exist_ok=True)
    kept, dropped = _positions(store.table), _positions(store.dropped())
    with ThreadPoolExecutor(count_cores()) as pool:  # Pillow lets go of the interpreter while it works
        for _ in pool.map(lambda slide: _draw_slide(store, slide, kept, dropped), store.info.slides):
            pass
    sheet = draw_contact_sheet(store)
    if sheet is not None:
        write_atomic(folder / "contact_sheet.jpg", _jpeg(sheet))
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
    captioned = _caption(picture, f"{slide.slide}   {slide.kept} kept, {slide.dropped} dropped", legend=True)
    write_atomic(folder / f"{Path(slide.folder).name}.jpg", _jpeg(captioned))


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


def draw_contact_sheet(store: PatchStore) -> Image.Image | None:
    """Sample patches of up to 24 slides spread over the cohort, as scanned (above) and as stored (below)."""
    slides = [slide for slide in store.info.slides if slide.kept]
    if not slides:
        return None
    places = np.linspace(0, len(slides) - 1, min(_SHEET_SLIDES, len(slides))).round().astype(int)
    chosen = [slides[place] for place in places]
    tiles = [_caption(_samples(store, slide), slide.slide, size=12) for slide in chosen]
    across = min(3, len(tiles))
    gap, (wide, tall) = 12, tiles[0].size
    rows = -(-len(tiles) // across)
    sheet = Image.new("RGB", (across * (wide + gap) + gap, rows * (tall + gap) + gap), PAPER)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, across)
        sheet.paste(tile, (gap + column * (wide + gap), gap + row * (tall + gap)))
    scanned = any((store.path / slide.folder / SAMPLES).is_file() for slide in chosen)
    return _caption(sheet, "upper rows: as scanned    lower rows: as stored" if scanned else "patches as stored")


def _samples(store: PatchStore, slide: SlideEntry) -> Image.Image:
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


def _positions(table: PatchTable) -> _Corners:
    """Corners (N, 2) of each slide's boxes."""
    codes, names = table.codes("slide")
    corners = np.stack([table.column("x"), table.column("y")], axis=1)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(names) + 1))
    return {name: corners[order[starts[i] : starts[i + 1]]] for i, name in enumerate(names)}


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


def _caption(image: Image.Image, text: str, size: int = 16, legend: bool = False) -> Image.Image:
    """The picture with a line of text above, cut to its width, and what the colours mean."""
    font = ImageFont.load_default(size)
    bar = size + 12
    captioned = Image.new("RGB", (image.width, image.height + bar), PAPER)
    captioned.paste(image, (0, bar))
    draw = ImageDraw.Draw(captioned)
    text = "".join(character if character.isprintable() else "?" for character in text)
    room = image.width - 8.0
    for word, colour in (("dropped", DROPPED), ("kept", KEPT)) if legend else ():
        room -= draw.textlength(word, font)
        draw.text((room + 4, 5), word, fill=colour, font=font)
        room -= 12
    if draw.textlength(text, font) > room:
        fits = bisect_right(range(len(text)), room, key=lambda length: draw.textlength(text[:length] + "...", font))
        text = text[: max(0, fits - 1)] + "..."
    draw.text((4, 5), text, fill=INK, font=font)
    return captioned


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
