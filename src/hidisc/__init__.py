"""Self-supervised learning on the patient > slide > patch hierarchy of biomedical microscopy.

The names below are the public Python API. They load when first used, so that `import hidisc` has no cost and no effect.
A function that is a command (`prepare` is `hidisc prepare`) reads one artefact from disk and writes the next.

Commands:

- `draft_cohort`: draft the table of a cohort from a folder of slides.
- `prepare`: cut the slides of a cohort into patches and write a `PatchStore`.
- `import_patches`: pack patches that exist as files into a `PatchStore`.
- `import_volumes`: make a store from the slices of NIfTI or DICOM volumes.
- `train`: train an encoder on the patches of a store and write a `Run`.
- `embed`: compute the vectors of a store's patches with any encoder and write `Embeddings`.
- `evaluate`: measure on held-out patients what embeddings tell of the labels and write `Scores`.
- `audit`: measure what encoders owe to site, scanner, batch, date and colour and write an `Audit`.
- `report`: write one HTML page on evaluations, with every figure and table beside it.
- `explore`: show a store, its embeddings and scores in a browser, and take labels there.
- `heatmap`: draw the scores of a slide's patches over its thumbnail.
- `export`: write the encoder of a run for timm, ONNX, TorchScript or torch.export, with a model card.
- `export_wsinfer`: write the encoder of a run and a linear probe as a classifier for WSInfer and QuPath.
- `export_bags`: write embeddings as files per slide, for CLAM, TRIDENT and STAMP.
- `export_geojson`: write embeddings or scores as boxes on slides, for QuPath.
- `export_anndata`: write embeddings as AnnData, for scanpy.
- `benchmark`: train and evaluate every row of a suite and write one page.

Artefacts and tables, opened with `load(path)`:

- `Cohort`: the slides of a study, read from a CSV file and checked.
- `PatchStore`: the patches of a cohort, read in any order.
- `PatchTable`: one row per patch: patient, slide, label, split, position.
- `Run`: a finished training: its encoder, settings and metrics.
- `Encoder`: a backbone with its projection, as a PyTorch module.
- `Embeddings`: one vector per patch beside the table of patches.
- `Scores`: a finished evaluation: its probes, metrics and warnings.
- `Audit`: a finished audit: what every nuisance column does to every encoder.
- `Predictions`: truth and scores of the patches, slides or patients of one evaluation.

Settings, one class per command:

- `load_config`: read settings from defaults, recipes and changes such as `optim.steps=100`.
- `PrepareConfig`: settings of `prepare`.
- `ImportConfig`: settings of `import_patches`.
- `VolumesConfig`: settings of `import_volumes`.
- `TrainConfig`: settings of `train`.
- `EmbedConfig`: settings of `embed`.
- `EvaluateConfig`: settings of `evaluate`.
- `AuditConfig`: settings of `audit`.
- `ReportConfig`: settings of `report`.
- `SuiteConfig`: settings of `benchmark`.

Parts, for programs of your own:

- `open_slide`: open a slide file of any supported format.
- `draw_cohort`: draw a small cohort of slides, to try things on.
- `find_folder`: find patches stored as `patient/slide/patch.png`, for `import_patches`.
- `find_table`: find patches listed in a CSV file, for `import_patches`.
- `find_nifti`: find volumes stored as `patient/scan.nii.gz`, for `import_volumes`.
- `find_dicom`: find the series of a folder of DICOM files, for `import_volumes`.
- `find_opensrh`: find the patches of the OpenSRH data set, for `import_patches`.
- `split_patients`: divide patients into splits, stratified by label.
- `Hierarchy`: the levels from patient to patch, and who belongs to whom.
- `make_views`: make random augmented views of patches.
- `hidisc_loss`: the loss of hierarchical discrimination, equations 1 to 4 of the paper.
- `find_neighbours`: exact nearest neighbours of vectors, in bounded memory.
- `compare`: how much better one model is than another, with an interval over patients.
- `UserError`: the error that says what is wrong with an input and how to fix it.

The map of the package, in the order data flows:

    ground/     what every stage stands on                       errors files checksums seeds tasks text
    settings/   every setting, its default and its meaning       config load prepare train evaluate report recipes
    artefacts/  the life of every output folder                  artefact lock
    slides/     slide file -> patch boxes, normalised pixels     cohort reader resample grid tissue stain synthetic
    patches/    boxes, patch files -> PatchStore                 cut pack shard table store commit splits
    sampling/   PatchStore -> batches of views                   hierarchy sampler batches views
    models/     image -> embedding                               backbone encoder history foreign export
    objectives/ embedding -> loss, one per file                  hidisc simclr simsiam byol vicreg supcon supervised
    training/   batches -> Run                                   fit checkpoint run
    embeddings/ PatchStore + any encoder -> Embeddings           model choose extract blocks bags
    evaluation/ Embeddings -> Scores                             task knn linear mil pooling metrics bootstrap leakage
    reporting/  pages and pictures to look at                    compose tables figures tsne heatmap prepared views
    benchmark/  suites of trainings -> the paper's tables        cells claims published results tables
    explore/    a cohort in a browser                            server answers session slide projection similar labels
    verbs/      one file per command, read top to bottom         prepare train embed evaluate report benchmark
    cli.py      the command line
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; `X as X` says that the name is meant for others
    from hidisc.embeddings.embeddings import Embeddings as Embeddings
    from hidisc.evaluation.audit import Audit as Audit
    from hidisc.evaluation.compare import compare as compare
    from hidisc.evaluation.neighbours import find_neighbours as find_neighbours
    from hidisc.evaluation.predictions import Predictions as Predictions
    from hidisc.evaluation.scores import Scores as Scores
    from hidisc.ground.errors import UserError as UserError
    from hidisc.models.encoder import Encoder as Encoder
    from hidisc.objectives.hidisc import hidisc_loss as hidisc_loss
    from hidisc.patches.dicom import find_dicom as find_dicom
    from hidisc.patches.folders import find_folder as find_folder
    from hidisc.patches.folders import find_table as find_table
    from hidisc.patches.nifti import find_nifti as find_nifti
    from hidisc.patches.opensrh import find_opensrh as find_opensrh
    from hidisc.patches.splits import split_patients as split_patients
    from hidisc.patches.store import PatchStore as PatchStore
    from hidisc.patches.table import PatchTable as PatchTable
    from hidisc.sampling.hierarchy import Hierarchy as Hierarchy
    from hidisc.sampling.views import make_views as make_views
    from hidisc.settings.audit import AuditConfig as AuditConfig
    from hidisc.settings.benchmark import SuiteConfig as SuiteConfig
    from hidisc.settings.embed import EmbedConfig as EmbedConfig
    from hidisc.settings.evaluate import EvaluateConfig as EvaluateConfig
    from hidisc.settings.imports import ImportConfig as ImportConfig
    from hidisc.settings.imports import VolumesConfig as VolumesConfig
    from hidisc.settings.load import load_config as load_config
    from hidisc.settings.prepare import PrepareConfig as PrepareConfig
    from hidisc.settings.report import ReportConfig as ReportConfig
    from hidisc.settings.train import TrainConfig as TrainConfig
    from hidisc.slides.cohort import Cohort as Cohort
    from hidisc.slides.reader import open_slide as open_slide
    from hidisc.slides.synthetic import draw_cohort as draw_cohort
    from hidisc.training.run import Run as Run
    from hidisc.verbs.anndata import export_anndata as export_anndata
    from hidisc.verbs.audit import audit as audit
    from hidisc.verbs.bags import export_bags as export_bags
    from hidisc.verbs.benchmark import benchmark as benchmark
    from hidisc.verbs.cohort import draft_cohort as draft_cohort
    from hidisc.verbs.embed import embed as embed
    from hidisc.verbs.evaluate import evaluate as evaluate
    from hidisc.verbs.explore import explore as explore
    from hidisc.verbs.export import export as export
    from hidisc.verbs.geojson import export_geojson as export_geojson
    from hidisc.verbs.heatmap import heatmap as heatmap
    from hidisc.verbs.imports import import_patches as import_patches
    from hidisc.verbs.imports import import_volumes as import_volumes
    from hidisc.verbs.prepare import prepare as prepare
    from hidisc.verbs.report import report as report
    from hidisc.verbs.train import train as train
    from hidisc.verbs.wsinfer import export_wsinfer as export_wsinfer

_HOME = {
    "Audit": "evaluation.audit",
    "AuditConfig": "settings.audit",
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
    "VolumesConfig": "settings.imports",
    "audit": "verbs.audit",
    "benchmark": "verbs.benchmark",
    "compare": "evaluation.compare",
    "draft_cohort": "verbs.cohort",
    "draw_cohort": "slides.synthetic",
    "embed": "verbs.embed",
    "evaluate": "verbs.evaluate",
    "explore": "verbs.explore",
    "export": "verbs.export",
    "export_anndata": "verbs.anndata",
    "export_bags": "verbs.bags",
    "export_geojson": "verbs.geojson",
    "export_wsinfer": "verbs.wsinfer",
    "find_dicom": "patches.dicom",
    "find_folder": "patches.folders",
    "find_neighbours": "evaluation.neighbours",
    "find_nifti": "patches.nifti",
    "find_opensrh": "patches.opensrh",
    "find_table": "patches.folders",
    "heatmap": "verbs.heatmap",
    "hidisc_loss": "objectives.hidisc",
    "import_patches": "verbs.imports",
    "import_volumes": "verbs.imports",
    "load_config": "settings.load",
    "make_views": "sampling.views",
    "open_slide": "slides.reader",
    "prepare": "verbs.prepare",
    "report": "verbs.report",
    "split_patients": "patches.splits",
    "train": "verbs.train",
}
"""The module of each public name."""

__all__ = sorted(_HOME)


class _Api(ModuleType):
    """This package, in which importing the folder `benchmark` does not replace the command of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Api


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # type checkers know the names above, and would take any other name as well

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'hidisc' has no attribute {name!r}")
        return getattr(import_module(f"hidisc.{_HOME[name]}"), name)
