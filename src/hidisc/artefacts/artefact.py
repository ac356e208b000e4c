"""An artefact: a folder that is a function of declared facts, and says which. One life cycle serves every kind.

make(...)          hold the folder, begin it (`config.yaml`: kind, format, inputs, settings) or compare what it was
                   begun with, sweep what killed processes left
work               the verb's own; every file is written beside and renamed
work.finish(...)   `artefact.json`, last: every file with its size and checksums, the inputs, and its own checksum
open_artefact(...) refuse what is unfinished, damaged, or of another format
verify(...)        check every file of it, and of the artefacts inside it
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml
from pydantic import model_validator

from hidisc.artefacts.lock import OWNER, hold
from hidisc.ground.errors import UserError, no_such_path
from hidisc.ground.files import (
    LOCK,
    FileEntry,
    Record,
    describe_file,
    find_problem,
    is_part,
    make_folder,
    seal,
    sweep,
    sync,
    unseal,
    write_atomic,
)
from hidisc.ground.progress import Say, ignore
from hidisc.settings.config import Config, differences, keep_facts

CONFIG, MANIFEST = "config.yaml", "artefact.json"
FORMAT = "hidisc-2"
"""Of all folders; those of hidisc 0.1 have none in their config.yaml."""
_ONLY_BEFORE_0_3 = re.compile(rb"^ *(ahead|looks|opinions):", re.MULTILINE)
_SINCE_0_3 = re.compile(rb"^(annotations|level_names):", re.MULTILINE)
"""Settings by which config.yaml is known to be of hidisc 0.2; the second ones are of stores."""


@dataclass(frozen=True)
class Kind:
    """What to call an artefact, and which command makes it."""

    noun: str
    command: str
    many: bool = False

    @property
    def again(self) -> str:
        """The command as advice."""
        return f"the same `hidisc {self.command}` again"

    @property
    def be(self) -> str:
        """The verb that belongs to the noun."""
        return "are" if self.many else "is"

    def __str__(self) -> str:
        """The noun with its article: `a run`, `an encoder`, `scores`."""
        return self.noun if self.many else f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"


KINDS = {
    "prepare": Kind("store", "prepare"),
    "import": Kind("store", "import"),
    "train": Kind("run", "train"),
    "encoder": Kind("encoder", "benchmark"),
    "embed": Kind("embeddings", "embed", many=True),
    "evaluate": Kind("scores", "evaluate", many=True),
    "audit": Kind("audit", "audit"),
    "report": Kind("report", "report"),
    "benchmark": Kind("benchmark", "benchmark"),
    "export": Kind("exported encoder", "export"),
    "bags": Kind("bags", "export", many=True),
    "patches": Kind("exported patches", "export", many=True),
}
"""By the name in config.yaml."""


class Manifest(Record):
    """`artefact.json`: what makes a folder whole."""

    format: Literal["hidisc-2"] = "hidisc-2"
    kind: str
    inputs: dict[str, str]
    """What it was made from: name and checksum."""
    files: tuple[FileEntry, ...]

    @model_validator(mode="after")
    def _stays_inside(self) -> "Manifest":
        """A folder from elsewhere must not lead to files outside of it; a report's page lies beside its files."""
        for file in self.files:
            first, *rest = PurePosixPath(file.path).parts or ("",)
            is_page = self.kind == "report" and first == ".." and len(rest) == 1
            if "\\" in file.path or first in ("", "/") or ".." in rest or (first == ".." and not is_page):
                raise ValueError(f"{file.path!r} is no file of it")
        return self


class DamagedError(UserError):
    """A finished artefact that is not as it was written."""


