"""`hidisc doctor`: what this installation has, and whether an artefact is as it was written."""

import os
import platform
import shutil
from pathlib import Path

from hidisc.errors import UserError
from hidisc.patches.store import verify_store
from hidisc.runs import count_cores, read_kind, versions
from hidisc.slides.cohort import hash_file

_PACKAGES = (
    "hidisc",
    "torch",
    "torchvision",
    "timm",
    "lightning",
    "scikit-learn",
    "numpy",
    "pyarrow",
    "dask",
    "openslide-python",
    "openslide-bin",
    "tifffile",
    "imagecodecs",
    "pillow",
)


def describe_machine() -> dict[str, str]:
    """Versions, cores, memory, disk, devices and slide readers, by name."""
    import openslide
    import torch

    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    found |= {name: version or "not installed" for name, version in versions(*_PACKAGES).items()}
    found["cores"] = str(count_cores())
    found["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB"
    found["free disk here"] = f"{shutil.disk_usage(Path.cwd()).free / 2**30:.0f} GB"
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    found["devices"] = ", ".join(devices)
    found["reader openslide"] = f"library {openslide.__library_version__}"
    found["reader tifffile"] = f"codecs: {', '.join(_codecs())}"
    return found


def _codecs() -> list[str]:
    """The compressions slides come in that imagecodecs was built with."""
    import imagecodecs

    names = {"JPEG": "jpeg8", "JPEG 2000": "jpeg2k", "JPEG XR": "jpegxr", "LZW": "lzw", "Deflate": "zlib", "PNG": "png"}
    return [shown for shown, name in names.items() if getattr(imagecodecs, name.upper()).available]


def verify(artefact: Path) -> list[str]:
    """Everything wrong with an artefact, file by file; empty when it is as it was written."""
    if not artefact.exists():
        raise UserError(
            f"{artefact} does not exist. Give the folder of a store, a run, embeddings, scores or a benchmark."
        )
    kind = read_kind(artefact)
    return _VERIFY.get(kind or "", verify_store)(artefact)


def what_to_do(artefact: Path) -> str:
    """How a damaged artefact is mended."""
    if read_kind(artefact) == "benchmark":
        return f"delete the damaged folders below {artefact / 'cells'} and run the same benchmark again"
    if read_kind(artefact) in _VERIFY:
        return f"delete {artefact} and run the command that makes it again"
    return f"delete the folders of the damaged slides below {artefact / 'shards'} and make the store again"


def _verify_run(path: Path) -> list[str]:
    from hidisc.training.run import Run

    try:
        Run.load(path).encoder()
    except UserError as error:
        return [str(error)]
    return []


def _verify_embeddings(path: Path) -> list[str]:
    from hidisc.embeddings.embeddings import Embeddings

    try:
        info = Embeddings.load(path).info
    except UserError as error:
        return [str(error)]
    entries = (info.vectors, info.patches)
    return [
        f"{file.path} has changed (its checksum differs)"
        for file in entries
        if hash_file(path / file.path) != file.checksum
    ]


def _verify_scores(path: Path) -> list[str]:
    from hidisc.evaluation.scores import Scores

    problems = []
    scores = Scores.load(path)
    for opinion in scores.info.opinions:
        for level in opinion.levels:
            try:
                found = scores.predictions(opinion.name, level.level)
            except UserError as error:
                problems.append(str(error))
            else:
                if len(found) != level.units:
                    problems.append(
                        f"the {opinion.name} predictions of level {level.level} have {len(found)} rows instead of "
                        f"{level.units}"
                    )
    return problems


def _verify_benchmark(path: Path) -> list[str]:
    """Whatever its trainings have left that is finished, or should be."""
    parts = [part for part in sorted(path.glob("cells/*/*")) if read_kind(part) in _VERIFY]
    problems = []
    for part in parts:
        try:
            problems += [f"{part.relative_to(path)}: {problem}" for problem in verify(part)]
        except UserError as error:
            problems.append(str(error))
    return problems


_VERIFY = {
    "train": _verify_run,
    "embed": _verify_embeddings,
    "evaluate": _verify_scores,
    "benchmark": _verify_benchmark,
}
"""By what began the folder; anything else is taken for a store."""
