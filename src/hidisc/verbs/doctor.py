"""`hidisc doctor`: what this installation has, and whether an artefact is as it was written."""

import os
import platform
import shutil
from pathlib import Path

from hidisc.artefacts.artefact import KINDS, MANIFEST, read_kind
from hidisc.artefacts.artefact import verify as verify_artefact
from hidisc.ground.errors import UserError, no_such_path
from hidisc.ground.machine import count_cores, versions
from hidisc.ground.text import name_some

_PACKAGES = (
    "hidisc",
    "torch",
    "torchvision",
    "timm",
    "lightning-fabric",
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
    """The compressions of slides that imagecodecs was built with."""
    import imagecodecs

    names = {"JPEG": "jpeg8", "JPEG 2000": "jpeg2k", "JPEG XR": "jpegxr", "LZW": "lzw", "Deflate": "zlib", "PNG": "png"}
    return [shown for shown, name in names.items() if getattr(imagecodecs, name.upper()).available]


def find_damage(artefact: Path) -> list[str]:
    """Everything wrong with an artefact, file by file; empty when it is as it was written."""
    if not artefact.exists():
        raise no_such_path(artefact, "Give a folder that hidisc made, or the page of a report.")
    folder = _home(artefact)
    if not (folder / MANIFEST).is_file() and read_kind(folder) is None:
        inside = sorted(str(path.parent) for path in folder.glob(f"*/{MANIFEST}"))
        there = f" It holds {name_some(inside)}: give one of these." if inside else ""
        nouns = [of.noun for kind, of in KINDS.items() if kind not in ("import", "report")]
        raise UserError(
            f"{artefact} is no artefact of hidisc (no {MANIFEST}). `hidisc doctor` takes the folder of a "
            f"{', '.join(nouns)}, or the page of a report.{there}"
        )
    return verify_artefact(folder)


def what_to_do(artefact: Path) -> str:
    """How to repair a damaged artefact."""
    folder = _home(artefact)
    kind = read_kind(folder)
    if kind is None:
        return f"make {folder} anew, with a new --out"
    again = f"run {KINDS[kind].again}: what is damaged is made again"
    if kind in ("prepare", "import"):
        return f"delete the folders of slides whose patches are damaged below {folder / 'shards'}, then {again}"
    return again


def _home(artefact: Path) -> Path:
    """The folder of an artefact; a report is given by its page."""
    return artefact.with_name(f"{artefact.stem}_files") if artefact.suffix.lower() in (".html", ".htm") else artefact
