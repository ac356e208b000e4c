"""The commands from slides to a report: the help and the arguments of each, the verb it calls, the result to print.

Verbs are imported when called, so that `hidisc --help` answers at once: those of the public Python API through
`hidisc`, which loads what is used.
"""

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import hidisc
from hidisc.cli.options import (
    ChangeOptions,
    Device,
    DeviceOptions,
    FoldsOption,
    Out,
    Said,
    SchedulerOption,
    SetOption,
    SettingsOptions,
    Source,
    TrainOptions,
    WorkerOptions,
    build_config,
    existing,
    existing_option,
    option,
    refuse_missing,
    say,
    verb,
)
from hidisc.ground.errors import UserError, no_such_path
from hidisc.ground.progress import Result

_PATIENTS = "CSV or .xlsx, a row per patient: patient, and label, site, split or columns of your own."


@verb("cohort", "slides --pattern {patient}_{slide} --out cohort.csv")
def _cohort(
    folder: Annotated[Path, existing("A folder of slides, with folders in it or without.")],
    out: Annotated[Path, option("CSV to write; an existing one is not overwritten.")],
    pattern: Annotated[
        str | None, option("How names are built: '{patient}_{slide}', or '{patient}/{slide}' for folders.")
    ] = None,
) -> Result:
    """Draft the table of a cohort from a folder of slides: patients, scales, and what is doubtful."""
    return hidisc.draft_cohort(folder, out, pattern, say=say).result(out)


@verb("prepare", "cohort.csv --set grid.size_px=96 --out store", "prepare")
def _prepare(
    cohort: Annotated[Path, existing("cohort.csv or .xlsx: patient, slide, path (and label, mpp, site, split).")],
    out: Out,
    settings: SettingsOptions,
    workers: WorkerOptions,
    assume_mpp: Annotated[float | None, option("Micrometres per pixel where neither file nor cohort says.")] = None,
    annotations: Annotated[
        Path | None, existing_option("GeoJSON of QuPath: a folder of SLIDE.geojson, or a file.")
    ] = None,
    patients: Annotated[Path | None, existing_option(_PATIENTS)] = None,
    refilter: Annotated[
        bool, option("Apply a changed filter to a finished store; reads only what it lacks.", "--refilter")
    ] = False,
) -> Result:
    """Cut slides into a patch store: tissue, blanks, stain, splits."""
    flags = {"annotations.path": None if annotations is None else json.dumps(str(annotations))}
    config = settings.load(hidisc.PrepareConfig, assume_mpp=assume_mpp, **flags)
    return hidisc.prepare(
        cohort, out, config, patients_csv=patients, refilter=refilter, say=say, **asdict(workers)
    ).result()


SourceKind = StrEnum("SourceKind", "OPENSRH FOLDER TABLE NIFTI DICOM FEATURES")
"""Where patches that exist as files, volumes, or features of patches come from."""


