"""Slide folders -> a readable store: the tables and `store.json`.

A pure function of the slides' rows, their folders and the config: whatever was killed on the way, the bytes are
the same.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hidisc.artefacts.artefact import Work
from hidisc.ground.checksums import FileEntry, describe_file, find_problem
from hidisc.ground.errors import UserError
from hidisc.ground.files import beside, sync
from hidisc.ground.spreadsheet import format_csv
from hidisc.ground.steps import reached
from hidisc.patches.filters import is_blank, is_unwanted
from hidisc.patches.inputs import InputRule
from hidisc.patches.predicted import LABEL, SCORE, load_predicted, predicted_file
from hidisc.patches.record import BOXES, RECORD, RecordError, SlideRecord, folder_name
from hidisc.patches.shard import Shard
from hidisc.patches.splits import split_patients
from hidisc.patches.store import DROPPED, FAILURES, PATCHES, STORE, Failure, SlideEntry, StoreInfo
from hidisc.patches.table import SCHEMA, PatchTable, names_column
from hidisc.settings.prepare import FilterConfig, PixelsConfig, SplitConfig

SHARDS = "shards"


@dataclass(frozen=True)
class Member:
    """One slide as the lab describes it; `columns` holds further values a box, for imported patches."""

    patient: str
    slide: str
    label: str | None = None
    site: str | None = None
    split: str | None = None
    columns: dict[str, list[str | None]] = field(default_factory=dict)
    """`label` in here, one a box, overrides the slide's."""

    @property
    def folder(self) -> str:
        """The slide's folder, relative to the store."""
        return f"{SHARDS}/{folder_name(self.slide)}"


@dataclass(frozen=True)
class Judge:
    """The trained run whose predictions lie beside the slides."""

    checksum: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """The settings a commit needs, shared by prepared and imported stores."""

    filter: FilterConfig
    pixels: PixelsConfig
    split: SplitConfig
    seed: int
    mpp: float | None
    input: InputRule = "unit"
    judge: Judge | None = None


@dataclass(frozen=True)
class Committed:
    """What a store came to."""

    info: StoreInfo
    files: list[FileEntry]
    """All that belongs to it."""
    is_new: bool
    """Whether it was not so before."""


def commit_store(work: Work, members: Sequence[Member], failures: Sequence[Failure], recipe: Recipe) -> Committed:
    """Write `patches.parquet`, `dropped.parquet`, `failures.csv` and `store.json` from the folders that are there.

    `members` have their splits. A store that is already so is not touched; `work.finish` is left to the caller.
    """
    out = work.out
    there = [member for member in members if (out / member.folder / RECORD).exists()]
    records = [SlideRecord.load(out / member.folder) for member in there]
    size_px, channels, dtype = _one_shape(records)

    shards: list[str] = []
    parts, counts, kept_counts = [], [], []
    for member, record in zip(there, records, strict=True):
        boxes = _boxes(out / member.folder, record, recipe, first_shard=len(shards))
        shards += [f"{member.folder}/{shard}" for shard in record.shards]
        parts.append(boxes)
        counts.append(len(boxes["patch"]))
        kept_counts.append(int(boxes["is_kept"].sum()))
    table = _table(there, parts, counts, recipe)
    kept_rows = np.concatenate([part["is_kept"] for part in parts])
    info = StoreInfo(
        size_px=size_px,
        mpp=recipe.mpp,
        channels=channels,
        dtype=dtype,
        codec=recipe.pixels.codec,
        input=recipe.input,
        shards=tuple(shards),
        slides=tuple(
            SlideEntry(
                patient=member.patient,
                slide=member.slide,
                folder=member.folder,
                checksum=record.checksum,
                kept=kept,
                dropped=count - kept,
            )
            for member, record, count, kept in zip(there, records, counts, kept_counts, strict=True)
        ),
        failures=tuple(failures),
    )
    new = {name: beside(out / name) for name in (PATCHES, DROPPED, FAILURES, STORE)}
    try:
        table.select(kept_rows).save(new[PATCHES])
        table.select(~kept_rows).save(new[DROPPED])
        new[FAILURES].write_bytes(_failures_csv(failures))
        new[STORE].write_bytes((info.model_dump_json(indent=1) + "\n").encode())
        files = [describe_file(part, name) for name, part in new.items()]
        is_new = any(find_problem(out, file) for file in files)
        if is_new:
            work.reopen()  # from here until `finish` the store is unfinished
            for name, part in new.items():
                sync(part)
                reached("file.written", out / name)
                part.replace(out / name)
                reached("file.renamed", out / name)
            sync(out)
    finally:
        for part in new.values():
            part.unlink(missing_ok=True)
    for member, record in zip(there, records, strict=True):
        files += _slide_files(out / member.folder, record, member.folder, recipe)
    return Committed(info, files, is_new)


def _slide_files(folder: Path, record: SlideRecord, name: str, recipe: Recipe) -> list[FileEntry]:
    """The files of a slide's folder as files of the store."""
    more = [RECORD]
    if recipe.judge and predicted_file(folder, recipe.judge.checksum).is_file():
        more.append(predicted_file(folder, recipe.judge.checksum).name)
    found = [*record.files, *(describe_file(folder / file) for file in more)]
    return [file.model_copy(update={"path": f"{name}/{file.path}"}) for file in found]


