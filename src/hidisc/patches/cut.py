"""One slide file -> its folder in the store: boxes and scores, encoded patches, thumbnail, samples to look at.

Memory per worker: the reader's tile cache (128 MB), the thumbnail, `stain.sample_patches` decoded patches and 256
encoded ones per scale; it does not grow with the slide.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from hidisc.ground.files import describe_file, digest, new_folder, replaced, seal, write_atomic
from hidisc.ground.progress import Watch, ignore
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.patches.codec import check_codec, encode
from hidisc.patches.record import (
    BOXES,
    FIRST_SHARD,
    RECORD,
    SAMPLES,
    THUMBNAIL,
    RecordError,
    SlideRecord,
    SlideTask,
    describe_files,
    is_whole,
    list_boxes,
    name_owner,
)
from hidisc.patches.shard import PlaceWriter, Shard, cell_column, scale_shard
from hidisc.settings.config import keep_facts
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.cohort import SlideRow, hash_slide, sample_slide
from hidisc.slides.grid import Boxes, Lattice, lay_grid, lay_lattice
from hidisc.slides.reader import open_slide, resolve_mpp
from hidisc.slides.resample import read_scaled, read_thumbnail
from hidisc.slides.slide import Pixels, Slide, SlideError, as_rgb, shrink
from hidisc.slides.stain import REFERENCE, Stains, estimate_stains, normalise, normalise_each
from hidisc.slides.tissue import find_tissue, is_blank, pixel_std, tissue_fraction, touches_tissue

_THUMBNAIL_PX = 1024  # long side small pictures get at least, if they have that many pixels
_SHOWN, _SHOWN_PX, _GAP_PX = 4, 150, 6  # sample patches kept for the contact sheet


@dataclass(frozen=True)
class CutTask(SlideTask):
    """One slide file, to be cut."""

    row: SlideRow
    folder: Path
    config: PrepareConfig
    reference: Stains = REFERENCE

    @property
    def source(self) -> Path:
        """The slide file."""
        return self.row.path

    def size_bytes(self) -> int:
        """Bytes to read."""
        return self.source.stat().st_size

    def sample(self) -> str:
        """Checksum of samples of the slide file."""
        return sample_slide(self.source)

    @cached_property
    def settings(self) -> str:
        """Checksum of the settings that pixels depend on, the stains to look like among them."""
        facts = keep_facts(PrepareConfig, self.config.model_dump(mode="json"), ("filter", "annotations"))
        if len(self.config.grid.scales) == 1:
            del facts["grid"]["beyond_edge"]  # it says nothing of one scale, and older stores do not have it
        return digest({**facts, "reference": self.reference.to_dict()})

    def find_change(self, record: SlideRecord) -> str | None:
        """Why the slide must be cut anew although it is there; None: it need not."""
        mpp = self.row.mpp or record.file_mpp or self.config.assume_mpp
        if mpp != record.mpp:
            before, now = ("not known" if value is None else f"{value:g}" for value in (record.mpp, mpp))
            return f"mpp: {before} -> {now}"
        return super().find_change(record)

    def lacks_patches(self, record: SlideRecord) -> bool:
        """Whether the filter keeps boxes that were never stored."""
        return len(missing_boxes(self.folder, record, self.config)) > 0

    def run(self, report: Watch) -> SlideRecord:
        """Cut the slide."""
        return cut_slide(self, report)


def cut_slide(task: CutTask, report: Watch = ignore) -> SlideRecord:
    """Cut a slide into its folder, which appears whole or not at all; an existing one only gains missing patches."""
    try:
        record = SlideRecord.load(task.folder)
    except RecordError:
        record = None
    if record is not None and is_whole(task.folder, record):
        return _grow(task, record, report)
    config, sample = task.config, task.sample()
    with open_slide(task.row.path) as slide:
        mpp, downsample = _scale(slide, task)
        check_codec(config.pixels.codec, slide.channels, slide.dtype)
        grid, lattices = _lay_squares(task, slide, downsample)
        # finer than the setting for small pictures, and never finer than the slide
        coarsest = max(slide.width, slide.height) / _THUMBNAIL_PX
        thumbnail_downsample = max(1.0, min(config.tissue.thumbnail_mpp / mpp, coarsest))
        thumbnail = read_thumbnail(slide, thumbnail_downsample)
        mask = find_tissue(thumbnail, config.tissue.min_density, config.tissue.max_density)
        candidates = grid
        if config.tissue.skip_glass:
            candidates = grid[touches_tissue(mask, grid, thumbnail_downsample)]
        fraction = tissue_fraction(mask, candidates, thumbnail_downsample)

        samples = _sample(slide, candidates, fraction, task)
        painter = _Painter(task, slide, _estimate_stains(task, slide, samples))
        bounds = slide if config.grid.beyond_edge == "drop" else None
        cells = [lattice.first_cells(candidates, bounds) for lattice in lattices]
        with new_folder(task.folder) as part:
            stds = np.zeros(len(candidates), np.float32)
            names = [part / scale_shard(FIRST_SHARD, scale) for scale in range(1 + len(lattices))]
            owners = [name_owner(task.row.slide, sample, task.settings, path.name) for path in names]
            with PlaceWriter(names, owners, painter.patch_bytes, slide, lattices, cells, painter.encode_cell) as places:
                for index, pixels in _read_boxes(slide, candidates, np.arange(len(candidates)), samples, task, report):
                    stds[index] = pixel_std(pixels)
                    if not is_blank(stds[index], fraction[index], config.filter):
                        places.append(index, painter.encode(pixels))
            scores = {"x": candidates.x, "y": candidates.y, "tissue_fraction": fraction, "pixel_std": stds}
            scores |= {cell_column(scale): first for scale, first in enumerate(cells, start=1)}
            pq.write_table(pa.table(scores), part / BOXES, compression="zstd")
            Image.fromarray(as_rgb(thumbnail)).save(part / THUMBNAIL, quality=88)
            _save_samples(samples, painter, part / SAMPLES)
            record = SlideRecord(
                slide=task.row.slide,
                checksum=hash_slide(task.row.path),
                sample=sample,
                settings=task.settings,
                reader=slide.reader,
                width=slide.width,
                height=slide.height,
                mpp=mpp,
                file_mpp=slide.mpp,
                downsample=downsample,
                origin=slide.origin,
                size_px=config.grid.size_px,
                channels=slide.channels,
                dtype=str(slide.dtype),
                boxes=len(candidates),
                glass=len(grid) - len(candidates),
                thumbnail_downsample=thumbnail_downsample,
                stain=painter.stains.to_dict() if painter.stains else None,
                stain_fallbacks=painter.fallbacks,
                files=describe_files(part),
            )
            task.refuse_change(sample)
            record.save(part)
    return record


def _grow(task: CutTask, record: SlideRecord, report: Watch) -> SlideRecord:
    """Add the patches a changed filter keeps and the folder lacks, in a shard of their own; old ones stay."""
    missing = missing_boxes(task.folder, record, task.config)
    if not len(missing):
        return record
    scores = pq.read_table(task.folder / BOXES)
    boxes = list_boxes(record, scores)
    names = [scale_shard(f"patches-{len(record.shards)}.arrow", scale) for scale in range(len(task.config.grid.scales))]
    with ExitStack() as stack:
        parts = [stack.enter_context(replaced(task.folder / name)) for name in names]
        slide = stack.enter_context(open_slide(task.row.path))
        painter = _Painter(task, slide, Stains.from_dict(record.stain) if record.stain else None)
        owners = [name_owner(record.slide, record.sample, record.settings, name) for name in names]
        _, lattices = _lay_squares(task, slide, boxes.downsample)
        cells = [scores[cell_column(scale)].to_numpy() for scale in range(1, len(names))]
        with PlaceWriter(parts, owners, painter.patch_bytes, slide, lattices, cells, painter.encode_cell) as places:
            for index, pixels in _read_boxes(slide, boxes, missing, {}, task, report):
                places.append(index, painter.encode(pixels))
        task.refuse_change(record.sample)
    added = [describe_file(task.folder / name) for name in names]
    fallbacks = record.stain_fallbacks + painter.fallbacks
    grown = record.model_copy(update={"files": (*record.files, *added), "stain_fallbacks": fallbacks})
    write_atomic(task.folder / RECORD, seal(grown))
    return grown


def missing_boxes(folder: Path, record: SlideRecord, config: PrepareConfig) -> NDArray[np.intp]:
    """Indices of the boxes that the config's filter keeps and no shard of the folder holds."""
    scores = pq.read_table(folder / BOXES, columns=["pixel_std", "tissue_fraction"])
    wanted = ~is_blank(scores["pixel_std"].to_numpy(), scores["tissue_fraction"].to_numpy(), config.filter)
    for shard in record.shards:
        wanted[Shard(folder / shard).boxes] = False
    return np.flatnonzero(wanted)


