"""The model card of an exported encoder: `README.md` with the metadata that hubs read, and no name of a patient."""

from typing import Any

import yaml

from hidisc.evaluation.outcome import find_outcome
from hidisc.evaluation.scores import Judged, Scores
from hidisc.ground.text import count
from hidisc.models.card import BEFORE, EncoderCard, Preprocessing
from hidisc.reporting.html import CITATION
from hidisc.training.run import RunInfo

README = "README.md"
_USE = {
    "timm": """import timm

model = timm.create_model("local-dir:FOLDER", pretrained=True, num_classes=0).eval()  # or hf-hub:OWNER/NAME
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))""",
    "onnx": """import onnxruntime

session = onnxruntime.InferenceSession("encoder.onnx")
(features,) = session.run(["features"], {"images": images})  # (B, C, H, W) in [0, 1]""",
    "torchscript": """import torch

model = torch.jit.load("encoder.pt").eval()
features = model(images)  # (B, C, H, W) in [0, 1]""",
    "exported": """import torch

model = torch.export.load("encoder.pt2").module()
features = model(images)  # (B, C, H, W) in [0, 1]""",
}


def write_model_card(card: EncoderCard, run: RunInfo, fed: Preprocessing, to: str, scores: Scores | None) -> str:
    """The card as Markdown: encoder, training data, results and input, in counts and never in names of patients."""
    labels = f"with labels ({', '.join(run.labels_used)})" if run.labels_used else "without labels"
    seen = card.history
    unknown = "" if seen.is_complete else " What its starting weights had seen before is not known."
    sections = {
        f"{run.objective} encoder, {card.backbone}": (
            f"A {card.backbone} that turns a patch into {card.features} numbers, trained {labels} by hidisc "
            f"(objective {run.objective}, {count(run.steps, 'step')}, {count(run.images, 'image')})."
        ),
        "What it learned from": (
            f"{count(len(seen.slides), 'slide')} of {count(len(seen.patients), 'patient')}; the last training drew "
            f"from {count(run.patches, 'patch')}.{unknown}"
        ),
        "How well it tells": _say_verdict(scores, to),
        "What to feed it": f"{_say_input(fed)}\n\n```python\n{_USE[to]}\n```" if to in _USE else _say_input(fed),
        "Intended use and limits": (
            "Research on tissue of the kind, stain and scale that it learned from. It is no medical device, and no "
            "decision about a patient may rest on it. Encoders that learn to tell patients apart can learn stain, "
            "scanner and site instead of disease: audit it on your own cohort, and evaluate it on patients and sites "
            "that it has not seen."
        ),
        "To cite": f"```bibtex\n{CITATION}\n```",
        "To fill in before publishing": "Licence, contact, ethics approval and consent for the data.",
    }
    (title, first), *others = sections.items()
    parts = [f"# {title}", first, *(f"## {heading}\n\n{text}" for heading, text in others)]
    return "\n\n".join([f"---\n{_describe(card, run, to, scores)}---", *parts]) + "\n"


def _describe(card: EncoderCard, run: RunInfo, to: str, scores: Scores | None) -> str:
    """The block of metadata as YAML."""
    known: dict[str, Any] = {
        "library_name": to if to in ("timm", "onnx") else "pytorch",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["hidisc", "self-supervised", "microscopy", "pathology", run.objective, card.backbone],
    }
    judged = [] if scores is None else [(row, scores.info) for row in _list_levels(scores, to)]
    results = [
        {
            "task": {
                "type": "image-classification",
                "name": f"{run.level_names.word(row.level)} classification by {row.probe}",
            },
            "dataset": {"type": "private", "name": f"label {info.endpoint.label}, {info.tested}"},
            "metrics": [{"type": "accuracy", "value": row.metrics["accuracy"].value}],
        }
        for row, info in judged
        if row.metrics["accuracy"].value is not None
    ]
    if results:
        known["model-index"] = [{"name": f"{run.objective} {card.backbone}", "results": results}]
    return yaml.safe_dump(known, sort_keys=False)


def _list_levels(scores: Scores, to: str) -> list[Judged]:
    """The rows of the probe that the card is about, coarsest level first: of a classifier, the linear one."""
    info = scores.info
    return info.list_levels("linear" if to == "wsinfer" and "linear" in info.probes else None)[::-1]


def _say_verdict(scores: Scores | None, to: str) -> str:
    if scores is None:
        return "It was exported without an evaluation."
    info, levels = scores.info, _list_levels(scores, to)
    endpoint, headline = info.endpoint, info.endpoint.list_metrics("headline")
    titles = ("level", "units", *(metric.title for metric in headline))
    rows = []
    for level in levels:
        values = (level.metrics[metric.key].percent() for metric in headline)
        rows.append(" | ".join(["", info.level_names.word(level.level), f"{level.units:,}", *values, ""]).strip())
    positive = f"; positive: {endpoint.positive_class}" if len(endpoint.classes) == 2 else ""
    lines = [
        f"How well the column {endpoint.label!r} is predicted ({count(len(endpoint.classes), 'class')}: "
        f"{', '.join(endpoint.classes)}{positive}), of {info.tested}, by the probe {levels[0].probe}; in percent, with "
        "intervals over patients.\n",
        f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}\n" + "\n".join(rows) + "\n",
    ]
    if any(finding.kind == "leak" for finding in info.leakage):
        lines.append("- **Evaluated despite leakage: the numbers are too high.**")
    outcome = find_outcome([info])
    lines += [f"- {outcome.sentence}"] if outcome else []
    if any(finding.kind == "circular" for finding in info.leakage):
        lines.append("- **Evaluated by names that follow its own embeddings: the numbers are too high.**")
    return "\n".join([*lines, *(f"- {sentence}" for sentence in info.audit)]).rstrip()


def _say_input(fed: Preprocessing) -> str:
    scale = f" at {fed.mpp:g} um/px" if fed.mpp else ""
    mean, std = (", ".join(f"{value:.4g}" for value in values or ()) for values in (fed.mean, fed.std))
    where = "subtracted and divided by you" if fed.mean_and_std_are_applied == BEFORE else "applied inside the network"
    return (
        f"Patches of {fed.size_px} x {fed.size_px} px{scale}, {count(fed.channels or 0, 'channel')} ({fed.pixels}), "
        f"values in [0, 1]; mean {mean} and standard deviation {std} are {where}."
    )
