import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torchstain
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

from hidisc.ground.errors import UserError
from hidisc.slides.stain import (
    LIGHT,
    REFERENCE,
    Stains,
    estimate_stains,
    normalise,
    normalise_each,
    optical_density,
    stains_of_reference,
)

MONUSAC = Path(__file__).parents[3] / "shared" / "data" / "monusac" / "images"
VECTORS = np.array([[0.60, 0.25], [0.70, 0.85], [0.38, 0.45]])  # H and E, not the reference's
VECTORS = VECTORS / np.linalg.norm(VECTORS, axis=0)


def paint(amounts: np.ndarray, vectors: np.ndarray = VECTORS) -> np.ndarray:
    """Beer-Lambert: amounts (..., 2) of two stains (3, 2) -> uint8 picture, the inverse of the module's OD."""
    light = LIGHT * np.exp(-amounts @ vectors.T) - 1
    return np.clip(np.round(light), 0, 255).astype(np.uint8)


def draw(seed: int, height: int = 64, width: int = 64, vectors: np.ndarray = VECTORS) -> np.ndarray:
    """A picture with patches of pure haematoxylin, pure eosin, both, and background."""
    rng = np.random.default_rng(seed)
    kind = np.kron(rng.integers(0, 4, (height // 4 + 1, width // 4 + 1)), np.ones((4, 4), int))[:height, :width]
    strength = rng.uniform(0.7, 1.2, (height, width, 2)) * [1.3, 0.9]
    shares = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6], [0.02, 0.02]])
    return paint(strength * shares[kind], vectors)