def _lay_squares(task: CutTask, slide: Slide, downsample: float) -> tuple[Boxes, list[Lattice]]:
    """The squares of a slide at the finest scale, and the patches around them of each coarser one."""
    config = task.config.grid
    stride_px = config.stride_px or config.size_px
    grid = lay_grid(slide.width, slide.height, config.size_px, stride_px, downsample)
    finest, *coarser = config.scales
    # stains of a patch are estimated from all of it
    whole = task.config.stain.method != "none" and task.config.stain.mode == "patch"
    return grid, [
        lay_lattice(grid, config.size_px, stride_px, downsample * scale / finest, whole=whole) for scale in coarser
    ]


class _Painter:
    """Stain normalisation of one slide's patches, counting those that had to be left as they were."""

    def __init__(self, task: CutTask, slide: Slide, stains: Stains | None) -> None:
        self.stains, self.fallbacks = stains, 0
        self.patch_bytes = task.config.grid.size_px**2 * slide.channels * slide.dtype.itemsize
        self._config, self._reference, self._pixels = task.config.stain, task.reference, task.config.pixels

    def encode(self, pixels: Pixels) -> bytes:
        """One normalised patch of the finest scale, as it is stored; it is counted."""
        painted, fell_back = self.paint(pixels)
        self.fallbacks += fell_back
        return encode(painted, self._pixels.codec, self._pixels.quality)

    def encode_cell(self, pixels: Pixels) -> bytes:
        """The same of a cell of a coarser scale, which is not counted."""
        return encode(self.paint(pixels)[0], self._pixels.codec, self._pixels.quality)

    def paint(self, pixels: Pixels) -> tuple[Pixels, bool]:
        """One normalised patch (H, W, 3), and whether it had to be left as it was."""
        if self._config.method == "none":
            return pixels, False
        if self._config.mode == "patch":
            painted, fell_back = normalise_each(pixels[None], self._reference)
            return painted[0], bool(fell_back[0])
        if self.stains is None:
            return pixels, True
        return normalise(pixels[None], self.stains, self._reference)[0], False


