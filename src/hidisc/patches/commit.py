"""Slide folders -> a readable store: the tables and `store.json`.

A pure function of the slides' rows, their folders and the config: whatever was killed on the way, the bytes are
the same.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from hidisc.artefacts.artefact import Work
from hidisc.ground.errors import UserError
from hidisc.ground.files import FileEntry, beside, describe_file, find_problem, sync, write_atomic
from hidisc.ground.spreadsheet import format_csv
from hidisc.ground.stop import reached
from hidisc.ground.text import count, name_some
from hidisc.patches.annotations import ANNOTATION, Annotations
from hidisc.patches.record import BOXES, RECORD, SHARDS, THUMBNAIL, RecordError, SlideRecord, list_boxes, slide_folder
from hidisc.patches.shard import Shard, cell_column, scale_shard
from hidisc.patches.splits import split_patients
from hidisc.patches.store import DROPPED, FAILURES, PATCHES, STORE, InputRule, SlideEntry, SlideFailure, StoreInfo
from hidisc.patches.table import PatchTable, codes_column, names_column
from hidisc.settings.level_names import USUAL, LevelNames
from hidisc.settings.prepare import ImportConfig, PrepareConfig, SplitConfig, VolumesConfig
from hidisc.slides.cohort import SlideRow
from hidisc.slides.grid import find_origin
from hidisc.slides.tissue import is_blank, pen_fraction

LABEL, SCORE = "predicted_label", "predicted_score"


@dataclass(frozen=True)
class PredictedLabels:
    """A trained run whose predictions lie beside the slides' scores: patches of some of its labels are dropped."""

    checksum: str
    labels: tuple[str, ...]

    def file(self, folder: Path) -> Path:
        """Where the predictions for a slide are, in its folder."""
        return folder / f"predicted-{self.checksum}.parquet"

    def save(self, folder: Path, codes: NDArray[np.int16], scores: NDArray[np.float32]) -> None:
        """Write codes (boxes,) into `labels`, -1 for boxes without a stored patch, and their probabilities (boxes,)."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({LABEL: codes, SCORE: scores}), sink, compression="zstd", write_page_checksum=True)
        write_atomic(self.file(folder), sink.getvalue().to_pybytes())

    def load(self, folder: Path, boxes: int) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        """Codes and scores (boxes,) of a slide; all -1 and NaN when it has no predictions, or the file is damaged."""
        try:
            table = pq.read_table(self.file(folder), page_checksum_verification=True)
        except (OSError, pa.ArrowInvalid):
            table = None
        if table is None or len(table) != boxes or table.column_names != [LABEL, SCORE]:
            return np.full(boxes, -1, np.int16), np.full(boxes, np.nan, np.float32)
        return table[LABEL].to_numpy().copy(), table[SCORE].to_numpy().copy()


@dataclass(frozen=True)
class StorePlan:
    """The settings of a store, and what holds for all of its slides; the same for slides, patch files and volumes."""

    config: PrepareConfig | ImportConfig | VolumesConfig
    input: InputRule = "unit"
    classifier: PredictedLabels | None = None
    annotations: Annotations | None = None

    @property
    def scales(self) -> tuple[float | None, ...]:
        """Micrometres per patch px of each scale that every place has; imported patches have their own."""
        if isinstance(self.config, PrepareConfig):
            return self.config.grid.scales
        return (self.config.mpp if isinstance(self.config, ImportConfig) else None,)

    @property
    def level_names(self) -> LevelNames:
        """What people read calls patients, slides and patches."""
        return USUAL if isinstance(self.config, PrepareConfig) else self.config.level_names


@dataclass(frozen=True)
class Committed:
    """The result of a commit."""

    info: StoreInfo
    files: list[FileEntry]
    """Every file of the store but its pictures."""
    is_new: bool
    """Whether the store's tables were written: they were missing or different before."""


