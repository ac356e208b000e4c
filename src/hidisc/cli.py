"""The `hidisc` command: parses, calls a verb, prints one line of result; everything else goes to stderr.

Exit codes: 0 done, 1 something failed, 2 the user can fix it (one clear sentence). Verbs are imported when called, so
that `hidisc --help` answers at once: those of the public Python API through `hidisc`, which loads what is used.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import hidisc
from hidisc.ground.errors import ReportedElsewhereError, UserError, no_such_path
from hidisc.ground.progress import Progress
from hidisc.ground.text import count

if TYPE_CHECKING:
    from hidisc.settings.config import Config
    from hidisc.verbs.build import Built

    AnyConfig = TypeVar("AnyConfig", bound=Config)

app = typer.Typer(
    name="hidisc",
    help="Self-supervised learning on the patient > slide > patch hierarchy of biomedical microscopy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class _Said(Progress):
    def say(self, sentence: str) -> None:
        _say(sentence)


def _verb(name: str, example: str, settings: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose help ends with an example, and with where the settings of `settings` are listed."""
    listed = f"\n\n`hidisc settings {settings}` lists every setting with its default and its range." if settings else ""
    return app.command(name, epilog=f"Example: hidisc {name} {example}{listed}")


def _exists(path: Any) -> Any:
    """Refuse a path, or one of several, at which there is nothing."""
    for each in path if isinstance(path, list) else [path]:
        if each is not None and not each.exists():
            raise no_such_path(each)
    return path


def _there(help: str) -> Any:
    """An argument that is a path, or several, at which something must exist."""
    return typer.Argument(help=help, callback=_exists)


def _option(help: str, *name: str, **more: Any) -> Any:
    """An option; it is called as its parameter where no name is given."""
    return typer.Option(*name, help=help, **more)


def _given(help: str) -> Any:
    """An option that is a path at which something must exist."""
    return _option(help, callback=_exists)


def _show_version(wanted: bool) -> None:
    if wanted:
        from hidisc.ground.machine import versions

        typer.echo(f"hidisc {versions('hidisc')['hidisc']}")
        raise typer.Exit


Out = Annotated[Path, _option("Folder to write; an unfinished one is resumed.")]
RecipeOption = Annotated[str | None, _option("A shipped recipe or a YAML file.")]
SetOption = Annotated[list[str] | None, _option("Change one setting: NAME=VALUE.", "--set")]
Seed = Annotated[int | None, _option("Seed of everything random.")]
Json = Annotated[bool, _option("Print the result as JSON.", "--json")]
Workers = Annotated[int | None, _option("Processes here; default one per core, 0 none.", min=0)]
Scheduler = Annotated[str | None, _option("Address of a running Dask scheduler.")]
Folds = Annotated[int | None, _option("Cross-validation: every patient of the cohort is a test patient once.", min=2)]
Device = Annotated[str, _option("auto, cpu, cuda or mps.")]
Devices = Annotated[str, _option("How many, or auto: all there are.")]
Nodes = Annotated[int, _option("Machines; start the command on each.", min=1)]
Store = Annotated[Path, _there("A patch store, made by `hidisc prepare` or `hidisc import`.")]


