"""hidisc: self-supervised learning on the patient > slide > patch hierarchy of biomedical microscopy.

The map, in the order data flows; every stage reads one artefact from disk and writes the next:

    slides/     slide file -> patch boxes, normalised pixels     cohort reader resample grid tissue stain synthetic
    patches/    boxes, patch files -> PatchStore                 cut pack shard table store commit splits
    sampling/   PatchStore -> batches of views                   hierarchy sampler batches views
    models/     image -> embedding                               backbone encoder export
    objectives/ embedding -> loss, one a file                    hidisc simclr simsiam byol vicreg supcon supervised
    training/   batches -> Run                                   fit checkpoint run
    reporting/  pictures to look at                              prepared views
    verbs/      one file a verb, read top to bottom              prepare imports train views export demo doctor

`config` has every setting, `runs` the life of an output folder, `cli` the command line. The names below are the
public Python API; they load when first used, so that `import hidisc` has no cost and no effect.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hidisc.errors import UserError
    from hidisc.models.encoder import Encoder
    from hidisc.objectives.hidisc import hidisc_loss
    from hidisc.patches.folders import find_folder, find_table
    from hidisc.patches.opensrh import find_opensrh
    from hidisc.patches.splits import split_patients
    from hidisc.patches.store import PatchStore
    from hidisc.patches.table import PatchTable
    from hidisc.sampling.hierarchy import Hierarchy
    from hidisc.sampling.views import make_views
    from hidisc.settings.preparing import ImportConfig, PrepareConfig
    from hidisc.settings.training import TrainConfig
    from hidisc.slides.cohort import Cohort
    from hidisc.slides.reader import open_slide
    from hidisc.slides.synthetic import draw_cohort
    from hidisc.training.run import Run
    from hidisc.verbs.export import export
    from hidisc.verbs.imports import import_patches
    from hidisc.verbs.prepare import prepare
    from hidisc.verbs.train import train

_HOME = {
    "Cohort": "slides.cohort",
    "Encoder": "models.encoder",
    "Hierarchy": "sampling.hierarchy",
    "ImportConfig": "settings.preparing",
    "PatchStore": "patches.store",
    "PatchTable": "patches.table",
    "PrepareConfig": "settings.preparing",
    "Run": "training.run",
    "TrainConfig": "settings.training",
    "UserError": "errors",
    "draw_cohort": "slides.synthetic",
    "export": "verbs.export",
    "find_folder": "patches.folders",
    "find_opensrh": "patches.opensrh",
    "find_table": "patches.folders",
    "hidisc_loss": "objectives.hidisc",
    "import_patches": "verbs.imports",
    "make_views": "sampling.views",
    "open_slide": "slides.reader",
    "prepare": "verbs.prepare",
    "split_patients": "patches.splits",
    "train": "verbs.train",
}

__all__ = [
    "Cohort",
    "Encoder",
    "Hierarchy",
    "ImportConfig",
    "PatchStore",
    "PatchTable",
    "PrepareConfig",
    "Run",
    "TrainConfig",
    "UserError",
    "draw_cohort",
    "export",
    "find_folder",
    "find_opensrh",
    "find_table",
    "hidisc_loss",
    "import_patches",
    "make_views",
    "open_slide",
    "prepare",
    "split_patients",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hidisc' has no attribute {name!r}")
    return getattr(import_module(f"hidisc.{_HOME[name]}"), name)
