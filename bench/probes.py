"""All probes of an evaluation, 10,000 embeddings of 1,280 numbers : scikit-learn and plain torch.

    python bench/probes.py

100 patients of five classes, 200 slides, a quarter of the patients for testing. The reference finds neighbours with
scikit-learn's brute force, fits `LogisticRegressionCV` over the same penalties and as many folds of patients, until it
is as near to its optimum as ours, and trains the same attention with torch's default AdamW. Processor
time, on one thread, so that other programs disturb little.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import GroupKFold
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from harness import Claim, on_one_thread
from hidisc.evaluation.classes import Classes
from hidisc.evaluation.predictions import ENCODER, Key
from hidisc.evaluation.probes.attention import GatedAttention, mil_predictions
from hidisc.evaluation.probes.knn import predict_by_neighbours, vote
from hidisc.evaluation.probes.linear import linear_scores
from hidisc.evaluation.task import LabelledPatches, Task
from hidisc.settings.evaluate import KnnConfig, LinearConfig, MilConfig

PATIENTS, SLIDES, PATCHES, DIM, CLASSES = 100, 2, 50, 1280, 5
ROUNDS = 3


@dataclass(frozen=True)
class Made:
    """Embeddings that are in memory: the vectors, and a table of codes."""

    vectors: np.ndarray
    columns: dict[str, np.ndarray]

    @property
    def table(self) -> "Made":
        """It is its own table."""
        return self

    def codes(self, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """Codes of a column and their names."""
        codes = self.columns[name]
        return codes, tuple(str(code) for code in range(codes.max() + 1))

    def column(self, name: str) -> np.ndarray:
        """Names of a column."""
        return self.columns[name].astype(str).astype(object)


def make_task() -> Task:
    """Patients, slides and classes shift the vectors, whose variance differs much between directions."""
    rng = np.random.default_rng(0)
    slide = np.repeat(np.arange(PATIENTS * SLIDES, dtype=np.int32), PATCHES)
    patient = slide // SLIDES
    shifts = [rng.standard_normal((count, DIM)) * size for count, size in ((CLASSES, 0.25), (PATIENTS, 0.5))]
    vectors = shifts[0][patient % CLASSES] + shifts[1][patient] + rng.standard_normal((len(slide), DIM))
    mix = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0] * np.arange(1, DIM + 1) ** -0.5
    made: Any = Made((vectors @ mix.T).astype(np.float32), {"patient": patient, "slide": slide})
    is_test = patient % 4 == 0
    bank, queries = (
        LabelledPatches(made, np.flatnonzero(chosen), (patient[chosen] % CLASSES).astype(np.int64), 0)
        for chosen in (~is_test, is_test)
    )
    endpoint = Classes(label="label", classes=tuple("abcde"), positive=0)
    return Task(endpoint, ("patient", "slide", "patch"), bank, queries)


def ours(task: Task) -> None:
    """The three probes, as `hidisc evaluate` calls them."""
    predict_by_neighbours(task, KnnConfig())
    linear_scores(task, LinearConfig(), 0)
    mil_predictions(task, Key(ENCODER, "mil", "patch"), MilConfig(), 0)


def theirs(task: Task) -> None:
    """The same with scikit-learn and plain torch."""
    bank, queries = task.bank.vectors(), task.queries.vectors()
    distances, rows = NearestNeighbors(n_neighbors=200, metric="cosine").fit(bank).kneighbors(queries)
    vote(1 - distances, task.bank.labels[rows], CLASSES, 0.07)
    scaler = StandardScaler().fit(bank)
    x, y = scaler.transform(bank), task.bank.labels
    sample = np.random.default_rng(0).permutation(len(x))[:5000]
    few, of_few = x[sample].astype(np.float64), y[sample]
    folds = list(GroupKFold(3).split(few, of_few, task.bank.codes("patient")[sample]))
    solver: dict[str, Any] = {"tol": 1e-6, "max_iter": 200}
    chosen = LogisticRegressionCV(
        Cs=LinearConfig().penalties, cv=folds, scoring="neg_log_loss", use_legacy_attributes=False, **solver
    ).fit(few, of_few)
    model = LogisticRegression(C=float(chosen.C_), **solver).fit(x.astype(np.float64), y)
    model.predict_proba(scaler.transform(queries).astype(np.float64))
    _train_attention(torch.from_numpy(x), task, MilConfig())


def _train_attention(x: torch.Tensor, task: Task, config: MilConfig) -> None:
    """Gated attention, one slide per step, a fifth of the patients held out."""
    net = GatedAttention(DIM, config.hidden_dim, CLASSES, torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(net.parameters(), config.learning_rate, weight_decay=config.weight_decay)
    slides = [torch.from_numpy(rows) for rows in task.bank.units(("patient", "slide")).rows()]
    targets = torch.from_numpy(task.bank.labels)
    for _ in range(config.epochs):
        for number, rows in enumerate(slides):
            if number % 5:
                optimizer.zero_grad()
                F.cross_entropy(net(x[rows]), targets[rows[0]]).backward()
                optimizer.step()
            else:
                with torch.no_grad():
                    F.cross_entropy(net(x[rows]), targets[rows[0]])


def measure() -> list[Claim]:
    """Processor seconds of both sides in turns, after one round that is not counted."""
    task = make_task()
    sides: dict[str, Callable[[Task], None]] = {"ours": ours, "theirs": theirs}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS + 1):
        for name, side in sides.items():
            began = time.process_time()
            side(task)
            if number:
                seconds[name].append(time.process_time() - began)
    medians = [statistics.median(values) for values in seconds.values()]
    name = "evaluate 10,000 x 1,280, all probes : scikit-learn, LogisticRegressionCV, plain autograd, processor time"
    return [Claim(name, *medians, "s", 0.8, higher_is_better=False)]


def claims() -> list[Claim]:
    """Return the claims as measured now."""
    return on_one_thread(measure)


if __name__ == "__main__":
    for claim in claims():
        print(claim)
