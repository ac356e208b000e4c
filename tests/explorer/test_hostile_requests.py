"""Any request, however wrong: an answer or one sentence, never an error of the server or a traceback in its log."""

import json
import logging
import typing
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from hidisc.explorer import answers
from hidisc.explorer.session import Session
from tests.explorer.conftest import Listening, Made
from tests.explorer.test_server import Answered

HUGE = int("9" * 30)
INTEGERS = st.sampled_from([0, 1, 2, 3, 5, 40, -1, 2**31, 2**63, HUGE, -HUGE])
FLOATS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 64.0, -1.0, 1e-300, 1e300, -1e300, float(2**63), HUGE])
TEXTS = st.one_of(
    st.sampled_from(
        ["", "label", "patient", "computed:cluster", "computed:similarity", "computed:right", "given:mine", "mine",
         "x" * 61, "é" * 60, "annotation", "..", "0,1", "0," + "9" * 30, "a\x00b", "\ud800", "slide", "none"]
    ),
    st.text(max_size=8),
)  # fmt: skip
WRONG = st.sampled_from([None, True, {}, [], [[]], "x", HUGE, -HUGE, 1e300, [1, 2], {"rows": 1}, "9" * 5000])
RINGS = st.lists(st.lists(st.one_of(FLOATS, INTEGERS), max_size=3), max_size=5)
POLYGONS = st.one_of(
    st.lists(RINGS, max_size=2),
    st.just([[[0, 0], [2000, 0], [2000, 2000], [0, 2000]]]),
    st.just([[[0, 0], [2000, 0], [2000, 2000]], []]),
)
GEOMETRIES = st.one_of(
    st.fixed_dictionaries({"type": st.just("Polygon"), "coordinates": st.one_of(POLYGONS, WRONG)}),
    st.fixed_dictionaries(
        {"type": st.just("MultiPolygon"), "coordinates": st.one_of(st.lists(POLYGONS, max_size=2), WRONG)}
    ),
    WRONG,
)
FILES = st.one_of(
    st.lists(
        st.fixed_dictionaries(
            {
                "geometry": GEOMETRIES,
                "properties": st.fixed_dictionaries(
                    {"classification": st.one_of(WRONG, st.fixed_dictionaries({"name": st.one_of(TEXTS, WRONG)}))}
                ),
            }
        ),
        max_size=2,
    ).map(json.dumps),
    st.sampled_from(["", "[", "[" * 5000, "9" * 5000, "null"]),
)


def draw_field(name: str, kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field: mostly of its type, now and then of another."""
    if name == "file":
        return FILES
    return st.one_of(draw_type(kind), draw_type(kind), draw_type(kind), WRONG)


def draw_type(kind: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return draw_request(kind)
    if origin in (UnionType, typing.Union):
        return st.one_of(draw_type(argument) for argument in arguments)
    if origin is typing.Annotated:
        return draw_type(arguments[0])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(draw_type(arguments[0]), max_size=6)
    if origin is tuple:
        return st.tuples(*map(draw_type, arguments)).map(list)
    return {int: INTEGERS, float: FLOATS, str: TEXTS, NoneType: st.none()}[kind]


def draw_request(kind: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Requests of a type, whose optional fields may be missing, and which may have a field too many."""
    fields = {name: draw_field(name, field.annotation) for name, field in kind.model_fields.items()}
    required = {name: fields[name] for name, field in kind.model_fields.items() if field.is_required()}
    optional = {name: fields[name] for name in fields if name not in required}
    return st.fixed_dictionaries(required, optional={**optional, **({"more": WRONG} if not fields else {})})


@pytest.fixture(scope="module")
def own(made: Made) -> Iterator[Listening]:
    session = made.open()
    listening = Listening(session)
    yield listening
    listening.end()
    for path in (made.embeddings.parent / "labels").glob("*.parquet"):
        path.unlink()


@pytest.mark.parametrize("name", [*answers.READ, *answers.CHANGE])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_request_is_an_error_of_the_server(own: Listening, name: str, data: st.DataObject) -> None:
    request = data.draw(draw_request(answers.find_request_type((answers.READ | answers.CHANGE)[name])))
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tornado").addHandler(handler)
    try:
        if name in answers.READ:
            query = urlencode(
                {key: str(value).encode("utf-8", "replace") for key, value in request.items() if value is not None}
            )
            found = Answered(own, "GET", f"/{quote(name)}?{query}")
        else:
            found = Answered(own, "POST", f"/{name}", request)
    finally:
        logging.getLogger("tornado").removeHandler(handler)
    assert found.code in (200, 400), (found.data, logged)
    assert not logged
    if found.code == 400:
        sentence = found.data.decode()
        assert sentence.strip().endswith((".", "?"))
        assert "Traceback" not in sentence
        assert "\n" not in sentence.strip()


def test_the_requests_that_were_errors_are_sentences(own: Listening, session: Session) -> None:
    empty = json.dumps(
        [{"geometry": {"type": "Polygon", "coordinates": []}, "properties": {"classification": {"name": "gland"}}}]
    )
    for name, request, sentence in (
        ("select", {"region": {"rows": [HUGE]}}, "there is no such patch"),
        ("select", {"region": {"polygon": [[HUGE, HUGE], [0, 1], [1, 1]]}}, "not understood"),
        ("select", {"region": {"slide": HUGE, "box": [0, 0, 1, 1]}}, "there is no such slide"),
        ("regions", {"set": "mine", "slide": 0, "file": empty}, "no annotation with a class"),
        ("name", {"set": "é" * 60, "label": "a", "region": {"rows": [0]}}, "cannot name a set of labels"),
    ):
        found = Answered(own, "POST", f"/{name}", request)
        assert (found.code, sentence in found.data.decode()) == (400, True), (name, found.data)
