"""The linear probe: logistic regression on the embeddings, its penalty chosen by cross-validation over patients."""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from hidisc.evaluation.folds import assign_folds, find_lacking, find_patients, sample_per_patient
from hidisc.evaluation.task import Task
from hidisc.evaluation.units import Floats, Ints
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import plural
from hidisc.settings.evaluate import LinearConfig

_FOLDS = 3
_FOLD_PATCHES = 5_000
"""Most patches used to choose the penalty: a model is fitted for every penalty and fold."""
_BLOCK = 2**22
"""Numbers (rows x dimensions) of the queries' embeddings in memory at once."""


def linear_scores(task: Task, config: LinearConfig, seed: int) -> tuple[Floats, tuple[str, ...]]:
    """Class probabilities (N, L) of the query patches, and remarks.

    Classes are not weighted to be equal, as in the kNN probe: so the two differ only in how they use the embeddings,
    and averaged scores remain probabilities. Mean class accuracy shows what this costs a rare class.

    Memory: the sampled patches, twice, and 32 MB of the queries, in float64; no other row of the bank is read.
    """
    rng = make_rng(seed, Purpose.LINEAR_PROBE)
    bank, queries, levels = task.bank, task.queries, task.levels
    patients = find_patients(bank, levels)
    sample = sample_per_patient(patients, config.patches, rng)
    x, labels = bank.vectors(sample).astype(np.float64), bank.labels[sample]
    remarks = [f"Trained on all {len(bank):,} reference patches."]
    if len(sample) < len(bank):
        remarks = [
            f"Trained on {len(sample):,} of {len(bank):,} reference patches, sampled evenly over {plural(levels[0])}."
        ]
    present = np.unique(labels)
    absent = np.delete(np.array(task.classes, object), present)
    remarks += [f"Class {name!r} has no patch among them, so its probability is always 0." for name in absent]
    scores = np.zeros((len(queries), len(task.classes)))
    if len(present) == 1:
        scores[:, present] = 1
        remarks.append(f"All of them have class {task.classes[present[0]]!r}, so it is predicted for every test patch.")
        return scores, tuple(remarks)
    choice = choose_penalty(x, labels, patients[sample], config, rng)
    model, converged = fit_model(x, labels, choice.penalty, config.iterations)
    height = max(1, _BLOCK // x.shape[1])
    for start in range(0, len(queries), height):
        block = slice(start, start + height)
        scores[block, present] = model.predict_proba(queries.vectors(block).astype(np.float64))
    unfinished = f"The solver did not converge within linear.iterations = {config.iterations}; more may help."
    remarks += [_describe_choice(choice, task, config), "The solver converged." if converged else unfinished]
    return scores, tuple(remarks)


@dataclass(frozen=True)
class PenaltyChoice:
    """A penalty and how it was chosen."""

    penalty: float
    folds: int
    """Folds of the cross-validation; 0: there was none."""
    lacking: int | None = None
    """The class that only one fold has, where this made cross-validation impossible."""


def choose_penalty(
    x: Floats, labels: Ints, patients: Ints, config: LinearConfig, rng: np.random.Generator
) -> PenaltyChoice:
    """The penalty of the lowest loss in cross-validation over patients; x (N, D), labels (N,), patients (N,).

    The loss is the log loss of the patches held out: it needs no threshold and judges the scores that are averaged
    later. Of equal losses the strongest penalty wins; where cross-validation is impossible, the middle one is taken.
    """
    penalties = sorted(set(config.penalties))
    middle = penalties[(len(penalties) - 1) // 2]
    if len(penalties) == 1:
        return PenaltyChoice(middle, 0)
    sample = sample_per_patient(patients, _FOLD_PATCHES, rng)
    x, labels = x[sample], labels[sample]
    folds = assign_folds(patients[sample], labels, _FOLDS, rng)
    lacking = find_lacking(folds, labels)
    if lacking is not None:
        return PenaltyChoice(middle, 0, lacking)
    losses = np.zeros(len(penalties))
    for fold in np.unique(folds):
        held_out = folds == fold
        for number, penalty in enumerate(penalties):
            model, _ = fit_model(x[~held_out], labels[~held_out], penalty, config.iterations)
            scores = model.predict_proba(x[held_out])
            losses[number] += log_loss(labels[held_out], scores, normalize=False, labels=model.classes_)
    return PenaltyChoice(penalties[int(losses.argmin())], len(np.unique(folds)))


def fit_model(x: Floats, labels: Ints, penalty: float, iterations: int) -> tuple[Pipeline, bool]:
    """Multinomial regression on standardised x (N, D), and whether the solver converged; `penalty` is scikit-learn's C.

    C is the weight of the summed losses, like the variance of a prior, so one C fits a sample and its folds.
    """
    model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=iterations))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(x, labels)
    return model, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


def _describe_choice(choice: PenaltyChoice, task: Task, config: LinearConfig) -> str:
    """Which penalty was used, and how it was chosen."""
    penalties, level = sorted(set(config.penalties)), task.levels[0]
    start = f"The penalty is C = {choice.penalty:g}, "
    offered = ", ".join(f"{value:g}" for value in penalties)
    if choice.lacking is not None:
        return (
            f"{start}the middle one of {offered}: cross-validation would leave each reference {level} out once, and "
            f"then no {task.classes[choice.lacking]!r} to train on."
        )
    if not choice.folds:
        return f"{start}the only one of linear.penalties."
    start += f"chosen from {offered} by the log loss in {choice.folds}-fold cross-validation over the reference "
    start += f"{plural(level)}."
    if choice.penalty == penalties[0]:
        return f"{start} It is the strongest of linear.penalties; a stronger one may do better."
    if choice.penalty == penalties[-1]:
        return f"{start} It is the weakest of linear.penalties; a weaker one may do better."
    return start
