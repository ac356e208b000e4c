"""A drawn cohort from slide files to scores, and an explorer of it that listens."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pytest

from hidisc.embeddings.embeddings import Embeddings
from hidisc.evaluation.scores import Scores
from hidisc.explorer.server import LOOPBACK, Server
from hidisc.explorer.session import Session, open_session
from hidisc.patches.store import PatchStore
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.evaluate import EvaluateConfig
from hidisc.settings.prepare import PrepareConfig
from hidisc.slides.synthetic import draw_cohort
from hidisc.verbs.embed import embed
from hidisc.verbs.evaluate import evaluate
from hidisc.verbs.prepare import prepare

JUDGING = EvaluateConfig.model_validate(
    {"bootstrap": {"resamples": 20}, "probes": ["knn"], "knn": {"k": 3}, "floor": False, "audit": False}
)


@dataclass(frozen=True)
class Made:
    """A cohort and all that was made of it."""

    cohort: Path
    store: Path
    embeddings: Path
    scores: Path

    def open(self) -> Session:
        return open_session(self.store, [self.embeddings, self.scores], self.cohort, lambda _: None)


def make_all(cohort: Path, folder: Path) -> Made:
    """A store of a cohort, embeddings of it, and their scores."""
    config = PrepareConfig.model_validate(
        {"grid": {"size_px": 48}, "split": {"fractions": {"train": 0.5, "test": 0.5}}}
    )
    prepare(cohort, folder / "store", config, workers=0)
    embed(folder / "store", "colour", folder / "embeddings", EmbedConfig(), device="cpu", shown=False)
    evaluate(folder / "embeddings", folder / "scores", JUDGING, device="cpu")
    return Made(cohort, folder / "store", folder / "embeddings", folder / "scores")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("explored")
    return make_all(draw_cohort(folder / "drawn", patients=8, slides=1, fields=8, field_px=48, seed=0), folder)


@pytest.fixture(scope="session")
def session(made: Made) -> Session:
    return made.open()


@pytest.fixture(scope="session")
def store(session: Session) -> PatchStore:
    return session.store


@pytest.fixture(scope="session")
def embeddings(made: Made) -> Embeddings:
    return Embeddings.load(made.embeddings)


@pytest.fixture(scope="session")
def scores(made: Made) -> Scores:
    return Scores.load(made.scores)


class Listening:
    """A server that answers in a thread until `end`."""

    def __init__(self, session: Session, host: str = LOOPBACK) -> None:
        self.server, self._ended = Server(session, 0, host), Event()
        self._thread = Thread(target=self.server.run, kwargs={"is_stopped": self._ended.is_set})
        self._thread.start()

    @property
    def root(self) -> str:
        return self.server.address.partition("?")[0]

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture(scope="session")
def listening(session: Session) -> Iterator[Listening]:
    listening = Listening(session)
    yield listening
    listening.end()
