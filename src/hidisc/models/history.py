"""What an encoder has seen: in its own training, and in those that its starting weights came from."""

import hashlib

from hidisc.ground.records import Record
from hidisc.patches.record import SlideId

_HASHED = "sha256:"


class History(Record):
    """Slides and labels of all trainings up to now; histories compose (`then`)."""

    slides: tuple[SlideId, ...] = ()
    """Every slide that was learned from, as far as known."""
    is_complete: bool = True
    """Whether that is all: false after starting from weights of which it is not known what they have seen."""
    labels_used: tuple[str, ...] = ()
    """What labels were used for; empty: not at all, as far as known."""

    def then(self, slides: tuple[SlideId, ...], labels_used: tuple[str, ...]) -> "History":
        """This history, and a training after it."""
        return History(
            slides=tuple(dict.fromkeys((*self.slides, *slides))),
            is_complete=self.is_complete,
            labels_used=tuple(dict.fromkeys((*self.labels_used, *labels_used))),
        )

    def without_names(self) -> "History":
        """The same with hashes in place of names, for files that leave the lab; leakage checks compare these too."""
        slides = [SlideId(patient=hash_name(seen.patient), slide="", checksum=seen.checksum) for seen in self.slides]
        return self.model_copy(update={"slides": tuple(slides)})

    @property
    def patients(self) -> tuple[str, ...]:
        """The patients it has learned from; names, or hashes of names."""
        return tuple(dict.fromkeys(slide.patient for slide in self.slides))


NOTHING = History()
"""Of random weights."""
UNKNOWN = History(is_complete=False)
"""Of weights from elsewhere."""


def trust_history(history: History | None) -> History:
    """The history of weights that come without their run: an empty one proves nothing."""
    return history if history is not None and history.slides else UNKNOWN


def hash_name(patient: str) -> str:
    """A patient's name as it stands in files that leave the lab."""
    if patient.startswith(_HASHED):
        return patient
    return _HASHED + hashlib.sha256(patient.encode("utf-8", "surrogatepass")).hexdigest()
