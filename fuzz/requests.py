"""Requests to the explorer: what a page asks, with odd values in the place of what it sends."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fuzz import world
from fuzz.harness import INPUT, Judge, Kind, Outcome, Wrong, judge
from fuzz.mutations import Rng
from hidisc.explorer.answers import CHANGE, READ, find_request_type
from hidisc.explorer.session import Session, open_session
from hidisc.ground.errors import UserError

ANSWERS = READ | CHANGE
_MAP = {"by": "label", "row": None, "only": "", "x0": 0.1, "y0": 0.1, "x1": 0.9, "y1": 0.9, "width": 64, "height": 64}
_SELECTION = {"rows": [0, 3, 5], "polygon": [], "by": "label", "only": "", "slide": None, "box": None}
_POLYGON = {**_SELECTION, "rows": [], "polygon": [[0, 0], [1, 0], [1, 1], [0, 1]]}
_REGIONS = {
    "type": "FeatureCollection",
    "features": [
        {
            "type": "Feature",
            "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [64, 0], [64, 64], [0, 64], [0, 0]]]},
            "properties": {"objectType": "annotation", "classification": {"name": "tumour"}},
        }
    ],
}
DETAILS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("cohort", "slides.csv", "patients.csv")},
    **dict.fromkeys(("points", "spot", "density.png"), _MAP),
    **{name: {"row": 3, "side": 64} for name in ("patch", "patch.jpg")},
    **{name: {"slide": 1} for name in ("slide", "thumbnail.jpg", "boxes.geojson")},
    "tile.jpg": {"slide": 1, "level": 0, "column": 0, "line": 0},
    "overlay": {"slide": 1, "by": "label", "row": None},
    "labels.csv": {"set": "mine"},
    **{name: {"region": _POLYGON} for name in ("select", "patches.csv")},
    "alike": {"region": _SELECTION, "apart": "patient", "most": 5},
    "name": {"set": "mine", "region": _SELECTION, "label": "tumour"},
    "undo": {"set": "mine"},
    "uncertain": {"set": "mine"},
    "regions": {"set": "mine", "slide": 1, "file": _REGIONS},
}
VALUES = (
    None, True, -1, 0, 1, 7, 10**9, 10**30, -(10**30), 1e308, float("nan"), float("inf"), 0.5, "", " ", "x" * 5000,
    "label", "annotation", "place", "name", "\u202e", "a\nb", "=1+1", "../x", [], {}, [[]], [[0, 0]], [[0, 0], [1, 1]],
    [0] * 3000, [10**30], [-1], [None], [0, 0, 0, 0], [1e308, -1e308, 1e308, float("nan")], "Polygon", "Point",
    "MultiPolygon",
)  # fmt: skip


class Requests(Kind):
    """What the explorer is asked."""

    name, limit_s, memory_bytes = "requests", 60, 3 * 2**30

    def __init__(self) -> None:
        """Every address is asked in turn."""
        self.groups = tuple(ANSWERS)

    def prepare(self, home: Path) -> None:
        """A store and its embeddings."""
        world.make_world(home / "world", 0, ("store", "run", "embeddings"))

    def open(self, home: Path, folder: Path) -> Judge:
        """An explorer of its own; names are written beside a copy of the embeddings."""
        import shutil

        import torch

        torch.set_num_threads(1)
        shutil.copytree(home / "world", folder / "world")
        session = open_session(folder / "world/store", [folder / "world/embeddings"], None, lambda _: None)

        def say(rng: Rng, index: int) -> Outcome:
            name = self.group_of(index)
            details = deepcopy(DETAILS[name])
            for _ in range(int(rng.choice([0, 1, 1, 2, 3]))):
                details = change(details, rng)
            if name == "regions" and isinstance(details, dict) and not isinstance(details.get("file"), str):
                details["file"] = json.dumps(details.get("file"))
            (folder / INPUT / "details.json").write_text(json.dumps([name, details]))
            return judge(lambda: ask(session, name, details))

        return say


def ask(session: Session, name: str, details: Any) -> None:
    """What the server does with a request; an answer is bytes, a text, or JSON."""
    details = json.loads(json.dumps(details))
    try:
        request = find_request_type(ANSWERS[name]).model_validate(details if isinstance(details, dict) else {"": None})
    except ValidationError as error:
        raise UserError(f"This question is not understood: {error.errors()[0]['msg']}.") from error
    answer = ANSWERS[name](session, request)
    if isinstance(answer, dict):
        json.dumps(answer, allow_nan=False)  # a browser does not understand NaN
    elif not isinstance(answer, bytes | str) or (name not in ("labels.csv",) and not answer):
        raise Wrong(f"the answer is {answer!r}")


def change(details: Any, rng: Rng) -> Any:
    """The details with one value exchanged or left out, at any depth."""
    place = details
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[int(rng.integers(len(keys)))]
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.75:
            place = place[key]
        elif rng.random() < 0.2:
            del place[key]
            return details
        else:
            place[key] = deepcopy(VALUES[int(rng.integers(len(VALUES)))])
            return details
    return details
