"""`hidisc views`: patches beside the random views that training makes of them."""

from pathlib import Path

import numpy as np
import torch

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath
from hidisc.ground.seeds import Purpose, make_seed
from hidisc.patches.store import PatchStore, as_input
from hidisc.reporting.prepared import draw_views
from hidisc.sampling.cohort_stain import StainTable, measure_stains
from hidisc.sampling.hierarchy import Hierarchy
from hidisc.sampling.sampler import Sampler
from hidisc.sampling.views import list_kinds, make_views
from hidisc.settings.train import BatchConfig, ViewsConfig


def show_views(
    store_path: AnyPath, out: AnyPath, config: ViewsConfig, *, patches: int = 4, views: int = 8, seed: int = 0
) -> Path:
    """Draw `patches` of different patients into a PNG file, whose path is returned.

    Each is drawn with `views` random views, and with its local ones if the config has some.
    """
    out = Path(out)
    if out.suffix.lower() != ".png":
        raise UserError(f"--out {out} is not a .png file. Give a name that ends in .png.")
    store = PatchStore.load(store_path)
    tree = Hierarchy().grow(store.table, np.ones(len(store), bool))
    rows = Sampler(tree, BatchConfig(images=patches, draw={}, views=1), seed).draw(0).ancestry[:, -1]
    x = torch.from_numpy(as_input(store.read_many(rows), store.info.input)).permute(0, 3, 1, 2)
    generator = torch.Generator().manual_seed(make_seed(seed, Purpose.SHOWN_VIEWS))
    stains = None
    if "cohort_stain" in config.ops:
        measured = measure_stains(store, tree.leaves, seed)
        stains = StainTable(store, measured).look_up(torch.from_numpy(rows))
    made = [
        make_views(x, number, config, generator, colour=store.is_colour, stains=stains, part=part)
        for number, part in list_kinds(config, views)
    ]
    draw_views(x, *made, out=out)
    return out
