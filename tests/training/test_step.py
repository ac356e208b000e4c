"""The views of a run's batches are those of `make_views`, whatever memory they are in."""

from pathlib import Path

import pytest
import torch

from hidisc.sampling.batches import as_tensor, to_input
from hidisc.sampling.views import make_views
from hidisc.settings.config import load_config
from hidisc.settings.train import TrainConfig
from hidisc.training.step import ViewMaker
from tests.patches.pictures import make_store, pictures_of


@pytest.mark.parametrize("channels_last", [True, False])
def test_views_in_used_memory_are_those_in_new_memory(tmp_path: Path, channels_last: bool) -> None:
    store = make_store(tmp_path, pictures_of("P1/1", "P2/1"))
    config = load_config(TrainConfig, None, [f"compute.channels_last={channels_last}", "views.probability=0.8"])
    make = ViewMaker(config, store)
    for rows in (range(3), range(3, 6), range(2)):  # the last batch is smaller, and gets other memory
        pixels = as_tensor(store.read_many(rows))
        (made,) = make(pixels, torch.Generator().manual_seed(rows.start))
        expected = make_views(
            to_input(pixels, "unit"), 2, config.views, torch.Generator().manual_seed(rows.start), colour=True
        )
        assert torch.equal(made, expected)
        assert made.flatten(0, 1).is_contiguous(memory_format=torch.channels_last) == channels_last
