"""Second probe: logistic regression on the embeddings, its penalty chosen by patients it has not learned from."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from hidisc.evaluation.folds import deal_patients, find_lacking, find_patients, sample_per_patient
from hidisc.evaluation.task import Task
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.settings.evaluate import LinearConfig

_FOLDS = 3
_FOLD_PATCHES = 5_000
"""Most patches the penalty is chosen with: it is fitted for every penalty and fold."""
_BLOCK = 2**22
"""Numbers of the queries' embeddings in memory at once."""


def linear_scores(task: Task, config: LinearConfig, seed: int) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Class probabilities (N, L) of the query patches, and remarks.

    Classes are not weighed to be equal. The neighbours vote with the classes as the bank has them, so that a weighed
    probe would differ from them in what it takes for common as well as in how it reads the embeddings; and the scores
    stay probabilities when they are averaged. What that costs a rare class, mean class accuracy shows.

    Memory: the patches drawn, twice, and 32 MB of the queries, in float64; no other row of the bank is read.
    """
    rng = make_rng(seed, Purpose.LINEAR_PROBE)
    bank, queries, level = task.bank, task.queries, task.levels[0]
    patients = find_patients(bank, task.levels)
    places = sample_per_patient(patients, config.patches, rng)
    x, labels = bank.vectors(places).astype(np.float64), bank.labels[places]
    remarks = [f"Learned from all {len(bank):,} patches of the bank."]
    if len(places) < len(bank):
        remarks = [f"Learned from {len(places):,} of the bank's {len(bank):,} patches, drawn alike of every {level}."]
    present = np.unique(labels)
    absent = np.delete(np.array(task.classes, object), present)
    remarks += [f"Class {name!r} has no patch among them, so its probability is always 0." for name in absent]
    scores = np.zeros((len(queries), len(task.classes)))
    if len(present) == 1:
        scores[:, present] = 1
        return scores, (
            *remarks,
            f"All of them are {task.classes[present[0]]!r}, so every query is taken for that.",
        )
    choice = choose_penalty(x, labels, patients[places], config, rng)
    model, converged = fit_model(x, labels, choice.penalty, config.iterations)
    height = max(1, _BLOCK // x.shape[1])
    for start in range(0, len(queries), height):
        block = slice(start, start + height)
        scores[block, present] = model.predict_proba(queries.vectors(block).astype(np.float64))
    remarks.append(_say(choice, task, config))
    if converged:
        remarks.append("The solver converged.")
    else:
        remarks.append(f"The solver had not converged after linear.iterations = {config.iterations}; more may help.")
    return scores, tuple(remarks)


@dataclass(frozen=True)
class Choice:
    """A penalty and where it comes from."""

    penalty: float
    folds: int
    """Folds of patients it was chosen by; 0: it was not chosen."""
    lacking: int | None = None
    """A class that a fold would have taken whole, where it could therefore not be chosen."""


def choose_penalty(
    x: NDArray[np.float64],
    labels: NDArray[np.int64],
    patients: NDArray[np.int64],
    config: LinearConfig,
    rng: np.random.Generator,
) -> Choice:
    """The penalty under which patients left out in turn are told best; x (N, D), labels (N,), patients (N,).

    Best is the least mean log loss of their patches, which needs no threshold and minds the scores that are averaged
    later; of equals the strongest. The middle one where there is no choice.
    """
    penalties = sorted(set(config.penalties))
    middle = penalties[(len(penalties) - 1) // 2]
    if len(penalties) == 1:
        return Choice(middle, 0)
    some = sample_per_patient(patients, _FOLD_PATCHES, rng)
    x, labels = x[some], labels[some]
    folds = deal_patients(patients[some], labels, _FOLDS, rng)
    lacking = find_lacking(folds, labels)
    if lacking is not None:
        return Choice(middle, 0, lacking)
    losses = np.zeros(len(penalties))
    for fold in np.unique(folds):
        out = folds == fold
        for number, penalty in enumerate(penalties):
            model, _ = fit_model(x[~out], labels[~out], penalty, config.iterations)
            losses[number] += log_loss(labels[out], model.predict_proba(x[out]), normalize=False, labels=model.classes_)
    return Choice(penalties[int(losses.argmin())], len(np.unique(folds)))


def fit_model(
    x: NDArray[np.float64], labels: NDArray[np.int64], penalty: float, iterations: int
) -> tuple[Pipeline, bool]:
    """Multinomial regression on standardised x (N, D), and whether the solver converged; `penalty` is scikit-learn's C.

    C weighs the sum of the losses, as the variance of a prior does, so one C serves a sample and its folds.
    """
    model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=iterations))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(x, labels)
    return model, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


def _say(choice: Choice, task: Task, config: LinearConfig) -> str:
    """Which penalty, and how it was chosen."""
    penalties, level = sorted(set(config.penalties)), task.levels[0]
    said = f"The penalty is C = {choice.penalty:g}, "
    offered = ", ".join(f"{value:g}" for value in penalties)
    if choice.lacking is not None:
        return (
            f"{said}the middle one of {offered}: to choose, each {level} of the bank has to be left out once, which "
            f"would leave no {task.classes[choice.lacking]!r} to learn from."
        )
    if not choice.folds:
        return f"{said}the only one of linear.penalties."
    said += f"chosen of {offered} by the log loss of {choice.folds} folds of the bank, each {level} in one of them."
    end = {penalties[0]: "strongest", penalties[-1]: "weakest"}.get(choice.penalty)
    return f"{said} It is the {end} of linear.penalties, so that one beyond may do better." if end else said
