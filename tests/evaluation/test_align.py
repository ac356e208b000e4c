"""ComBat against its equations in slow loops: fitted on reference patients, applied to all."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hidisc.evaluation.align import align, fit_alignment
from hidisc.ground.errors import UserError

SIZES = (40, 25, 6)


def draw(seed: int = 0, dims: int = 12) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Rows of three sites with shifts and scales of their own, in random order."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(3), SIZES)).astype(np.int32)
    shifts, scales = rng.normal(0, 1, (3, dims)), rng.uniform(0.5, 2, (3, dims))
    z = rng.normal(size=(len(codes), dims)) * scales[codes] + shifts[codes] + 5
    return z.astype(np.float32), codes


def combat(bank: NDArray, bank_codes: NDArray, z: NDArray, codes: NDArray) -> NDArray[np.float64]:
    """Johnson et al. 2007, section 3.2, one number at a time; without covariates."""
    rows, dims = bank.shape
    sites = sorted(set(bank_codes.tolist()))
    alpha = [sum(float(bank[j, g]) for j in range(rows)) / rows for g in range(dims)]
    of = {i: [j for j in range(rows) if bank_codes[j] == i] for i in sites}
    site_mean = {(i, g): np.mean([float(bank[j, g]) for j in of[i]]) for i in sites for g in range(dims)}
    sigma = [
        np.sqrt(sum((float(bank[j, g]) - site_mean[int(bank_codes[j]), g]) ** 2 for j in range(rows)) / rows)
        for g in range(dims)
    ]
    out = z.astype(np.float64).copy()
    for i in sites:
        members = of[i]
        n = len(members)
        standard = [[(float(bank[j, g]) - alpha[g]) / sigma[g] for j in members] for g in range(dims)]
        gamma_hat = [sum(values) / n for values in standard]
        delta_hat = [sum((v - gamma_hat[g]) ** 2 for v in values) / (n - 1) for g, values in enumerate(standard)]
        gamma_bar, tau = float(np.mean(gamma_hat)), float(np.var(gamma_hat, ddof=1))
        v, s = float(np.mean(delta_hat)), float(np.var(delta_hat, ddof=1))
        lam, theta = (v**2 + 2 * s) / s, (v**3 + v * s) / s
        for g in range(dims):
            gamma, delta = gamma_hat[g], delta_hat[g]
            for _ in range(500):
                gamma = (n * tau * gamma_hat[g] + delta * gamma_bar) / (n * tau + delta)
                squares = sum((value - gamma) ** 2 for value in standard[g])
                delta = (theta + squares / 2) / (n / 2 + lam - 1)
            for j in range(len(z)):
                if codes[j] == i:
                    out[j, g] = sigma[g] / np.sqrt(delta) * ((float(z[j, g]) - alpha[g]) / sigma[g] - gamma) + alpha[g]
    return out


@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_what_the_equations_say(seed: int) -> None:
    (bank, bank_codes), (queries, query_codes) = draw(seed), draw(seed + 10)
    aligned_bank, aligned_queries, unseen = align(bank, bank_codes, queries, query_codes)
    np.testing.assert_allclose(aligned_bank, combat(bank, bank_codes, bank, bank_codes), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(aligned_queries, combat(bank, bank_codes, queries, query_codes), rtol=1e-4, atol=1e-4)
    assert (aligned_bank.dtype, unseen) == (np.float32, ())


def test_sites_have_nearly_one_mean_and_spread_after_it() -> None:
    bank, codes = draw()
    aligned, _, _ = align(bank, codes, bank, codes)
    before, after = (np.stack([z[codes == site].mean(axis=0) for site in range(2)]) for z in (bank, aligned))
    assert np.linalg.norm(after[0] - after[1]) < 0.25 * np.linalg.norm(before[0] - before[1])
    apart = [np.log(z[codes == 0].std(axis=0) / z[codes == 1].std(axis=0)) for z in (bank, aligned)]
    assert np.linalg.norm(apart[1]) < 0.4 * np.linalg.norm(apart[0])


def test_the_fewer_rows_a_value_has_the_more_its_shift_is_shrunk() -> None:
    """The same rows many times over have the same means, and more of them is kept."""
    bank, codes = draw()
    kept = []
    for times in (1, 4, 100):
        fitted = fit_alignment(np.tile(bank, (times, 1)), np.tile(codes, times))
        standard = (bank - fitted.mean) / fitted.std
        own = [standard[codes == site].mean(axis=0) for site in range(3)]
        about = [fitted.shifts[site] - own[site].mean() for site in range(3)]
        kept.append([np.linalg.norm(about[site]) / np.linalg.norm(own[site] - own[site].mean()) for site in range(3)])
    assert (np.diff(kept, axis=0) > 0).all()
    assert np.allclose(kept[-1], 1, atol=0.05)


def test_queries_change_nothing_that_is_fitted() -> None:
    bank, codes = draw()
    queries, query_codes = draw(3)
    first = align(bank, codes, queries, query_codes)
    second = align(bank, codes, queries[:5] * 100, query_codes[:5])
    np.testing.assert_array_equal(first[0], second[0])
    one = align(bank, codes, queries[7:8], query_codes[7:8])[1]
    np.testing.assert_array_equal(one, first[1][7:8])


def test_values_that_the_bank_has_not_and_missing_ones_stay_as_they_are() -> None:
    bank, codes = draw()
    single = np.concatenate([codes, [8]]).astype(np.int32)
    queries, query_codes = bank[:5], np.array([0, 7, -1, 8, 1], np.int32)
    _, aligned, unseen = align(np.concatenate([bank, bank[:1]]), single, queries, query_codes)
    assert unseen == (7, 8), "one row of a value has no spread"
    np.testing.assert_array_equal(aligned[[1, 2, 3]], queries[[1, 2, 3]])
    assert (aligned[[0, 4]] != queries[[0, 4]]).any(axis=1).all()


def test_a_dimension_without_spread_stays_finite() -> None:
    bank, codes = draw()
    bank[:, 3] = 2
    aligned, _, _ = align(bank, codes, bank, codes)
    assert np.isfinite(aligned).all()


def test_vectors_of_one_dimension_have_no_prior_but_their_own() -> None:
    bank, codes = draw(dims=1)
    aligned, _, _ = align(bank, codes, bank, codes)
    means = [aligned[codes == site].mean() for site in range(3)]
    assert np.ptp(means) < 1e-3


@pytest.mark.parametrize("codes", [[0, 0, 0, 0], [0, 0, 0, 1], [-1, -1, -1, -1]])
def test_one_value_is_nothing_to_align(codes: list[int]) -> None:
    with pytest.raises(UserError) as caught:
        fit_alignment(np.ones((4, 2)), np.array(codes))
    number = int(codes[0] == 0)
    assert str(caught.value) == (
        f"align: the reference patients have {number} value{'s' * (number != 1)} of that column with two or more "
        "patches, and two are needed. Leave `align` out."
    )