@verb("import", "folder patches --set resize_px=96 --out store", "import")
def _import(
    kind: Annotated[
        SourceKind,
        typer.Argument(
            help="opensrh (meta/*.json), folder (patient/slide/patch.png), table (CSV); nifti (patient/scan.nii.gz) "
            "or dicom (any folders), whose volumes are cut into slices; features (TRIDENT, CLAM, STAMP, AnnData)."
        ),
    ],
    source: Annotated[Path, existing("The folder, or the CSV of patches or NIfTI volumes, or the file of features.")],
    out: Out,
    settings: SettingsOptions,
    workers: WorkerOptions,
    patients: Annotated[Path | None, existing_option(_PATIENTS)] = None,
    pseudonyms: Annotated[
        Path | None, option("With nifti and dicom: hash patients' ids by the secret in this file, made if missing.")
    ] = None,
    table: Annotated[Path | None, existing_option("With features, a CSV: slide, patient, label, site, split.")] = None,
    name: Annotated[str | None, option("With features, what tables call the encoder.")] = None,
) -> Result:
    """Make a patch store from patches or volumes that exist as files; or embeddings from features of other tools."""
    if kind is SourceKind.FEATURES:
        if patients is not None or pseudonyms is not None:
            raise UserError("`import features` knows patients by --table. Leave --patients and --pseudonyms out.")
        return hidisc.import_features(
            source, table, out, settings.load(hidisc.FeaturesConfig), name=name, say=say
        ).result()
    if table is not None or name is not None:
        raise UserError(f"--table and --name go with `import features`. Leave them out of `import {kind}`.")
    if kind in (SourceKind.NIFTI, SourceKind.DICOM):
        find = hidisc.find_nifti if kind is SourceKind.NIFTI else hidisc.find_dicom
        volumes = settings.load(hidisc.VolumesConfig)
        scans = find(source, volumes, patients, pseudonyms)
        return hidisc.import_volumes(scans, out, volumes, say=say, **asdict(workers)).result()
    if pseudonyms is not None:
        raise UserError(f"--pseudonyms goes with `import nifti` and `dicom`; rename the patients of `import {kind}`.")
    config = settings.load(hidisc.ImportConfig)
    if kind is SourceKind.OPENSRH:
        slides = hidisc.find_opensrh(source, patients)
    elif kind is SourceKind.FOLDER:
        slides = hidisc.find_folder(source, patients)
    else:
        slides = hidisc.find_table(source, config.label_level, patients)
    return hidisc.import_patches(slides, out, config, say=say, **asdict(workers)).result()


@verb("train", "store --recipe hidisc-patient+laptop --set optim.steps=2000 --out run", "train")
def _train(store: Source, out: Out, settings: TrainOptions, devices: DeviceOptions) -> Result | None:
    """Learn an encoder from a patch store, or a map of vectors from embeddings, without labels."""
    run = hidisc.train(store, out, settings.load(hidisc.TrainConfig), say=say, **asdict(devices))
    return run.result() if run else None


@verb("embed", "store run --set batch=64 --out embeddings", "embed")
def _embed(
    store: Source,
    model: Annotated[
        str,
        typer.Argument(help="A run of `hidisc train`, timm:NAME, colour, or a TorchScript or ONNX file of anyone's."),
    ],
    out: Out,
    settings: SettingsOptions,
    devices: DeviceOptions,
    per_slide: Annotated[int | None, option("Draw this many patches per slide.")] = None,
    name: Annotated[str | None, option("What tables call the encoder.")] = None,
) -> Result | None:
    """Turn every patch into a vector, by an encoder of yours or of others."""
    if ":" not in model and model != "colour" and not Path(model).exists():
        raise no_such_path(
            Path(model), "Give a run, an exported encoder, `timm:NAME`, `colour`, or a TorchScript or ONNX file."
        )
    config = settings.load(hidisc.EmbedConfig, per_slide=per_slide)
    embeddings = hidisc.embed(store, model, out, config, name=name, say=say, **asdict(devices))
    return embeddings.result() if embeddings else None


@verb("evaluate", "embeddings --set knn.k=50 --out scores", "evaluate")
def _evaluate(
    embeddings: Annotated[Path, existing("Embeddings, made by `hidisc embed`.")],
    out: Out,
    settings: SettingsOptions,
    bank: Annotated[
        Path | None, existing_option("Embeddings of another store whose labels are known, by the same encoder.")
    ] = None,
    allow_leakage: Annotated[
        bool, option("Evaluate in spite of overlap; every table and page says so.", "--allow-leakage")
    ] = False,
    allow_circular: Annotated[
        bool, option("Evaluate by names given on the encoder's own map; every page says so.", "--allow-circular")
    ] = False,
    folds: FoldsOption = None,
    device: Device = "auto",
) -> Result:
    """Evaluate an encoder on held-out patients: nearest neighbours, a linear probe, attention; with intervals."""
    allowed = {"leakage.allow": allow_leakage or None, "leakage.allow_circular": allow_circular or None}
    config = settings.load(hidisc.EvaluateConfig, **allowed, **{"folds.number": folds})
    return hidisc.evaluate(embeddings, out, config, bank=bank, device=device, progress=Said()).result()


