"""One patient as a folder that opens from disk: the same page, with its answers in one script and pictures as files.

The folder holds nothing of other patients: a column has only the names that the patches of this patient have.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hidisc.explorer.answers import draw_patch, tell_cohort, tell_patch, tell_slide
from hidisc.explorer.projection import as_jpeg
from hidisc.explorer.requests import EmptyRequest, PatchRequest, SlideRequest
from hidisc.explorer.session import Rows, Session
from hidisc.explorer.slide import TILE_PX, ShownSlide
from hidisc.ground.errors import UserError
from hidisc.ground.files import new_folder
from hidisc.ground.text import name_some

_PAGE = Path(__file__).parent
_MOST_TILES = 3_000
"""Most tiles of a slide, about 60 MB; finer levels are left out."""


def save_patient(session: Session, patient: str, out: Path) -> int:
    """Write the folder, which appears whole or not at all, and return how many slides it shows."""
    numbers = [number for number, slide in enumerate(session.slides) if slide.patient == patient]
    if not numbers:
        some = name_some(dict.fromkeys(slide.patient for slide in session.slides))
        raise UserError(f"--patient {patient!r} is no patient of {session.store.path}. There are {some}.")
    if out.exists():
        raise UserError(f"{out} is there already and is not overwritten. Give another --save.")
    rows = np.concatenate([session.rows_of_slide[number] for number in numbers])
    with new_folder(out) as part:
        for name in ("page.css", "pane.js", "map.js", "slide.js", "page.js", "disk.js"):
            (part / name).write_bytes((_PAGE / name).read_bytes())
        scripts = '<script src="saved.js" defer></script>\n<script src="disk.js" defer></script>\n<script src="pane.js"'
        page = (_PAGE / "page.html").read_text(encoding="utf-8").replace('<script src="pane.js"', scripts)
        (part / "index.html").write_text(page, encoding="utf-8")
        (part / "patches").mkdir()
        for row in rows.tolist():
            (part / "patches" / f"{row}.jpg").write_bytes(draw_patch(session, PatchRequest(row=row, side=160)))
        (part / "tiles").mkdir()
        shown = map(session.show, numbers)
        finest = [_write_tiles(session, slide, part / "tiles", place) for place, slide in enumerate(shown)]
        text = json.dumps(_gather(session, numbers, rows, finest)).replace("<", "\\u003c")
        (part / "saved.js").write_text(f"window.saved = {text};\n", encoding="utf-8")
    return len(numbers)


def _gather(session: Session, numbers: list[int], rows: Rows, finest: list[int]) -> dict[str, Any]:
    """The data from which `disk.js` answers requests; the slides of the patient are numbered from 0."""
    cohort = tell_cohort(session, EmptyRequest())
    columns, codes, titles = [], {}, session.name_columns()
    for key, column in session.columns.items():
        present, own = np.unique(column.codes[rows], return_inverse=True)
        named = present[present >= 0].tolist()
        own = own - (len(present) - len(named))  # -1 comes first, and stays -1
        codes[key] = own.tolist()
        counts = np.bincount(own[own >= 0], minlength=len(named)).tolist()
        names, colours = ([values[code] for code in named] for values in (column.names, column.colours))
        about = {"key": key, "title": titles[key], "names": names, "colours": colours, "counts": counts}
        columns.append({**about, "range": column.range if len(named) == len(column.names) else None})
    warnings = ["The evaluation has warnings; its report has them."] if cohort["warnings"] else []
    slides = [cohort["slides"][number] for number in numbers]
    cohort["people"] = [person for person in cohort["people"] if person["patient"] == slides[0]["patient"]]
    cohort |= {"slides": slides, "columns": columns, "patients": 1, "patches": len(rows), "warnings": warnings}
    cohort["vectors"] = int((session.vector_of[rows] >= 0).sum())
    place_of = {number: place for place, number in enumerate(numbers)}
    patches = [tell_patch(session, PatchRequest(row=row)) for row in rows.tolist()]
    shown = [tell_slide(session, SlideRequest(slide=number)) for number in numbers]
    return {
        "cohort": cohort,
        "rows": rows.tolist(),
        "codes": codes,
        "patches": [{**patch, "slide": place_of[patch["slide"]]} for patch in patches],
        "slides": [{**slide, "slide": place, "finest": finest[place]} for place, slide in enumerate(shown)],
    }


def _write_tiles(session: Session, shown: ShownSlide, folder: Path, place: int) -> int:
    """Write the tiles of a slide, coarse levels first, up to `_MOST_TILES`; return the finest level written."""
    written = 0
    for level in reversed(range(shown.levels)):
        across, down = (-(-side // (TILE_PX * 2**level)) for side in (shown.width, shown.height))
        written += across * down
        if written > _MOST_TILES:
            return level + 1
        for line in range(down):
            for column in range(across):
                tile = as_jpeg(shown.tile(session.store, level, column, line))
                (folder / f"{place}-{level}-{column}-{line}.jpg").write_bytes(tile)
    return 0
