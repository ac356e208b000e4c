"""What to name next: the patches between the names that were given."""

import numpy as np
import pytest

from hidisc.explorer.labels import find_uncertain
from hidisc.ground.errors import UserError


def test_the_patches_between_two_names_are_offered() -> None:
    rng = np.random.default_rng(0)
    along = rng.uniform(-1, 1, 600)
    vectors = np.stack([along, *(0.05 * rng.normal(size=(3, 600)))], axis=1).astype(np.float32)
    labels = np.full(600, None, object)
    labels[along < -0.5], labels[along > 0.5] = "low", "high"
    found, remark = find_uncertain(vectors, labels, np.arange(600) % 10)
    assert len(found) == 24
    assert (labels[found] == None).all()  # noqa: E711 - elementwise
    known = int((np.abs(along) > 0.5).sum())
    assert (
        remark == f"Linear probe on {known} patches of 10 patients; least sure of {600 - known} patches without a name."
    )
    middle = np.median(along[found])
    assert abs(middle) < 0.1
    assert np.abs(along[found] - middle).max() < 0.15
    again, _ = find_uncertain(vectors, labels, np.arange(600) % 10)
    assert (found == again).all()


def test_a_probe_needs_two_names_and_something_to_name() -> None:
    vectors, patients = np.eye(4, dtype=np.float32), np.arange(4)
    with pytest.raises(UserError, match="two names at least"):
        find_uncertain(vectors, np.array(["a", None, "a", None], object), patients)
    with pytest.raises(UserError, match="every patch has a name already"):
        find_uncertain(vectors, np.array(["a", "b", "a", "b"], object), patients)
