"""Scores that older versions wrote are refused, with the sentence that says how to make them anew."""

import json
from pathlib import Path

import pytest

from hidisc.evaluation.scores import SCORES, Scores
from hidisc.ground.errors import UserError
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.verbs.evaluate import evaluate
from tests.evaluation.made import make_embeddings
from tests.finished import refinish


def test_scores_of_0_3_are_refused(tmp_path: Path) -> None:
    """They have a list of probes, each with its levels, where there is one table now."""
    made = make_embeddings(tmp_path / "e")
    scores = evaluate(made.path, tmp_path / "s", EvaluateConfig(probes=("knn",), audit=False))
    old = json.loads((scores.path / SCORES).read_text())
    old["probes"] = [{"name": "knn", "levels": old.pop("judged")}]
    (scores.path / SCORES).write_text(json.dumps(old))
    refinish(scores.path)
    with pytest.raises(
        UserError, match=r"s holds scores of hidisc 0\.3 or older, .* run the command that made it again"
    ):
        Scores.load(scores.path)
