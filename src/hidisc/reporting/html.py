"""HTML files that hold all they show and ask nothing of the network, from the templates of this folder."""

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from hidisc.settings.level_names import LevelNames

CITATION = """@inproceedings{jiang2023hierarchical,
  title     = {Hierarchical Discriminative Learning Improves Visual Representations of Biomedical Microscopy},
  author    = {Jiang, Cheng and Hou, Xinhai and Kondepudi, Akhil and Chowdury, Asadur and
               Freudiger, Christian W. and Orringer, Daniel A. and Lee, Honglak and Hollon, Todd C.},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  year      = {2023}
}"""


def fill_template(template: str, words: LevelNames, *scripts: str, **values: Any) -> str:
    """A template with its values, all of them escaped; `words` name the levels; a browser runs only our `scripts`."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # which a model card's citation does without

    js = "\n".join(map(_read, (*scripts, "contents.js")))
    digest = base64.b64encode(hashlib.sha256(js.encode()).digest()).decode()
    # styles may be inline, for browsers differ in whether a policy reaches into the SVG figures, which have them
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_read),
        finalize=_keep_percent,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    shared = {"policy": policy, "css": Markup(_read("page.css")), "js": Markup(js), "citation": CITATION}
    return environment.get_template(template).render(words=words, **shared, **values)


def list_files(
    figures: Iterable[str], tables: Iterable[str], folder: str = ""
) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Every file beside a page: its name, and the ending and address of each of its forms."""
    kinds = (("figures", figures, ("pdf", "png")), ("tables", tables, ("csv", "md", "tex")))
    return tuple(
        (name, tuple((ending, quote(f"{folder}{kind}/{name}.{ending}")) for ending in endings))
        for kind, found, endings in kinds
        for name in found
    )


def _keep_percent(value: Any) -> Any:
    """Text in which no line ends between a number and its percent sign."""
    return value.replace(" %", "\N{NO-BREAK SPACE}%") if type(value) is str else value


@cache
def _read(name: str) -> str:
    return resources.files("hidisc.reporting").joinpath(name).read_text(encoding="utf-8")