@verb("predict", "embeddings --by scores --out predicted.csv")
def _predict(
    embeddings: Annotated[Path, existing("Embeddings of patients without a label, by the encoder of the scores.")],
    by: Annotated[Path, existing_option("Scores, made by `hidisc evaluate`: their reference patients decide.")],
    out: Annotated[Path, option("CSV to write, and a .json beside it; existing ones are not overwritten.")],
    device: Device = "auto",
) -> Result:
    """Predict the label of patients who have none, from the reference patients of an evaluation."""
    return hidisc.predict_unlabelled(embeddings, by, out, device=device, progress=Said()).result()


@verb("audit", "embeddings other-embeddings --set k=10 --out audit", "audit")
def _audit(
    embeddings: Annotated[list[Path], existing("Embeddings of one encoder or several, side by side.")],
    out: Out,
    settings: ChangeOptions,
    device: Device = "auto",
) -> Result:
    """Find what an encoder owes to site, scanner, batch, date and colour rather than to the label."""
    return hidisc.audit(embeddings, out, settings.load(hidisc.AuditConfig), device=device, say=say).result()


@verb("report", "scores other-scores --set points=1000 --out report.html", "report")
def _report(
    artefacts: Annotated[list[Path], existing("Scores (or embeddings), one or several, side by side.")],
    out: Annotated[Path, option("Page to write: report.html.")],
    settings: ChangeOptions,
    title: Annotated[str | None, option("At the top of the page.")] = None,
) -> Result:
    """Write one page to look at, and its figures and tables as files."""
    config = settings.load(hidisc.ReportConfig)
    if title is not None:
        config = config.model_copy(update={"title": title})
    page = hidisc.report(artefacts, out, config, say=say)
    return Result(f"{page}: open it in a browser", {"page": str(page)})


BenchmarkScale = StrEnum("BenchmarkScale", "SMALL PAPER")
"""How large the trainings of a benchmark are."""


@verb("benchmark", "main store --set seeds=3 --out benchmark", "benchmark")
def _benchmark(
    suite: Annotated[
        str,
        typer.Argument(
            help="main, weak, lambda, learning-rate, batch-size, iterations, hierarchical, distillation, stain, "
            "small-cohort, vectors, or a YAML file; +tcga over it samples patches as the paper does for TCGA."
        ),
    ],
    store: Annotated[Path, existing("A patch store with labels and held-out patients, or embeddings.")],
    out: Out,
    scale: Annotated[
        BenchmarkScale, option("small: what the suite has for two cores; paper: the published setting.")
    ] = BenchmarkScale.SMALL,
    stores: Annotated[list[str] | None, option("Further stores that a suite names: NAME=PATH.", "--store")] = None,
    folds: FoldsOption = None,
    workers: Annotated[int | None, option("Trainings at once; default one per core.")] = None,
    scheduler: SchedulerOption = None,
    device: Device = "auto",
    changes: SetOption = None,
) -> Result:
    """Rerun a table of the paper on your patches: every method, every seed, beside the published numbers."""
    return hidisc.benchmark(
        build_config(hidisc.SuiteConfig, suite, changes, **{"folds.number": folds}),
        store,
        out,
        scale=scale.value,
        stores=dict(_read_store(words) for words in stores or []),
        workers=workers,
        scheduler=scheduler,
        device=device,
        say=say,
    ).result()


def _read_store(words: str) -> tuple[str, Path]:
    """The name and the path of a `--store`."""
    name, equals, path = words.partition("=")
    if not (name and equals and path):
        raise UserError(f"--store {words!r} is not NAME=PATH. Give a name that the suite uses and a store.")
    return name, refuse_missing(Path(path))
