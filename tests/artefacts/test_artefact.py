"""The life of an artefact: begun once, gone on with from the same facts, whole or refused, verified file by file."""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hidisc.artefacts import artefact
from hidisc.artefacts.artefact import (
    CONFIG,
    MANIFEST,
    DamagedError,
    Work,
    make,
    open_artefact,
    read_kind,
    read_settings,
    verify,
)
from hidisc.artefacts.lock import hold
from hidisc.ground.errors import UserError
from hidisc.ground.files import LOCK, PART, Record, beside
from hidisc.settings.config import Config, Pace, TakenOver


class Inner(Record):
    """A group of settings."""

    k: int = 3
    threads: Annotated[int, Pace()] = 1


class Settings(Config):
    """A bit of everything."""

    seed: int = 0
    inner: Inner = Inner()
    split: Annotated[str, TakenOver()] = "half"
    names: tuple[str, ...] = ("ä", "=b")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished artefact."""
    with begun(tmp_path / "out") as work:
        (work.out / "a.txt").write_text("result a")
        (work.out / "deep").mkdir()
        (work.out / "deep" / "b.txt").write_text("result b")
        (work.out / "picture").write_text("may be deleted")
        work.finish(("a.txt", "deep/b.txt"), ("picture",))
    return tmp_path / "out"


@contextmanager
def begun(out: Path, settings: Settings | None = None, **more: str) -> Iterator[Work]:
    with make(out, "embed", settings or Settings(), {"store": "abc", **more}) as work:
        yield work


def refusal(out: Path, settings: Settings | None = None, **more: str) -> str:
    with pytest.raises(UserError) as caught, begun(out, settings, **more):
        pass
    return str(caught.value)


# ---- begin


def test_a_new_folder_records_kind_inputs_and_settings(tmp_path: Path) -> None:
    with begun(tmp_path / "out") as work:
        assert work.find_problems() is None
        assert not work.is_finished()
    known = yaml.safe_load((tmp_path / "out" / CONFIG).read_text())
    assert known == {
        "kind": "embed",
        "format": "hidisc-2",
        "inputs": {"store": "abc"},
        **Settings().model_dump(mode="json"),
    }
    assert read_kind(tmp_path / "out") == "embed"
    assert read_settings(tmp_path / "out") == Settings().model_dump(mode="json")


def test_other_facts_are_refused_by_name(tmp_path: Path) -> None:
    with begun(tmp_path / "out"):
        pass
    before = (tmp_path / "out" / CONFIG).read_bytes()
    assert refusal(tmp_path / "out", Settings(seed=1, inner=Inner(k=5))) == (
        f"{tmp_path / 'out'} was begun with other settings (seed: 0 -> 1; inner.k: 3 -> 5). Use the same ones to go "
        "on, or give a new --out."
    )
    assert "(the content of store has changed)" in refusal(tmp_path / "out", store="def")
    assert "(the content of weights has changed)" in refusal(tmp_path / "out", weights="def")
    with pytest.raises(UserError, match="kind: embed -> train"), make(tmp_path / "out", "train", Settings()):
        pass
    assert (tmp_path / "out" / CONFIG).read_bytes() == before


@pytest.mark.parametrize("finished", [False, True])
def test_settings_that_touch_no_result_may_differ(tmp_path: Path, finished: bool) -> None:
    with begun(tmp_path / "out") as work:
        if finished:
            work.finish(())
    other = Settings(inner=Inner(threads=8))
    with begun(tmp_path / "out", other) as work:
        assert work.is_finished() is finished
    known = read_settings(tmp_path / "out")
    assert known is not None
    assert known["inner"]["threads"] == (1 if finished else 8)  # of a finished one, those it was made with


def test_settings_that_are_taken_over_are_written_down_when_it_is_finished_again(out: Path) -> None:
    with begun(out, Settings(split="third")) as work:
        work.finish(("a.txt", "deep/b.txt"), ("picture",))
    assert (read_settings(out) or {})["split"] == "third"
    assert verify(out) == []
    with make(out, "embed", Settings(split="third", seed=4), {"store": "abc"}, taken_over=("seed",)) as work:
        work.finish(())
    assert (read_settings(out) or {})["seed"] == 4


def test_a_strangers_folder_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    """Not even a lock is left in it, nor anything swept that looks like ours."""
    stranger = tmp_path / "out"
    (stranger / "sub").mkdir(parents=True)
    for name in ("d.txt", "c", "b", "sub/notes"):
        (stranger / name).write_text("mine")
    beside(stranger / "thesis").write_text("mine")
    beside(stranger / "sub" / "thesis").write_text("mine")
    before = sorted(stranger.rglob("*"))
    assert refusal(stranger) == (
        f"{stranger} holds something else (b, c, d.txt) and is not overwritten. Give a new or empty folder for --out."
    )
    assert sorted(stranger.rglob("*")) == before


@pytest.mark.parametrize("text", [b"- a list", b"a: [broken", b"words", b"", b"\xff\xfe\x00", b"model: resnet"])
def test_a_strangers_config_is_not_overwritten(tmp_path: Path, text: bytes) -> None:
    (tmp_path / CONFIG).write_bytes(text)
    assert f"holds something else ({CONFIG})" in refusal(tmp_path)
    assert (tmp_path / CONFIG).read_bytes() == text


def test_who_begins_the_folder_at_the_same_moment_is_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of jobs that start at once, one writes `config.yaml` just after another has looked for it."""
    out, read_config = tmp_path / "out", artefact._read_config
    out.mkdir()
    with begun(tmp_path / "twin"):
        pass

    def read_too_early(path: Path) -> dict[str, object] | None:
        record = read_config(path)
        if path == out and record is None:
            shutil.copy(tmp_path / "twin" / "config.yaml", out)
        return record

    monkeypatch.setattr(artefact, "_read_config", read_too_early)
    with begun(out):
        assert read_config(out) == read_config(tmp_path / "twin")


