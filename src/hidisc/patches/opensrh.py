"""OpenSRH on disk (`meta/opensrh.json`, 16-bit two-channel TIFF patches) -> a source to import."""

import json
from pathlib import Path
from typing import Any

from hidisc.ground.errors import UserError
from hidisc.ground.paths import AnyPath
from hidisc.patches.sources import PatchFile, Source, group_by_slide
from hidisc.slides.cohort import refuse

META, SPLIT = "meta/opensrh.json", "meta/train_val_split.json"


def find_opensrh(root: AnyPath) -> Source:
    """The patches of OpenSRH: normal patients give `normal_patches`, all others `tumor_patches`."""
    root = Path(root)
    patients = _read_json(root, META)
    splits = _read_json(root, SPLIT)
    split_of = {str(patient): split for split in ("train", "val") for patient in splits.get(split, [])}
    patches, problems, warnings = [], [], []
    for patient, study in patients.items():
        try:
            label = str(study["class"])
            slides = study["slides"].items()
            listed = "normal_patches" if label == "normal" else "tumor_patches"
            files = [(slide, path) for slide, lists in slides for path in lists[listed]]
        except KeyError as error:
            problems.append(f"{META}: patient {patient!r} lacks {error}. Download the file again.")
            continue
        except (TypeError, AttributeError):
            problems.append(f"{META}: patient {patient!r} is not `class` and `slides`. Download the file again.")
            continue
        if patient not in split_of:
            warnings.append(f"patient {patient!r} is in neither split of {SPLIT}; its split stays empty.")
        if not files:
            warnings.append(f"patient {patient!r} ({label}) has no {listed} and is left out.")
        for slide, path in files:
            if not (root / path).is_file():
                problems.append(f"{META}: patch {path!r} does not exist below {root}. Download it again.")
            split = split_of.get(patient)
            patches.append(PatchFile(patient, str(slide), root / path, label, split=split, name=Path(path).stem))
    refuse(root, problems)
    if not patches:
        raise UserError(f"{root / META} lists no patches. Give the OpenSRH folder that holds `meta`.")
    return Source(root, tuple(group_by_slide(patches, "patient")), "srh", tuple(warnings))


def _read_json(root: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((root / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{root / name} does not exist. Give the OpenSRH folder that holds `meta`.") from error
    except (ValueError, OSError) as error:
        raise UserError(f"{root / name} cannot be read ({error}). Download it again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{root / name} is not an OpenSRH file: a JSON object is expected. Download it again.")
    return found