def _estimate_stains(task: CutTask, slide: Slide, samples: dict[int, Pixels]) -> Stains | None:
    """The slide's stains by its sampled patches, where the settings ask for them and the patches show two."""
    stain = task.config.stain
    if stain.method == "macenko" and (slide.dtype != np.uint8 or slide.channels != 3):
        raise SlideError(
            f"{slide.path} has {slide.channels} channels of {slide.dtype}; Macenko normalisation needs 8-bit RGB. "
            "Use --set stain.method=none or --recipe srh."
        )
    if stain.method == "none" or stain.mode == "patch" or not samples:
        return None
    return estimate_stains(np.stack(list(samples.values())))


def _scale(slide: Slide, task: CutTask) -> tuple[float, float]:
    """(micrometres per level-0 px, level-0 px per patch px of the finest scale); refuses to invent detail."""
    mpp = resolve_mpp(slide, task.row.mpp, task.config.assume_mpp)
    grid = task.config.grid
    finest = grid.scales[0]
    if mpp > finest * 1.1 and not grid.allow_upsampling:
        raise SlideError(
            f"{slide.path} has {mpp:g} um/px at its finest, coarser than the {finest:g} asked for. "
            f"Use --set grid.mpp={mpp:g} or more, or --set grid.allow_upsampling=true."
        )
    return mpp, finest / mpp


def _sample(slide: Slide, boxes: Boxes, fraction: NDArray[np.float32], task: CutTask) -> dict[int, Pixels]:
    """Decoded patches to estimate stains from and to show: of boxes that are half tissue, or else the best there are.

    Chosen without regard to the filter, so that refiltering does not change the stains.
    """
    wanted = task.config.stain.sample_patches if task.config.stain.method == "macenko" else _SHOWN
    rich = np.flatnonzero(fraction >= min(0.5, fraction.max(initial=0)))
    rng = make_rng(task.config.seed, Purpose.STAIN_PATCHES, task.row.slide)
    chosen = np.sort(rng.permutation(rich)[:wanted])
    return dict(_read_boxes(slide, boxes, chosen, {}, task, ignore))


def _read_boxes(
    slide: Slide,
    boxes: Boxes,
    indices: NDArray[np.intp],
    known: dict[int, Pixels],
    task: CutTask,
    report: Watch,
) -> Iterator[tuple[int, Pixels]]:
    """(index, pixels (size, size, C)) of the boxes asked for, in order; those `known` are not read again."""
    size = task.config.grid.size_px
    for count, index in enumerate(indices.tolist(), start=1):
        pixels = known.get(index)
        if pixels is None:
            x, y = float(boxes.x[index]), float(boxes.y[index])
            pixels = read_scaled(slide, x, y, size, size, boxes.downsample)
        yield index, pixels
        if count % 64 == 0 or count == len(indices):
            report((count - 1) % 64 + 1)


def _save_samples(samples: dict[int, Pixels], painter: _Painter, path: Path) -> None:
    """A strip of sample patches, as they were above and as they are stored below; none for an empty slide."""
    if not samples:
        return
    shown = list(samples.values())[:: max(1, len(samples) // _SHOWN)][:_SHOWN]
    painted = [painter.paint(pixels)[0] for pixels in shown]
    rows = [[shrink(as_rgb(pixels), _SHOWN_PX) for pixels in row] for row in (shown, painted)]
    cell_px = _SHOWN_PX + _GAP_PX
    strip = np.full((2 * cell_px, _SHOWN * cell_px, 3), 255, np.uint8)
    for y, row in zip((0, cell_px), rows, strict=True):
        for number, picture in enumerate(row):
            strip[y : y + _SHOWN_PX, number * cell_px :][:, :_SHOWN_PX] = picture
    Image.fromarray(strip).save(path, quality=90, subsampling=0)
