"""Run: the folder a training leaves behind."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hidisc.artefacts.artefact import open_artefact
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, Record
from hidisc.ground.progress import Result
from hidisc.ground.text import count
from hidisc.models.card import EncoderCard, read_card
from hidisc.settings.level_names import LevelNames
from hidisc.training.log import METRICS, read_metrics

if TYPE_CHECKING:  # torch is loaded with the weights: what else a run holds is read without it
    from hidisc.models.encoder import Encoder

RUN, STAIN = "run.json", "stain.json"


class RunInfo(Record):
    """`run.json`: the objective, the patches learned from, the versions and the time of a training."""

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
    """Checksum of the patches that were learned from."""
    splits: tuple[str, ...]
    patients: tuple[str, ...]
    """The patients it learned from; the slides and their checksums are in encoder.json."""
    slides: int
    patches: int
    """Patches there were to draw from."""
    labels_used: tuple[str, ...]
    """The purposes that labels were used for; empty: no labels were used."""
    bad_patches: int
    """Unreadable patches that were replaced by other patches of their slides."""
    versions: dict[str, str | None]
    level_names: LevelNames = LevelNames()
    """The names of the levels in pages and messages."""


@dataclass(frozen=True)
class Run:
    """A finished training: `Run.load(path)`, then `.encoder()`, `.metrics()`."""

    path: Path
    info: RunInfo

    @classmethod
    def load(cls, path: AnyPath) -> "Run":
        """Open a finished run; an unfinished or damaged one is refused with what to do."""
        path = Path(path)
        open_artefact(path, "train")
        return cls(path, RunInfo.model_validate_json((path / RUN).read_bytes()))

    @property
    def card(self) -> EncoderCard:
        """What the encoder is and has seen."""
        return read_card(self.path)

    def encoder(self) -> "Encoder":
        """The trained encoder, in evaluation mode, on the CPU."""
        from hidisc.models.encoder import Encoder

        return Encoder.load(self.path)

    def encoder_at(self, step: int) -> "Encoder":
        """The encoder as it was after a step whose checkpoint still exists."""
        from hidisc.training.checkpoint import checkpoint_path, read_checkpoint

        path = checkpoint_path(self.path, step)
        if not path.is_file():
            raise UserError(
                f"{self.path} has no checkpoint of step {step:,}. Train with checkpoint.at=[{step}] to keep it."
            )
        encoder, prefix = self.encoder(), "learner.encoder."
        tensors = read_checkpoint(path)[1]
        encoder.load_state_dict(
            {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        )
        return encoder.eval()

    def metrics(self) -> list[dict[str, float]]:
        """Rows of metrics.csv."""
        return read_metrics(self.path / METRICS)

    def result(self) -> Result:
        """What was learned from how much, in how many minutes."""
        info = self.info
        record = {"run": str(self.path), **info.model_dump(mode="json", exclude={"patients"})}
        if not info.steps:
            names, made_of = info.level_names, (("patch", info.patches), ("patient", len(info.patients)))
            seen = " of ".join(names.count(number, level) for level, number in made_of)
            return Result(f"{self.path}: {info.objective}, from {seen} in {info.seconds:.1f} s", record)
        seen = f"{count(info.images, 'image')} of {info.level_names.count(len(info.patients), 'patient')}"
        took = f"{count(info.steps, 'step')}, {seen} in {info.seconds / 60:.1f} min"
        return Result(f"{self.path}: {info.objective} {info.backbone}, {took}", record)