def test_what_is_refused_is_not_swept(tmp_path: Path) -> None:
    with begun(tmp_path / "out"):
        pass
    part = beside(tmp_path / "out" / "block")
    part.write_text("of a run with other settings")
    refusal(tmp_path / "out", Settings(seed=1))
    assert part.exists()
    with begun(tmp_path / "out"):
        assert not part.exists()


def test_a_running_command_in_a_folder_below_is_left_alone(tmp_path: Path) -> None:
    with begun(tmp_path / "out"):
        pass
    inner = tmp_path / "out" / "cells" / "one"
    with hold(inner):
        beside(inner / "weights").write_text("being written")
        with begun(tmp_path / "out"):
            assert sum(path.name.startswith(PART) for path in inner.iterdir()) == 1


@pytest.mark.parametrize("config", ["kind: embed\nseed: 0\n", "kind: embed\nformat: hidisc-2\nahead: 4\nseed: 0\n"])
def test_a_folder_of_an_earlier_version_is_not_gone_on_with(tmp_path: Path, config: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / CONFIG).write_text(config)
    sentence = (
        f"embeddings {tmp_path / 'out'} are of hidisc 0.2 or older, and folders of these versions are not read. Run "
        "`hidisc embed` with a new --out to make them anew."
    )
    assert refusal(tmp_path / "out") == sentence
    with pytest.raises(UserError) as caught:
        open_artefact(tmp_path / "out", "embed")
    assert str(caught.value) == sentence


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with begun(tmp_path / "out"):
        assert "another hidisc is writing to" in refusal(tmp_path / "out")


# ---- finish, open, verify


def test_a_finished_artefact_is_opened_and_has_no_problems(out: Path) -> None:
    artefact = open_artefact(out, "train", "embed")
    assert artefact.use("deep/b.txt").read_text() == "result b"
    assert artefact.manifest.inputs == {"store": "abc"}
    assert sorted(artefact.files) == ["a.txt", CONFIG, "deep/b.txt", "picture"]
    assert verify(out) == []
    with begun(out) as work:
        assert work.is_finished()


def test_the_same_content_has_the_same_checksum_wherever_it_is(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out, tmp_path / "copy")
    assert open_artefact(out, "embed").checksum == open_artefact(tmp_path / "copy", "embed").checksum


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_of_any_file_is_found(out: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["a.txt", "deep/b.txt", "picture", CONFIG, MANIFEST]))
    before = (out / name).read_bytes()
    place, bit = data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(before)
    changed[place] ^= 1 << bit
    (out / name).write_bytes(changed)
    try:
        assert len(verify(out)) == 1
        with pytest.raises(UserError):
            open_artefact(out, "embed")
    finally:
        (out / name).write_bytes(before)


@pytest.mark.parametrize("name", ["a.txt", "deep/b.txt", CONFIG])
def test_a_lost_or_cut_file_is_found_and_said(out: Path, name: str) -> None:
    whole = (out / name).read_bytes()
    (out / name).write_bytes(whole[:-1])
    problem = f"{name} has {len(whole) - 1:,} bytes instead of {len(whole):,}"
    assert verify(out) == [problem]
    with pytest.raises(DamagedError) as caught:
        open_artefact(out, "embed")
    assert str(caught.value) == (
        f"embeddings {out} are damaged: {problem}. Run the same `hidisc embed` again: it repairs that."
    )
    (out / name).unlink()
    assert verify(out) == [f"{name} is missing"]


def test_what_may_be_deleted_is_not_missed_but_not_replaced_either(out: Path) -> None:
    (out / "picture").write_text("MAY BE DELETED")
    assert verify(out) == ["picture has changed (its checksum differs)"]
    (out / "picture").unlink()
    assert verify(out) == []


def test_only_what_is_asked_for_is_checked_at_once(out: Path) -> None:
    (out / "a.txt").write_text("other")
    artefact = open_artefact(out, "embed", check=("deep/b.txt",))
    with pytest.raises(DamagedError, match=r"a\.txt has 5 bytes instead of 8"):
        artefact.use("a.txt")
    with pytest.raises(DamagedError, match=r"c\.txt is no file of it"):
        artefact.use("c.txt")