def oracle(picture: np.ndarray, reference: Stains = REFERENCE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The paper's steps, one pixel at a time and in float64: vectors (3, 2), strengths (2,), picture."""
    ods = [[-np.log((int(level) + 1) / LIGHT) for level in pixel] for pixel in picture.reshape(-1, 3)]
    tissue = np.array([od for od in ods if min(od) >= 0.15])
    _, _, axes = np.linalg.svd(tissue - tissue.mean(axis=0))
    first, second = axes[0], axes[1]
    if tissue.mean(axis=0) @ first < 0:
        first = -first
    angles = sorted(float(np.arctan2(od @ second, od @ first)) for od in tissue)
    ends = [angles[round(0.01 * (len(angles) - 1))], angles[round(0.99 * (len(angles) - 1))]]
    stains = [np.cos(angle) * first + np.sin(angle) * second for angle in ends]
    vectors = np.stack(sorted(stains, key=lambda vector: -vector[0]), axis=1)
    amounts = np.array([np.linalg.lstsq(vectors, np.array(od), rcond=None)[0] for od in ods])
    strengths = np.sort(amounts, axis=0)[round(0.99 * (len(ods) - 1))]
    painted = [LIGHT * np.exp(-reference.vectors @ (c / strengths * reference.max_concentrations)) for c in amounts]
    return vectors, strengths, np.clip(np.round(np.array(painted) - 1), 0, 255).reshape(picture.shape)


def torchstain_numpy(picture: np.ndarray) -> np.ndarray:
    normalizer = torchstain.normalizers.MacenkoNormalizer(backend="numpy")
    return normalizer.normalize(picture, stains=False)[0]


def torchstain_torch(picture: np.ndarray) -> np.ndarray:
    normalizer = torchstain.normalizers.MacenkoNormalizer(backend="torch")
    tensor = torch.from_numpy(picture.copy()).permute(2, 0, 1).float()
    return normalizer.normalize(tensor, stains=False)[0].numpy()


def share_within(ours: np.ndarray, theirs: np.ndarray, levels: int) -> float:
    return float((np.abs(ours.astype(int) - theirs.astype(int)).max(axis=-1) <= levels).mean())


def monusac_pictures() -> list[np.ndarray]:
    if not MONUSAC.is_dir():
        pytest.skip(f"the MoNuSAC pictures are not at {MONUSAC}")
    paths = sorted(MONUSAC.glob("*/*.jpg"))[::16]
    return [np.asarray(Image.open(path).convert("RGB"))[:400, :400] for path in paths]


@pytest.mark.parametrize("theirs", [torchstain_torch, torchstain_numpy])
def test_agrees_with_torchstain_on_drawn_pictures(theirs):
    for seed in range(4):
        picture = draw(seed, 90, 120)
        ours, fell_back = normalise_each(picture[None])
        assert not fell_back[0]
        assert share_within(ours[0], theirs(picture), 2) >= 0.99


@pytest.mark.parametrize("theirs", [torchstain_torch, torchstain_numpy])
def test_agrees_with_torchstain_on_real_pictures(theirs):
    pictures = monusac_pictures()
    assert len(pictures) >= 10
    for picture in pictures:
        ours, fell_back = normalise_each(picture[None])
        assert not fell_back[0]
        assert share_within(ours[0], theirs(picture), 2) >= 0.99


def test_agrees_with_torchstain_fitted_to_a_reference_picture():
    reference, picture = draw(1, vectors=REFERENCE.vectors), draw(2)
    normalizer = torchstain.normalizers.MacenkoNormalizer(backend="numpy")
    normalizer.fit(reference)
    ours, _ = normalise_each(picture[None], stains_of_reference(reference, "reference.png"))
    assert share_within(ours[0], normalizer.normalize(picture, stains=False)[0], 2) >= 0.99


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_paper_step_by_step(seed):
    picture = draw(seed, 40, 41)
    vectors, strengths, painted = oracle(picture)
    stains = estimate_stains(picture)
    np.testing.assert_allclose(stains.vectors, vectors, atol=1e-4)
    np.testing.assert_allclose(stains.max_concentrations, strengths, rtol=1e-3)
    for ours in (normalise_each(picture[None])[0][0], normalise(picture[None], stains)[0]):
        assert share_within(ours, painted, 0) > 0.99
        assert share_within(ours, painted, 1) == 1


def test_recovers_the_stains_a_picture_was_made_of():
    stains = estimate_stains(draw(0, 200, 200))
    np.testing.assert_allclose(stains.vectors, VECTORS, atol=0.02)
    assert stains.max_concentrations == pytest.approx([1.3 * 1.2, 0.9 * 1.2], rel=0.05)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_haematoxylin_is_the_first_column_whatever_the_picture(seed):
    stains = estimate_stains(draw(seed))
    assert stains.vectors[0, 0] > stains.vectors[0, 1]
    np.testing.assert_allclose(np.linalg.norm(stains.vectors, axis=0), 1, atol=1e-5)


def test_a_principal_axis_of_mixed_sign_does_not_confuse_the_angles():
    # Much pure H and much pure E of like darkness: ODs vary most along H - E, across the mean, not along it.
    rng = np.random.default_rng(0)
    share, total = rng.beta(0.2, 0.2, (80, 80, 1)), rng.uniform(1.3, 1.7, (80, 80, 1))
    picture = paint(total * np.concatenate([share, 1 - share], axis=-1))
    tissue = optical_density(picture).reshape(-1, 3)
    axis = np.linalg.eigh(np.cov(tissue.T)).eigenvectors[:, 2]
    assert axis.min() < -0.1 < 0.1 < axis.max()
    np.testing.assert_allclose(estimate_stains(picture).vectors, VECTORS, atol=0.02)


def test_the_own_stains_give_the_picture_itself():
    picture = draw(3, 81, 75)
    stains = estimate_stains(picture)
    assert share_within(normalise(picture[None], stains, stains)[0], picture, 1) > 0.999


def test_a_slide_s_patches_take_the_reference_s_stains():
    patches = np.stack([draw(seed, 128, 128) for seed in range(4)])
    after = estimate_stains(normalise(patches, estimate_stains(patches)))
    np.testing.assert_allclose(after.vectors, REFERENCE.vectors, atol=0.02)
    np.testing.assert_allclose(after.max_concentrations, REFERENCE.max_concentrations, rtol=0.03)


def test_slide_mode_with_a_patch_s_own_stains_is_patch_mode():
    patch = draw(5, 150, 150)[None]
    assert share_within(normalise(patch, estimate_stains(patch)), normalise_each(patch)[0], 0) > 0.9999


@pytest.mark.parametrize("shape", [(64, 64), (33, 35), (150, 130)])
def test_a_batch_equals_its_patches_one_by_one(shape):
    patches = np.stack([*(draw(seed, *shape) for seed in range(3)), np.full((*shape, 3), 255, np.uint8)])
    stains = estimate_stains(patches[0])
    together, fell_back = normalise_each(patches)
    assert fell_back.tolist() == [False, False, False, True]
    for index in range(len(patches)):
        one = patches[index : index + 1]
        np.testing.assert_array_equal(normalise_each(one)[0][0], together[index])
        assert share_within(normalise(one, stains)[0], normalise(patches, stains)[index], 0) > 0.9999


def test_views_of_larger_arrays_are_normalised_alike():
    patches = np.stack([draw(seed, 64, 64) for seed in range(4)])
    view, whole = patches[::2, 1:, ::-1], patches[::2, 1:, ::-1].copy()
    stains = estimate_stains(whole)
    assert estimate_stains(view).to_dict() == stains.to_dict()
    np.testing.assert_array_equal(normalise(view, stains), normalise(whole, stains))
    np.testing.assert_array_equal(normalise_each(view)[0], normalise_each(whole)[0])


def test_the_input_is_not_changed():
    patches = np.stack([draw(0), draw(1)])
    kept = patches.copy()
    patches.flags.writeable = False
    normalise(patches, estimate_stains(patches))
    normalise_each(patches)
    np.testing.assert_array_equal(patches, kept)


def test_the_order_of_the_pixels_does_not_matter():
    pixels = draw(7, 100, 100).reshape(-1, 3)
    shuffled = np.random.default_rng(0).permutation(pixels)
    one, other = estimate_stains(pixels), estimate_stains(shuffled)
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)
    np.testing.assert_allclose(one.max_concentrations, other.max_concentrations, rtol=1e-4)