@dataclass(frozen=True)
class Artefact:
    """A finished artefact; `use(name)` is the path of a file that has just been verified."""

    path: Path
    manifest: Manifest

    @cached_property
    def checksum(self) -> str:
        """Names its whole content: the SHA-256 of artefact.json."""
        return hashlib.sha256(seal(self.manifest)).hexdigest()

    @cached_property
    def files(self) -> dict[str, FileEntry]:
        """Size and checksums that every file must have, by its path."""
        return {entry.path: entry for entry in self.manifest.files}

    def use(self, name: str) -> Path:
        """The path of a file, found to be as it was written."""
        entry = self.files.get(name)
        problem = find_problem(self.path, entry) if entry else f"{name} is no file of it"
        if problem:
            raise damaged(self.path, self.manifest.kind, problem)
        return self.path / name


class Work:
    """An artefact that is being made, or was finished before; its folder is held."""

    def __init__(self, out: Path, config: dict[str, Any]) -> None:
        self.out, self._config = out, config

    def find_problems(self) -> dict[str, str] | None:
        """What is wrong with each file of a finished artefact, by its path; None where it is not finished."""
        try:
            manifest = read_manifest(self.out)
        except ValueError as error:
            return {MANIFEST: f"{MANIFEST}: {error}"}
        if manifest is None:
            return None
        return {entry.path: problem for entry in manifest.files if (problem := find_problem(self.out, entry))}

    def is_finished(self, say: Say = ignore) -> bool:
        """Whether nothing is left to do; a damaged artefact loses what is damaged, and is unfinished again."""
        problems = self.find_problems()
        if problems:
            some = "; ".join(list(problems.values())[:3])
            say(f"note: {self.out} is damaged ({some}); what is damaged is made again")
            self.reopen()
            for path in problems:
                if not path.startswith(".."):
                    (self.out / path).unlink(missing_ok=True)
        return problems == {}

    def reopen(self) -> None:
        """Declare a finished artefact unfinished, before anything in it changes."""
        if (self.out / MANIFEST).exists():
            (self.out / MANIFEST).unlink()
            sync(self.out)

    def finish(self, files: Iterable[str | FileEntry], optional: Iterable[str] = ()) -> None:
        """Write `artefact.json`: the artefact is whole. `files` and `optional` ones are relative to it."""
        if _read_config(self.out) != self._config:  # settings were taken over, or the file was lost
            self.reopen()
            write_atomic(self.out / CONFIG, _dump(self._config))
        entries = [describe_file(self.out / CONFIG)]
        entries += [describe_file(self.out / file, file) if isinstance(file, str) else file for file in files]
        entries += [describe_file(self.out / name, name, needed=False) for name in optional]
        entries.sort(key=lambda entry: entry.path)
        data = seal(Manifest(kind=self._config["kind"], inputs=self._config["inputs"], files=tuple(entries)))
        path = self.out / MANIFEST
        if not path.is_file() or path.read_bytes() != data:
            write_atomic(path, data)


@contextmanager
def make(
    out: Path,
    kind: str,
    settings: Config,
    inputs: Mapping[str, str] | None = None,
    *,
    taken_over: Iterable[str] = (),
    hint: str = "",
    wait_s: float = 0,
) -> Iterator[Work]:
    """Hold a folder and begin an artefact in it, or go on with one that was begun from the same facts.

    `inputs`: checksums of what it is made from, by name. `taken_over`: groups of settings whose change is taken over,
    beside those that declare it themselves. `hint`: what else to do about other settings.
    """
    if out.is_dir() and not (out / MANIFEST).is_file():
        _refuse_other_content(out)  # before a lock is left among them
    make_folder(out)
    config = _declare(kind, settings, inputs)
    with hold(out, wait_s):
        _begin(out, config, type(settings), frozenset(taken_over), hint)
        sweep(out)
        yield Work(out, config)


def begin_together(
    out: Path, kind: str, settings: Config, inputs: Mapping[str, str] | None = None, *, wait_s: float
) -> None:
    """Begin an artefact that several processes make together, each holding the parts it works on."""
    if _read_config(out) is None:
        with make(out, kind, settings, inputs, wait_s=wait_s):
            return
    _begin(out, _declare(kind, settings, inputs), type(settings), frozenset(), "")


