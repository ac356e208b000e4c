"""What work was begun from: whoever opens an input for it is handed the checksum that the input must have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hidisc.ground.errors import UserError

STORE, EMBEDDINGS, START = "the store", "the embeddings", "model.weights"
"""Names of inputs in config.yaml."""


class ChangedInputError(UserError):
    """An input that is no longer what it was when the work that needs it was begun."""


@dataclass(frozen=True)
class ExpectedInputs:
    """The checksums that inputs had when some work was begun; without any, every input is welcome."""

    begun: str | Path = "the work that reads it"
    """What was begun from them, for the message: a folder."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """By the names of inputs."""

    def compare(self, name: str, checksum: str | None, said: str) -> None:
        """Refuse an input with another checksum; None: it is gone. `said`: what a message calls it."""
        if self.checksums.get(name, checksum) != checksum:
            raise ChangedInputError(
                f"{said} is no longer what it was when {self.begun} was begun. Put it back as it was to go on, or give "
                "a new --out. What is finished is kept."
            )

    def add(self, name: str, checksum: str) -> "ExpectedInputs":
        """These and one more input."""
        return ExpectedInputs(self.begun, {**self.checksums, name: checksum})


ANY_INPUTS = ExpectedInputs()
