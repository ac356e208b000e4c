"""Drawn cohorts whose stain goes with the label, or does not, as finished embeddings of the colour floor."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from hidisc.embeddings.embeddings import Embeddings
from hidisc.patches.folders import find_folder
from hidisc.settings.embed import EmbedConfig
from hidisc.settings.prepare import ImportConfig
from hidisc.slides.synthetic import DIAGNOSES, SITES, draw_patient, draw_slide, draw_staining
from hidisc.verbs.embed import embed
from hidisc.verbs.prepare import import_patches
from tests.patches.pictures import write_pictures

LABELS = ("sparse-round", "dense-spindle")
"""Two diagnoses with about as much chromatin: they differ in shape, hardly in colour."""
HUES = {"north": (0.0, 0.0, 0.0), "south": (0.15, 0.0, -0.15)}
"""By how much the stains of a site absorb more red, green and blue than those of the other."""
FIELD_PX, FIELDS = 32, 9


def draw_embeddings(
    folder: Path, *, agreeing: int, patients: int = 40, stained: bool = True, seed: int = 0
) -> Embeddings:
    """Colours of `patients` of each of two labels, of whom `agreeing` come from the site that belongs to their label.

    `stained`: whether the sites stain differently. Of 40 patients, 38 agreeing make a correlation of 0.9, and 20 none.
    """
    rows, pictures = [], {}
    for code, label in enumerate(LABELS):
        for number in range(patients):
            patient = f"{label}-{number}"
            site = list(HUES)[code if number < agreeing else 1 - code]
            rows.append(f"{patient},{label},{site},train")
            rng = np.random.default_rng([seed, code, number])
            staining = draw_staining(SITES["north"], rng)
            if stained:
                staining = replace(staining, vectors=staining.vectors + np.array(HUES[site], np.float32))
            morphology = draw_patient(DIAGNOSES[label], rng)
            slide = draw_slide(morphology, staining, rng, fields=FIELDS, field_px=FIELD_PX)
            for field in range(FIELDS):
                y, x = ((1 + place) * FIELD_PX for place in divmod(field, 3))
                pictures[f"{patient}/{patient}-1/{field}.png"] = slide[y : y + FIELD_PX, x : x + FIELD_PX]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "patients.csv").write_text("\n".join(["patient,label,site,split", *rows]) + "\n")
    source = find_folder(write_pictures(folder / "pictures", pictures), folder / "patients.csv")
    import_patches(source, folder / "store", ImportConfig(), workers=0)
    made = embed(folder / "store", "colour", folder / "colour", EmbedConfig(), device="cpu", shown=False)
    assert made is not None
    return made
