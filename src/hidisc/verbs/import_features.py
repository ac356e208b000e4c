"""`hidisc import features`: features that another tool has extracted, and a table -> Embeddings without a store."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hidisc.artefacts.artefact import make
from hidisc.embeddings.clinical_table import Match, match_table, refuse_two_files
from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS, Embeddings, EmbeddingsInfo, ModelCard
from hidisc.embeddings.extract import BlockFile
from hidisc.embeddings.feature_files import find_features
from hidisc.embeddings.slide_features import SlideFeatures
from hidisc.ground.errors import UserError
from hidisc.ground.files import (
    AnyPath,
    crc_file,
    digest,
    full_disk_said,
    hash_file,
    relate,
    replaced,
    sample_file,
    write_atomic,
)
from hidisc.ground.machine import versions
from hidisc.ground.progress import Say, ignore
from hidisc.ground.tasks import prefetch
from hidisc.ground.text import count, name_some
from hidisc.models.card import UNKNOWN
from hidisc.patches.commit import assign_splits
from hidisc.patches.record import SlideId
from hidisc.patches.table import PatchTable, build_table
from hidisc.settings.prepare import FeaturesConfig
from hidisc.slides.cohort import SlideRow, find_lookalikes, find_problems, refuse
from hidisc.slides.names import is_ours
from hidisc.verbs.progress import show_patches

_BLOCK_BYTES = 2**25
"""Vectors that are read and written at once; four such blocks are in memory."""
_THREADS, _AHEAD = 2, 2
_PACKAGES = ("hidisc", "h5py", "numpy")


class _Settings(FeaturesConfig):
    """The settings, and what tables call the encoder."""

    name: str


@dataclass(frozen=True)
class _Slide:
    """A slide that is imported: what the table says of it, and its features with their first row among all."""

    row: SlideRow
    features: SlideFeatures
    first: int
    checksum: str


def import_features(
    source: AnyPath,
    table: AnyPath | None,
    out: AnyPath,
    config: FeaturesConfig | None = None,
    *,
    name: str | None = None,
    say: Say = ignore,
    shown: bool = True,
) -> Embeddings:
    """Import features as embeddings; an unfinished import goes on where it was.

    `source`: a folder or file that `embeddings.feature_files` reads. `table`: patient, slide, label and further columns
    of each slide; None where the file itself names the patients. `name`: what tables call the encoder. `shown`: whether
    there is a progress bar. Memory: the table of patches, and four blocks of 32 MB.
    """
    config, source, out = config or FeaturesConfig(), Path(source), Path(out)
    features = find_features(source)
    match = (
        match_features(features, source)
        if table is None
        else match_table(Path(table), features, source, config.label_level)
    )
    for note in match.notes:
        say(note)
    paths = dict.fromkeys(each.path for each in match.features)
    names = {path: relate(path, source) if path != source else path.name for path in paths}
    say(f"reading the checksums of {count(len(names), 'file')} ...")
    sums = dict(zip(names, prefetch(_sum_up, names, _THREADS, _AHEAD), strict=True))
    slides = _lay_out(match, config, sums)
    _refuse_twice(slides, say)
    inputs = {} if table is None else {"the table": hash_file(Path(table))}
    inputs |= {names[path]: checksum for path, checksum in sums.items()}
    extractor = slides[0].features.extractor
    settings = _Settings(**config.model_dump(), name=name or extractor or source.resolve().name)
    with full_disk_said("What has been written is kept"), make(out, "embed", settings, inputs) as work:
        done = (out / VECTORS).with_suffix(".done")
        if work.find_problems() is not None:
            done.unlink(missing_ok=True)  # a finished file that is damaged is written anew
        if not work.is_finished(say):
            say(_describe(slides, extractor, name))
            dtype = _choose_dtype(features=[slide.features for slide in slides])
            _write_vectors(out, slides, dtype, config, shown)
            patches = _build_table(slides)
            with replaced(out / PATCHES) as part:
                patches.save(part)
            info = _describe_embeddings(
                slides, patches, settings, dtype, relate(source, out), extractor or name, inputs
            )
            write_atomic(out / EMBEDDINGS, (info.model_dump_json(indent=1) + "\n").encode())
            work.finish((EMBEDDINGS, VECTORS, PATCHES))
            done.unlink()
    return Embeddings.load(out)


def match_features(features: Sequence[SlideFeatures], source: Path) -> Match:
    """The slides of a file that names the patients itself; labels may differ between patches."""
    if any("patient" not in each.columns for each in features):
        raise UserError(
            f"{source} does not say whose slides these are. Give the table that does: --table clinical.csv, with the "
            "columns patient and slide, and label, site or split where you have them."
        )
    rows = []
    for each in features:
        patient, label, site, split = (
            _find_one(each.columns.get(name)) for name in ("patient", "label", "site", "split")
        )
        if patient is None:
            raise UserError(f"{source}: slide {each.slide!r} has no patient, or several; a slide belongs to one.")
        rows.append(SlideRow(patient, each.slide, each.path, label=label, site=site, split=split))
    refuse_two_files(rows)
    refuse(source, find_problems(rows))
    twins = find_lookalikes(rows)
    return Match(tuple(rows), tuple(features), tuple(f"warning: {source.name}: {twin}" for twin in twins))


def _find_one(values: NDArray[Any] | None) -> str | None:
    """The name that all patches of a slide share, None where they do not."""
    names = set() if values is None else set(values.tolist())
    return str(names.pop()) if len(names) == 1 and None not in names else None


def _sum_up(path: Path) -> str:
    """What names the content of a file, at the speed of the disk."""
    return digest([sample_file(path), crc_file(path)])


def _lay_out(match: Match, config: FeaturesConfig, sums: Mapping[Path, str]) -> list[_Slide]:
    """Every slide with its split and its place among all rows."""
    slides, first = [], 0
    several = len({features.path for features in match.features}) < len(match.features)
    for row, features in zip(assign_splits(match.rows, config.split, config.seed), match.features, strict=True):
        checksum = sums[features.path]
        placed = features.place(row.mpp)
        placed = replace(placed, geometry=placed.geometry.model_copy(update={"slide": row.slide}))
        slides.append(_Slide(row, placed, first, digest([checksum, features.slide]) if several else checksum))
        first += features.rows
    return slides


def _refuse_twice(slides: Sequence[_Slide], say: Say) -> None:
    """Refuse features that are byte for byte those of another patient; say where they are of the same patient."""
    first: dict[str, _Slide] = {}
    for slide in slides:
        before = first.setdefault(slide.checksum, slide)
        pair = f"{before.features.path} and {slide.features.path}"
        if before.row.patient != slide.row.patient:
            raise UserError(
                f"{pair} are the same file content, under patients {before.row.patient!r} and {slide.row.patient!r}. "
                "One of the two files or patients is wrong: correct the table, or remove one of the files."
            )
        if before is not slide:
            say(f"warning: {pair} are the same file content; patient {slide.row.patient!r} counts it twice.")


def _describe(slides: Sequence[_Slide], extractor: str | None, name: str | None) -> str:
    """What is imported, and what is not known about it: a note."""
    unknown = "what the encoder has seen is not known, so overlap with these patients cannot be ruled out"
    sentences = [f"note: {unknown}"]
    if extractor is None and name is None:
        sentences.append("which encoder it was is not known either: --name gives its name")
    placeless = [slide.row.slide for slide in slides if slide.features.corners is None]
    if placeless:
        sentences.append(
            f"where the patches lie is not known of {count(len(placeless), 'slide')}: {name_some(placeless)}"
        )
    micrometres = [slide for slide in slides if slide.features.in_um]
    if micrometres:
        sentences.append(
            f"places are known in micrometres alone of {count(len(micrometres), 'slide')}: a column mpp (micrometres "
            "per px of the slide) in the table makes px of them"
        )
    return "; ".join(sentences)


def _choose_dtype(features: Sequence[SlideFeatures]) -> Any:
    """float16 where all are, else float32."""
    return "float16" if all(each.dtype == np.float16 for each in features) else "float32"


def _write_vectors(out: Path, slides: Sequence[_Slide], dtype: str, config: FeaturesConfig, shown: bool) -> None:
    """Write the blocks of vectors that are missing, reading ahead."""
    dim, rows = slides[0].features.dim, sum(slide.features.rows for slide in slides)
    height = max(1, _BLOCK_BYTES // (dim * np.dtype(dtype).itemsize))
    file = BlockFile(out / VECTORS, rows, dim, dtype, height)
    file.create()
    missing = file.missing()
    firsts = np.array([slide.first for slide in slides])

    def read(block: int) -> NDArray[Any]:
        part = file.rows(block)
        vectors = np.empty((part.stop - part.start, dim), dtype)
        for slide in slides[int(np.searchsorted(firsts, part.start, side="right")) - 1 :]:
            if slide.first >= part.stop:
                break
            start, stop = max(part.start, slide.first), min(part.stop, slide.first + slide.features.rows)
            vectors[start - part.start : stop - part.start] = _read(slide, start - slide.first, stop - slide.first)
        return vectors

    with show_patches("importing", rows, shown, config.level_names) as watch:
        watch(rows - sum(file.rows(block).stop - file.rows(block).start for block in missing))
        for block, vectors in zip(missing, prefetch(read, missing, _THREADS, _AHEAD), strict=True):
            file.write(block, vectors)
            watch(len(vectors))


def _read(slide: _Slide, start: int, stop: int) -> NDArray[Any]:
    """Some rows of a slide; vectors that contain NaN or infinity are refused."""
    features = slide.features
    try:
        vectors = features.read(start, stop)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise UserError(
            f"{features.path} is damaged ({error}). Copy or extract that slide again, and give a new --out."
        ) from error
    with np.errstate(over="ignore"):
        small = vectors if vectors.dtype == np.float16 else vectors.astype(np.float32, copy=False)
    wrong = np.flatnonzero(~np.isfinite(small).all(axis=1))
    if len(wrong):
        raise UserError(
            f"{features.path} has NaN or infinity among the features of slide {slide.row.slide!r}, first in row "
            f"{start + int(wrong[0]):,}. Extract that slide again, or remove the file, and give a new --out."
        )
    return small


def _build_table(slides: Sequence[_Slide]) -> PatchTable:
    """One row per patch."""
    rows, counts = [slide.row for slide in slides], [slide.features.rows for slide in slides]
    named: dict[str, Sequence[str | None]] = {
        name: [getattr(row, name) for row in rows] for name in ("patient", "slide", "label", "site", "split")
    }
    for name in dict.fromkeys(name for row in rows for name in row.more):
        named[name] = [row.more.get(name) for row in rows]
    own = slides[0].features.columns
    kept = [
        name
        for name in own
        if not is_ours(name) and name not in ("patient", "slide", "split") and own[name].dtype == object
    ]
    if "patient" in own:  # there is no table, and the file has a value per patch
        named |= {name: [value for slide in slides for value in slide.features.columns[name]] for name in kept}
    corners = [_round(slide.features) for slide in slides]
    known = {
        "patch": np.concatenate([_number(slide.features) for slide in slides]),
        "x": np.concatenate([corner[:, 0] for corner in corners]),
        "y": np.concatenate([corner[:, 1] for corner in corners]),
        "mpp": np.repeat([slide.features.patch_mpp or np.nan for slide in slides], counts).astype(np.float32),
    }
    return build_table(counts, named, known)


def _round(features: SlideFeatures) -> NDArray[np.int32]:
    """(n, 2) whole px of the corners, -1 where they are not known."""
    if features.corners is None:
        return np.full((features.rows, 2), -1, np.int32)
    return np.round(features.corners).astype(np.int32)


def _number(features: SlideFeatures) -> NDArray[np.int32]:
    """(n,) the number of each patch in its slide: the file's own where it has a different one for each."""
    own = features.columns.get("patch")
    if own is not None and own.dtype.kind in "iu" and len(np.unique(own)) == len(own):
        return own.astype(np.int32)
    return np.arange(features.rows, dtype=np.int32)


