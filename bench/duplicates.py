"""How often pictures of two patients are called one picture, and how often a copy is found, on real cohorts.

    python bench/duplicates.py ../shared/data                     all cohorts
    python bench/duplicates.py ../shared/data deepdrid breakhis   only these; 6,000 patches of each

Pairs are those that an evaluation proposes: each patch with the nearest one of another patient, by colour, by an
untrained network and by the pixels themselves (the hardest: the most alike of all pictures in 8 orientations). Known
copies are left out. Where the cohorts are not there, there is no claim.
"""

import csv
import sys
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from torch.nn.functional import normalize

from harness import Claim
from hidisc.evaluation.detail import Detail, find_detail, measure_agreement
from hidisc.settings.evaluate import LeakageConfig

Picture = NDArray[np.uint8]
SHARED = Path(__file__).parents[2] / "shared" / "data"
COHORTS = ("deepdrid", "breakhis", "idc", "malaria", "acdc", "monusac")
TWINS = {"acdc": ("patient074",)}
"""Patients left out: they are another patient of the cohort (076)."""
PATCHES, COPIED, TILE_PX = 6000, 300, 256
COPIES = ("JPEG 90", "JPEG 50", "JPEG 30", "turned", "shifted 3 %", "shifted 8 %", "shifted 12 %", "recoloured",
          "rescanned", "rescaled")  # fmt: skip


def read_cohort(folder: Path) -> tuple[list[Picture], list[str], list[str]]:
    """Pictures, patients and names of all patches; regions are cut into tiles."""
    table = next(path for name in ("patches.csv", "cohort.csv") if (path := folder / name).exists())
    pictures, patients, names = [], [], []
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["patient"] in TWINS.get(folder.name, ()):
                continue
            pixels = np.asarray(Image.open(folder / row["path"]).convert("RGB"))
            side = TILE_PX if table.name == "cohort.csv" else pixels.shape[0]
            for y in range(0, pixels.shape[0] - side + 1, side):
                for x in range(0, pixels.shape[1] - side + 1, side):
                    pictures.append(pixels[y : y + side, x : x + side])
                    patients.append(row["patient"])
                    names.append(f"{row['path']} ({x}, {y})")
    return pictures, patients, names


def propose(pictures: list[Picture], patients: list[str], rng: np.random.Generator) -> dict[str, NDArray[np.int64]]:
    """By each way to propose: pairs (n, 2) of a patch and the nearest one of another patient."""
    import timm

    flat = [torch.from_numpy(picture.reshape(-1, 3).copy()).float() for picture in pictures]
    colour = torch.stack([torch.cat([pixels.mean(0), pixels.std(0)]) for pixels in flat])
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", pretrained=False, num_classes=0).eval()
    with torch.inference_mode():
        parts = [np.stack(pictures[start : start + 128]) for start in range(0, len(pictures), 128)]
        vectors = torch.cat([network(torch.from_numpy(part).permute(0, 3, 1, 2) / 255 - 0.5) for part in parts])
    grey = torch.from_numpy(
        np.stack([np.asarray(Image.fromarray(p).convert("L").resize((16, 16))) for p in pictures])
    ).float()
    codes = torch.from_numpy(np.unique(patients, return_inverse=True)[1])
    rows = torch.from_numpy(rng.permutation(len(pictures))[:PATCHES])
    orientations = [torch.rot90(side, turns, (1, 2)).flatten(1) for side in (grey, grey.flip(2)) for turns in range(4)]
    spaces = {
        "colour": [(colour - colour.mean(0)) / colour.std(0)],
        "untrained network": [vectors - vectors.mean(0)],
        "pixels": orientations,
    }
    pairs = {}
    for name, turned in spaces.items():
        if name == "pixels":
            turned = [space - space.mean(1, keepdim=True) for space in turned]
        best, nearest = torch.full((len(rows),), -9.0), torch.zeros(len(rows), dtype=torch.int64)
        for space in turned:
            for start in range(0, len(rows), 1024):
                part = slice(start, start + 1024)
                similar = normalize(turned[0][rows[part]]) @ normalize(space).T
                similar[codes[rows[part], None] == codes] = -9
                value, found = similar.max(1)
                better = value > best[part]
                nearest[part] = torch.where(better, found, nearest[part])
                best[part] = torch.maximum(value, best[part])
        pairs[name] = torch.stack([rows, nearest], dim=1).numpy()
    return pairs


def save_jpeg(picture: Picture, quality: int) -> Picture:
    """As JPEG keeps it."""
    file = BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def recolour(picture: Picture, rng: np.random.Generator) -> Picture:
    """Another brightness, contrast and white balance."""
    scaled = (picture / 255) ** rng.uniform(0.8, 1.25) * rng.uniform(0.85, 1.15, 3) + rng.uniform(-0.04, 0.04, 3)
    return (255 * scaled).clip(0, 255).round().astype(np.uint8)


def turn(picture: Picture, rng: np.random.Generator) -> Picture:
    """One of 8 orientations."""
    return np.ascontiguousarray(np.rot90(picture[:, :: rng.choice([-1, 1])], rng.integers(4)))