def _declare(kind: str, settings: Config, inputs: Mapping[str, str] | None) -> dict[str, Any]:
    """The content of `config.yaml`."""
    return {"kind": kind, "format": FORMAT, "inputs": dict(inputs or {}), **settings.model_dump(mode="json")}


def _begin(out: Path, new: dict[str, Any], model: type[Config], taken_over: frozenset[str], hint: str) -> None:
    """Write `config.yaml`, or compare it with the one there."""
    _restore_config(out, new)
    _refuse_other_content(out)
    if (old := _read_config(out)) is not None:
        if old["kind"] == new["kind"]:
            _refuse_old(out, old["kind"])
        changed = _compare(old, new, model, taken_over)
        if changed:
            raise UserError(
                f"{out} was begun with other settings ({'; '.join(changed)}). Use the same ones to go on, "
                f"or give a new --out.{hint}"
            )
    if old != new and not (out / MANIFEST).is_file():
        write_atomic(out / CONFIG, _dump(new))


def _restore_config(out: Path, new: dict[str, Any]) -> None:
    """Write the `config.yaml` of a finished artefact again where it is damaged and these were its settings."""
    with suppress(ValueError):
        manifest = read_manifest(out)
        entry = next((file for file in manifest.files if file.path == CONFIG), None) if manifest else None
        if entry is None or find_problem(out, entry) is None or _read_config(out) == new:
            return
        if hashlib.sha256(_dump(new)).hexdigest() != entry.sha256:
            raise UserError(
                f"{out / CONFIG} is damaged, and the settings given are not those that {out} was made with. Give "
                "those, or a new --out."
            )
        write_atomic(out / CONFIG, _dump(new))


def _dump(config: dict[str, Any]) -> bytes:
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode()


def _compare(
    old: Mapping[str, Any], new: Mapping[str, Any], model: type[Config], taken_over: frozenset[str]
) -> list[str]:
    """The facts that differ, each in words."""
    if old["kind"] != new["kind"]:
        return [f"kind: {old['kind']} -> {new['kind']}"]
    before, after = (keep_facts(model, settings, taken_over) for settings in (old, new))
    inputs = old.get("inputs") or {}
    changed = [name for name in {**inputs, **new["inputs"]} if inputs.get(name) != new["inputs"].get(name)]
    return differences(before, after) + [f"the content of {name} has changed" for name in changed]


def _refuse_other_content(out: Path) -> None:
    """Refuse a folder with files and no `config.yaml` of hidisc.

    Files are listed before it is read: another process may write it, and then its files, at any moment.
    """
    names = sorted(path.name for path in out.iterdir() if path.name not in (LOCK, OWNER) and not is_part(path))
    if names and _read_config(out) is None:
        raise UserError(
            f"{out} holds something else ({', '.join(names[:3])}) and is not overwritten. "
            "Give a new or empty folder for --out."
        )


def open_artefact(path: Path, *kinds: str, check: Iterable[str] | None = None) -> Artefact:
    """A finished artefact of one of the kinds; `check`: the files that are verified now, None: all of them."""
    try:
        manifest = read_manifest(path)
    except ValueError as error:
        kind = read_kind(path)
        raise damaged(path, kind if kind in kinds else kinds[0], f"{MANIFEST}: {error}") from error
    if manifest is None or manifest.kind not in kinds:
        raise _absent(path, kinds)
    artefact = Artefact(path, manifest)
    for entry in manifest.files:
        if check is None or entry.path in check:
            artefact.use(entry.path)
    _refuse_old(path, manifest.kind)
    return artefact


def read_manifest(path: Path) -> Manifest | None:
    """`artefact.json` of a folder, None where there is none; ValueError when it is damaged."""
    try:
        return unseal((path / MANIFEST).read_bytes(), Manifest)
    except (FileNotFoundError, NotADirectoryError):
        return None