def _describe_embeddings(
    slides: Sequence[_Slide],
    table: PatchTable,
    settings: _Settings,
    dtype: Any,
    source: str,
    encoder: str | None,
    inputs: Mapping[str, str],
) -> EmbeddingsInfo:
    """The record; the encoder is known again by its name, and by nothing but these files where it has none."""
    dim = slides[0].features.dim
    checksum = digest({"encoder": encoder, "dim": dim} if encoder else dict(inputs))
    sizes = {slide.features.geometry.size_px for slide in slides}
    card = ModelCard(
        name=settings.name,
        kind="features",
        source=source,
        checksum=checksum,
        group=checksum,
        size_px=(sizes.pop() or 0) if len(sizes) == 1 else 0,
        history=UNKNOWN,
    )
    codes, names = table.codes("slide")
    places = np.stack([codes, *(table.column(name) for name in ("patch", "x", "y"))], axis=1).astype(np.int64)
    return EmbeddingsInfo(
        rows=len(table),
        dim=dim,
        dtype=dtype,
        model=card,
        store=None,
        store_checksum=digest([names, hashlib.sha256(places.tobytes()).hexdigest()]),
        slides=tuple(
            SlideId(patient=slide.row.patient, slide=slide.row.slide, checksum=slide.checksum) for slide in slides
        ),
        splits=None,
        per_slide=None,
        seed=settings.seed,
        bad_patches=0,
        versions=versions(*_PACKAGES),
        level_names=settings.level_names,
        geometries=tuple(slide.features.geometry for slide in slides),
    )
