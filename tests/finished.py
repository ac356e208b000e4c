"""Finished artefacts of files that a test has written, or changed, itself."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from hidisc.artefacts.artefact import CONFIG, FORMAT, MANIFEST, Manifest, read_manifest
from hidisc.ground.files import LOCK, describe_file, seal


def finish(folder: Path, kind: str, inputs: Mapping[str, str] | None = None) -> None:
    """Make a folder with some files a finished artefact."""
    if not (folder / CONFIG).exists():
        config = {"kind": kind, "format": FORMAT, "inputs": dict(inputs or {}), "annotations": {}}  # as since 0.3
        (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in (LOCK, MANIFEST)]
    files = tuple(describe_file(path, path.relative_to(folder).as_posix()) for path in sorted(paths))
    (folder / MANIFEST).write_bytes(seal(Manifest(kind=kind, inputs=dict(inputs or {}), files=files)))


def refinish(folder: Path) -> None:
    """Declare the files of a finished artefact to be as they are now, whatever a test has done to them."""
    manifest = read_manifest(folder)
    assert manifest is not None
    finish(folder, manifest.kind, manifest.inputs)
