"""The colour floor: the numbers of the pixels, standardised without labels; its name is never mistaken."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hidisc.artefacts.artefact import read_settings
from hidisc.embeddings.embeddings import Embeddings
from hidisc.embeddings.model import choose_rows, open_model
from hidisc.ground.errors import UserError
from hidisc.models.card import NOTHING
from hidisc.patches.store import PatchStore, as_input
from hidisc.settings.embed import EmbedConfig, ForeignConfig
from hidisc.verbs.embed import embed
from tests.embeddings.test_model import store_like


def embed_colour(store: Path, out: Path, **settings: object) -> Embeddings:
    made = embed(store, "colour", out, EmbedConfig.model_validate(settings), device="cpu", shown=False)
    assert made is not None
    return made


def expected(store: PatchStore, rows: np.ndarray) -> np.ndarray:
    """Mean and deviation of every channel of each patch, one by one, then z-scores of the columns."""
    colours = []
    for row in rows:
        pixels = as_input(store.read(int(row)), store.info.input).astype(np.float64)
        channels = [pixels[:, :, channel].ravel() for channel in range(pixels.shape[2])]
        colours.append([*(np.mean(values) for values in channels), *(np.std(values) for values in channels)])
    table = np.array(colours)
    return (table - table.mean(axis=0)) / table.std(axis=0)


def test_it_gives_the_standardised_mean_and_deviation_of_every_channel(store: Path, tmp_path: Path) -> None:
    made = embed_colour(store, tmp_path / "out")
    opened = PatchStore.load(store)
    assert made.vectors.shape == (len(opened), 6)
    assert np.allclose(made.vectors, expected(opened, np.arange(len(opened))), atol=1e-3)
    card = made.info.model
    assert (card.name, card.kind, card.source, card.history) == ("colour", "colour", "colour", NOTHING)
    assert (card.seed, card.objective, card.backbone, card.size_px) == (None, None, None, opened.info.size_px)


def test_only_the_chosen_patches_set_the_scale(store: Path, tmp_path: Path) -> None:
    settings = {"splits": ["train"], "per_slide": 3, "seed": 5}
    made, opened = embed_colour(store, tmp_path / "out", **settings), PatchStore.load(store)
    rows = choose_rows(opened, EmbedConfig.model_validate(settings))
    assert len(rows) < len(opened)
    assert np.allclose(made.vectors, expected(opened, rows), atol=1e-3)
    whole = open_model("colour", opened, EmbedConfig())
    assert whole.checksum != made.info.model.checksum, "two scales are two encoders, which `evaluate --bank` refuses"


def test_grey_patches_give_two_numbers_and_srh_six(store: Path) -> None:
    config = EmbedConfig(per_slide=1)
    grey = store_like(store, channels=1)
    grey.read = lambda index, out=None: np.full((32, 32, 1), index, np.uint8)  # type: ignore[method-assign]
    assert open_model("colour", grey, config).dim == 2
    srh = store_like(store, channels=2, input="srh", dtype="uint16")
    srh.read = lambda index, out=None: np.full((32, 32, 2), 9 * index, np.uint16)  # type: ignore[method-assign]
    assert open_model("colour", srh, config).dim == 6


def test_patches_of_one_colour_give_zeros_not_infinities(store: Path) -> None:
    blank = store_like(store)
    blank.read = lambda index, out=None: np.full((32, 32, 3), 200, np.uint8)  # type: ignore[method-assign]
    net = open_model("colour", blank, EmbedConfig()).net
    assert net(torch.full((2, 3, 32, 32), 200 / 255)).abs().max() < 1e-5


def test_settings_of_other_encoders_are_refused(store: Path) -> None:
    config = EmbedConfig(model=ForeignConfig(size_px=64))
    with pytest.raises(UserError, match=r"model\.size_px is set, and colour brings its own"):
        open_model("colour", PatchStore.load(store), config)


def test_a_folder_of_its_name_is_never_taken_for_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "colour").mkdir()
    with pytest.raises(UserError, match=r"colour is the name of the colour floor and of something that is here"):
        open_model("colour", PatchStore.load(store), EmbedConfig())
    with pytest.raises(UserError, match=r"holds no encoder"):
        open_model("./colour", PatchStore.load(store), EmbedConfig())


def test_embeddings_may_have_its_name(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = embed_colour(store, Path("colour"))
    assert made.info.model.source == "colour"
    assert read_settings(Path("colour")) is not None
    assert embed_colour(store, Path("colour")).artefact.checksum == made.artefact.checksum, "the same command again"
