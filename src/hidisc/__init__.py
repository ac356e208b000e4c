"""hidisc: self-supervised learning on the patient > slide > patch hierarchy of biomedical microscopy.

The map, in the order data flows; every stage reads one artefact from disk and writes the next:

    slides/     slide file -> patch boxes, normalised pixels     cohort reader resample grid tissue stain synthetic
    patches/    boxes, patch files -> PatchStore                 cut pack shard table store commit splits
    sampling/   PatchStore -> batches of views                   hierarchy sampler batches views
    models/     image -> embedding                               backbone encoder history foreign export
    objectives/ embedding -> loss, one a file                    hidisc simclr simsiam byol vicreg supcon supervised
    training/   batches -> Run                                   fit checkpoint run
    embeddings/ PatchStore + any encoder -> Embeddings           model choose extract blocks bags
    evaluation/ Embeddings -> Scores                             task knn linear mil pooling metrics bootstrap leakage
    reporting/  pages and pictures to look at                    page tables figures tsne heatmap prepared views
    benchmark/  suites of trainings -> the paper's tables        cells claims published results tables
    verbs/      one file a verb, read top to bottom              prepare train embed evaluate report benchmark ...

`settings/` has every setting, `config` how they are read, `seeds` the streams of random numbers, `artefacts/` the life
of an output folder, `stop` what Ctrl-C does, `steps` the moments at which tests stop a command, `cli` the command line.
The names below are the public Python API; they load when first used, so that `import hidisc` has no cost and no effect.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hidisc.embeddings.embeddings import Embeddings
    from hidisc.evaluation.compare import compare
    from hidisc.evaluation.neighbours import find_neighbours
    from hidisc.evaluation.predictions import Predictions
    from hidisc.evaluation.scores import Scores
    from hidisc.ground.errors import UserError
    from hidisc.models.encoder import Encoder
    from hidisc.objectives.hidisc import hidisc_loss
    from hidisc.patches.folders import find_folder, find_table
    from hidisc.patches.opensrh import find_opensrh
    from hidisc.patches.splits import split_patients
    from hidisc.patches.store import PatchStore
    from hidisc.patches.table import PatchTable
    from hidisc.sampling.hierarchy import Hierarchy
    from hidisc.sampling.views import make_views
    from hidisc.settings.benchmark import SuiteConfig
    from hidisc.settings.embed import EmbedConfig
    from hidisc.settings.evaluate import EvaluateConfig
    from hidisc.settings.imports import ImportConfig
    from hidisc.settings.load import load_config
    from hidisc.settings.prepare import PrepareConfig
    from hidisc.settings.report import ReportConfig
    from hidisc.settings.train import TrainConfig
    from hidisc.slides.cohort import Cohort
    from hidisc.slides.reader import open_slide
    from hidisc.slides.synthetic import draw_cohort
    from hidisc.training.run import Run
    from hidisc.verbs.benchmark import benchmark
    from hidisc.verbs.embed import embed
    from hidisc.verbs.evaluate import evaluate
    from hidisc.verbs.export import export, export_bags
    from hidisc.verbs.heatmap import heatmap
    from hidisc.verbs.imports import import_patches
    from hidisc.verbs.prepare import prepare
    from hidisc.verbs.report import report
    from hidisc.verbs.train import train

_HOME = {
    "Cohort": "slides.cohort",
    "EmbedConfig": "settings.embed",
    "Embeddings": "embeddings.embeddings",
    "Encoder": "models.encoder",
    "EvaluateConfig": "settings.evaluate",
    "Hierarchy": "sampling.hierarchy",
    "ImportConfig": "settings.imports",
    "PatchStore": "patches.store",
    "PatchTable": "patches.table",
    "Predictions": "evaluation.predictions",
    "PrepareConfig": "settings.prepare",
    "ReportConfig": "settings.report",
    "Run": "training.run",
    "Scores": "evaluation.scores",
    "SuiteConfig": "settings.benchmark",
    "TrainConfig": "settings.train",
    "UserError": "ground.errors",
    "benchmark": "verbs.benchmark",
    "compare": "evaluation.compare",
    "draw_cohort": "slides.synthetic",
    "embed": "verbs.embed",
    "evaluate": "verbs.evaluate",
    "export": "verbs.export",
    "export_bags": "verbs.export",
    "find_folder": "patches.folders",
    "find_neighbours": "evaluation.neighbours",
    "find_opensrh": "patches.opensrh",
    "find_table": "patches.folders",
    "heatmap": "verbs.heatmap",
    "hidisc_loss": "objectives.hidisc",
    "import_patches": "verbs.imports",
    "load_config": "settings.load",
    "make_views": "sampling.views",
    "open_slide": "slides.reader",
    "prepare": "verbs.prepare",
    "report": "verbs.report",
    "split_patients": "patches.splits",
    "train": "verbs.train",
}

__all__ = [
    "Cohort",
    "EmbedConfig",
    "Embeddings",
    "Encoder",
    "EvaluateConfig",
    "Hierarchy",
    "ImportConfig",
    "PatchStore",
    "PatchTable",
    "Predictions",
    "PrepareConfig",
    "ReportConfig",
    "Run",
    "Scores",
    "SuiteConfig",
    "TrainConfig",
    "UserError",
    "benchmark",
    "compare",
    "draw_cohort",
    "embed",
    "evaluate",
    "export",
    "export_bags",
    "find_folder",
    "find_neighbours",
    "find_opensrh",
    "find_table",
    "heatmap",
    "hidisc_loss",
    "import_patches",
    "load_config",
    "make_views",
    "open_slide",
    "prepare",
    "report",
    "split_patients",
    "train",
]


class _Api(ModuleType):
    """This package: importing the folder `benchmark` would otherwise put it in the place of the verb of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Api


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hidisc' has no attribute {name!r}")
    return getattr(import_module(f"hidisc.{_HOME[name]}"), name)
