"""The tiny store of the tests of training, and one thread."""

from tests.training.conftest import _one_thread, store  # noqa: F401