def test_many_pixels_are_thinned_to_nearly_the_same_stains():
    patches = np.stack([draw(seed, 200, 200) for seed in range(5)])
    every, some = estimate_stains(patches), estimate_stains(patches, max_pixels=20_000)
    np.testing.assert_allclose(some.vectors, every.vectors, atol=0.01)
    np.testing.assert_allclose(some.max_concentrations, every.max_concentrations, rtol=0.03)
    assert estimate_stains(patches, max_pixels=20_000).to_dict() == some.to_dict()


def test_thinning_sees_every_column():
    amounts = np.random.default_rng(0).uniform(0.7, 1.2, (100, 100, 2))
    amounts[:, ::2, 0] = amounts[:, 1::2, 1] = 0  # eosin in the even columns, haematoxylin in the odd ones
    striped = paint(amounts)
    assert estimate_stains(striped[:, ::2]) is None
    np.testing.assert_allclose(estimate_stains(striped, max_pixels=5_000).vectors, VECTORS, atol=0.02)


def test_alpha_and_beta_are_used():
    picture = draw(2, 100, 100)
    angle = {}
    for alpha in (1.0, 20.0):
        vectors = estimate_stains(picture, alpha=alpha).vectors
        angle[alpha] = np.arccos(vectors[:, 0] @ vectors[:, 1])
    assert angle[20.0] <= angle[1.0]
    assert estimate_stains(picture, beta=5.0) is None


def constant(*colour: int) -> np.ndarray:
    return np.tile(np.array(colour, np.uint8), (60, 60, 1))


def one_stain(column: int) -> np.ndarray:
    amounts = np.zeros((60, 60, 2))
    amounts[..., column] = np.random.default_rng(0).gamma(2, 0.4, (60, 60))
    return paint(amounts)


def noisy(picture: np.ndarray) -> np.ndarray:
    return np.clip(picture + np.random.default_rng(0).normal(0, 2, picture.shape), 0, 255).astype(np.uint8)


def speck() -> np.ndarray:
    picture = constant(245, 245, 245)
    picture[:9, :9] = draw(0)[:9, :9]
    return picture