def commit_store(work: Work, rows: Sequence[SlideRow], failures: Sequence[SlideFailure], plan: StorePlan) -> Committed:
    """Write `patches.parquet`, `dropped.parquet`, `failures.csv` and `store.json` from the slides' folders.

    `rows` have their splits; a slide that failed has no folder and is left out. A store that is already so is not
    touched; `work.finish` is left to the caller.
    """
    out = work.out
    rows = [row for row in rows if (out / slide_folder(row.slide) / RECORD).exists()]
    records = [SlideRecord.load(out / slide_folder(row.slide)) for row in rows]
    size_px, channels, dtype = _one_shape(records)
    shards = [f"{slide_folder(record.slide)}/{name}" for record in records for name in record.all_shards]

    numbers = {shard: number for number, shard in enumerate(shards)}
    tables = [_list_boxes(out, row, record, plan, numbers) for row, record in zip(rows, records, strict=True)]
    boxes = pa.concat_tables(tables, promote_options="default").unify_dictionaries().combine_chunks()
    is_kept = boxes[_IS_KEPT].to_numpy()
    table = PatchTable(boxes.drop_columns(_IS_KEPT))

    declared = plan.scales[0] if len(plan.scales) == 1 else None
    scales = tuple(table.scales().tolist())  # rounded
    info = StoreInfo(
        size_px=size_px,
        mpp=declared or (scales[0] if len(scales) == 1 else None),
        channels=channels,
        dtype=dtype,
        codec=plan.config.pixels.codec,
        input=plan.input,
        shards=tuple(shards),
        slides=tuple(map(_enter, rows, records, tables)),
        failures=tuple(failures),
        level_names=plan.level_names,
        scales=scales if len(scales) > 1 else (),
    )
    failed = format_csv(list(SlideFailure.model_fields), [list(failure.model_dump().values()) for failure in failures])
    files, is_new = _write_if_changed(
        work,
        {
            PATCHES: table.select(is_kept).save,
            DROPPED: table.select(~is_kept).save,
            FAILURES: lambda path: path.write_bytes(failed.encode()),
            STORE: lambda path: path.write_bytes(info.to_json()),
        },
    )
    files += [file for record in records for file in _slide_files(out, record, plan)]
    return Committed(info, files, is_new)


_IS_KEPT = "is_kept"


def _list_boxes(out: Path, row: SlideRow, record: SlideRecord, plan: StorePlan, numbers: Mapping[str, int]) -> pa.Table:
    """One slide's boxes as rows of the patch table, and a last column `is_kept`; `numbers`: of the store's shards.

    For example a slide of three boxes, of which the filter dropped the second before its pixels were stored:

        patient  slide  patch  tissue_fraction  pixel_std  is_blank  shard  row   is_kept
        P1       P1-S2  0      0.93             31.0       false     4      0     true
        P1       P1-S2  1      0.04             2.7        true      null   null  false
        P1       P1-S2  2      0.71             24.5       false     4      1     true

    Of several scales each box is a place, and has a row for each of them, the finest first; its scores are those of
    the finest.
    """
    folder, scales = slide_folder(row.slide), plan.scales
    boxes = pq.read_table(out / folder / BOXES)
    each = np.repeat(np.arange(record.boxes), len(scales))  # the box of every row
    total, scores = len(each), boxes.take(each)
    shard, row_in_shard = _find_patches(out / folder, record, boxes, len(scales))
    shard = np.where(
        shard < 0, -1, np.array([numbers[f"{folder}/{name}"] for name in record.all_shards], np.int32)[shard]
    )
    pixel_std, fraction = scores["pixel_std"].to_numpy(), scores["tissue_fraction"].to_numpy()
    blank = is_blank(pixel_std, fraction, plan.config.filter)
    further, is_left_out = _judge_boxes(out / folder, record, boxes, plan)
    # a box that a new filter keeps is not stored yet when its slide failed just now
    is_kept = ~blank & ~is_left_out[each] & (shard >= 0)

    columns: dict[str, pa.Array] = {
        "patient": names_column([row.patient], [total]),
        "slide": names_column([row.slide], [total]),
        "patch": pa.array(np.arange(total, dtype=np.int32)),
        **{axis: _find_corners(axis, scores, record, scales) for axis in ("x", "y")},
        "mpp": pa.array(scales * record.boxes, pa.float32()),
        "label": names_column([row.label], [total]),
        "site": names_column([row.site], [total]),
        "split": names_column([row.split], [total]),
        "tissue_fraction": pa.array(fraction, mask=np.isnan(fraction)),
        "pixel_std": pa.array(pixel_std),
        "is_blank": pa.array(blank),
        "shard": pa.array(shard, mask=shard < 0),
        "row": pa.array(row_in_shard, mask=shard < 0),
        **{name: column.take(each) for name, column in further.items()},
    }
    columns |= {name: names_column([value], [total]) for name, value in row.more.items()}
    for name, values in row.columns.items():
        if name == "mpp":
            columns[name] = pa.array([float(value or "nan") for value in values], pa.float32())
        else:
            columns[name] = pa.array(values, pa.string()) if name == "name" else names_column(values, [1] * total)
    return pa.table({**columns, _IS_KEPT: is_kept})


