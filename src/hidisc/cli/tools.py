"""The commands beside the way from slides to a report: pictures, the browser, exports, settings, doctor, demo."""

import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import hidisc
from hidisc.cli.options import (
    Device,
    Json,
    Out,
    RecipeOption,
    SetOption,
    Store,
    WorkersOption,
    build_config,
    existing,
    existing_option,
    option,
    print_result,
    say,
    verb,
)
from hidisc.ground.errors import UserError
from hidisc.ground.progress import Result
from hidisc.ground.text import count

_Patches = Annotated[Path, existing("A patch store, or features that were imported.")]


@verb("heatmap", "store scores SLIDE --out heatmap.png")
def _heatmap(
    store: _Patches,
    scores: Annotated[Path, existing("Scores, made by `hidisc evaluate`.")],
    slide: Annotated[str, typer.Argument(help="Name of a slide that was evaluated.")],
    out: Annotated[Path, option("Picture to write (PNG or PDF).")],
    label: Annotated[str | None, option("One class; default all of them.")] = None,
    cohort: Annotated[
        Path | None, existing_option("Of features that were imported, the CSV that says where the slide files are.")
    ] = None,
) -> Result:
    """Paint class scores over a slide's thumbnail."""
    from hidisc.settings.level_names import find_names

    picture = hidisc.heatmap(store, scores, slide, out, label, cohort=cohort)
    scored = f"scores of {find_names(store).slide} {slide}"
    return Result(f"{picture}: {scored}", {"picture": str(picture), "slide": slide})


@verb("explore", "store embeddings scores --cohort cohort.csv")
def _explore(
    store: _Patches,
    others: Annotated[list[Path] | None, existing("Embeddings of the store, and scores of these embeddings.")] = None,
    cohort: Annotated[Path | None, existing_option("The CSV that says where the slide files are, to zoom in.")] = None,
    host: Annotated[
        str, option("Address or name to listen at; others than this can be seen in the network.")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port to use; default a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, option("Whether to open the browser.", "--browser/--no-browser")] = True,
    stop_after: Annotated[float | None, option("End after so many minutes without use.", min=0)] = None,
    patient: Annotated[str | None, option("With --save: whose slides.")] = None,
    save: Annotated[Path | None, option("Write a folder of one patient that opens from disk, and end.")] = None,
    as_json: Json = False,
) -> Result | None:
    """Look at slides, the map of patches and what is alike in a browser, and give names to patches."""
    from hidisc.settings.level_names import find_names
    from hidisc.verbs.explore import save_page

    if (save is None) != (patient is None):
        raise UserError("--save and --patient go together: a folder of one patient is written.")
    if save is not None and patient is not None:
        slides = save_page(store, others or [], patient, save, cohort=cohort, say=say)
        page = save / "index.html"
        shown = find_names(store).count(slides, "slide")
        return Result(f"{page}: {shown}; open it in a browser", {"page": str(page), "slides": slides})

    def ready(address: str) -> None:  # before it serves: the command ends with Ctrl-C
        print_result(Result(address, {"address": address}), as_json)
        sys.stdout.flush()
        say("Open this address in a browser, and press Ctrl-C here to end.")

    hidisc.explore(
        store,
        others or [],
        cohort=cohort,
        host=host,
        port=port,
        browser=browser,
        stop_after_min=stop_after,
        say=say,
        ready=ready,
    )
    return None


ExportTarget = StrEnum("ExportTarget", "TIMM ONNX TORCHSCRIPT EXPORTED WSINFER BAGS GEOJSON ANNDATA")
"""What an encoder, or embeddings, are exported to."""
_PUSHED = (ExportTarget.TIMM, ExportTarget.ONNX, ExportTarget.TORCHSCRIPT, ExportTarget.EXPORTED)


@verb("export", "run --to onnx --out exported")
def _export(
    artefact: Annotated[
        Path, existing("A finished run; for bags and anndata, embeddings; for geojson, these or scores.")
    ],
    to: Annotated[
        ExportTarget,
        option(
            "An encoder: timm (state dict), onnx, torchscript, exported (torch.export), wsinfer (QuPath). "
            "Patches: bags (CLAM, TRIDENT, STAMP), geojson (QuPath), anndata (scanpy)."
        ),
    ],
    out: Annotated[Path, option("Folder to write.")],
    scores: Annotated[Path | None, existing_option("Of an encoder: its evaluation, for the model card.")] = None,
    push: Annotated[str | None, option("Of an encoder: OWNER/NAME on the Hugging Face hub (private).")] = None,
) -> Result:
    """Write an encoder, or embeddings, for other tools."""
    are_patches = to in (ExportTarget.BAGS, ExportTarget.GEOJSON, ExportTarget.ANNDATA)
    if (scores and are_patches) or (push and to not in _PUSHED):
        raise UserError(f"--scores goes with an encoder, and --push with {', '.join(_PUSHED)}; --to {to} is neither.")
    from hidisc.settings.level_names import find_names

    words = find_names(artefact)
    if to is ExportTarget.ANNDATA:
        file, patches = hidisc.export_anndata(artefact, out)
        return Result(f"{file}: {words.count(patches, 'patch')}", {"file": str(file), "patches": patches})
    if are_patches:
        bags = to is ExportTarget.BAGS
        slides = hidisc.export_bags(artefact, out, say=say) if bags else hidisc.export_geojson(artefact, out)
        return Result(f"{out}: {to} of {words.count(slides, 'slide')}", {"folder": str(out), "slides": slides})
    if to is ExportTarget.WSINFER:
        file, difference = hidisc.export_wsinfer(artefact, out, scores, say=say)
        sentence = f"{file}: read back, probabilities agree to {difference:.1g}"
        return Result(sentence, {"file": str(file), "difference": difference})
    file, difference = hidisc.export(artefact, out, to.value, scores=scores, push=push)  # type: ignore[arg-type]
    pushed = f"; pushed to {push}" if push else ""
    sentence = f"{file}: read back, embeddings agree to {difference:.1g}{pushed}"
    return Result(sentence, {"file": str(file), "relative_difference": difference})