DEGENERATE = {
    "white": constant(255, 255, 255),
    "black": constant(0, 0, 0),
    "grey": constant(128, 128, 128),
    "one colour": constant(140, 70, 150),
    "one colour with noise": noisy(constant(140, 70, 150)),
    "haematoxylin only": one_stain(0),
    "eosin only": one_stain(1),
    "haematoxylin only, with noise": noisy(one_stain(0)),
    "grey shades": np.repeat(np.random.default_rng(0).integers(0, 256, (60, 60, 1), np.uint8), 3, axis=2),
    "less tissue than needed": speck(),
    "tiny": draw(0)[:3, :3],
    "empty": draw(0)[:0],
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_pictures_without_two_stains_are_left_alone_and_flagged(name):
    picture = DEGENERATE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert estimate_stains(picture) is None
        unchanged, fell_back = normalise_each(picture[None])
    assert fell_back.tolist() == [True]
    np.testing.assert_array_equal(unchanged[0], picture)


batches = npst.arrays(
    np.uint8,
    st.tuples(st.integers(0, 3), st.integers(1, 24), st.integers(1, 24), st.just(3)),
    elements=st.integers(0, 255),
    fill=st.integers(0, 255),
)


@given(batches, st.sampled_from(["as it is", "noise", "noise in a narrow range"]), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_any_bytes_give_a_picture_and_no_warning(patches, kind, seed):
    rng = np.random.default_rng(seed)
    if kind != "as it is":
        low, high = sorted(rng.integers(0, 257, 2)) if kind != "noise" else (0, 256)
        patches = rng.integers(low, max(high, low + 1), patches.shape, np.int64).astype(np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        painted, fell_back = normalise_each(patches)
        stains = estimate_stains(patches)
        slide = normalise(patches, stains or REFERENCE)
    assert painted.shape == slide.shape == patches.shape
    assert painted.dtype == slide.dtype == np.uint8
    assert fell_back.shape == patches.shape[:1]
    np.testing.assert_array_equal(painted[fell_back], patches[fell_back])
    if stains is not None:
        assert np.isfinite(stains.vectors).all()
        assert (stains.max_concentrations > 0).all()


def test_every_grey_level_has_its_optical_density():
    levels = np.random.default_rng(0).permutation(np.arange(256, dtype=np.uint8))
    for part in (levels, levels[:255], levels[1:], levels[:1], levels[:0], levels.reshape(2, 128)):
        expected = -np.log((part.astype(np.float64) + 1) / 240)
        np.testing.assert_allclose(optical_density(part), expected, rtol=1e-6, atol=1e-7)


def test_extreme_stains_neither_overflow_nor_warn():
    near = np.array([0.5626, 0.7201, 0.4062])
    turned = near + 0.18 * np.array([-0.5, 0.0, 0.7])
    strong = Stains(REFERENCE.vectors, [100, 100])
    weak = Stains(np.stack([near, turned], axis=1) / [1, np.linalg.norm(turned)], [0.15, 0.15])
    patches = np.random.default_rng(0).integers(0, 256, (2, 31, 31, 3), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for stains, reference in [(weak, REFERENCE), (strong, weak), (weak, strong)]:
            assert normalise(patches, stains, reference).dtype == np.uint8


def test_stains_survive_json_and_pickle():
    stains = estimate_stains(draw(0))
    for copy in (Stains.from_dict(json.loads(json.dumps(stains.to_dict()))), pickle.loads(pickle.dumps(stains))):
        np.testing.assert_array_equal(copy.vectors, stains.vectors)
        np.testing.assert_array_equal(copy.max_concentrations, stains.max_concentrations)


def test_stains_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        REFERENCE.vectors[0, 0] = 1


GOOD = REFERENCE.to_dict()
PARALLEL = [[row[0], row[0]] for row in GOOD["vectors"]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"vectors": [[1, 0, 0], [0, 1, 0]]}, r"the shapes are \(2, 3\) and \(2,\), not \(3, 2\) and \(2,\)"),
        ({"vectors": "purple"}, r"the shapes are \(\) and \(2,\)"),
        ({"vectors": [[1, 2], [3]]}, r"the shapes are \(\) and \(2,\)"),
        ({"max_concentrations": [1, float("nan")]}, "not every value is a finite number"),
        ({"vectors": [[1, 1], [1, 0], [0, 0]]}, "the columns have lengths 1.414 and 1.000, not 1"),
        ({"vectors": PARALLEL}, r"the two vectors are 0\.\d degrees apart"),
        ({"vectors": [[1, -1], [0, 0], [0, 0]]}, r"the two vectors are 180\.0 degrees apart"),
        ({"max_concentrations": [1.9, -0.1]}, r"the maximum concentrations are \[1\.9, -0\.1\]"),
        ({"max_concentrations": [1e9, 1]}, r"the maximum concentrations are \[1000000000\.0, 1\.0\]"),
    ],
)
def test_impossible_stains_are_refused_with_the_reason(change, sentence):
    with pytest.raises(UserError, match=rf"^Stains: {sentence}.*8 to 90 degrees.*0\.15 to 100.*published reference"):
        Stains.from_dict(GOOD | change)


def test_unknown_and_missing_keys_are_refused():
    with pytest.raises(UserError, match=r"the keys are \['maxC', 'vectors'\]. `vectors` and `max_concentrations` are"):
        Stains.from_dict({"vectors": GOOD["vectors"], "maxC": [1, 1]})


def test_a_reference_picture_without_two_stains_is_an_error_that_names_it():
    sentence = r"^Stain reference 'white\.png': it does not show two stains.*haematoxylin and eosin.*Choose another"
    with pytest.raises(UserError, match=sentence):
        stains_of_reference(DEGENERATE["white"], "white.png")
    assert stains_of_reference(draw(0), "drawn").to_dict() == estimate_stains(draw(0)).to_dict()


@pytest.mark.parametrize("call", [estimate_stains, normalise_each, lambda pixels: normalise(pixels, REFERENCE)])
def test_pixels_of_another_kind_are_refused(call):
    with pytest.raises(UserError, match=r"shape \(1, 8, 8, 3\) and type float32\. RGB pixels of shape .* uint8 are"):
        call(np.zeros((1, 8, 8, 3), np.float32))
    with pytest.raises(UserError, match=r"shape \(1, 8, 8, 4\) and type uint8"):
        call(np.zeros((1, 8, 8, 4), np.uint8))
    with pytest.raises(UserError, match=r"shape \(3,\) and type uint8"):
        call(np.zeros(3, np.uint8))
