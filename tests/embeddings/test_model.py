"""Every kind of encoder opens to the same form, gives the embeddings it should, and says what is wrong with it."""

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file
from torch import Tensor, nn

from hidisc.artefacts.artefact import CONFIG, MANIFEST
from hidisc.embeddings.model import OpenedModel, open_model
from hidisc.ground.errors import UserError
from hidisc.ground.files import hash_file
from hidisc.models.card import CARD, NOTHING, UNKNOWN, WEIGHTS, History, hash_name
from hidisc.models.encoder import Encoder, build_encoder
from hidisc.models.export import export_encoder
from hidisc.patches.record import SlideId
from hidisc.patches.store import PatchStore, StoreInfo
from hidisc.settings.embed import EmbedConfig, ForeignConfig
from hidisc.training.run import RUN, Run
from hidisc.verbs.export import export
from tests.finished import refinish
from tests.models.hub import make_hub
from tests.training.stores import train

SIZE = 32


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run; not to be changed."""
    return train(store, tmp_path_factory.mktemp("model") / "run", "optim.steps=2")


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder that subtracts a mean, and its exports: timm, onnx, torchscript."""
    folder = tmp_path_factory.mktemp("scaled")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = build_encoder("test_resnet", {}, None, channels=3, size_px=SIZE, mpp=0.5)
    card = made.card.model_copy(update={"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)})
    encoder = Encoder(card, made.backbone).eval()
    (folder / "encoder").mkdir()
    encoder.save(folder / "encoder")
    for to in ("timm", "onnx", "torchscript"):
        (folder / to).mkdir()
        export_encoder(encoder, folder / to, to)
    return folder


def opened(spec: object, store: Path | PatchStore, name: str | None = None, **model: object) -> OpenedModel:
    store = store if isinstance(store, PatchStore) else PatchStore.load(store)
    return open_model(str(spec), store, EmbedConfig(model=ForeignConfig.model_validate(model)), name)


def pictures(count: int = 5, size_px: int = SIZE, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, size_px, size_px, generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
def same(model: OpenedModel, expected: Tensor, x: Tensor | None = None) -> bool:
    found = model.net(pictures() if x is None else x)
    assert found.dtype == torch.float32
    assert found.shape == expected.shape == (len(expected), model.dim)
    return torch.allclose(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def store_like(store: Path, **changes: object) -> PatchStore:
    """The store with other facts in its store.json."""
    known = PatchStore.load(store)
    info = StoreInfo.model_validate({**known.info.model_dump(), **changes})
    return PatchStore(known.artefact, info, known.table)


class Traced(nn.Module):
    """A network with a wanted kind of output."""

    def __init__(self, kind: str = "vector", channels: int = 3) -> None:
        super().__init__()
        self.kind = kind
        self.conv = nn.Conv2d(channels, 6, 4, 4)

    def forward(self, x: Tensor) -> object:
        given = self.conv(x)
        vector = given.mean((2, 3))
        return {
            "vector": vector,
            "map": given,
            "tokens": given.flatten(2).transpose(1, 2),
            "tuple": (vector, given),
            "dict": {"pooled": vector, "all": given},
            "one": vector.sum(1),
            "channels last": given.permute(0, 2, 3, 1),
            "half": vector.half(),
        }[self.kind]


def script(path: Path, net: nn.Module | None = None, batch: int = 2, size_px: int = SIZE, channels: int = 3) -> Path:
    """Trace a network to a TorchScript file, its weights from a fixed seed."""
    net = net or Traced()
    for number, parameter in enumerate(net.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(number))
    traced = torch.jit.trace(net.eval(), torch.rand(batch, channels, size_px, size_px), strict=False)
    torch.jit.save(traced, str(path))
    return path


def onnx_file(
    path: Path, shape: tuple[object, ...] = ("b", 3, "h", "w"), inputs: int = 1, kind: int = TensorProto.FLOAT
) -> Path:
    """An ONNX file that averages each channel over the picture, (b, 3)."""
    taken = [helper.make_tensor_value_info(f"in{number}", kind, shape) for number in range(inputs)]
    given = helper.make_tensor_value_info("out", kind, (shape[0], shape[1] if len(shape) > 1 else 1))
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    node = helper.make_node("ReduceMean", ["in0", "axes"], ["out"], keepdims=0)
    graph = helper.make_graph([node], "mean", taken, [given], [axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_a_run_gives_its_own_embeddings(run: Run, store: Path) -> None:
    model = opened(run.path, store)
    with torch.inference_mode():
        assert same(model, run.encoder()(pictures()))
    card = model.card
    assert (card.name, card.kind, card.source, card.seed) == ("run", "run", str(run.path), 0)
    assert (card.objective, card.backbone, card.size_px) == ("hidisc", "test_resnet", SIZE)
    assert card.checksum == hash_file(run.path / WEIGHTS)
    assert card.history == run.card.history
    assert len(card.history.slides) == 12
    assert model.notes == ()
    assert not model.runs_on_cpu_only
    assert not model.net.training
    assert opened(run.path, store, name="mine").card.name == "mine"


def test_a_name_is_found_for_the_folder_one_stands_in(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path)
    assert opened(".", store).card.name == "run"


def test_trainings_that_differ_in_their_seed_share_a_group(run: Run, store: Path, tmp_path: Path) -> None:
    def group(*changes: str) -> str:
        made = train(store, tmp_path / str(len(list(tmp_path.iterdir()))), "optim.steps=2", *changes)
        return opened(made.path, store).card.group

    mine = opened(run.path, store).card.group
    assert group("seed=5", "log.every=2", "checkpoint.every=1", "data.prefetch=2", "data.max_bad_share=0.5") == mine
    assert group("optim.learning_rate=0.01") != mine


def test_the_same_settings_on_other_patches_are_another_group(run: Run, store: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run.path, tmp_path / "other")
    known = json.loads((other / RUN).read_text())
    (other / RUN).write_text(json.dumps({**known, "store": "other"}))
    refinish(other)
    assert opened(other, store).card.group != opened(run.path, store).card.group


def test_a_run_without_its_settings_is_a_group_of_its_own(run: Run, store: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run.path, tmp_path / "other")
    for text in ("- a\n- b\n", "a: [", "text"):
        (other / "config.yaml").unlink(missing_ok=True)
        if text:
            (other / "config.yaml").write_text(text)
            refinish(other)
        card = opened(other, store).card
        assert card.group == card.checksum


def test_an_encoder_alone(run: Run, scaled: Path, store: Path, tmp_path: Path) -> None:
    for name in (CARD, WEIGHTS):
        shutil.copy(run.path / name, tmp_path)
    model = opened(tmp_path, store)
    with torch.inference_mode():
        assert same(model, run.encoder()(pictures()))
    assert model.card.kind == "encoder"
    assert model.card.group == model.card.checksum
    assert model.card.history == run.card.history
    assert opened(scaled / "encoder", store).card.history == UNKNOWN  # an empty list proves nothing


@pytest.mark.parametrize("form", ["timm", "onnx", "torchscript"])
def test_exports_give_the_embeddings_of_their_encoder(scaled: Path, store: Path, form: str) -> None:
    with torch.inference_mode():
        expected = Encoder.load(scaled / "encoder")(pictures())
    model = opened(scaled / form, store)
    assert same(model, expected)
    assert model.card.kind == form
    assert model.card.name == form
    assert model.card.backbone == "test_resnet"
    assert model.card.history == UNKNOWN
    assert model.notes == (
        "what the encoder has seen is not known, so overlap with these patients cannot be ruled out",
    )
    assert model.runs_on_cpu_only == (form == "onnx")
    if form != "timm":
        (file,) = (path for path in (scaled / form).iterdir() if path.suffix in (".onnx", ".pt"))
        bare = opened(file, store)
        assert same(bare, expected)
        assert bare.card.name == file.name
        assert bare.card.checksum == model.card.checksum == hash_file(file)


@pytest.mark.parametrize("name", ["preprocessing.json", "config.yaml", "artefact.json", "model.safetensors"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_damaged_export_is_refused(run: Run, store: Path, tmp_path: Path, name: str, is_lost: bool) -> None:
    """Without what lies beside its weights, the encoder would be fed something else and have seen nothing."""
    export(run.path, tmp_path / "out", "timm")
    assert opened(tmp_path / "out", store).card.kind == "timm"
    file = tmp_path / "out" / name
    file.unlink() if is_lost else file.write_bytes(file.read_bytes()[:-3] + b"\n\n\n")
    sentence = "is not finished" if is_lost and name == MANIFEST else f"exported encoder .* is damaged: {name}"
    with pytest.raises(UserError, match=sentence):
        opened(tmp_path / "out", store)


@pytest.mark.parametrize("form", ["encoder", "timm", "onnx", "torchscript"])
def test_the_layout_in_memory_does_not_matter(scaled: Path, store: Path, form: str) -> None:
    model = opened(scaled / form, store)
    with torch.inference_mode():
        expected = model.net(pictures())
    model.net.to(memory_format=torch.channels_last)
    assert same(model, expected, pictures().contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_a_bare_file_is_fed_pixels_as_they_are(scaled: Path, store: Path, tmp_path: Path, form: str) -> None:
    """Ours subtracts its mean inside, so that nothing need be known."""
    (file,) = (path for path in (scaled / form).iterdir() if path.suffix in (".onnx", ".pt"))
    alone = Path(shutil.copy(file, tmp_path / f"theirs{file.suffix}"))
    with torch.inference_mode():
        assert same(opened(alone, store), Encoder.load(scaled / "encoder")(pictures()))


def test_timm_folders_of_others(scaled: Path, store: Path, tmp_path: Path) -> None:
    """What the hub holds: config.json with timm's notes and no preprocessing.json."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(scaled / "timm" / name, tmp_path)
    with torch.inference_mode():
        assert same(opened(tmp_path, store), Encoder.load(scaled / "encoder")(pictures()))


def test_random_timm_weights_come_from_the_seed_alone(store: Path) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    one, again = opened("timm:test_resnet", store), opened("timm:test_resnet", store)
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.inference_mode():
        assert same(one, again.net(pictures()))
    other = open_model("timm:test_resnet", PatchStore.load(store), EmbedConfig(seed=1))
    with torch.inference_mode():
        assert not same(one, other.net(pictures()))
    assert (one.card.name, one.card.kind, one.card.seed, one.card.history) == ("test_resnet", "timm", 0, NOTHING)
    assert one.card.size_px == SIZE
    assert one.card.checksum == again.card.checksum != other.card.checksum
    assert one.card.group == other.card.group
    assert "weights are random (seed 0)" in one.notes[0]
    assert len(one.notes) == 1


@pytest.mark.usefixtures("_own_state")
def test_opening_a_run_touches_no_random_state(run: Run, store: Path) -> None:
    before = torch.random.get_rng_state()
    opened(run.path, store)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.fixture
def _own_state() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        yield


def test_timm_weights_from_a_file(scaled: Path, store: Path, tmp_path: Path) -> None:
    with torch.inference_mode():
        expected = Encoder.load(scaled / "encoder")(pictures())
    ours = opened("timm:test_resnet", store, weights=str(scaled / "encoder" / WEIGHTS))
    assert same(ours, expected)  # mean, deviation and size are in the card beside the file
    assert ours.card.checksum == hash_file(scaled / "encoder" / WEIGHTS)
    assert ours.card.history == UNKNOWN.after(ours.card.checksum)  # the card names itself
    assert ours.card.seed is None
    file = Path(shutil.copy(scaled / "timm" / "model.safetensors", tmp_path / "w.safetensors"))
    known = {"size_px": SIZE, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)}
    assert same(opened("timm:test_resnet", store, weights=str(file), **known), expected)
    plain = opened("timm:test_resnet", store, weights=str(file))
    assert plain.card.size_px == 160  # as timm notes of its own weights of that name
    assert plain.notes[0] == "patches are resized from 32 to 160 px"


def test_weights_of_the_hub(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = make_hub(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"weights of 'test_resnet' cannot be fetched \(no repository timm/test_resnet"):
        opened("timm:test_resnet", store, weights="hub")
    hub.add("timm/test_resnet.r160_in1k", "test_resnet")
    assert opened("timm:test_resnet", store, weights="hub").card.history == UNKNOWN


def test_an_encoder_of_the_hub_is_embedded_with_what_is_on_disk(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = make_hub(tmp_path / "hub", monkeypatch)
    hub.add("lab/model", "test_resnet")
    encoder = build_encoder("hf-hub:lab/model", {}, None, channels=3, size_px=SIZE, weights="hub")
    encoder.save(tmp_path)
    hub.asked.clear()
    with torch.inference_mode():
        assert same(opened(tmp_path, store), encoder.eval()(pictures()))
    assert hub.asked == []


def test_patches_are_resized_bicubic_antialiased_and_clamped(store: Path, tmp_path: Path) -> None:
    file = onnx_file(tmp_path / "mean.onnx", ("b", 3, 24, 24))
    model = opened(file, store)
    x = (pictures() > 0.5).float()
    small = nn.functional.interpolate(x, (24, 24), mode="bicubic", antialias=True).clamp(0, 1)
    assert same(model, small.mean((2, 3)), x)
    assert not torch.allclose(small.mean((2, 3)), x.mean((2, 3)), atol=1e-4)
    assert model.card.size_px == 24
    assert "patches are resized from 32 to 24 px" in model.notes


def test_settings_come_before_what_lies_beside(store: Path, tmp_path: Path) -> None:
    file = onnx_file(tmp_path / "mean.onnx")
    x = pictures()
    assert same(opened(file, store), x.mean((2, 3)), x)
    known = {"size_px": 16, "mean": [0.1, 0.2, 0.3], "std": [1, 2, 4]}
    (tmp_path / "preprocessing.json").write_text(json.dumps(known))
    small = nn.functional.interpolate(x, (16, 16), mode="bicubic", antialias=True).clamp(0, 1).mean((2, 3))
    mean, std = torch.tensor(known["mean"]), torch.tensor(known["std"])
    assert same(opened(file, store), (small - mean) / std, x)
    checksum = opened(file, store).checksum
    (tmp_path / "preprocessing.json").write_text(json.dumps({**known, "std": [1, 2, 5]}))
    assert opened(file, store).checksum != checksum, "embeddings that were begun with the other one do not go on"
    (tmp_path / "preprocessing.json").write_text(json.dumps(known))
    given = {"size_px": SIZE, "mean": (0.0, 0.0, 0.0), "std": (2.0, 2.0, 2.0)}
    assert same(opened(file, store, **given), x.mean((2, 3)) / 2, x)


def test_scales_are_told(scaled: Path, store: Path) -> None:
    finer = opened(scaled / "encoder", store_like(store, mpp=0.25))
    assert "the encoder learned at 0.5 um/px and sees these patches at 0.25 (the store has 0.25)" in finer.notes
    assert len(opened(scaled / "onnx", store_like(store, mpp=0.505)).notes) == 1
    resized = opened(scaled / "encoder", store_like(store, mpp=0.25, size_px=64))
    assert resized.notes[0] == "patches are resized from 64 to 32 px"
    assert not any("learned at" in note for note in resized.notes)  # 64 px at 0.25 are 32 px at 0.5


@pytest.mark.parametrize("batch", [1, 3])
def test_a_fixed_batch_of_onnx_is_filled_up(store: Path, tmp_path: Path, batch: int) -> None:
    x = pictures(5)
    assert same(opened(onnx_file(tmp_path / "a.onnx", (batch, 3, "h", "w")), store), x.mean((2, 3)), x)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_onnx_of_other_floats(store: Path, tmp_path: Path, kind: int) -> None:
    model = opened(onnx_file(tmp_path / "a.onnx", kind=kind), store)
    with torch.inference_mode():
        assert torch.allclose(model.net(pictures()), pictures().mean((2, 3)), atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("vector", None),
        ("half", None),
        ("map", "it returns maps of 8 x 8, which are averaged"),
        ("tuple", "it returns 2 outputs, of which the first (0) is kept"),
        ("dict", "it returns 2 outputs, of which the first (pooled) is kept"),
    ],
)
def test_torchscript_of_others(store: Path, tmp_path: Path, kind: str, note: str | None) -> None:
    vector = opened(script(tmp_path / "vector.pt"), store)
    model = opened(script(tmp_path / f"{kind}.ts", Traced(kind)), store)
    with torch.inference_mode():
        expected = vector.net(pictures())
        assert torch.allclose(model.net(pictures()), expected, atol=1e-2 if kind == "half" else 1e-5)
    assert model.dim == 6
    assert model.notes[1:] == (() if note is None else (note,))


WRONG = {
    "tokens": r"tokens.pt returns tokens \(2, 64, 6\), and which of them stand for the picture is not known",
    "one": r"one.pt returns \(2,\) for a batch of 2, not one vector per picture. Export it so that it returns \(B, D\)",
    "channels last": r"returns \(2, 8, 8, 6\) for a batch of 2, not one vector per picture",
}


@pytest.mark.parametrize("kind", list(WRONG))
def test_outputs_that_are_no_vectors_are_refused(store: Path, tmp_path: Path, kind: str) -> None:
    file = script(tmp_path / f"{kind}.pt", Traced(kind))
    with pytest.raises(UserError, match=WRONG[kind]):
        opened(file, store)


def test_torchscript_traced_for_one_batch_size_is_refused(store: Path, tmp_path: Path) -> None:
    class Fixed(Traced):
        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).mean((2, 3)).reshape(1, -1)

    with pytest.raises(UserError, match=r"returns \(1, 12\) for a batch of 2, not one vector per picture"):
        opened(script(tmp_path / "a.pt", Fixed(), batch=1), store)


def test_the_number_of_channels_must_fit(run: Run, scaled: Path, store: Path, tmp_path: Path) -> None:
    grey = store_like(store, channels=1)
    for spec in (run.path, scaled / "encoder", scaled / "timm", scaled / "onnx", onnx_file(tmp_path / "a.onnx")):
        with pytest.raises(UserError, match=r"takes 3 channels, and .*store gives 1. Give an encoder that learned"):
            opened(spec, grey)
    with pytest.raises(UserError, match=r"a.pt takes no pictures of 1 channels and 32 px \(.*\). Give the side"):
        opened(script(tmp_path / "a.pt"), grey)
    assert opened("timm:test_resnet", grey).dim == opened("timm:test_resnet", store).dim


def test_the_rule_of_the_input_must_fit(run: Run, scaled: Path, store: Path) -> None:
    srh = store_like(store, channels=2, dtype="uint16", input="srh")
    for spec in (run.path, scaled / "torchscript", scaled / "timm"):
        with pytest.raises(UserError, match=r"takes pixels as '8-bit / 255', and .*store gives 'srh'. Give an encoder"):
            opened(spec, srh)


def test_settings_that_would_do_nothing_are_refused(run: Run, scaled: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.size_px is set, and .*run brings its own. Leave it out."):
        opened(run.path, store, size_px=64)
    with pytest.raises(UserError, match=r"model.weights is set, and .*encoder brings its own"):
        opened(scaled / "encoder", store, weights="hub")
    with pytest.raises(UserError, match=r"model.options is set, and .*encoder.onnx brings its own"):
        opened(scaled / "onnx", store, options={"a": 1})
    with pytest.raises(UserError, match=r"model.mean is set, and .*encoder.pt applies its own inside"):
        opened(scaled / "torchscript", store, mean=(0.5, 0.5, 0.5))
    with pytest.raises(UserError, match=r"model.size_px = 64, and .*a.onnx takes pictures of 24 px only. Leave"):
        opened(onnx_file(tmp_path / "a.onnx", ("b", 3, 24, 24)), store, size_px=64)


def test_a_mean_has_one_value_a_channel(store: Path, tmp_path: Path) -> None:
    file = onnx_file(tmp_path / "a.onnx")
    with pytest.raises(UserError, match=r"model.mean has 2 values, and .* gives 3 channels. Give one per channel."):
        opened(file, store, mean=(0.5, 0.5))
    with pytest.raises(UserError, match=r"model.std = \[1.0, 0.0, 1.0\]: pixels are divided by it"):
        opened("timm:test_resnet", store, std=(1.0, 0.0, 1.0))
    (tmp_path / "preprocessing.json").write_text('{"std": [1, 1]}')
    with pytest.raises(UserError, match=r"the std that came with .*a.onnx has 2 values, .* gives 3 channels. Correct"):
        opened(file, store)


def test_nothing_there(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere does not exist. Give the folder of a run, one that `hidisc export`"):
        opened(tmp_path / "nowhere", store)
    with pytest.raises(UserError, match=r"holds no encoder \(no run.json, encoder.json, model.safetensors, "):
        opened(tmp_path, store)
    with pytest.raises(UserError, match=r"'no_such_model' is no timm model. Near it are"):
        opened("timm:no_such_model", store)
    with pytest.raises(UserError, match=r"timm:local-dir:a/b is a folder. Give the folder itself, a/b."):
        opened("timm:local-dir:a/b", store)


def test_an_unfinished_run_is_refused(run: Run, store: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run.path, tmp_path / "other")
    (other / MANIFEST).unlink()
    with pytest.raises(UserError, match=r"run .*other is not finished. Run the same `hidisc train` again"):
        opened(other, store)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_checkpoints_are_not_read(store: Path, tmp_path: Path, legacy: bool) -> None:
    for name in ("a.pt", "a.pth"):
        torch.save({"a": torch.ones(2)}, tmp_path / name, _use_new_zipfile_serialization=not legacy)
        with pytest.raises(
            UserError,
            match=r"is a pickled checkpoint, which can run code when it is opened, and is not read. Convert it where",
        ):
            opened(tmp_path / name, store)


def test_damaged_files(run: Run, scaled: Path, store: Path, tmp_path: Path) -> None:
    def cut(source: Path, to: Path, keep: float = 0.5) -> Path:
        data = source.read_bytes()
        to.write_bytes(data[: int(len(data) * keep)])
        return to

    with pytest.raises(UserError, match=r"a.pt is cut short or damaged. Copy it again."):
        opened(cut(scaled / "torchscript" / "encoder.pt", tmp_path / "a.pt"), store)
    with pytest.raises(UserError, match=r"b.pt is empty. Copy it again."):
        opened(cut(scaled / "torchscript" / "encoder.pt", tmp_path / "b.pt", 0), store)
    with pytest.raises(UserError, match=r"a.onnx is not an ONNX file that can be run \("):
        opened(cut(scaled / "onnx" / "encoder.onnx", tmp_path / "a.onnx"), store)
    other = shutil.copytree(run.path, tmp_path / "run")
    cut(run.path / WEIGHTS, other / WEIGHTS)
    with pytest.raises(UserError, match=r"run is damaged: encoder.safetensors has [\d,]+ bytes instead of"):
        opened(other, store)
    timm = shutil.copytree(scaled / "timm", tmp_path / "timm")
    cut(scaled / "timm" / "model.safetensors", timm / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors is not a safetensors file, or damaged"):
        opened(timm, store)
    shutil.copy(scaled / "timm" / "model.safetensors", timm)
    for text in ("{", "[]", "{}", '{"architecture": "test_resnet", "model_args": 3}'):
        (timm / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"config.json is missing, damaged or not a timm model's \("):
            opened(timm, store)
    (timm / "config.json").unlink()
    with pytest.raises(UserError, match=r"config.json is missing, damaged or not a timm model's \("):
        opened(timm, store)
    (tmp_path / "preprocessing.json").write_text('{"size_px": "large"}')
    with pytest.raises(UserError, match=r"preprocessing.json is damaged, or not what `hidisc export` writes \(size_p"):
        opened(script(tmp_path / "c.pt"), store)


def test_a_damaged_torchscript_program_is_named(store: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(script(tmp_path / "whole.pt")) as whole, zipfile.ZipFile(tmp_path / "a.pt", "w") as broken:
        for name in whole.namelist():
            broken.writestr(name, whole.read(name).replace(b"def forward", b"dfe forward"))
    with pytest.raises(UserError, match=r"a.pt is a damaged TorchScript file \("):
        opened(tmp_path / "a.pt", store)


def test_other_files_are_named(scaled: Path, store: Path, tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"w.safetensors holds weights without their network. Give `timm:NAME --set"):
        opened(tmp_path / "w.safetensors", store)
    (tmp_path / "a.ckpt").write_bytes(b"x")
    with pytest.raises(UserError, match=r"a.ckpt is no encoder that can be opened. Give a TorchScript file \(.pt, "):
        opened(tmp_path / "a.ckpt", store)
    for form in ("onnx", "torchscript"):
        (file,) = (path for path in (scaled / form).iterdir() if path.suffix in (".onnx", ".pt"))
        shutil.copy(file, tmp_path)
    with pytest.raises(UserError, match=r"holds 2 encoders \(encoder.onnx, encoder.pt\). Move them to folders of"):
        opened(tmp_path, store)


def test_onnx_that_takes_something_else(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a.onnx has 2 inputs \(in0, in1\). Export it with one: pictures"):
        opened(onnx_file(tmp_path / "a.onnx", inputs=2), store)
    with pytest.raises(UserError, match=r"takes pictures of 24 x 32 px. Export it for square ones."):
        opened(onnx_file(tmp_path / "b.onnx", ("b", 3, 32, 24)), store)
    with pytest.raises(UserError, match=r"c.onnx takes tensor\(int32\) of shape \['b', 3, 'h', 'w'\]. Export it for"):
        opened(onnx_file(tmp_path / "c.onnx", kind=TensorProto.INT32), store)


def test_large_onnx_files_are_named_by_both_their_files(scaled: Path, store: Path, tmp_path: Path) -> None:
    onnx.save(
        onnx.load(scaled / "onnx" / "encoder.onnx"),
        tmp_path / "a.onnx",
        save_as_external_data=True,
        location="a.onnx.data",
        size_threshold=1024,
    )
    model = opened(tmp_path / "a.onnx", store)
    with torch.inference_mode():
        assert same(model, Encoder.load(scaled / "encoder")(pictures()))
    assert model.card.checksum not in (hash_file(tmp_path / "a.onnx"), hash_file(tmp_path / "a.onnx.data"))


def test_what_an_encoder_alone_has_seen_is_kept(scaled: Path, store: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(scaled / "encoder")
    seen = History(slides=(SlideId(patient="P", slide="S", checksum="c"),), labels_used=("objective",))
    encoder.save(tmp_path, encoder.card.model_copy(update={"history": seen}))
    model = opened(tmp_path, store)
    assert model.card.history == seen
    assert model.notes == ()


@pytest.mark.parametrize("form", ["timm", "onnx", "torchscript"])
def test_what_an_exported_run_has_seen_is_kept_without_names(run: Run, store: Path, tmp_path: Path, form: str) -> None:
    export(run.path, tmp_path / form, form)
    history = opened(tmp_path / form, store).card.history
    assert history.is_complete
    assert [slide.checksum for slide in history.slides] == [slide.checksum for slide in run.card.history.slides]
    assert history.patients == tuple(map(hash_name, run.card.history.patients))
    text = "".join(path.read_text("latin-1") for path in (tmp_path / form).iterdir() if path.suffix == ".json")
    assert not any(slide.slide in text for slide in run.card.history.slides)


def test_weights_of_an_export_bring_what_they_have_seen_and_their_scale(
    run: Run, store: Path, scaled: Path, tmp_path: Path
) -> None:
    export(run.path, tmp_path / "timm", "timm")
    weights = tmp_path / "timm" / "model.safetensors"
    model = opened("timm:test_resnet", store, weights=str(weights), size_px=SIZE)
    assert model.card.history == run.card.history.without_names().after(run.encoder().card.weights)
    with torch.inference_mode():
        assert same(model, run.encoder()(pictures()))  # not scaled as timm's own weights of that name
    alone = Path(shutil.copy(weights, tmp_path / "alone.safetensors"))
    assert opened("timm:test_resnet", store, weights=str(alone), size_px=SIZE).card.history == UNKNOWN
    sizes = [opened("timm:test_resnet", store, weights=str(file)).card.size_px for file in (weights, alone)]
    assert sizes == [SIZE, 160], "as preprocessing.json beside the file says; without it, as timm says"


def test_an_exported_file_that_was_swapped_is_refused(run: Run, store: Path, scaled: Path, tmp_path: Path) -> None:
    export(run.path, tmp_path / "timm", "timm")
    shutil.copy(scaled / "timm" / "model.safetensors", tmp_path / "timm" / "model.safetensors")
    with pytest.raises(
        UserError, match=r"timm is damaged: model\.safetensors has .* `hidisc export` again: it repairs"
    ):
        opened(tmp_path / "timm", store)
    for name in (MANIFEST, CONFIG):  # as whoever copies the files of timm alone
        (tmp_path / "timm" / name).unlink()
    with pytest.raises(UserError) as caught:
        opened(tmp_path / "timm", store)
    assert str(caught.value) == (
        f"{tmp_path / 'timm' / 'model.safetensors'} is not the file that preprocessing.json beside it speaks of. "
        "Export it again, or remove preprocessing.json and say what to feed it with --set model.size_px, model.mean "
        "and model.std."
    )