def refuse_strangers(out: Path, members: Sequence[Member]) -> None:
    """Refuse to go on with a store that holds slides the cohort does not list."""
    known = {member.folder for member in members}
    strangers = [
        _slide_of(record.parent)
        for record in sorted(out.glob(f"{SHARDS}/*/{RECORD}"))
        if f"{SHARDS}/{record.parent.name}" not in known
    ]
    if strangers:
        named = ", ".join(repr(slide) for slide in strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        raise UserError(
            f"{out} holds {len(strangers)} slide{'s' if len(strangers) > 1 else ''} that this cohort does not list "
            f"({named}). Put them back into the cohort, or give a new --out."
        )


def _slide_of(folder: Path) -> str:
    try:
        return SlideRecord.load(folder).slide
    except RecordError:
        return folder.name


def assign_splits(members: Sequence[Member], recipe: Recipe) -> list[Member]:
    """Members with a split each: the cohort's own where it gives one, else drawn by patient."""
    if any(member.split for member in members):
        return list(members)
    labels: dict[str, str | None] = {}
    sites: dict[str, set[str | None]] = defaultdict(set)
    for member in members:
        labels.setdefault(member.patient, member.label)
        sites[member.patient].add(member.site)
    split_of = split_patients(labels, recipe.split, recipe.seed, sites)
    return [Member(m.patient, m.slide, m.label, m.site, split_of[m.patient], m.columns) for m in members]


def _one_shape(records: Sequence[SlideRecord]) -> tuple[int, int, Any]:
    """(size_px, channels, dtype) that all slides share."""
    first = records[0]
    for record in records:
        if (record.size_px, record.channels, record.dtype) != (first.size_px, first.channels, first.dtype):
            raise UserError(
                f"slide {record.slide!r} has {record.channels} channels of {record.dtype} at {record.size_px} px, "
                f"slide {first.slide!r} {first.channels} of {first.dtype} at {first.size_px} px. A store holds one "
                "kind: make two of them, or bring imported patches to one size with --set resize_px=64."
            )
    return first.size_px, first.channels, first.dtype


def _boxes(folder: Path, record: SlideRecord, recipe: Recipe, first_shard: int) -> dict[str, NDArray[Any]]:
    """The columns of one slide's boxes, with where each is stored (-1: nowhere) and whether it is kept."""
    scores = pq.read_table(folder / BOXES)
    columns = {name: scores[name].to_numpy() for name in ("tissue_fraction", "pixel_std")}
    for axis in ("x", "y"):
        columns[axis] = scores[axis].to_numpy() if axis in scores.column_names else np.full(record.boxes, -1, np.int32)
    columns["patch"] = np.arange(record.boxes, dtype=np.int32)
    columns["is_blank"] = is_blank(columns["pixel_std"], columns["tissue_fraction"], recipe.filter)
    columns["shard"] = np.full(record.boxes, -1, np.int32)
    columns["row"] = np.full(record.boxes, -1, np.int32)
    for number, shard in enumerate(record.shards):
        stored = Shard(folder / shard).boxes()
        columns["shard"][stored] = first_shard + number
        columns["row"][stored] = np.arange(len(stored), dtype=np.int32)
    # a box that a new filter keeps is not stored yet when its slide failed just now
    columns["is_kept"] = ~columns["is_blank"] & (columns["shard"] >= 0)
    if recipe.judge:
        columns[LABEL], columns[SCORE] = load_predicted(folder, recipe.judge.checksum, record.boxes)
        columns["is_kept"] &= ~is_unwanted(columns[LABEL], recipe.judge.labels, recipe.filter)
    return columns


def _table(
    members: Sequence[Member],
    parts: Sequence[dict[str, NDArray[Any]]],
    counts: Sequence[int],
    recipe: Recipe,
) -> PatchTable:
    columns: dict[str, Any] = {
        name: names_column([getattr(member, name) for member in members], counts)
        for name in ("patient", "slide", "label", "site", "split")
    }
    for name in ("patch", "x", "y", "tissue_fraction", "pixel_std", "is_blank", "shard", "row"):
        values = np.concatenate([part[name] for part in parts])
        missing = np.isnan(values) if values.dtype.kind == "f" else values < 0 if values.dtype.kind == "i" else None
        columns[name] = pa.array(values, SCHEMA.field(name).type, mask=missing)
    total = sum(counts)
    columns["mpp"] = pa.array(np.full(total, recipe.mpp or 0, np.float32), mask=np.full(total, recipe.mpp is None))
    fields = list(SCHEMA)
    if recipe.judge:
        codes, scores = (np.concatenate([part[name] for part in parts]) for name in (LABEL, SCORE))
        indices = pa.array(codes.astype(np.int32), mask=codes < 0)
        columns[LABEL] = pa.DictionaryArray.from_arrays(indices, pa.array(recipe.judge.labels, pa.string()))
        columns[SCORE] = pa.array(scores, pa.float32(), mask=np.isnan(scores))
        fields += [pa.field(name, columns[name].type) for name in (LABEL, SCORE)]
    for name in dict.fromkeys(name for member in members for name in member.columns):
        named = [
            value
            for member, count in zip(members, counts, strict=True)
            for value in member.columns.get(name, [member.label if name == "label" else None] * count)
        ]
        columns[name] = pa.array(named, pa.string()) if name == "name" else names_column(named, [1] * total)
        if name not in SCHEMA.names:
            fields.append(pa.field(name, columns[name].type))
    return PatchTable(pa.table([columns[field.name] for field in fields], schema=pa.schema(fields)))


def _failures_csv(failures: Sequence[Failure]) -> bytes:
    rows = ([failure.patient, failure.slide, failure.path, failure.reason] for failure in failures)
    return format_csv(["patient", "slide", "path", "reason"], rows).encode()
