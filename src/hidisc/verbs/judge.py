"""Let a trained run say what every stored patch shows, so that `prepare` and `import` can drop some of it.

The paper drops blank and non-diagnostic SRH patches with a trained model; here it is any supervised run.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hidisc.ground.checksums import hash_file
from hidisc.ground.errors import UserError
from hidisc.models.encoder import WEIGHTS, Encoder
from hidisc.patches.codec import decode
from hidisc.patches.commit import PatchClassifier, Recipe
from hidisc.patches.inputs import as_input
from hidisc.patches.predicted import load_predicted, save_predicted
from hidisc.patches.record import RECORD, SlideRecord, slide_folder
from hidisc.patches.shard import Shard
from hidisc.slides.cohort import SlideRow
from hidisc.slides.slide import Pixels
from hidisc.training.run import Run

_BATCH = 256


def judge_slides(out: Path, rows: Sequence[SlideRow], recipe: Recipe, say: Callable[[str], None]) -> PatchClassifier:
    """Predict for every stored patch that has no prediction yet; one file a slide, so that a killed one goes on."""
    run = Run.load(Path(recipe.filter.run or ""))
    encoder = run.encoder()
    labels = encoder.card.classes
    unknown = [label for label in recipe.filter.drop_labels if label not in labels]
    if unknown:
        raise UserError(
            f"filter.drop_labels: {unknown[0]!r} is no label {run.path} predicts "
            f"({', '.join(labels) or 'it predicts none'}). Give labels of a run made with "
            "`hidisc train --recipe supervised`."
        )
    classifier = PatchClassifier(hash_file(run.path / WEIGHTS)[:12], labels)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder.to(device)
    judged = 0
    for row in rows:
        folder = out / slide_folder(row.slide)
        if (folder / RECORD).exists():
            judged += _judge_slide(folder, encoder, classifier, recipe, device)
    say(f"{run.path} judged {judged:,} patches; {', '.join(recipe.filter.drop_labels)} dropped")
    return classifier


def _judge_slide(folder: Path, encoder: Encoder, classifier: PatchClassifier, recipe: Recipe, device: str) -> int:
    """Predict what is missing of one slide; how many patches that was."""
    record = SlideRecord.load(folder)
    if (record.size_px, record.channels) != (encoder.card.size_px, _stored_channels(encoder)):
        raise UserError(
            f"filter.run was trained on {encoder.card.size_px} px patches of {_stored_channels(encoder)} channels, and "
            f"slide {record.slide!r} has {record.channels} channels at {record.size_px} px. Train it on such patches."
        )
    codes, scores = load_predicted(folder, classifier.checksum, record.boxes)
    count = 0
    for file in record.shards:
        shard = Shard(folder / file)
        boxes = shard.boxes()
        missing = np.flatnonzero(codes[boxes] < 0)
        for start in range(0, len(missing), _BATCH):
            rows = missing[start : start + _BATCH]
            shape, dtype = (record.size_px, record.size_px, record.channels), np.dtype(record.dtype)
            pixels = np.stack([decode(shard[int(row)], recipe.pixels.codec, shape, dtype) for row in rows])
            codes[boxes[rows]], scores[boxes[rows]] = _predict(encoder, as_input(pixels, recipe.input), device)
        count += len(missing)
    if count:
        save_predicted(folder, classifier.checksum, codes, scores)
    return count


def _stored_channels(encoder: Encoder) -> int:
    return 2 if encoder.card.input == "srh" else encoder.card.channels


@torch.inference_mode()
def _predict(encoder: Encoder, pixels: Pixels, device: str) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """(B,) most probable label and its probability, of input (B, H, W, C)."""
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)
    best = encoder.classify_features(encoder.features(x)).float().softmax(dim=1).max(dim=1)
    return best.indices.cpu().numpy().astype(np.int16), best.values.cpu().numpy()
