"""Run: the folder a training leaves behind; `run.json` is written last and makes it whole."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hidisc.config import Closed
from hidisc.errors import UserError
from hidisc.models.encoder import Encoder, EncoderCard, read_card
from hidisc.patches.store import PatchStore
from hidisc.paths import AnyPath
from hidisc.runs import read_finished
from hidisc.training.checkpoint import checkpoint_path, read_checkpoint
from hidisc.training.metrics import METRICS, read_metrics

RUN = "run.json"


class RunInfo(Closed):
    """`run.json`: what was learned from what, by which code, in which time."""

    format: Literal["hidisc-run-1"] = "hidisc-run-1"
    objective: str
    backbone: str
    seed: int
    steps: int
    images: int
    """Views the encoder was shown."""
    seconds: float
    """Time of training, over all resumptions."""
    devices: str
    """Where it ran last."""
    store: str
    """Checksum of the table of patches that was learned from."""
    splits: tuple[str, ...]
    patients: tuple[str, ...]
    """Whom it learned from; the slides and their checksums are in encoder.json."""
    slides: int
    patches: int
    """Patches there were to draw from."""
    labels_used: tuple[str, ...]
    """What labels were used for; empty: not at all."""
    bad_patches: int
    """Unreadable patches that were replaced by others of their slides."""
    versions: dict[str, str | None]


def refuse_other_store(run: Path, learned_from: str, store: PatchStore) -> None:
    """Refuse to go on with a run that learned from another table of patches."""
    if learned_from != store.info.patches.checksum:
        raise UserError(
            f"{run} was begun with other patches than {store.path} holds now. Give a new --out, or the old store."
        )


@dataclass(frozen=True)
class Run:
    """A finished training: `Run.load(path)`, then `.encoder()`, `.metrics()`."""

    path: Path
    info: RunInfo

    @classmethod
    def load(cls, path: AnyPath) -> "Run":
        """Open a finished run; an unfinished one is refused with what to do."""
        path = Path(path)
        unfinished = f"run {path} is not finished. Run the same `hidisc train` again; it goes on."
        absent = f"{path} is not a run (no {RUN}). Make one with `hidisc train`."
        return cls(path, read_finished(path / RUN, RunInfo, "train", unfinished, absent))

    @property
    def card(self) -> EncoderCard:
        """What the encoder is and has seen."""
        return read_card(self.path)

    def encoder(self) -> Encoder:
        """The trained encoder, in evaluation mode, on the CPU."""
        return Encoder.load(self.path)

    def encoder_at(self, step: int) -> Encoder:
        """The encoder as it was after a step that has a checkpoint still."""
        path = checkpoint_path(self.path, step)
        if not path.is_file():
            raise UserError(f"{self.path} has no checkpoint of step {step:,}. Train with checkpoint.keep large enough.")
        encoder, prefix = self.encoder(), "learner.encoder."
        tensors = read_checkpoint(path)[1]
        encoder.load_state_dict(
            {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        )
        return encoder.eval()

    def metrics(self) -> list[dict[str, float]]:
        """Rows of metrics.csv."""
        return read_metrics(self.path / METRICS)
