"""The linear probe: logistic regression on the embeddings, its penalty chosen by cross-validation over patients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from hidisc.evaluation.metrics import Floats, Ints
from hidisc.evaluation.neighbours import use_threads
from hidisc.evaluation.probes.folds import assign_folds, find_lacking, find_patients, sample_per_patient
from hidisc.evaluation.task import Task
from hidisc.ground.progress import Watch, ignore
from hidisc.ground.seeds import Purpose, make_rng
from hidisc.ground.text import plural
from hidisc.settings.evaluate import LinearConfig

_FOLDS = 3
_FOLD_PATCHES = 5_000
"""Most patches used to choose the penalty: a model is fitted for every penalty and fold."""
_TOLERANCE, _ROUGH = 1e-4, 1e-2
"""Largest gradient of the summed losses, in coordinates in which a step of 1 changes them by about 0.5: of the model
that is used, and of those that choose the penalty."""
_BLOCK = 2**22
"""Numbers (rows x dimensions) of the queries' embeddings in memory at once."""


@use_threads(1)  # an iteration is too little work for several
def linear_scores(task: Task, config: LinearConfig, seed: int, watch: Watch = ignore) -> tuple[Floats, tuple[str, ...]]:
    """Class probabilities (N, L) of the query patches, and remarks.

    Classes are not weighted to be equal, as in the kNN probe: so the two differ only in how they use the embeddings,
    and averaged scores remain probabilities. Mean class accuracy shows what this costs a rare class.

    `watch` is called after each of `count_fits` fits. Memory: the sampled patches, twice, and 16 MB of the queries; no
    other row of the bank is read.
    """
    probe = fit_probe(task, config, seed, watch)
    queries = task.queries
    height = max(1, _BLOCK // queries.vectors(slice(1)).shape[1])
    scores = np.zeros((len(queries), len(task.classes)))
    for start in range(0, len(queries), height):
        block = slice(start, start + height)
        scores[block, probe.present] = probe.model.predict(queries.vectors(block)) if probe.model else 1
    return scores, probe.remarks


@dataclass(frozen=True)
class LinearProbe:
    """The linear probe of a task, fitted to its reference patches."""

    present: Ints
    """Codes of the classes that have reference patches; the others have probability 0."""
    model: "LinearModel | None"
    """Of the classes that are present; None: there is one, which is always predicted."""
    remarks: tuple[str, ...]


def fit_probe(task: Task, config: LinearConfig, seed: int, watch: Watch = ignore) -> LinearProbe:
    """Choose the penalty and fit the probe to the reference patches of a task."""
    rng = make_rng(seed, Purpose.LINEAR_PROBE)
    bank, levels = task.bank, task.levels
    patients = find_patients(bank, levels)
    sample = sample_per_patient(patients, config.patches, rng)
    x, labels = bank.vectors(sample), bank.labels[sample]
    remarks = [f"Trained on all {len(bank):,} reference patches."]
    if len(sample) < len(bank):
        remarks = [
            f"Trained on {len(sample):,} of {len(bank):,} reference patches, sampled evenly over {plural(levels[0])}."
        ]
    present = np.unique(labels)
    absent = np.delete(np.array(task.classes, object), present)
    remarks += [f"Class {name!r} has no patch among them, so its probability is always 0." for name in absent]
    if len(present) == 1:
        remarks.append(f"All of them have class {task.classes[present[0]]!r}, so it is predicted for every test patch.")
        return LinearProbe(present, None, tuple(remarks))
    choice = choose_penalty(x, labels, patients[sample], config, rng, watch)
    model, converged = next(fit_models(x, labels, [choice.penalty], config.iterations))
    watch(1)
    unfinished = f"The solver did not converge within linear.iterations = {config.iterations}; more may help."
    remarks += [_describe_choice(choice, task, config), "The solver converged." if converged else unfinished]
    return LinearProbe(present, model, tuple(remarks))


@dataclass(frozen=True)
class PenaltyChoice:
    """A penalty and how it was chosen."""

    penalty: float
    folds: int
    """Folds of the cross-validation; 0: there was none."""
    lacking: int | None = None
    """The class that only one fold has, where this made cross-validation impossible."""


def count_fits(config: LinearConfig) -> int:
    """How many models are fitted at most: one per penalty and fold, and the last."""
    return _FOLDS * len(set(config.penalties)) + 1


def choose_penalty(
    x: NDArray[np.float32],
    labels: Ints,
    patients: Ints,
    config: LinearConfig,
    rng: np.random.Generator,
    watch: Watch = ignore,
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
        truth = np.searchsorted(np.unique(labels), labels[held_out])  # every fold has all labels
        models = fit_models(x[~held_out], labels[~held_out], penalties, config.iterations, _ROUGH)
        for number, (model, _) in enumerate(models):
            probabilities = model.predict(x[held_out])[np.arange(len(truth)), truth]
            losses[number] -= np.log(probabilities.clip(1e-15)).sum()
            watch(1)
    return PenaltyChoice(penalties[int(losses.argmin())], len(np.unique(folds)))


class LinearModel:
    """Multinomial regression on standardised embeddings; two classes have one output, as in scikit-learn."""

    def __init__(self, scaler: StandardScaler, weights: Tensor) -> None:
        self._scaler, self._weights = scaler, weights

    def predict(self, x: NDArray[np.float32]) -> Floats:
        """(N, L) probabilities of x (N, D)."""
        return _find_logits(torch.from_numpy(self._scaler.transform(x)), self._weights).softmax(dim=1).numpy()

    def to_layer(self) -> tuple[Tensor, Tensor]:
        """Weights (L, D) and biases (L,) of a layer on embeddings as they are, whose softmax is `predict`."""
        mean, scale = (torch.from_numpy(np.asarray(v, np.float64)) for v in (self._scaler.mean_, self._scaler.scale_))
        weights = self._weights[:, :-1] / scale
        biases = self._weights[:, -1] - weights @ mean
        if len(weights) == 1:  # of two classes, the second; the first has logit 0
            weights, biases = F.pad(weights, (0, 0, 1, 0)), F.pad(biases, (1, 0))
        return weights, biases


def fit_models(
    x: NDArray[np.float32], labels: Ints, penalties: Sequence[float], iterations: int, tolerance: float = _TOLERANCE
) -> Iterator[tuple[LinearModel, bool]]:
    """For each penalty the model of x (N, D) and labels (N,), and whether the solver converged.

    A penalty is scikit-learn's C, the weight of the summed losses, like the variance of a prior, so one C fits a sample
    and its folds. Each fit starts from the one before, so penalties should rise.
    """
    scaler = StandardScaler().fit(x)
    z, codes = torch.from_numpy(scaler.transform(x)), torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    classes = int(codes.max()) + 1
    weights = torch.zeros(classes if classes > 2 else 1, z.shape[1] + 1, dtype=torch.float64)
    gram = (z.T @ z).double()
    for penalty in penalties:
        weights, converged = _minimise(z, codes, gram, penalty, weights, iterations, tolerance)
        yield LinearModel(scaler, weights), converged


def _minimise(
    z: Tensor, codes: Tensor, gram: Tensor, penalty: float, start: Tensor, iterations: int, tolerance: float
) -> tuple[Tensor, bool]:
    """The weights (L, D + 1), intercepts last, of the lowest sum of losses and penalty |weights|^2 / 2 C, by L-BFGS.

    Embeddings vary much more in some directions than in others, which takes L-BFGS hundreds of iterations. With s the
    mean of p (1 - p), the Hessian is about s z'z + 1 / C = F F', and for u = weights F it is about the identity.
    """
    p = _find_logits(z, start).softmax(dim=1)  # (N, L)
    s = float((p * (1 - p)).mean()) + 1e-6  # above 0 also where the start separates all classes
    hessian = torch.eye(z.shape[1] + 1, dtype=torch.float64) * (1 / penalty + 1e-6 * s * len(z))  # z'z is in float32
    hessian[:-1, :-1] += s * gram
    hessian[-1, -1] = s * len(z)
    factor = torch.linalg.cholesky(hessian)
    u = (start @ factor).requires_grad_()
    solver = torch.optim.LBFGS(
        [u], max_iter=iterations, tolerance_grad=tolerance, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def to_weights() -> Tensor:
        return torch.linalg.solve_triangular(factor, u, upper=False, left=False)

    def evaluate() -> Tensor:
        solver.zero_grad()
        weights = to_weights()
        losses = F.cross_entropy(_find_logits(z, weights), codes, reduction="sum")
        total = losses + weights[:, :-1].square().sum() / (2 * penalty)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    solver.step(evaluate)  # type: ignore[no-untyped-call]
    evaluate()
    return to_weights().detach(), u.grad is not None and bool(u.grad.abs().max() <= tolerance)


def _find_logits(z: Tensor, weights: Tensor) -> Tensor:
    """(N, L) logits of standardised embeddings z (N, D); of two classes, the first has logit 0."""
    logits = (z @ weights[:, :-1].to(z.dtype).T).double() + weights[:, -1]
    return F.pad(logits, (1, 0)) if len(weights) == 1 else logits


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
