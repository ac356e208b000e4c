"""HiDisc in about 100 lines: the data, the sampler, the loss, the training and the evaluation, in plain PyTorch.

    python examples/hidisc_in_100_lines.py

Read it from top to bottom. Nothing of hidisc is imported and no slides are needed: patches are small drawn arrays. It
runs in seconds on one core. `hidisc train` does the same with real slides, any network and several GPUs.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

# 1. The data. A cohort is a hierarchy: every patient has slides, every slide has patches. A patch here is SIZE x SIZE
# pixels of stripes, whose width is the patient's diagnosis. Direction and position of the stripes and the brightness
# differ from patch to patch and say nothing about the diagnosis. Diagnoses are used to evaluate, never to train.
PATIENTS, TEST_PATIENTS, SLIDES, PATCHES, DIAGNOSES, SIZE = 60, 20, 2, 12, 4, 16


def draw_cohort(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Patches (patients, slides, patches, 1, H, W), and the diagnosis of each patient (patients,)."""
    diagnosis = torch.arange(PATIENTS) % DIAGNOSES
    shape = (PATIENTS, SLIDES, PATCHES, 1, 1, 1)
    angle, phase, light = (torch.rand(shape, generator=rng) * scale for scale in (3.14, 6.28, 8.0))
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    frequency = 0.5 + 0.35 * diagnosis.view(-1, 1, 1, 1, 1, 1)
    stripes = torch.sin(frequency * (angle.cos() * x + angle.sin() * y) + phase)
    return stripes + light + 0.7 * torch.randn(stripes.shape, generator=rng), diagnosis


# 2. The sampler. A batch has n patients, n_s slides of each, n_p patches of each slide and n_a augmented views of each
# patch, so n * n_s * n_p * n_a images. Every image carries the ids of its ancestors: patient, slide and patch.
def draw_batch(
    cohort: Tensor, rng: torch.Generator, n: int = 16, n_s: int = 2, n_p: int = 2, n_a: int = 2
) -> tuple[Tensor, Tensor]:
    """Images (N, 1, H, W) and their ancestry (N, 3): ids of patient, slide and patch."""
    images, ancestry = [], []
    for patient in torch.randperm(len(cohort), generator=rng)[:n].tolist():
        for slide in torch.randperm(SLIDES, generator=rng)[:n_s].tolist():
            for patch in torch.randperm(PATCHES, generator=rng)[:n_p].tolist():
                slide_id = patient * SLIDES + slide
                for _ in range(n_a):
                    images.append(augment(cohort[patient, slide, patch], rng))
                    ancestry.append([patient, slide_id, slide_id * PATCHES + patch])
    return torch.stack(images), torch.tensor(ancestry)


def augment(patch: Tensor, rng: torch.Generator) -> Tensor:
    """A view of a patch (1, H, W): each axis flipped with probability 1/2, which is the paper's weak augmentation."""
    axes = [axis for axis in (1, 2) if torch.rand((), generator=rng) < 0.5]
    return patch.flip(axes)


# 3. The loss. z_i is the unit vector of image i. At one level (patient, slide or patch), with I the whole batch:
#   Eq. 2   A(i) = I without i                                         everything that i is compared with
#   Eq. 3   P(i) = {p in A(i): ancestry(p) = ancestry(i)}              the positives of i: equal id at this level
#   Eq. 1   L = mean over i of  -1/|P(i)| * sum over p in P(i) of log( exp(z_i.z_p / tau) / sum over a in A(i) of
#           exp(z_i.z_a / tau) )                                       (the paper sums over i instead of averaging)
#   Eq. 4   loss = sum over levels of lambda_level * L_level
def hidisc_loss(z: Tensor, ancestry: Tensor, weights: list[float], temperature: float = 0.7) -> Tensor:
    """The loss of unit vectors `z` (N, D) whose ancestors are `ancestry` (N, levels); one weight per level."""
    itself = torch.eye(len(z), dtype=torch.bool)
    similarity = (z @ z.T / temperature).masked_fill(itself, -torch.inf)  # (N, N), over A(i)
    log_probability = similarity.log_softmax(dim=1).masked_fill(itself, 0)
    total = z.new_zeros(())
    for level, weight in enumerate(weights):
        positive = (ancestry[:, None, level] == ancestry[None, :, level]) & ~itself  # (N, N), P(i)
        count = positive.sum(dim=1)
        per_anchor = -(log_probability * positive).sum(dim=1) / count.clamp(min=1)
        total = total + weight * per_anchor[count > 0].mean()  # an anchor without a positive takes no part
    return total


# 4. The encoder and its training. Any network will do; the projection head is used in training only.
def train(cohort: Tensor, weights: list[float], steps: int, seed: int = 0) -> nn.Module:
    """An encoder of patches, trained without labels; `weights` are lambda of patient, slide and patch."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    encoder = nn.Sequential(
        nn.Conv2d(1, 24, 5, stride=2), nn.ReLU(), nn.Conv2d(24, 48, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    head = nn.Linear(48, 32)
    optimiser = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(steps):
        images, ancestry = draw_batch(cohort, rng)
        loss = hidisc_loss(normalize(head(encoder(images)), dim=1), ancestry, weights)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return encoder


# 5. The evaluation. The encoder has never seen the test patients. Each of their patches is predicted by its k nearest
# patches of the reference patients (cosine similarity); a patient is predicted by the mean score of all its patches.
@torch.no_grad()
def evaluate(encoder: nn.Module, cohort: Tensor, diagnosis: Tensor, k: int = 20) -> str:
    """Accuracy of the test patients and of their patches, in percent."""
    vectors = normalize(encoder(cohort.flatten(0, 2)), dim=1).view(PATIENTS, SLIDES * PATCHES, -1)
    test, reference = vectors[:TEST_PATIENTS].flatten(0, 1), vectors[TEST_PATIENTS:].flatten(0, 1)
    labels = diagnosis.repeat_interleave(SLIDES * PATCHES)
    similarity, nearest = (test @ reference.T).topk(k, dim=1)
    votes = nn.functional.one_hot(labels[TEST_PATIENTS * SLIDES * PATCHES :][nearest], DIAGNOSES)  # (N, k, classes)
    scores = (votes * (similarity / 0.07).softmax(dim=1)[..., None]).sum(dim=1)
    per_patch = (scores.argmax(1) == labels[: len(test)]).float().mean()
    per_patient = scores.view(TEST_PATIENTS, -1, DIAGNOSES).mean(1).argmax(1) == diagnosis[:TEST_PATIENTS]
    return f"patch accuracy {per_patch:.0%}, patient accuracy {per_patient.float().mean():.0%}"


def main() -> None:
    """Evaluate before training, after training with the patch level alone, and after training with all three levels."""
    cohort, diagnosis = draw_cohort(torch.Generator().manual_seed(0))
    training_patients = cohort[TEST_PATIENTS:]
    for name, weights, steps in [
        ("before training", [1.0, 1.0, 1.0], 0),
        ("patch level alone", [0.0, 0.0, 1.0], 200),
        ("HiDisc, all levels", [1.0, 1.0, 1.0], 200),
    ]:
        encoder = train(training_patients, weights, steps)
        print(f"{name + ':':20}{evaluate(encoder, cohort, diagnosis)} (chance: {1 / DIAGNOSES:.0%})")


if __name__ == "__main__":
    main()