def test_the_same_command_makes_again_what_is_damaged(out: Path) -> None:
    (out / "a.txt").write_text("resulT a")
    said: list[str] = []
    with begun(out) as work:
        assert not work.is_finished(said.append)
        assert not (out / "a.txt").exists()
        assert (out / "deep" / "b.txt").exists()
        (out / "a.txt").write_text("result a")
        work.finish(("a.txt", "deep/b.txt"), ("picture",))
    assert said == [f"note: {out} is damaged (a.txt has changed (its checksum differs)); what is damaged is made again"]
    assert verify(out) == []


@pytest.mark.parametrize("text", ["", "kind: embed\nformat: hidisc-2\nseed: 7\n", "a: [broken"])
def test_damaged_settings_are_written_again_if_they_are_those_it_was_made_with(out: Path, text: str) -> None:
    before = (out / CONFIG).read_bytes()
    (out / CONFIG).write_text(text)
    assert refusal(out, Settings(seed=7)) == (
        f"{out / CONFIG} is damaged, and the settings given are not those that {out} was made with. Give those, or a "
        "new --out."
    )
    with begun(out) as work:
        assert work.is_finished()
    assert (out / CONFIG).read_bytes() == before


def test_the_manifest_of_another_artefact_is_not_believed(out: Path, tmp_path: Path) -> None:
    other = Settings(seed=7)
    with begun(tmp_path / "other", other) as work:
        work.finish(())
    shutil.copy(tmp_path / "other" / MANIFEST, out / MANIFEST)
    assert verify(out) == [f"{CONFIG} has changed (its checksum differs)"]
    with begun(out) as work:
        assert not work.is_finished()


def test_an_artefact_that_is_opened_again_is_unfinished_until_it_is_finished(out: Path) -> None:
    with begun(out) as work:
        work.reopen()
        with pytest.raises(UserError) as caught:
            open_artefact(out, "embed")
    assert str(caught.value) == f"embeddings {out} are not finished. Run the same `hidisc embed` again; it goes on."
    assert verify(out) == [str(caught.value)]


def test_another_kind_is_named(out: Path, tmp_path: Path) -> None:
    for path, sentence in (
        (out, f"{out} is not a run (it is embeddings). Make one with `hidisc train`."),
        (tmp_path / "nowhere", f"{tmp_path / 'nowhere'} does not exist. Make it with `hidisc train`."),
        (tmp_path, f"{tmp_path} is not a run. Make one with `hidisc train`."),
    ):
        with pytest.raises(UserError) as caught:
            open_artefact(path, "train")
        assert str(caught.value) == sentence


def test_artefacts_inside_are_verified_too(out: Path, tmp_path: Path) -> None:
    with make(tmp_path / "all", "benchmark", Settings()) as work:
        work.finish(())
    shutil.copytree(out, tmp_path / "all" / "cells" / "one" / "embeddings")
    shutil.copytree(out, tmp_path / "all" / "cells" / "two" / "embeddings")
    assert verify(tmp_path / "all") == []
    (tmp_path / "all" / "cells" / "two" / "embeddings" / "a.txt").unlink()
    assert verify(tmp_path / "all") == ["cells/two/embeddings: a.txt is missing"]


def test_what_is_no_artefact_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        verify(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} is no artefact of hidisc (no {MANIFEST}). Give a folder that hidisc made: a store, a run, an "
        "encoder, embeddings, scores, an audit, a report, a benchmark, an exported encoder, bags or exported "
        "patches."
    )


@pytest.mark.parametrize("path", ["../victim", "/victim", "deep/../../victim", "..", "", "a\\b", "../../victim.html"])
def test_a_manifest_from_elsewhere_leads_to_nothing_outside(out: Path, path: str) -> None:
    """Its seal is whole: anyone can make one."""
    victim = out.parent / "victim"
    victim.write_text("mine")
    entry = {"path": path, "bytes": 1, "sha256": "", "crc32": 0, "needed": True}
    text = json.dumps({"format": "hidisc-2", "kind": "embed", "inputs": {"store": "abc"}, "files": [entry]}, indent=1)
    text = text.removesuffix("\n}")
    (out / MANIFEST).write_text(f'{text},\n "sha256": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n')
    with begun(out) as work:
        assert not work.is_finished()
    assert victim.read_text() == "mine"


def test_an_artefact_is_made_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with begun(tmp_path / "out") as work:
        (work.out / "a.txt").write_text("a")
        work.finish(("a.txt",))
    with begun(tmp_path / "out") as work:
        assert work.is_finished()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [LOCK, "a.txt", MANIFEST, CONFIG]


def test_locks_are_no_files_of_an_artefact(out: Path) -> None:
    assert (out / LOCK).exists()
    assert LOCK not in open_artefact(out, "embed").files
