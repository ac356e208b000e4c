"""`hidisc export`: an encoder for other tools."""

from pathlib import Path

from hidisc.errors import UserError
from hidisc.models.export import FILES, Target, export_encoder
from hidisc.runs import full_disk_said, hold
from hidisc.training.run import Run


def export(run_path: Path, out: Path, to: Target) -> tuple[Path, float]:
    """Write a run's encoder for timm, ONNX or TorchScript; (the file, the largest relative difference found)."""
    run = Run.load(run_path)
    with hold(out), full_disk_said("The run is as it was"):
        if (out / FILES[to]).exists():
            raise UserError(f"{out / FILES[to]} is there already and is not overwritten. Give another --out.")
        difference = export_encoder(run.encoder(), out, to)
    return out / FILES[to], difference