def _judge_boxes(
    folder: Path, record: SlideRecord, boxes: pa.Table, plan: StorePlan
) -> tuple[dict[str, pa.Array], NDArray[np.bool_]]:
    """Columns that only some tables have, one value per box, and which boxes (N,) are left out by what they say."""
    columns: dict[str, pa.Array] = {}
    is_left_out, filter = np.zeros(record.boxes, bool), plan.config.filter
    if filter.max_pen_fraction < 1:
        ink = _score_pen(folder, record, boxes)
        columns["pen_fraction"] = pa.array(ink)
        is_left_out |= ink > filter.max_pen_fraction
    if len(plan.scales) > 1:
        columns["place"] = names_column([str(box) for box in range(record.boxes)], [1] * record.boxes)
    if plan.classifier:
        labels = plan.classifier.labels
        codes, probabilities = plan.classifier.load(folder, record.boxes)
        columns[LABEL] = codes_column(codes, labels)
        columns[SCORE] = pa.array(probabilities, mask=np.isnan(probabilities))
        unwanted = [code for code, label in enumerate(labels) if label in filter.drop_labels]
        is_left_out |= np.isin(codes, unwanted)
    if plan.annotations:
        assert record.width is not None  # cut from a slide
        assert record.height is not None
        annotation, is_excluded = plan.annotations.classify(
            record.slide, list_boxes(record, boxes), record.width, record.height, record.origin or (0, 0)
        )
        columns[ANNOTATION] = codes_column(annotation, plan.annotations.classes)
        is_left_out |= is_excluded
    return columns, is_left_out


def _score_pen(folder: Path, record: SlideRecord, scores: pa.Table) -> NDArray[np.float32]:
    """Share of every box of a slide that pen ink covers, by the thumbnail that lies in its folder."""
    scale = record.thumbnail_downsample
    if scale is None or record.mpp is None or (record.channels, record.dtype) != (3, "uint8"):
        raise UserError(
            f"filter.max_pen_fraction: pen marks are found on 8-bit RGB slides that are cut here, and {record.slide!r} "
            f"({record.reader}, {record.channels} channels of {record.dtype}) is none. Leave it at 1, or annotate them."
        )
    with Image.open(folder / THUMBNAIL) as picture:
        return pen_fraction(np.asarray(picture.convert("RGB")), list_boxes(record, scores), scale, record.mpp)


