"""Embeddings made of random numbers with a known structure, as a finished folder; and predictions likewise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from hidisc.embeddings.embeddings import EMBEDDINGS, PATCHES, VECTORS, Embeddings, EmbeddingsInfo, ModelCard
from hidisc.evaluation.classes import METRICS, Classes
from hidisc.evaluation.compare import score
from hidisc.evaluation.metrics import Floats, Measured
from hidisc.evaluation.predictions import ENCODER, Key, Predictions
from hidisc.evaluation.scores import Judged
from hidisc.models.card import UNKNOWN, History
from hidisc.patches.record import SlideId
from hidisc.patches.table import SCHEMA, PatchTable
from hidisc.settings.evaluate import BootstrapConfig
from tests.finished import finish, refinish


def make_embeddings(
    folder: Path,
    *,
    classes: Sequence[str] = ("a", "b", "c"),
    patients: int = 6,
    slides: int = 2,
    patches: int = 10,
    dim: int = 16,
    test: float = 0.5,
    signal: float = 1.0,
    learned: bool | None = True,
    name: str = "made",
    seed: int = 0,
    store: str = "store",
) -> Embeddings:
    """`patients` of every class with `slides` of `patches` each; class, patient and slide shift the vectors.

    `signal` scales the class's share. `learned`: the encoder learned from the train side (None: not known).
    """
    rng = np.random.default_rng(seed)
    rows: dict[str, list[object]] = {field.name: [] for field in SCHEMA}
    vectors, seen = [], []
    centres = rng.normal(size=(len(classes), dim)) * signal
    for code, label in enumerate(classes):
        for number in range(patients):
            patient = f"{label}-{number}"
            side = "test" if number < round(test * patients) else "train"
            shift = rng.normal(size=dim) * 0.5
            for slide_number in range(slides):
                slide = f"{patient}/{slide_number}"
                seen.append((side, SlideId(patient=patient, slide=slide, checksum=f"sha-{slide}")))
                bias = rng.normal(size=dim) * 0.2
                for patch in range(patches):
                    vectors.append(centres[code] + shift + bias + rng.normal(size=dim))
                    known = {
                        "patient": patient,
                        "slide": slide,
                        "patch": patch,
                        "x": 100 * patch,
                        "y": 0,
                        "mpp": 0.5,
                        "label": label,
                        "site": f"site {number % 2}",
                        "split": side,
                        "tissue_fraction": 1.0,
                        "pixel_std": 30.0,
                        "is_blank": False,
                        "shard": len(seen) - 1,
                        "row": patch,
                    }
                    for column, value in known.items():
                        rows[column].append(value)
    folder.mkdir(parents=True)
    PatchTable(pa.table(rows, schema=SCHEMA)).save(folder / PATCHES)
    np.save(folder / VECTORS, np.array(vectors, np.float32))
    card = ModelCard(
        name=name,
        kind="run",
        source=f"../runs/{name}",
        checksum=f"sha-{name}",
        group=name,
        seed=seed,
        objective="hidisc",
        backbone="test_resnet",
        size_px=32,
        history=UNKNOWN
        if learned is None
        else History(slides=tuple(slide for side, slide in seen if side == "train" and learned)),
    )
    info = EmbeddingsInfo(
        rows=len(vectors),
        dim=dim,
        dtype="float32",
        model=card,
        store=store,
        store_checksum="sha-store",
        slides=tuple(slide for _, slide in seen),
        splits=None,
        per_slide=None,
        seed=0,
        bad_patches=0,
        versions={},
    )
    (folder / EMBEDDINGS).write_text(info.model_dump_json())
    finish(folder, "embed")
    return Embeddings.load(folder)


def relabel(made: Embeddings, label_of: Callable[[str, str, str], str | None]) -> Embeddings:
    """The same folder with other labels: `label_of(patient, split, label)` of each patch."""
    table = made.table
    whose = zip(*(table.column(name) for name in ("patient", "split", "label")), strict=True)
    labels = pa.array([label_of(*names) for names in whose], pa.string())
    place = SCHEMA.get_field_index("label")
    changed = table.arrow.set_column(place, SCHEMA.field(place), labels.cast(SCHEMA.field(place).type))
    PatchTable(changed).save(made.path / PATCHES)
    refinish(made.path)
    return Embeddings.load(made.path)


def make_predictions(
    truth: Sequence[int], scores: np.ndarray, patients: Sequence[str] | None = None, level: str = "patient"
) -> Predictions:
    """Predictions of units that are their own patients unless said otherwise."""
    names = np.array([f"unit {number}" for number in range(len(truth))], object)
    units = {"patient": names if patients is None else np.array(patients, object)}
    if level != "patient":
        units[level] = names
    return Predictions(
        Key(ENCODER, "knn", level),
        make_endpoint(scores.shape[1]),
        units,
        np.array(truth, np.int64),
        np.asarray(scores, float),
    )


def make_endpoint(classes: int) -> Classes:
    """Classes a, b, c, ..., of which the last one is the positive one."""
    return Classes(label="label", classes=tuple("abcdefgh"[:classes]), positive=classes - 1)


BY_CLASS = tuple(metric.key for metric in METRICS.values() if metric.each_class is not None)
"""The metrics that a single class has."""


def ask_about(predictions: Predictions, positive: int) -> Predictions:
    """The same predictions with another positive class."""
    return replace(predictions, endpoint=predictions.endpoint.model_copy(update={"positive": positive}))


def measure(predictions: Predictions, positive: int) -> Measured:
    """Every metric of some predictions."""
    asked = ask_about(predictions, positive)
    return asked.endpoint.measure(asked)


def resample_all(
    predictions: Predictions, positive: int, weights: np.ndarray, names: np.ndarray
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Every metric in every resample, and those of each class."""
    asked = ask_about(predictions, positive)
    return asked.endpoint.resample(asked, weights, names)


def resample(predictions: Predictions, positive: int, weights: np.ndarray, names: np.ndarray) -> dict[str, Floats]:
    """Every metric in every resample."""
    return resample_all(predictions, positive, weights, names)[0]


def score_level(predictions: Predictions, positive: int, config: BootstrapConfig, seed: int) -> Judged:
    """Every metric of some predictions with its interval."""
    return score(ask_about(predictions, positive), config, seed)
