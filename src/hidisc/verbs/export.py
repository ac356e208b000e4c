"""`hidisc export`: a run's encoder, or embeddings, for other tools."""

from collections.abc import Callable
from pathlib import Path

from hidisc.embeddings.bags import KIND, write_bags
from hidisc.embeddings.embeddings import EMBEDDINGS, Embeddings
from hidisc.errors import UserError
from hidisc.models.export import FILES, Target, export_encoder
from hidisc.paths import AnyPath
from hidisc.runs import full_disk_said, hold, read_kind
from hidisc.training.run import RUN, Run


def export(run_path: AnyPath, out: AnyPath, to: Target) -> tuple[Path, float]:
    """Write a run's encoder for timm, ONNX or TorchScript; (the file, the largest relative difference found)."""
    run_path, out = Path(run_path), Path(out)
    if to not in FILES:
        raise UserError(f"to = {to!r} is none of {', '.join(FILES)}. Embeddings become bags with `export_bags`.")
    if _is(run_path, EMBEDDINGS, "embed"):
        raise UserError(
            f"{run_path} holds embeddings, and --to {to} writes an encoder. Give --to {KIND}, or the run "
            "that made them."
        )
    run = Run.load(run_path)
    with hold(out), full_disk_said("The run is as it was"):
        there = [file for file in FILES.values() if (out / file).exists()]
        if FILES[to] in there:
            raise UserError(f"{out / FILES[to]} is there already and is not overwritten. Give another --out.")
        if there:
            raise UserError(
                f"{out} holds {there[0]} already, whose preprocessing.json would be overwritten. Give another --out."
            )
        difference = export_encoder(run.encoder(), out, to)
    return out / FILES[to], difference


def export_bags(embeddings_path: AnyPath, out: AnyPath, say: Callable[[str], None] = lambda _: None) -> int:
    """Write embeddings as bags, one HDF5 a slide for CLAM, TRIDENT and STAMP; how many. A killed export goes on."""
    embeddings_path, out = Path(embeddings_path), Path(out)
    if _is(embeddings_path, RUN, "train"):
        raise UserError(
            f"{embeddings_path} is a run, and --to {KIND} writes embeddings. Make them with `hidisc embed STORE "
            f"{embeddings_path} --out EMB` and give EMB."
        )
    embeddings = Embeddings.load(embeddings_path)
    with hold(out), full_disk_said("What has been written is whole"):
        return write_bags(embeddings, out, say)


def _is(path: Path, file: str, kind: str) -> bool:
    return (path / file).is_file() or read_kind(path) == kind
