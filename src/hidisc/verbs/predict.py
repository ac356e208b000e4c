"""Predict a label for every stored patch with a trained run, so that `prepare` and `import` can drop some patches.

The paper drops blank and non-diagnostic SRH patches with a trained model; here it is any supervised run.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.files import hash_file
from hidisc.ground.progress import Say
from hidisc.ground.text import count
from hidisc.models.card import WEIGHTS
from hidisc.models.encoder import Encoder
from hidisc.patches.codec import decode
from hidisc.patches.commit import PredictedLabels, StorePlan
from hidisc.patches.filters import load_predicted, save_predicted
from hidisc.patches.record import RECORD, SlideRecord, slide_folder
from hidisc.patches.shard import Shard
from hidisc.patches.store import as_input
from hidisc.slides.cohort import SlideRow
from hidisc.slides.slide import Pixels
from hidisc.training.run import Run

_BATCH = 256


def predict_patches(out: Path, slides: Sequence[SlideRow], plan: StorePlan, say: Say) -> PredictedLabels:
    """Predict a label for every stored patch that has none yet; one file per slide, so a killed command goes on."""
    run = Run.load(Path(plan.config.filter.run or ""))
    encoder = run.encoder()
    labels = encoder.card.classes
    unknown = [label for label in plan.config.filter.drop_labels if label not in labels]
    if unknown:
        raise UserError(
            f"filter.drop_labels: {unknown[0]!r} is no label {run.path} predicts "
            f"({', '.join(labels) or 'it predicts none'}). Give labels of a run made with "
            "`hidisc train --plan supervised`."
        )
    predictor = PredictedLabels(hash_file(run.path / WEIGHTS)[:12], labels)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder.to(device)
    predicted = 0
    for slide in slides:
        folder = out / slide_folder(slide.slide)
        if (folder / RECORD).exists():
            predicted += _predict_slide(folder, encoder, predictor.checksum, plan, device)
    dropped = ", ".join(plan.config.filter.drop_labels)
    say(f"{run.path} predicted labels for {count(predicted, 'patch')}; those predicted as {dropped} are dropped")
    return predictor


def _predict_slide(folder: Path, encoder: Encoder, checksum: str, plan: StorePlan, device: str) -> int:
    """Predict the labels that a slide lacks; the number of patches predicted."""
    record = SlideRecord.load(folder)
    if (record.size_px, record.channels) != (encoder.card.size_px, _stored_channels(encoder)):
        raise UserError(
            f"filter.run was trained on {encoder.card.size_px} px patches of {_stored_channels(encoder)} channels, and "
            f"slide {record.slide!r} has {record.channels} channels at {record.size_px} px. Train it on such patches."
        )
    codes, scores = load_predicted(folder, checksum, record.boxes)
    predicted = 0
    for file in record.shards:
        shard = Shard(folder / file)
        boxes = shard.boxes
        missing = np.flatnonzero(codes[boxes] < 0)
        for start in range(0, len(missing), _BATCH):
            rows = missing[start : start + _BATCH]
            shape, dtype = (record.size_px, record.size_px, record.channels), np.dtype(record.dtype)
            pixels = np.stack([decode(shard[int(row)], plan.config.pixels.codec, shape, dtype) for row in rows])
            codes[boxes[rows]], scores[boxes[rows]] = _predict(encoder, as_input(pixels, plan.input), device)
        predicted += len(missing)
    if predicted:
        save_predicted(folder, checksum, codes, scores)
    return predicted


def _stored_channels(encoder: Encoder) -> int:
    return 2 if encoder.card.input == "srh" else encoder.card.channels


@torch.inference_mode()
def _predict(encoder: Encoder, pixels: Pixels, device: str) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """(B,) most probable label and its probability, of input (B, H, W, C)."""
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)
    best = encoder.classify_features(encoder.features(x)).float().softmax(dim=1).max(dim=1)
    return best.indices.cpu().numpy().astype(np.int16), best.values.cpu().numpy()
