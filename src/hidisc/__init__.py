"""hidisc: self-supervised learning on the patient > slide > patch hierarchy of biomedical microscopy.

The map, in the order data flows; every stage reads one artefact from disk and writes the next:

    slides/     slide file -> patch boxes, normalised pixels     cohort reader resample grid tissue stain synthetic
    patches/    boxes, patch files -> PatchStore                 cut pack shard table store commit splits
    reporting/  PatchStore -> pictures to look at                prepared
    verbs/      one file a verb, read top to bottom              prepare imports demo doctor

`config` has every setting, `runs` the life of an output folder, `cli` the command line. The names below are the
public Python API; they load when first used, so that `import hidisc` has no cost and no effect.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hidisc.config import ImportConfig, PrepareConfig
    from hidisc.errors import UserError
    from hidisc.patches.folders import find_folder, find_table
    from hidisc.patches.opensrh import find_opensrh
    from hidisc.patches.splits import split_patients
    from hidisc.patches.store import PatchStore
    from hidisc.patches.table import PatchTable
    from hidisc.slides.cohort import Cohort
    from hidisc.slides.reader import open_slide
    from hidisc.slides.synthetic import draw_cohort
    from hidisc.verbs.imports import import_patches
    from hidisc.verbs.prepare import prepare

_HOME = {
    "Cohort": "slides.cohort",
    "ImportConfig": "config",
    "PatchStore": "patches.store",
    "PatchTable": "patches.table",
    "PrepareConfig": "config",
    "UserError": "errors",
    "draw_cohort": "slides.synthetic",
    "find_folder": "patches.folders",
    "find_opensrh": "patches.opensrh",
    "find_table": "patches.folders",
    "import_patches": "verbs.imports",
    "open_slide": "slides.reader",
    "prepare": "verbs.prepare",
    "split_patients": "patches.splits",
}

__all__ = [
    "Cohort",
    "ImportConfig",
    "PatchStore",
    "PatchTable",
    "PrepareConfig",
    "UserError",
    "draw_cohort",
    "find_folder",
    "find_opensrh",
    "find_table",
    "import_patches",
    "open_slide",
    "prepare",
    "split_patients",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hidisc' has no attribute {name!r}")
    return getattr(import_module(f"hidisc.{_HOME[name]}"), name)