@app.callback()
def _options(
    debug: Annotated[bool, _option("Show the traceback of an error.", "--debug")] = False,
    version: Annotated[bool, _option("Show the version.", "--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Options of all verbs; `main` reads `--debug` itself, for it must be known when anything goes wrong."""


@_verb("cohort", "slides --pattern {patient}_{slide} --out cohort.csv")
def _cohort(
    folder: Annotated[Path, _there("A folder of slides, with folders in it or without.")],
    out: Annotated[Path, _option("CSV to write; an existing one is not overwritten.")],
    pattern: Annotated[
        str | None, _option("How names are built: '{patient}_{slide}', or '{patient}/{slide}' for folders.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draft the table of a cohort from a folder of slides: patients, scales, and what is doubtful."""
    draft = hidisc.draft_cohort(folder, out, pattern, say=_say)
    doubtful = sum(bool(row.doubts) for row in draft.rows)
    unknown = sum(not row.names.get("patient") for row in draft.rows)
    more = f" ({count(unknown, 'slide')} without one)" if unknown else ""
    more += f", {count(doubtful, 'row')} to check (column `doubt`)" if doubtful else ""
    sentence = f"{out}: {count(len(draft.rows), 'slide')} of {count(draft.patients, 'patient')}{more}"
    record = {"cohort": str(out), "slides": len(draft.rows), "patients": draft.patients, "doubtful": doubtful}
    _show(as_json, sentence, {**record, "doubts": draft.count_doubts(), "left_out": list(draft.left_out)})


@_verb("prepare", "cohort.csv --set grid.size_px=96 --out store", "prepare")
def _prepare(
    cohort: Annotated[Path, _there("cohort.csv or .xlsx: patient, slide, path (and label, mpp, site, split).")],
    out: Out,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    seed: Seed = None,
    assume_mpp: Annotated[float | None, _option("Micrometres per pixel where neither file nor cohort says.")] = None,
    annotations: Annotated[Path | None, _given("GeoJSON of QuPath: a folder of SLIDE.geojson, or a file.")] = None,
    refilter: Annotated[
        bool, _option("Apply a changed filter to a finished store; reads only what it lacks.", "--refilter")
    ] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Cut slides into a patch store: tissue, blanks, stain, splits."""
    flags = {"annotations.path": None if annotations is None else json.dumps(str(annotations))}
    config = _load(hidisc.PrepareConfig, recipe, changes, seed=seed, assume_mpp=assume_mpp, **flags)
    built = hidisc.prepare(cohort, out, config, refilter=refilter, workers=workers, scheduler=scheduler, say=_say)
    _finish(built, as_json)


Kind = StrEnum("Kind", "OPENSRH FOLDER TABLE NIFTI DICOM")
"""Where patches that exist as files, or volumes, come from."""


@_verb("import", "folder patches --set resize_px=96 --out store", "import")
def _import(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="opensrh (meta/*.json), folder (patient/slide/patch.png), table (CSV); nifti (patient/scan.nii.gz) "
            "or dicom (any folders), whose volumes are cut into slices."
        ),
    ],
    source: Annotated[Path, _there("The folder, or the CSV of patches or NIfTI volumes.")],
    out: Out,
    patients: Annotated[Path | None, _given("With a folder, a CSV: patient, label, site, split.")] = None,
    pseudonyms: Annotated[
        Path | None, _option("With nifti and dicom: hash patients' ids by the secret in this file, made if missing.")
    ] = None,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    seed: Seed = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Make a patch store from patches that exist as files, or from the slices of volumes."""
    if patients is not None and kind in (Kind.OPENSRH, Kind.TABLE):
        raise UserError(
            f"--patients goes with `import folder`, `nifti` and `dicom`; `import {kind}` has the patients' labels in "
            "its own files."
        )
    if kind in (Kind.NIFTI, Kind.DICOM):
        find = hidisc.find_nifti if kind is Kind.NIFTI else hidisc.find_dicom
        volumes = _load(hidisc.VolumesConfig, recipe, changes, seed=seed)
        scans = find(source, volumes, patients, pseudonyms)
        _finish(hidisc.import_volumes(scans, out, volumes, workers=workers, scheduler=scheduler, say=_say), as_json)
        return
    if pseudonyms is not None:
        raise UserError(f"--pseudonyms goes with `import nifti` and `dicom`; rename the patients of `import {kind}`.")
    config = _load(hidisc.ImportConfig, recipe, changes, seed=seed)
    if kind is Kind.OPENSRH:
        slides = hidisc.find_opensrh(source)
    elif kind is Kind.FOLDER:
        slides = hidisc.find_folder(source, patients)
    else:
        slides = hidisc.find_table(source, config.label_level)
    _finish(hidisc.import_patches(slides, out, config, workers=workers, scheduler=scheduler, say=_say), as_json)


@_verb("train", "store --recipe hidisc-patient+laptop --set optim.steps=2000 --out run", "train")
def _train(
    store: Store,
    out: Out,
    recipe: Annotated[str | None, _option("hidisc-patient, simclr, ...; a+b puts b over a: byol+weak.")] = None,
    changes: SetOption = None,
    seed: Seed = None,
    device: Device = "auto",
    devices: Devices = "auto",
    nodes: Nodes = 1,
    as_json: Json = False,
) -> None:
    """Learn an encoder from a patch store, without labels."""
    config = _load(hidisc.TrainConfig, recipe, changes, seed=seed)
    run = hidisc.train(store, out, config, device=device, devices=devices, nodes=nodes, say=_say)
    if run is None:
        return
    info = run.info
    seen = f"{count(info.images, 'image')} of {info.level_names.count(len(info.patients), 'patient')}"
    sentence = f"{info.objective} {info.backbone}, {count(info.steps, 'step')}, {seen} in {info.seconds / 60:.1f} min"
    record = {"run": str(out), **info.model_dump(mode="json", exclude={"patients"})}
    _show(as_json, f"{out}: {sentence}", record)


@_verb("embed", "store run --set batch=64 --out embeddings", "embed")
def _embed(
    store: Store,
    model: Annotated[
        str,
        typer.Argument(help="A run of `hidisc train`, timm:NAME, colour, or a TorchScript or ONNX file of anyone's."),
    ],
    out: Out,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    per_slide: Annotated[int | None, _option("Draw this many patches per slide.")] = None,
    seed: Seed = None,
    name: Annotated[str | None, _option("What tables call the encoder.")] = None,
    device: Device = "auto",
    devices: Devices = "auto",
    nodes: Nodes = 1,
    as_json: Json = False,
) -> None:
    """Turn every patch into a vector, by an encoder of yours or of others."""
    if ":" not in model and model != "colour" and not Path(model).exists():
        raise no_such_path(
            Path(model), "Give a run, an exported encoder, `timm:NAME`, `colour`, or a TorchScript or ONNX file."
        )
    config = _load(hidisc.EmbedConfig, recipe, changes, per_slide=per_slide, seed=seed)
    made = hidisc.embed(store, model, out, config, name=name, device=device, devices=devices, nodes=nodes, say=_say)
    if made is None:
        return
    info = made.info
    words = info.level_names
    bad = f", {count(info.bad_patches, f'unreadable {words.patch}')} left out" if info.bad_patches else ""
    patches, slides = words.count(info.rows, "patch"), words.count(len(info.slides), "slide")
    record = info.model_dump(mode="json", exclude={"slides": True, "model": {"history": {"slides"}}})
    sentence = f"{patches} of {slides} as {info.dim} numbers each{bad}"
    _show(as_json, f"{out}: {sentence}", {"embeddings": str(out), **record})


@_verb("evaluate", "embeddings --set knn.k=50 --out scores", "evaluate")
def _evaluate(
    embeddings: Annotated[Path, _there("Embeddings, made by `hidisc embed`.")],
    out: Out,
    bank: Annotated[
        Path | None, _given("Embeddings of another store whose labels are known, by the same encoder.")
    ] = None,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    seed: Seed = None,
    allow_leakage: Annotated[
        bool, _option("Evaluate in spite of overlap; every table and page says so.", "--allow-leakage")
    ] = False,
    folds: Folds = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Evaluate an encoder on held-out patients: nearest neighbours, a linear probe, attention; with intervals."""
    flags = {"leakage.allow": True} if allow_leakage else {}
    config = _load(hidisc.EvaluateConfig, recipe, changes, seed=seed, **flags, **{"folds.number": folds})
    scores = hidisc.evaluate(embeddings, out, config, bank=bank, device=device, progress=_Said())
    record = scores.info.model_dump(mode="json", exclude={"model": {"history": {"slides"}}})
    _show(as_json, f"{out}: {scores.verdict()}", {"scores": str(out), **record})


@_verb("audit", "embeddings other-embeddings --set k=10 --out audit", "audit")
def _audit(
    embeddings: Annotated[list[Path], _there("Embeddings of one encoder or several, side by side.")],
    out: Out,
    changes: SetOption = None,
    seed: Seed = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Find what an encoder owes to site, scanner, batch, date and colour rather than to the label."""
    made = hidisc.audit(embeddings, out, _load(hidisc.AuditConfig, None, changes, seed=seed), device=device, say=_say)
    _show(as_json, f"{out}: {made.verdict()}", {"audit": str(out), **made.info.model_dump(mode="json")})


@_verb("report", "scores other-scores --set points=1000 --out report.html", "report")
def _report(
    artefacts: Annotated[list[Path], _there("Scores (or embeddings), one or several, side by side.")],
    out: Annotated[Path, _option("Page to write: report.html.")],
    title: Annotated[str | None, _option("At the top of the page.")] = None,
    changes: SetOption = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Write one page to look at, and its figures and tables as files."""
    config = _load(hidisc.ReportConfig, None, changes, seed=seed)
    if title is not None:
        config = config.model_copy(update={"title": title})
    page = hidisc.report(artefacts, out, config, say=_say)
    _show(as_json, f"{page}: open it in a browser", {"page": str(page)})


Scale = StrEnum("Scale", "SMALL PAPER")
"""How large the trainings of a benchmark are."""


@_verb("benchmark", "main store --set seeds=3 --out benchmark", "benchmark")
def _benchmark(
    suite: Annotated[
        str,
        typer.Argument(
            help="main, weak, lambda, learning-rate, batch-size, iterations, hierarchical, distillation, stain, "
            "small-cohort, or a YAML file; +tcga over it samples patches as the paper does for TCGA."
        ),
    ],
    store: Annotated[Path, _there("A patch store with labels and held-out patients.")],
    out: Out,
    scale: Annotated[Scale, _option("small: for two cores; paper: the published setting.")] = Scale.SMALL,
    stores: Annotated[list[str] | None, _option("Further stores that a suite names: NAME=PATH.", "--store")] = None,
    folds: Folds = None,
    workers: Annotated[int | None, _option("Trainings at once; default one per core.")] = None,
    scheduler: Scheduler = None,
    device: Device = "auto",
    changes: SetOption = None,
    as_json: Json = False,
) -> None:
    """Rerun a table of the paper on your patches: every method, every seed, beside the published numbers."""
    done = hidisc.benchmark(
        _load(hidisc.SuiteConfig, suite, changes, **{"folds.number": folds}),
        store,
        out,
        scale=scale.value,
        stores=_read_stores(stores or []),
        workers=workers,
        scheduler=scheduler,
        device=device,
        say=_say,
    )
    if as_json or done.page:
        sentence = f"{done.page}: {done.done} of {count(done.cells, 'training')}, tables in {out / 'tables'}"
        _show(as_json, sentence, {**asdict(done), "page": str(done.page) if done.page else None})
    if done.failed:
        raise typer.Exit(1)


def _read_stores(words: list[str]) -> dict[str, Path]:
    """NAME=PATH of every `--store`."""
    stores = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not (name and equals and path):
            raise UserError(f"--store {word!r} is not NAME=PATH. Give a name that the suite uses and a store.")
        stores[name] = _exists(Path(path))
    return stores


@_verb("heatmap", "store scores SLIDE --out heatmap.png")
def _heatmap(
    store: Store,
    scores: Annotated[Path, _there("Scores, made by `hidisc evaluate`.")],
    slide: Annotated[str, typer.Argument(help="Name of a slide that was evaluated.")],
    out: Annotated[Path, _option("Picture to write (PNG or PDF).")],
    label: Annotated[str | None, _option("One class; default all of them.")] = None,
    as_json: Json = False,
) -> None:
    """Paint class scores over a slide's thumbnail."""
    hidisc.heatmap(store, scores, slide, out, label)
    from hidisc.settings.level_names import find_names

    _show(as_json, f"{out}: scores of {find_names(store).slide} {slide}", {"picture": str(out), "slide": slide})


@_verb("explore", "store embeddings scores --cohort cohort.csv")
def _explore(
    store: Store,
    others: Annotated[list[Path] | None, _there("Embeddings of the store, and scores of these embeddings.")] = None,
    cohort: Annotated[Path | None, _given("The CSV that says where the slide files are, to zoom in.")] = None,
    host: Annotated[
        str, _option("Address or name to listen at; others than this can be seen in the network.")
    ] = "127.0.0.1",
    port: Annotated[int, _option("Port to use; default a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, _option("Whether to open the browser.", "--browser/--no-browser")] = True,
    stop_after: Annotated[float | None, _option("End after so many minutes without use.", min=0)] = None,
    patient: Annotated[str | None, _option("With --save: whose slides.")] = None,
    save: Annotated[Path | None, _option("Write a folder of one patient that opens from disk, and end.")] = None,
    as_json: Json = False,
) -> None:
    """Look at slides, the map of patches and what is alike in a browser, and give names to patches."""
    if find_spec("tornado") is None:
        raise UserError("hidisc explore needs the library Tornado. Install it: pip install 'hidisc[explore]'.")
    from hidisc.settings.level_names import find_names
    from hidisc.verbs.explore import save_page

    if (save is None) != (patient is None):
        raise UserError("--save and --patient go together: a folder of one patient is written.")
    if save is not None and patient is not None:
        slides = save_page(store, others or [], patient, save, cohort=cohort, say=_say)
        page = save / "index.html"
        shown = find_names(store).count(slides, "slide")
        _show(as_json, f"{page}: {shown}; open it in a browser", {"page": str(page), "slides": slides})
        return

    def ready(address: str) -> None:
        _show(as_json, address, {"address": address})
        sys.stdout.flush()
        _say("Open this address in a browser, and press Ctrl-C here to end.")

    hidisc.explore(
        store,
        others or [],
        cohort=cohort,
        host=host,
        port=port,
        browser=browser,
        stop_after_min=stop_after,
        say=_say,
        ready=ready,
    )


Target = StrEnum("Target", "TIMM ONNX TORCHSCRIPT EXPORTED WSINFER BAGS GEOJSON ANNDATA")
"""What an encoder, or embeddings, are exported to."""
_PUSHED = (Target.TIMM, Target.ONNX, Target.TORCHSCRIPT, Target.EXPORTED)


@_verb("export", "run --to onnx --out exported")
def _export(
    artefact: Annotated[
        Path, _there("A finished run; for bags and anndata, embeddings; for geojson, these or scores.")
    ],
    to: Annotated[
        Target,
        _option(
            "An encoder: timm (state dict), onnx, torchscript, exported (torch.export), wsinfer (QuPath). "
            "Patches: bags (CLAM, TRIDENT, STAMP), geojson (QuPath), anndata (scanpy)."
        ),
    ],
    out: Annotated[Path, _option("Folder to write.")],
    scores: Annotated[Path | None, _given("Of an encoder: its evaluation, for the model card.")] = None,
    push: Annotated[str | None, _option("Of an encoder: OWNER/NAME on the Hugging Face hub (private).")] = None,
    as_json: Json = False,
) -> None:
    """Write an encoder, or embeddings, for other tools."""
    if (scores and to in (Target.BAGS, Target.GEOJSON, Target.ANNDATA)) or (push and to not in _PUSHED):
        raise UserError(f"--scores goes with an encoder, and --push with {', '.join(_PUSHED)}; --to {to} is neither.")
    from hidisc.settings.level_names import find_names

    words = find_names(artefact)
    if to in (Target.BAGS, Target.GEOJSON):
        slides = (
            hidisc.export_bags(artefact, out, say=_say) if to is Target.BAGS else hidisc.export_geojson(artefact, out)
        )
        _show(as_json, f"{out}: {to} of {words.count(slides, 'slide')}", {"folder": str(out), "slides": slides})
        return
    if to is Target.ANNDATA:
        file, patches = hidisc.export_anndata(artefact, out)
        _show(as_json, f"{file}: {words.count(patches, 'patch')}", {"file": str(file), "patches": patches})
        return
    if to is Target.WSINFER:
        file, difference = hidisc.export_wsinfer(artefact, out, scores, say=_say)
        sentence = f"{file}: read back, probabilities agree to {difference:.1g}"
        _show(as_json, sentence, {"file": str(file), "difference": difference})
        return
    file, difference = hidisc.export(artefact, out, to.value, scores=scores, push=push)  # type: ignore[arg-type]
    pushed = f"; pushed to {push}" if push else ""
    sentence = f"{file}: read back, embeddings agree to {difference:.1g}{pushed}"
    _show(as_json, sentence, {"file": str(file), "relative_difference": difference})


@_verb("views", "store --recipe weak --set views.probability=0.5 --out views.png", "train")
def _views(
    store: Store,
    out: Annotated[Path, _option("Picture to write (PNG).")],
    recipe: Annotated[str | None, _option("A training recipe: weak, strong, stain, ...")] = None,
    changes: SetOption = None,
    patches: Annotated[int, _option("Rows: patches of different patients.", min=1)] = 4,
    views: Annotated[int, _option("Random views of each.", min=1)] = 8,
    seed: Annotated[int, _option("Seed of the patches and the views.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Draw patches and what training makes of them."""
    from hidisc.settings.level_names import find_names
    from hidisc.verbs.views import show_views

    config = _load(hidisc.TrainConfig, recipe, changes)
    show_views(store, out, config.views, patches=patches, views=views, seed=seed)
    drawn = find_names(store).count(patches, "patch")
    sentence = f"{out}: {drawn}, {count(views, 'view')} of each"
    _show(as_json, sentence, {"picture": str(out), "patches": patches, "views": views})


@_verb("settings", "train optim")
def _settings(
    verb: Annotated[
        str | None, typer.Argument(help="prepare, import, train, embed, evaluate, report, benchmark.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="One setting, or one group: optim.steps, optim.")] = None,
    markdown: Annotated[bool, _option("All settings of all verbs as a page.", "--markdown")] = False,
    as_json: Json = False,
) -> None:
    """List the settings of a verb: type, default, range, meaning, and what recipes make of them."""
    from hidisc.verbs.settings import CONFIGS, list_groups, show_settings, write_page

    if markdown:
        typer.echo(write_page(), nl=False)
    elif verb is None:
        raise UserError(f"name the command whose settings to list: hidisc settings {'|'.join(CONFIGS)}.")
    elif as_json:
        typer.echo(json.dumps([asdict(setting) for group in list_groups(verb, name) for setting in group.settings]))
    else:
        typer.echo(show_settings(verb, name))


@_verb("recipes", "train hidisc-patient+laptop")
def _recipes(
    verb: Annotated[str | None, typer.Argument(help="prepare, train, embed, evaluate, benchmark; default all.")] = None,
    name: Annotated[str | None, typer.Argument(help="A recipe, or several: hidisc-patient+laptop.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes with their purposes; or show one with every setting it results in."""
    from hidisc.verbs.settings import list_purposes, resolve_recipe, show_recipe, show_recipes

    if verb is None or name is None:
        typer.echo(json.dumps(list_purposes(verb)) if as_json else show_recipes(verb))
    else:
        typer.echo(json.dumps(resolve_recipe(verb, name)) if as_json else show_recipe(verb, name))


@_verb("doctor", "store")
def _doctor(
    artefact: Annotated[
        Path | None, typer.Argument(help="A store, run, embeddings, scores or benchmark, to verify file by file.")
    ] = None,
    measure: Annotated[
        bool, _option("Measure this machine, and what the store and recipe take: a minute.", "--measure")
    ] = False,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show versions, devices and readers; verify an artefact; or measure how long a cohort takes here."""
    from hidisc.verbs.doctor import describe_machine, verify, what_to_do

    if measure:
        _measure(artefact, recipe, changes, device, as_json)
        return
    if recipe or changes:
        raise UserError("--recipe and --set say what to measure: add --measure.")
    if artefact is None:
        machine = describe_machine()
        _show(as_json, "\n".join(f"{name:<22}{value}" for name, value in machine.items()), dict(machine))
        return
    problems = verify(artefact)
    if problems and not as_json:
        for problem in problems:
            _say(f"damaged: {problem}")
        _say(f"note: {what_to_do(artefact)}")
    sentence = count(len(problems), "problem") if problems else "all files are as written"
    _show(as_json, f"{artefact}: {sentence}", {"artefact": str(artefact), "problems": problems})
    if problems:
        raise typer.Exit(1)


def _measure(store: Path | None, recipe: str | None, changes: list[str] | None, device: str, as_json: bool) -> None:
    """Print how fast this machine is, and what a cohort takes."""
    from hidisc.verbs.measure import as_record, describe, measure

    config = _load(hidisc.TrainConfig, recipe, changes)
    rates, size, needs = measure(store, config, device=device, say=_say)
    _show(as_json, describe(rates, size, needs, config), as_record(rates, size, needs))


@_verb("demo", "--quick --out demo")
def _demo(
    out: Out = Path("demo"),
    quick: Annotated[bool, _option("Smaller and shorter: to see that it runs.", "--quick")] = False,
    seed: Annotated[int, _option("Seed of the drawn cohort and of the trainings.", min=0)] = 0,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """See it work on drawn slides, from slide files to a report: 3 minutes on two cores."""
    from hidisc.verbs.demo import demo

    page = demo(out, quick=quick, seed=seed, workers=workers, say=_say)
    _say(
        "\nNext, on your own slides (docs/quickstart.md says what cohort.csv holds):\n\n"
        "  hidisc prepare cohort.csv --out store\n"
    )
    _show(as_json, f"{page}: open it in a browser", {"page": str(page)})


def _load(model: "type[AnyConfig]", recipe: str | None, changes: list[str] | None, **flags: Any) -> "AnyConfig":
    """The settings of a verb; `flags` are options that stand for a setting, None where they were not given."""
    from hidisc.settings.config import load_config

    given = [f"{name}={value}" for name, value in flags.items() if value is not None]
    return load_config(model, recipe, [*(changes or []), *given])


def _finish(built: "Built", as_json: bool) -> None:
    """Print what a store holds, list what failed, and exit with 1 if anything did."""
    failures = built.info.failures
    for failure in failures:
        _say(f"failed: slide {failure.slide!r} of patient {failure.patient!r}: {failure.reason}")
    record = {**built.summary(), "failures": [failure.model_dump() for failure in failures]}
    _show(as_json, built.sentence(), record)
    if failures:
        raise typer.Exit(1)


def _show(as_json: bool, sentence: str, record: dict[str, Any]) -> None:
    """Print the result of a verb: a sentence for people or a record for programs."""
    typer.echo(json.dumps(record) if as_json else sentence)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")  # typer.echo would write past a progress bar, into its line
    sys.stderr.flush()


def _outlive_first() -> None:
    """Let the first process say the reason: Lightning and torchrun kill it if one of the others ends before it.

    Lightning's is the parent of the others; torchrun ends the others itself; SLURM, by default, does neither.
    """
    seconds = 90.0 if "LOCAL_RANK" in os.environ else 5.0
    parent, until = os.getppid(), time.monotonic() + seconds
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.05)


def _explain(error: Exception) -> int:
    """Say in one sentence what went wrong, unless another process says it; the exit code."""
    if isinstance(error, ReportedElsewhereError):
        _outlive_first()
        return error.code
    if not isinstance(error, UserError):
        _say(f"hidisc: {type(error).__name__}: {error} (run `hidisc --debug ...` for the traceback)")
        return 1
    if os.environ.get("LOCAL_RANK", "0") == "0":  # the processes of the other devices say the same
        _say(f"hidisc: {error}")
    else:
        _outlive_first()
    return 2


def main() -> None:
    """Run the command line; errors become one sentence and an exit code."""
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the last door: one line for people, all of it with --debug
        if "--debug" in sys.argv:
            traceback.print_exc()
        sys.exit(_explain(error))


if __name__ == "__main__":
    main()