@verb("views", "store --recipe weak --set views.probability=0.5 --out views.png", "train")
def _views(
    store: Store,
    out: Annotated[Path, option("Picture to write (PNG).")],
    recipe: Annotated[str | None, option("A training recipe: weak, strong, stain, ...")] = None,
    changes: SetOption = None,
    patches: Annotated[int, option("Rows: patches of different patients.", min=1)] = 4,
    views: Annotated[int, option("Random views of each.", min=1)] = 8,
    seed: Annotated[int, option("Seed of the patches and the views.", min=0)] = 0,
) -> Result:
    """Draw patches and what training makes of them."""
    from hidisc.settings.level_names import find_names
    from hidisc.verbs.views import show_views

    config = build_config(hidisc.TrainConfig, recipe, changes)
    picture = show_views(store, out, config.views, patches=patches, views=views, seed=seed)
    drawn = find_names(store).count(patches, "patch")
    record = {"picture": str(picture), "patches": patches, "views": views}
    return Result(f"{picture}: {drawn}, {count(views, 'view')} of each", record)


@verb("settings", "train optim")
def _settings(
    verb: Annotated[
        str | None, typer.Argument(help="prepare, import, train, embed, evaluate, report, benchmark.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="One setting, or one group: optim.steps, optim.")] = None,
    markdown: Annotated[bool, option("All settings of all verbs as a page.", "--markdown")] = False,
) -> Result:
    """List the settings of a verb: type, default, range, meaning, and what recipes make of them."""
    from hidisc.verbs.settings import CONFIGS, list_groups, show_settings, write_page

    if markdown:
        return Result(write_page().removesuffix("\n"))
    if verb is None:
        raise UserError(f"name the command whose settings to list: hidisc settings {'|'.join(CONFIGS)}.")
    record = [asdict(setting) for group in list_groups(verb, name) for setting in group.settings]
    return Result(show_settings(verb, name), record)


@verb("recipes", "train hidisc-patient+laptop")
def _recipes(
    verb: Annotated[str | None, typer.Argument(help="prepare, train, embed, evaluate, benchmark; default all.")] = None,
    name: Annotated[str | None, typer.Argument(help="A recipe, or several: hidisc-patient+laptop.")] = None,
) -> Result:
    """List the recipes with their purposes; or show one with every setting it results in."""
    from hidisc.verbs.settings import list_purposes, resolve_recipe, show_recipe, show_recipes

    if verb is None or name is None:
        return Result(show_recipes(verb), list_purposes(verb))
    return Result(show_recipe(verb, name), resolve_recipe(verb, name))


@verb("doctor", "store")
def _doctor(
    artefact: Annotated[
        Path | None, typer.Argument(help="A store, run, embeddings, scores or benchmark, to verify file by file.")
    ] = None,
    measure: Annotated[
        bool, option("Measure this machine, and what the store and recipe take: a minute.", "--measure")
    ] = False,
    recipe: RecipeOption = None,
    changes: SetOption = None,
    device: Device = "auto",
) -> Result:
    """Show versions, devices and readers; verify an artefact; or measure how long a cohort takes here."""
    if measure:
        return _measure(artefact, recipe, changes, device)
    from hidisc.verbs.doctor import describe_machine, find_damage, what_to_do

    if recipe or changes:
        raise UserError("--recipe and --set say what to measure: add --measure.")
    if artefact is None:
        machine = describe_machine()
        return Result("\n".join(f"{name:<22}{value}" for name, value in machine.items()), machine)
    problems = find_damage(artefact)
    notes = [f"damaged: {problem}" for problem in problems] + [f"note: {what_to_do(artefact)}"] * bool(problems)
    sentence = count(len(problems), "problem") if problems else "all files are as written"
    record = {"artefact": str(artefact), "problems": problems}
    return Result(f"{artefact}: {sentence}", record, tuple(notes), failed=bool(problems))


def _measure(store: Path | None, recipe: str | None, changes: list[str] | None, device: str) -> Result:
    """How fast this machine is, and what a cohort takes."""
    from hidisc.verbs.measure import as_record, describe_needs, measure_machine

    config = build_config(hidisc.TrainConfig, recipe, changes)
    rates, size, needs = measure_machine(store, config, device=device, say=say)
    return Result(describe_needs(rates, size, needs, config), as_record(rates, size, needs))


@verb("demo", "--quick --out demo")
def _demo(
    out: Out = Path("demo"),
    quick: Annotated[bool, option("Smaller and shorter: to see that it runs.", "--quick")] = False,
    seed: Annotated[int, option("Seed of the drawn cohort and of the trainings.", min=0)] = 0,
    workers: WorkersOption = None,
) -> Result:
    """See it work on drawn slides, from slide files to a report: 3 minutes on two cores."""
    from hidisc.verbs.demo import demo

    page = demo(out, quick=quick, seed=seed, workers=workers, say=say)
    say(
        "\nNext, on your own slides (docs/quickstart.md says what cohort.csv holds):\n\n"
        "  hidisc prepare cohort.csv --out store\n"
    )
    return Result(f"{page}: open it in a browser", {"page": str(page)})