def rescan(
    picture: Picture, rng: np.random.Generator, shift: float, scale: float, angle: float, noise: float
) -> tuple[Picture, Picture]:
    """The inner part of a picture, and the same as another scanner may give it: placed, blurred and coloured otherwise.

    `shift` (of the side), `scale` and `angle` (degrees) are the most on either side; `noise` is in grey levels.
    """
    side = picture.shape[0]
    half, turned, zoom = (side - 1) / 2, np.deg2rad(rng.uniform(-angle, angle)), 1 + rng.uniform(-scale, scale)
    a, b = zoom * np.cos(turned), zoom * np.sin(turned)
    y, x = rng.uniform(-shift, shift, 2) * side
    place = (a, b, half - (a + b) * half + x, -b, a, half + (b - a) * half + y)
    moved = Image.fromarray(picture).transform((side, side), Image.Transform.AFFINE, place, Image.Resampling.BICUBIC)
    blurred = moved.filter(ImageFilter.GaussianBlur(rng.uniform(0.4, 0.9)))
    edge = int(np.ceil(side * (shift + scale / 2 + 0.02)))
    inner = np.s_[edge : side - edge, edge : side - edge]
    noisy = recolour(np.asarray(blurred)[inner], rng) + rng.normal(0, noise, picture[inner].shape)
    return picture[inner], save_jpeg(noisy.clip(0, 255).round().astype(np.uint8), 80)


def copy(picture: Picture, kind: str, rng: np.random.Generator) -> tuple[Picture, Picture]:
    """A picture (a part of it, where a copy shows another part) and a copy of it."""
    word, _, amount = kind.partition(" ")
    if word == "JPEG":
        return picture, save_jpeg(picture, int(amount))
    if word == "turned":
        return picture, save_jpeg(turn(picture, rng), 75)
    if word == "shifted":
        side = picture.shape[0]
        most = round(side * float(amount.split()[0]) / 100)
        y, x = most * rng.integers(0, 2, 2)
        inner = side - most
        ours, theirs = picture[most - y :, most - x :], picture[y:, x:]
        return ours[:inner, :inner].copy(), save_jpeg(theirs[:inner, :inner].copy(), 75)
    if word == "recoloured":
        return picture, save_jpeg(recolour(picture, rng), 80)
    if word == "rescanned":
        ours, theirs = rescan(picture, rng, shift=0.03, scale=0.03, angle=1, noise=3)
        return ours, turn(theirs, rng)
    return rescan(picture, rng, shift=0.01, scale=0.06, angle=0, noise=1)


def measure(folder: Path) -> tuple[int, int]:
    """Pairs of one cohort that are called one picture, and all its pairs; what was measured is printed."""
    rng = np.random.default_rng(0)
    pictures, patients, names = read_cohort(folder)
    threshold = LeakageConfig().detail
    known: dict[int, Detail] = {}

    def look(row: int) -> Detail:
        if row not in known:
            known[row] = find_detail(pictures[row])
        return known[row]

    print(f"{folder.name}: {len(pictures):,} patches of {len(set(patients))} patients, threshold {threshold}")
    false, total = 0, 0
    for name, pairs in propose(pictures, patients, rng).items():
        began, seen = time.process_time(), len(known)
        agreements = np.array([measure_agreement(look(a), look(b)) for a, b in pairs.tolist()])
        spent = 1e3 * (time.process_time() - began) / len(pairs)
        is_known = np.isfinite(agreements)
        called = int((agreements >= threshold).sum())
        false, total = false + called, total + len(pairs)
        top = np.sort(agreements[is_known])[::-1]
        highest = " ".join(f"{value:.2f}" for value in top[:5])
        print(
            f"  nearest by {name}: {called} of {len(pairs):,} pairs called one picture, "
            f"{100 * (~is_known).mean():.1f} % undecided; highest {highest}, 99 % below {np.quantile(top, 0.99):.2f} "
            f"({spent:.2f} ms per pair, {len(known) - seen:,} details)"
        )
        for row in np.argsort(-np.nan_to_num(agreements, nan=-1))[:3]:
            a, b = pairs[row]
            print(f"    {agreements[row]:.2f}: {patients[a]} {names[a]} | {patients[b]} {names[b]}")
    print(f"  together: {false} of {total:,} pairs of different patients, {10_000 * false / total:.2f} in 10,000")
    sample = rng.permutation(len(pictures))[:COPIED]
    for kind in COPIES:
        made = [copy(pictures[row], kind, rng) for row in sample]
        agreements = np.array([measure_agreement(find_detail(ours), find_detail(theirs)) for ours, theirs in made])
        decided = np.isfinite(agreements)
        found = (agreements >= threshold).sum()
        print(
            f"  {kind}: {100 * found / len(made):.1f} % of {len(made)} copies found, "
            f"{100 * found / decided.sum():.1f} % of those with enough detail; "
            f"5 % are below {np.quantile(agreements[decided], 0.05):.2f}"
        )
    return false, total


def claims() -> list[Claim]:
    """Measure the cohorts that are there."""
    folders = [SHARED / name for name in COHORTS if (SHARED / name).is_dir()]
    return [
        Claim(
            f"pairs of patients called one picture, {folder.name} : 1 in 10,000",
            false,
            total / 10_000,
            "pairs",
            1,
            False,
        )
        for folder in folders
        for false, total in [measure(folder)]
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for cohort in sys.argv[2:] or COHORTS:
        measure(Path(sys.argv[1]) / cohort)
