"""`scores.json`: what older versions wrote is still understood."""

import json

from hidisc.embeddings.embeddings import ModelCard
from hidisc.evaluation.metrics import Value
from hidisc.evaluation.scores import Count, LevelScores, ProbeScores, ScoresInfo
from hidisc.models.card import NOTHING
from hidisc.settings.evaluate import EvaluateConfig


def made() -> ScoresInfo:
    level = LevelScores(
        level="patient", units=3, left_out=0, metrics={"accuracy": Value(value=0.5)}, by_class={}, confusion=((1, 2),)
    )
    return ScoresInfo(
        model=ModelCard(name="m", kind="run", source="../run", checksum="", group="", size_px=8, history=NOTHING),
        embeddings="../embeddings",
        bank="../embeddings",
        store_checksum="",
        sampling={"per_slide": None, "seed": 0},
        config=EvaluateConfig(probes=("linear", "knn")).model_dump(mode="json"),
        classes=("a", "b"),
        positive="b",
        levels=("patient", "slide", "patch"),
        counts=(Count(label="a", part="bank", units={"patient": 3}),),
        probes=(ProbeScores(name="linear", levels=(level,)),),
        diagnostics=(),
        leakage=(),
        versions={},
    )


def test_scores_of_0_2_are_read() -> None:
    """They say `opinions` for probes, in their settings as well, and `side` for the part of a count."""
    old = json.loads(made().model_dump_json())
    old["opinions"] = old.pop("probes")
    old["config"]["opinions"] = old["config"].pop("probes")
    for count in old["counts"]:
        count["side"] = count.pop("part")
    assert ScoresInfo.model_validate_json(json.dumps(old)) == made()