def _find_patches(
    folder: Path, record: SlideRecord, boxes: pa.Table, scales: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(boxes x scales,) the shard of each patch, as a number among the record's, and its row there; -1: not stored."""
    shard, row = np.full((2, record.boxes, scales), -1, np.int32)
    numbers = {name: number for number, name in enumerate(record.all_shards)}
    for name in record.shards:
        stored = Shard(folder / name).boxes
        shard[stored, 0], row[stored, 0] = numbers[name], np.arange(len(stored))
        for scale in range(1, scales):
            coarse = scale_shard(name, scale)
            rows = Shard(folder / coarse).find_rows(boxes[cell_column(scale)].to_numpy()[stored])
            shard[stored, scale], row[stored, scale] = np.where(rows < 0, -1, numbers[coarse]), rows
    return shard.ravel(), row.ravel()


def _find_corners(axis: str, scores: pa.Table, record: SlideRecord, scales: tuple[float | None, ...]) -> pa.Array:
    """The level-0 px of the patches' corners along an axis, null for imported ones."""
    if axis not in scores.column_names:
        return pa.nulls(len(scores), pa.int32())
    if len(scales) == 1:
        return scores[axis]
    assert record.downsample is not None  # cut from a slide
    downsamples = [record.downsample * (scale or 0) / (scales[0] or 0) for scale in scales]
    origins = [round(find_origin(record.size_px, record.downsample, downsample)) for downsample in downsamples]
    return pa.array(scores[axis].to_numpy() + np.tile(origins, record.boxes), pa.int32())


def _enter(row: SlideRow, record: SlideRecord, boxes: pa.Table) -> SlideEntry:
    """A slide as `store.json` lists it."""
    kept = int(boxes[_IS_KEPT].to_numpy().sum())
    return SlideEntry(
        patient=row.patient,
        slide=row.slide,
        checksum=record.checksum,
        folder=slide_folder(row.slide),
        kept=kept,
        dropped=len(boxes) - kept,
    )


def _write_if_changed(work: Work, writers: Mapping[str, Callable[[Path], Any]]) -> tuple[list[FileEntry], bool]:
    """Write files beside those that are there and, if any differs, put all in their place; (the files, whether so)."""
    out = work.out
    parts = {name: beside(out / name) for name in writers}
    try:
        for name, write in writers.items():
            write(parts[name])
        files = [describe_file(part, name) for name, part in parts.items()]
        is_new = any(find_problem(out, file) for file in files)
        if is_new:
            work.reopen()  # from here until `finish` the store is unfinished
            for name, part in parts.items():
                sync(part)
                reached("file.written", out / name)
                part.replace(out / name)
                reached("file.renamed", out / name)
            sync(out)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return files, is_new


def _slide_files(out: Path, record: SlideRecord, plan: StorePlan) -> list[FileEntry]:
    """The files of a slide's folder as files of the store."""
    name = slide_folder(record.slide)
    more = [out / name / RECORD]
    if plan.classifier and (predicted := plan.classifier.file(out / name)).is_file():
        more.append(predicted)
    files = [*record.files, *map(describe_file, more)]
    return [file.model_copy(update={"path": f"{name}/{file.path}"}) for file in files]


def refuse_unlisted(out: Path, rows: Sequence[SlideRow]) -> None:
    """Refuse to go on with a store that holds slides the cohort does not list."""
    listed = {slide_folder(row.slide) for row in rows}
    folders = [record.parent for record in sorted(out.glob(f"{SHARDS}/*/{RECORD}"))]
    unlisted = [_slide_of(folder) for folder in folders if f"{SHARDS}/{folder.name}" not in listed]
    if unlisted:
        raise UserError(
            f"{out} holds {count(len(unlisted), 'slide')} that this cohort does not list ({name_some(unlisted)}). "
            f"Put {'it' if len(unlisted) == 1 else 'them'} back into the cohort, or give a new --out."
        )


def _slide_of(folder: Path) -> str:
    try:
        return SlideRecord.load(folder).slide
    except RecordError:
        return folder.name


def assign_splits(rows: Sequence[SlideRow], config: SplitConfig, seed: int) -> list[SlideRow]:
    """Rows with a split each: the cohort's own where it gives one, else drawn by patient."""
    if any(row.split for row in rows):
        return list(rows)
    labels: dict[str, str | None] = {}
    sites: dict[str, set[str | None]] = defaultdict(set)
    for row in rows:
        labels.setdefault(row.patient, row.label)
        sites[row.patient].add(row.site)
    split_of = split_patients(labels, config, seed, sites)
    return [replace(row, split=split_of[row.patient]) for row in rows]


def _one_shape(records: Sequence[SlideRecord]) -> tuple[int, int, Any]:
    """(size_px, channels, dtype) that all slides share."""
    first = records[0]
    for record in records:
        if (record.size_px, record.channels, record.dtype) != (first.size_px, first.channels, first.dtype):
            raise UserError(
                f"slide {record.slide!r} has {record.channels} channels of {record.dtype} at {record.size_px} px, "
                f"slide {first.slide!r} has {first.channels} of {first.dtype} at {first.size_px} px. All patches of a "
                "store are alike: make two stores, or bring imported patches to one size with --set resize_px=64."
            )
    return first.size_px, first.channels, first.dtype
