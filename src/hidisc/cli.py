"""The `hidisc` command: parses, calls a verb, prints one line of result; everything else goes to stderr.

Exit codes: 0 done, 1 something failed, 2 the user can fix it (one clear sentence). Verbs are imported when called, so
that `hidisc --help` answers at once.
"""

import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hidisc.ground.errors import ReportedElsewhereError, UserError

app = typer.Typer(
    name="hidisc",
    help="Self-supervised learning on the patient > slide > patch hierarchy of biomedical microscopy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Out = Annotated[Path, typer.Option("--out", help="Folder to write; an unfinished one is resumed.")]
RecipeOption = Annotated[str | None, typer.Option("--recipe", help="A shipped recipe or a YAML file.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: --set grid.mpp=0.25.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Workers = Annotated[int | None, typer.Option("--workers", help="Processes here; default one a core, 0 none.", min=0)]
Scheduler = Annotated[str | None, typer.Option("--scheduler", help="Address of a running Dask scheduler.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        from hidisc.ground.machine import versions

        typer.echo(f"hidisc {versions('hidisc')['hidisc']}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of all verbs; `main` reads `--debug` itself, for it must be known when anything goes wrong."""


@app.command("prepare")
def _prepare(
    cohort: Annotated[Path, typer.Argument(help="cohort.csv: patient, slide, path (and label, mpp, site, split).")],
    out: Out,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    seed: Seed = None,
    assume_mpp: Annotated[
        float | None,
        typer.Option("--assume-mpp", help="Micrometres a pixel where neither file nor cohort says."),
    ] = None,
    refilter: Annotated[
        bool,
        typer.Option("--refilter", help="Apply a changed filter to a finished store; reads only what it lacks."),
    ] = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Cut slides into a patch store: tissue, blanks, stain, splits."""
    from hidisc.settings.load import load_config
    from hidisc.settings.prepare import PrepareConfig
    from hidisc.verbs.prepare import prepare

    flags = _flags(seed=seed, assume_mpp=assume_mpp)
    config = load_config(PrepareConfig, recipe, [*(changes or []), *flags])
    done = prepare(cohort, out, config, refilter=refilter, workers=workers, scheduler=scheduler, say=_say)
    _finish(done, as_json)


class Kind(StrEnum):
    """Where patches that exist as files come from."""

    OPENSRH = "opensrh"
    FOLDER = "folder"
    TABLE = "table"


@app.command("import")
def _import(
    kind: Annotated[
        Kind, typer.Argument(help="opensrh (meta/*.json), folder (patient/slide/patch.png) or table (CSV).")
    ],
    source: Annotated[Path, typer.Argument(help="The OpenSRH folder, the folder of patients, or the CSV of patches.")],
    out: Out,
    patients: Annotated[
        Path | None, typer.Option("--patients", help="With folder, a CSV: patient, label, site, split.")
    ] = None,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    seed: Seed = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Make a patch store from patches that exist as files."""
    from hidisc.patches.folders import find_folder, find_table
    from hidisc.patches.opensrh import find_opensrh
    from hidisc.settings.imports import ImportConfig
    from hidisc.settings.load import load_config
    from hidisc.verbs.imports import import_patches

    config = load_config(ImportConfig, recipe, [*(changes or []), *_flags(seed=seed)])
    if patients is not None and kind is not Kind.FOLDER:
        raise UserError(
            f"--patients goes with `import folder`; `import {kind}` has the patients' labels in its own files."
        )
    if kind is Kind.OPENSRH:
        found = find_opensrh(source)
    elif kind is Kind.FOLDER:
        found = find_folder(source, patients)
    else:
        found = find_table(source, config.label_level)
    _finish(import_patches(found, out, config, workers=workers, scheduler=scheduler, say=_say), as_json)


Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
Devices = Annotated[str, typer.Option("--devices", help="How many, or auto: all there are.")]
Nodes = Annotated[int, typer.Option("--nodes", help="Machines; start the command on each.", min=1)]


@app.command("train")
def _train(
    store: Annotated[Path, typer.Argument(help="A patch store, made by `hidisc prepare` or `hidisc import`.")],
    out: Out,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="hidisc-patient, simclr, ...; a+b puts b over a: byol+weak.")
    ] = None,
    changes: SetOption = None,
    seed: Seed = None,
    device: Device = "auto",
    devices: Devices = "auto",
    nodes: Nodes = 1,
    as_json: Json = False,
) -> None:
    """Learn an encoder from a patch store, without labels."""
    from hidisc.settings.load import load_config
    from hidisc.settings.train import TrainConfig
    from hidisc.verbs.train import train

    config = load_config(TrainConfig, recipe, [*(changes or []), *_flags(seed=seed)])
    run = train(store, out, config, device=device, devices=devices, nodes=nodes, say=_say)
    if run is None:
        return
    info = run.info
    if as_json:
        typer.echo(json.dumps({"run": str(out), **info.model_dump(mode="json", exclude={"patients"})}))
    else:
        typer.echo(
            f"{out}: {info.objective} {info.backbone}, {info.steps:,} steps, {info.images:,} images of "
            f"{len(info.patients)} patients in {info.seconds / 60:.1f} min"
        )


@app.command("embed")
def _embed(
    store: Annotated[Path, typer.Argument(help="A patch store.")],
    model: Annotated[
        str, typer.Argument(help="A run of `hidisc train`, timm:NAME, or a TorchScript or ONNX file of anyone's.")
    ],
    out: Out,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    per_slide: Annotated[int | None, typer.Option("--per-slide", help="Draw this many patches a slide.")] = None,
    seed: Seed = None,
    name: Annotated[str | None, typer.Option("--name", help="What tables call the encoder.")] = None,
    device: Device = "auto",
    devices: Devices = "auto",
    nodes: Nodes = 1,
    as_json: Json = False,
) -> None:
    """Turn every patch into a vector, by an encoder of yours or of others."""
    from hidisc.settings.embed import EmbedConfig
    from hidisc.settings.load import load_config
    from hidisc.verbs.embed import embed

    config = load_config(EmbedConfig, recipe, [*(changes or []), *_flags(per_slide=per_slide, seed=seed)])
    done = embed(store, model, out, config, name=name, device=device, devices=devices, nodes=nodes, say=_say)
    if done is None:
        return
    info = done.info
    if as_json:
        kept = info.model_dump(mode="json", exclude={"slides": True, "model": {"history": {"slides"}}})
        typer.echo(json.dumps({"embeddings": str(out), **kept}))
    else:
        left_out = f", {info.bad_patches} unreadable ones left out" if info.bad_patches else ""
        typer.echo(f"{out}: {info.rows:,} patches of {len(info.slides)} slides as {info.dim} numbers each{left_out}")


@app.command("evaluate")
def _evaluate(
    embeddings: Annotated[Path, typer.Argument(help="Embeddings, made by `hidisc embed`.")],
    out: Out,
    bank: Annotated[
        Path | None,
        typer.Option("--bank", help="Embeddings of another store whose labels are known, by the same encoder."),
    ] = None,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    seed: Seed = None,
    allow_leakage: Annotated[
        bool, typer.Option("--allow-leakage", help="Evaluate in spite of overlap; every table and page says so.")
    ] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Judge an encoder by held-out patients: nearest neighbours, a linear probe, attention; with intervals."""
    from hidisc.settings.evaluate import EvaluateConfig
    from hidisc.settings.load import load_config
    from hidisc.verbs.evaluate import evaluate

    flags = _flags(seed=seed, **({"leakage.allow": True} if allow_leakage else {}))
    config = load_config(EvaluateConfig, recipe, [*(changes or []), *flags])
    scores = evaluate(embeddings, out, config, bank=bank, device=device, say=_say)
    if as_json:
        kept = scores.info.model_dump(mode="json", exclude={"model": {"history": {"slides"}}})
        typer.echo(json.dumps({"scores": str(out), **kept}))
    else:
        typer.echo(f"{out}: {scores.verdict()}")


@app.command("report")
def _report(
    artefacts: Annotated[list[Path], typer.Argument(help="Scores (or embeddings), one or several, side by side.")],
    out: Annotated[Path, typer.Option("--out", help="Page to write: report.html.")],
    title: Annotated[str | None, typer.Option("--title", help="At the top of the page.")] = None,
    changes: SetOption = None,
    seed: Seed = None,
) -> None:
    """Write one page to look at, and its figures and tables as files."""
    from hidisc.settings.load import load_config
    from hidisc.settings.report import ReportConfig
    from hidisc.verbs.report import report

    config = load_config(ReportConfig, None, [*(changes or []), *_flags(seed=seed)])
    if title is not None:
        config = config.model_copy(update={"title": title})
    typer.echo(f"{report(artefacts, out, config, say=_say)}: open it in a browser")


class Scale(StrEnum):
    """How large the trainings of a benchmark are."""

    SMALL = "small"
    PAPER = "paper"


@app.command("benchmark")
def _benchmark(
    suite: Annotated[
        str,
        typer.Argument(
            help="main, weak, lambda, learning-rate, batch-size, iterations, hierarchical, stain, or a YAML file; "
            "+tcga over it samples patches as the paper does for TCGA."
        ),
    ],
    store: Annotated[Path, typer.Argument(help="A patch store with labels and held-out patients.")],
    out: Out,
    scale: Annotated[Scale, typer.Option("--scale", help="small: for two cores; paper: the published setting.")] = (
        Scale.SMALL
    ),
    stores: Annotated[
        list[str] | None, typer.Option("--store", help="Further stores that a suite names: NAME=PATH.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Trainings at once; default one a core.")] = None,
    scheduler: Scheduler = None,
    device: Device = "auto",
    changes: SetOption = None,
    as_json: Json = False,
) -> None:
    """Rerun a table of the paper on your patches: every method, every seed, beside the published numbers."""
    from hidisc.settings.benchmark import SuiteConfig
    from hidisc.settings.load import load_config
    from hidisc.verbs.benchmark import benchmark

    config = load_config(SuiteConfig, suite, changes or [])
    done = benchmark(
        config,
        store,
        out,
        scale=scale.value,
        stores=_places(stores or []),
        workers=workers,
        scheduler=scheduler,
        device=device,
        say=_say,
    )
    if as_json:
        page = str(done.page) if done.page else None
        typer.echo(json.dumps({"page": page, "cells": done.cells, "done": done.done, "failed": done.failed}))
    elif done.page:
        typer.echo(f"{done.page}: {done.done} of {done.cells} trainings, tables in {out / 'tables'}")
    if done.failed:
        raise typer.Exit(1)


def _places(words: list[str]) -> dict[str, Path]:
    """NAME=PATH of every `--store`."""
    found = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not (name and equals and path):
            raise UserError(f"--store {word!r} is not NAME=PATH. Give a name that the suite uses and a store.")
        found[name] = Path(path)
    return found


@app.command("heatmap")
def _heatmap(
    store: Annotated[Path, typer.Argument(help="The patch store.")],
    scores: Annotated[Path, typer.Argument(help="Scores, made by `hidisc evaluate`.")],
    slide: Annotated[str, typer.Argument(help="Name of a slide that was evaluated.")],
    out: Annotated[Path, typer.Option("--out", help="Picture to write (PNG or PDF).")],
    label: Annotated[str | None, typer.Option("--label", help="One class; default all of them.")] = None,
) -> None:
    """Paint class scores over a slide's thumbnail."""
    from hidisc.verbs.heatmap import heatmap

    heatmap(store, scores, slide, out, label)
    typer.echo(f"{out}: scores of slide {slide}")


class Target(StrEnum):
    """What an encoder, or embeddings, are exported to."""

    TIMM = "timm"
    ONNX = "onnx"
    TORCHSCRIPT = "torchscript"
    BAGS = "bags"


@app.command("export")
def _export(
    artefact: Annotated[Path, typer.Argument(help="A finished run; for bags, embeddings.")],
    to: Annotated[
        Target,
        typer.Option("--to", help="timm (state dict), onnx or torchscript; bags: HDF5 for CLAM, TRIDENT and STAMP."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    as_json: Json = False,
) -> None:
    """Write an encoder, or embeddings, for other tools."""
    from hidisc.verbs.export import export, export_bags

    if to is Target.BAGS:
        slides = export_bags(artefact, out, say=_say)
        typer.echo(json.dumps({"folder": str(out), "slides": slides}) if as_json else f"{out}: bags of {slides} slides")
        return
    kind: Any = to.value
    file, difference = export(artefact, out, kind)
    if as_json:
        typer.echo(json.dumps({"file": str(file), "relative_difference": difference}))
    else:
        typer.echo(f"{file}: read back, embeddings agree to {difference:.1g}")


@app.command("views")
def _views(
    store: Annotated[Path, typer.Argument(help="A patch store.")],
    out: Annotated[Path, typer.Option("--out", help="Picture to write (PNG).")],
    recipe: Annotated[str | None, typer.Option("--recipe", help="A training recipe: weak, strong, stain, ...")] = None,
    changes: SetOption = None,
    patches: Annotated[int, typer.Option("--patches", help="Rows: patches of different patients.", min=1)] = 4,
    views: Annotated[int, typer.Option("--views", help="Random views of each.", min=1)] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of the patches and the views.", min=0)] = 0,
) -> None:
    """Draw patches and what training makes of them."""
    from hidisc.settings.load import load_config
    from hidisc.settings.train import TrainConfig
    from hidisc.verbs.views import show_views

    config = load_config(TrainConfig, recipe, changes or [])
    show_views(store, out, config.views, patches=patches, views=views, seed=seed)
    typer.echo(f"{out}: {patches} patches, {views} views of each")


@app.command("settings")
def _settings(
    verb: Annotated[
        str | None, typer.Argument(help="prepare, import, train, embed, evaluate, report, benchmark.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="One setting, or one group: optim.steps, optim.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="All settings of all verbs as a page.")] = False,
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


@app.command("recipes")
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


@app.command("doctor")
def _doctor(
    artefact: Annotated[
        Path | None, typer.Argument(help="A store, run, embeddings, scores or benchmark, to verify file by file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show versions, devices and readers; or verify an artefact."""
    from hidisc.verbs.doctor import describe_machine, verify, what_to_do

    if artefact is None:
        found = describe_machine()
        typer.echo(json.dumps(found) if as_json else "\n".join(f"{name:<22}{value}" for name, value in found.items()))
        return
    problems = verify(artefact)
    if as_json:
        typer.echo(json.dumps({"artefact": str(artefact), "problems": problems}))
    else:
        for problem in problems:
            _say(f"damaged: {problem}")
        if problems:
            _say(f"note: {what_to_do(artefact)}")
        typer.echo(f"{artefact}: {len(problems)} problems" if problems else f"{artefact}: all files are as written")
    if problems:
        raise typer.Exit(1)


@app.command("demo")
def _demo(
    out: Annotated[Path, typer.Option("--out", help="Folder to write; an unfinished one is resumed.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and shorter: to see that it runs.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the drawn cohort and of the trainings.", min=0)] = 0,
    workers: Workers = None,
) -> None:
    """See it work on drawn slides, from slide files to a report: 3 minutes on two cores."""
    from hidisc.verbs.demo import demo

    page = demo(out, quick=quick, seed=seed, workers=workers, say=_say)
    _say(
        "\nNext, on your own slides (docs/quickstart.md says what cohort.csv holds):\n\n"
        "  hidisc prepare cohort.csv --out store\n"
    )
    typer.echo(f"{page}: open it in a browser")


def _finish(done: Any, as_json: bool) -> None:
    """Print what a store holds, list what failed, and exit with 1 if anything did."""
    summary = done.summary()
    failures = done.info.failures
    for failure in failures:
        _say(f"failed: slide {failure.slide!r} of patient {failure.patient!r}: {failure.reason}")
    if summary["empty_slides"]:
        _say(
            f"note: {summary['empty_slides']} slides hold no patch (smaller than one, or all dropped): see "
            f"{done.out / 'pictures'}; --recipe small-regions cuts smaller ones"
        )
    if as_json:
        typer.echo(json.dumps({**summary, "failures": [failure.model_dump() for failure in failures]}))
    else:
        more = f", {len(failures)} slides failed (see {done.out / 'failures.csv'})" if failures else ""
        of = f"{summary['slides']} slides of {summary['patients']} patients"
        typer.echo(f"{done.out}: {summary['patches']:,} patches of {of}, {summary['dropped']:,} boxes dropped{more}")
    if failures:
        raise typer.Exit(1)


def _flags(**values: Any) -> list[str]:
    """Given options as `--set` changes."""
    return [f"{name}={value}" for name, value in values.items() if value is not None]


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _outlive_first() -> None:
    """Let the first process say the reason: Lightning and torchrun kill it if one of the others ends before it.

    Lightning's is the parent of the others; torchrun ends the others itself; SLURM, by default, does neither.
    """
    seconds = 90.0 if "LOCAL_RANK" in os.environ else 5.0
    parent, until = os.getppid(), time.monotonic() + seconds
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.05)


def main() -> None:
    """Run the command line; errors become one sentence and an exit code."""
    debug = "--debug" in sys.argv
    try:
        app()
    except UserError as error:
        if debug:
            traceback.print_exc()
        if os.environ.get("LOCAL_RANK", "0") == "0":  # the processes of the other devices say the same
            _say(f"hidisc: {error}")
        else:
            _outlive_first()
        sys.exit(2)
    except ReportedElsewhereError as error:
        if debug:
            traceback.print_exc()
        _outlive_first()
        sys.exit(error.code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the last door: one line for people, all of it with --debug
        if debug:
            traceback.print_exc()
        _say(f"hidisc: {type(error).__name__}: {error} (run `hidisc --debug ...` for the traceback)")
        sys.exit(1)


if __name__ == "__main__":
    main()