def verify(path: Path) -> list[str]:
    """Everything wrong with an artefact, file by file, and with the artefacts inside it; empty: it is as written."""
    try:
        manifest = read_manifest(path)
    except ValueError as error:
        return [f"{MANIFEST}: {error}"]
    if manifest is None:
        kind = read_kind(path)
        if kind not in KINDS:
            *kinds, last = dict.fromkeys(map(str, KINDS.values()))
            raise UserError(
                f"{path} is no artefact of hidisc (no {MANIFEST}). Give a folder that hidisc made: "
                f"{', '.join(kinds)} or {last}."
            )
        problems = [str(_absent(path, (kind,)))]
    else:
        problems = [*filter(None, (find_problem(path, entry, "sha256") for entry in manifest.files))]
    for folder in _find_inner(path):
        problems += [f"{folder.relative_to(path)}: {problem}" for problem in verify(folder)]
    return problems


def _find_inner(path: Path) -> Iterator[Path]:
    """The artefacts inside an artefact, outermost only."""
    for folder in sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.is_symlink()):
        if (folder / CONFIG).is_file() or (folder / MANIFEST).is_file():
            yield folder
        else:
            yield from _find_inner(folder)


def read_kind(path: Path) -> str | None:
    """The kind of artefact that a folder holds, by its config.yaml; None where hidisc did not begin the folder."""
    config = _read_config(path)
    return str(config["kind"]) if config else None


def read_settings(path: Path) -> dict[str, Any] | None:
    """The settings in a folder's config.yaml; None when hidisc did not begin it."""
    config = _read_config(path)
    return config and {name: value for name, value in config.items() if name not in ("kind", "format", "inputs")}


def damaged(path: Path, kind: str, problem: str) -> DamagedError:
    """The error that an artefact is not as it was written, with what to do."""
    of = KINDS[kind]
    return DamagedError(f"{of.noun} {path} {of.be} damaged: {problem}. Run {of.again}: it repairs that.")


def _absent(path: Path, kinds: tuple[str, ...]) -> UserError:
    """The error that a folder holds no finished artefact of some kinds."""
    commands = " or ".join(f"`hidisc {KINDS[name].command}`" for name in kinds if name != "encoder")
    if not path.exists():
        return no_such_path(path, f"Make it with {commands}.")
    kind = read_kind(path) or ""
    if kind in kinds:
        _refuse_old(path, kind)
        of = KINDS[kind]
        return UserError(f"{of.noun} {path} {of.be} not finished. Run {of.again}; it goes on.")
    of = KINDS[kinds[0]]
    what = f"holds no {of.noun}" if of.many else f"is not {of}"
    there = f" (it is {KINDS[kind]})" if kind in KINDS else ""
    return UserError(f"{path} {what}{there}. Make {'them' if of.many else 'one'} with {commands}.")


def _refuse_old(path: Path, kind: str) -> None:
    """Raise for a folder that hidisc 0.1 or 0.2 began, by the text of its config.yaml."""
    text = (path / CONFIG).read_bytes() if (path / CONFIG).is_file() else b""
    lacks = kind in ("prepare", "import") and not _SINCE_0_3.search(text)
    is_ours = b"\nkind:" in b"\n" + text  # a damaged config.yaml is not an old one
    if is_ours and (lacks or _ONLY_BEFORE_0_3.search(text) or f"\nformat: {FORMAT}\n".encode() not in text):
        of = KINDS[kind]
        raise UserError(
            f"{of.noun} {path} {of.be} of hidisc 0.2 or older, and folders of these versions are not read. Run `hidisc "
            f"{of.command}` with a new --out to make {'them' if of.many else 'it'} anew."
        )


def _read_config(path: Path) -> dict[str, Any] | None:
    """`config.yaml` of a folder; None when there is none, or something other than hidisc wrote it."""
    try:
        record = yaml.safe_load((path / CONFIG).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return record if isinstance(record, dict) and "kind" in record else None
