"""The server: only who has the token is answered, only questions are answered, and answers are right."""

import csv
import json
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image

from hidisc.evaluation.scores import Scores
from hidisc.explorer import answers as answers
from hidisc.explorer.projection import draw_density
from hidisc.explorer.regions import MOST_LETTERS
from hidisc.explorer.server import Server
from hidisc.explorer.session import Session, open_session
from hidisc.ground.columns import load_columns
from hidisc.ground.errors import UserError
from hidisc.verbs.explore import explore
from tests.commands import ENVIRONMENT
from tests.evaluation.made import make_embeddings
from tests.explorer.conftest import Listening, Made

ALL = [(-1, -1), (2, -1), (2, 2), (-1, 2)]


class Answered:
    """What the server said."""

    def __init__(self, listening: Listening, method: str, path: str, body: Any = None, **headers: str) -> None:
        connection = HTTPConnection("127.0.0.1", listening.server.port, timeout=60)
        own = {"Cookie": f"{listening.server.cookie}={listening.server.token}"}
        if method == "POST":
            own["Content-Type"] = "application/json"
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {name: value for name, value in (own | given).items() if value})
        answer = connection.getresponse()
        self.code, self.headers, self.data = answer.status, answer.headers, answer.read()
        connection.close()

    @property
    def json(self) -> Any:
        assert self.code == 200, self.data
        return json.loads(self.data)


def get(listening: Listening, name: str, **details: Any) -> Answered:
    return Answered(listening, "GET", f"/{name}?{urlencode(details)}")


def post(listening: Listening, name: str, **details: Any) -> Answered:
    return Answered(listening, "POST", f"/{name}", details)


def paths() -> list[tuple[str, str]]:
    names = ["", "page.js", "page.css", "nowhere", *answers.READ]
    return [*(("GET", f"/{name}") for name in names), *(("POST", f"/{name}") for name in answers.CHANGE)]


@pytest.mark.parametrize(("method", "path"), paths())
def test_nothing_is_answered_without_the_token(listening: Listening, method: str, path: str) -> None:
    for cookie in ("", f"{listening.server.cookie}=wrong", f"{listening.server.cookie}=", "other=1"):
        found = Answered(listening, method, path, {} if method == "POST" else None, Cookie=cookie)
        assert (found.code, found.data[:4]) == (403, b"Open")
        assert listening.server.token not in str(found.headers)
    assert Answered(listening, method, f"{path}?token=wrong", Cookie="").code == 403


def test_the_token_of_the_address_becomes_a_cookie_that_scripts_cannot_read(listening: Listening) -> None:
    found = Answered(listening, "GET", f"/?token={listening.server.token}", Cookie="")
    assert (found.code, found.headers["Location"]) == (302, "/")
    cookie = found.headers["Set-Cookie"]
    assert cookie.startswith(f"{listening.server.cookie}={listening.server.token};")
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert Answered(listening, "GET", "/").code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},  # a name of someone else's that leads to this machine
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},  # another server of this machine
        {"Content_Type": "text/plain"},  # what a form can send without asking first
    ],
)
def test_requests_of_other_pages_are_refused(listening: Listening, headers: dict[str, str]) -> None:
    assert Answered(listening, "POST", "/select", {"region": {"rows": [0]}}).code == 200
    assert Answered(listening, "POST", "/select", {"region": {"rows": [0]}}, **headers).code == 403


def test_every_answer_forbids_the_network(listening: Listening) -> None:
    for path in ("/", "/page.js", "/cohort", "/patch.jpg?row=0", "/nowhere"):
        headers = Answered(listening, "GET", path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Server" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/%2e%2e/cli.py",
        "/server.py",
        "/page.html/../server.py",
        "//etc/passwd",
        "/labels/mine",
        "/pagexjs",
    ],
)
def test_no_path_reaches_a_file(listening: Listening, path: str) -> None:
    assert Answered(listening, "GET", path).code == 404


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/patch?row=1000000", "there is no such patch."),
        ("/patch?row=-1", "there is no such patch."),
        ("/patch.jpg?row=0&side=99999", "not understood"),
        ("/patch?row=x", "not understood"),
        ("/patch?row=0&path=/etc/passwd", "not understood"),
        ("/slide?slide=99", "there is no such slide."),
        ("/tile.jpg?slide=0&level=0&column=99&line=0", "has no tile"),
        ("/points?by=nothing", "have no column 'nothing'"),
        ("/points?by=label&only=1;2", "not understood"),
        ("/points?by=label&x0=1&x1=0", "has no width"),
        ("/density.png?by=label&width=1000000", "not understood"),
        ("/overlay?slide=0&by=computed:similarity&row=-5", "was not embedded"),
        ("/labels.csv", "not understood"),
    ],
)
def test_a_wrong_question_is_a_sentence(listening: Listening, path: str, sentence: str) -> None:
    found = Answered(listening, "GET", path)
    assert (found.code, sentence in found.data.decode()) == (400, True), found.data


def test_bodies_are_bounded_and_checked(listening: Listening) -> None:
    assert Answered(listening, "POST", "/select", b"{").code == 400
    assert Answered(listening, "POST", "/select", b"[1]").code == 400
    assert post(listening, "select", region={"rows": [0]}, more=1).code == 400
    assert Answered(listening, "GET", "/select").code == 405
    assert Answered(listening, "POST", "/cohort", {}).code == 405
    with suppress(OSError):  # the connection is closed, at one of several moments
        assert Answered(listening, "POST", "/select", b" " * 2**21).code == 400
    assert get(listening, "cohort").code == 200


def test_the_cohort_is_told_as_evaluated(listening: Listening, session: Session, scores: Scores) -> None:
    told = get(listening, "cohort").json
    assert [slide["slide"] for slide in told["slides"]] == [entry.slide for entry in session.slides]
    judged = scores.predictions("knn", "slide")
    expected = {
        name: (judged.classes[code], judged.classes[truth] == judged.classes[code])
        for name, code, truth in zip(judged.units["slide"], judged.predicted, judged.truth, strict=True)
    }
    found = {
        slide["slide"]: (slide["predicted"], slide["result"] == "right")
        for slide in told["slides"]
        if slide["predicted"]
    }
    assert found == expected
    titles = [column["title"] for column in told["columns"]]
    assert titles[:3] == ["class", "patient", "slide"]
    assert "right or wrong" in titles
    for column in told["columns"]:
        assert len(column["names"]) == len(column["colours"]) == len(column["counts"])
        assert all(re.fullmatch("#[0-9a-fA-F]{6}", colour) for colour in column["colours"])


def test_points_are_all_patches_in_view(listening: Listening, session: Session) -> None:
    told = get(listening, "points", by="label").json
    assert told["whole"] is True
    assert sorted(told["rows"]) == list(range(len(session.store)))
    labels = session.store.table.column("label")
    names = session.columns["label"].names
    assert [names[code] for code in told["codes"]] == labels[told["rows"]].tolist()
    part = get(listening, "points", by="label", x1=0.5, only="0").json
    expected = (session.places[:, 0] <= 0.5) & (session.columns["label"].codes[session.embedded] == 0)
    assert sorted(part["rows"]) == sorted(session.embedded[expected].tolist())
    x, y = session.places[3].tolist()
    spot = get(listening, "spot", by="label", x0=x - 0.01, y0=y - 0.01, x1=x + 0.01, y1=y + 0.01).json
    nearest = np.square(session.places - session.places[3]).sum(axis=1).argmin()
    assert spot["row"] == session.embedded[nearest]
    assert get(listening, "spot", by="label", x0=5, y0=5, x1=6, y1=6).json == {"row": -1}


def test_too_many_points_are_drawn_as_a_picture(
    listening: Listening, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_POINTS", 10)
    assert get(listening, "points", by="label").json == {"many": len(session.store)}
    found = get(listening, "density.png", by="label", width=80, height=60)
    assert Image.open(BytesIO(found.data)).size == (80, 60)


def test_density_has_the_mean_colour_of_its_points() -> None:
    places = np.array([[0.05, 0.05], [0.05, 0.06], [0.95, 0.95], [1.5, 0.5]], np.float32)
    png = draw_density(places, np.array([0, 1, -1, 0], np.int32), ("#ff0000", "#0000ff"), 10, 10)
    pixels = np.asarray(Image.open(BytesIO(png)))
    assert pixels[0, 0].tolist() == [127, 0, 127, 255]
    assert pixels[9, 9, :3].tolist() == [180, 184, 182]
    assert 89 < pixels[9, 9, 3] < 255
    assert (pixels[..., 3] > 0).sum() == 2


def test_what_is_alike_is_of_the_units_asked_for(listening: Listening, session: Session) -> None:
    table, row = session.store.table, 5
    whole = post(listening, "alike", region={"rows": [row]}, most=500).json
    assert len(whole["rows"]) == len(session.store) - 1
    assert whole["values"] == sorted(whole["values"], reverse=True)
    for unit in ("slide", "patient"):
        apart = post(listening, "alike", region={"rows": [row]}, apart=unit, most=500).json
        of_row = table.column(unit)[row]
        assert apart["rows"] == [other for other in whole["rows"] if table.column(unit)[other] != of_row]
    similar = get(listening, "overlay", slide=0, by="computed:similarity", row=row).json
    of_slide = dict(zip(session.rows_of_slide[0].tolist(), similar["values"], strict=True))
    told = dict(zip(whole["rows"], whole["values"], strict=True))
    assert all(abs(of_slide[other] - told[other]) < 1e-3 for other in of_slide if other != row)


def test_pictures_are_those_of_the_patches(listening: Listening, session: Session) -> None:
    found = get(listening, "patch.jpg", row=7, side=48)
    pixels = np.asarray(Image.open(BytesIO(found.data))).astype(int)
    assert np.abs(pixels - session.store.read(7)).mean() < 6  # JPEG
    assert found.headers["Content-Type"] == "image/jpeg"
    assert Image.open(BytesIO(get(listening, "thumbnail.jpg", slide=1).data)).format == "JPEG"


def test_a_region_of_a_slide_is_told_with_its_places(listening: Listening, session: Session) -> None:
    shown = session.show(2)
    told = post(listening, "select", region={"slide": 2, "box": [0, 0, shown.width, shown.height]}).json
    assert (told["count"], told["rows"]) == (len(shown.rows), shown.rows.tolist())
    np.testing.assert_allclose(told["places"], session.places[session.vector_of[shown.rows]])


def test_names_can_be_given_taken_back_and_exported(made: Made, session: Session) -> None:
    listening = Listening(made.open())
    try:
        assert post(listening, "name", set="server", label="=x", region={"rows": [1, 2]}).json["count"] == 2
        labels = get(listening, "labels.csv", set="server")
        assert labels.headers["Content-Disposition"] == 'attachment; filename="labels.csv"'
        lines = labels.data.decode("utf-8-sig").splitlines()
        assert len(lines) == 3
        assert lines[1].endswith('"\'=x"')  # no formula for a spreadsheet
        chosen = post(listening, "patches.csv", region={"rows": [2, 5]})
        assert chosen.headers["Content-Type"] == "text/csv; charset=utf-8"
        table = list(csv.DictReader(chosen.data.decode().splitlines()))
        assert [int(row["patch"]) for row in table] == session.store.table.column("patch")[[2, 5]].tolist()
        assert [row["labels: server"] for row in table] == ["'=x", ""]
        assert {row["class"] for row in table} <= set(session.columns["label"].names)
        told = post(listening, "uncertain", set="server")
        assert (told.code, told.data) == (
            400,
            b"a probe needs patches of two names at least. Give a second name to some.",
        )
        rows = np.flatnonzero(session.columns["label"].codes == 1)[:6].tolist()
        post(listening, "name", set="server", label="y", region={"rows": rows})
        offered = post(listening, "uncertain", set="server").json
        assert len(offered["rows"]) == 24
        assert not set(offered["rows"]) & {1, 2, *rows}
        assert post(listening, "undo", set="server").json["count"] == len(rows)
        left = post(listening, "undo", set="server").json["columns"]  # no name is left, and the page may not know yet
        assert "given:server" not in str(left)
        assert set(get(listening, "points", by="given:server").json["codes"]) == {-1}
        assert post(listening, "name", set="../x", label="y", region={"rows": [1]}).code == 400
    finally:
        listening.end()
        (made.embeddings.parent / "labels" / "server.parquet").unlink()


def test_regions_of_qupath_become_names_that_can_be_undone(made: Made) -> None:
    session = made.open()
    listening, path = Listening(session), made.embeddings.parent / "labels" / "drawn.parquet"
    boxes = get(listening, "boxes.geojson", slide=1)
    assert (boxes.code, boxes.headers["Content-Type"]) == (200, "application/geo+json")
    features = boxes.json["features"][:3]
    for feature in features:
        feature["properties"] = {"classification": {"name": "gland"}}
    file = json.dumps(features)
    long = file + " " * (3 * 2**20)  # longer than other questions may be
    try:
        told = post(listening, "regions", set="drawn", slide=1, file=long).json
        assert (told["count"], told["names"]) == (3, ["gland"])
        assert load_columns(path)["label"].tolist() == ["gland"] * 3
        assert (session.labels.find("drawn")[session.rows_of_slide[1][:3]] == "gland").all()
        assert post(listening, "undo", set="drawn").json["count"] == 3
        assert load_columns(path)["label"].tolist() == []
        bad = post(listening, "regions", set="drawn", slide=1, file="{")
        assert (bad.code, b"cannot be read as GeoJSON" in bad.data) == (400, True)
        assert post(listening, "regions", set="drawn", slide=99, file=file).code == 400
        assert post(listening, "regions", set="drawn", slide=1, file=" " * (MOST_LETTERS + 1)).code == 400
    finally:
        listening.end()
        path.unlink()


def test_who_has_no_token_cannot_send_a_file(listening: Listening) -> None:
    """It is refused by its first line: of the body nothing is awaited."""
    connection = HTTPConnection("127.0.0.1", listening.server.port, timeout=60)
    connection.putrequest("POST", "/regions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(MOST_LETTERS))
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.parametrize(
    ("host", "names", "others"),
    [
        ("127.0.0.1", ["127.0.0.1", "localhost", "LOCALHOST"], ["10.0.0.7", "evil.example", socket.gethostname()]),
        ("localhost", ["127.0.0.1", "localhost"], ["10.0.0.7", "evil.example"]),
        ("0.0.0.0", ["127.0.0.1", "localhost", "10.0.0.7", "[fe80::1]", socket.gethostname()], ["evil.example", ""]),
    ],
)
def test_requests_are_addressed_to_the_host(session: Session, host: str, names: list[str], others: list[str]) -> None:
    listening = Listening(session, host)
    port = listening.server.port
    try:
        for name in names:
            assert Answered(listening, "GET", "/cohort", Host=f"{name}:{port}").code == 200, name
            assert Answered(listening, "GET", "/cohort", Host=f"{name}:{port + 1}").code == 403, name
            assert Answered(listening, "GET", "/cohort", Host=f"{name}:{port}", Cookie="").code == 403, name
        for name in others:
            assert Answered(listening, "GET", "/cohort", Host=f"{name}:{port}").code == 403, name
        assert (
            Answered(listening, "GET", "/cohort", Host=f"localhost:{port}", Origin=f"http://localhost:{port}").code
            == 200
        )
        assert Answered(listening, "GET", "/cohort", Host="[:1").code in (400, 403)
    finally:
        listening.end()


def test_only_who_is_seen_in_the_network_is_warned(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "run", lambda *_: None)
    for host, expected in (("127.0.0.1", 0), ("localhost", 0), ("0.0.0.0", 1)):
        said, addresses = list[str](), list[str]()
        explore(made.store, host=host, browser=False, say=said.append, ready=addresses.append)
        warned = [line for line in said if line.startswith("warning: pictures of patients go over the network unencr")]
        assert len(warned) == expected, host
        port = re.match(r"http://[^/]+:(\d+)/", addresses[0])
        assert port is not None
        assert all(f"ssh -L {port[1]}:127.0.0.1:{port[1]} {socket.gethostname()}" in line for line in warned)
    assert socket.gethostname() in addresses[0]


def test_a_host_that_is_not_of_this_machine_is_said(session: Session) -> None:
    for host in ("192.0.2.1", "no.such.host.invalid", "x" * 300):
        with pytest.raises(UserError, match="Leave --port out for a free one, and --host out to listen on this mach"):
            Server(session, 0, host)


def test_what_is_not_of_the_store_is_refused(made: Made, tmp_path: Path) -> None:
    other = make_embeddings(tmp_path / "embeddings")
    with pytest.raises(UserError, match="was made of other patches than"):
        open_session(made.store, [other.path], None, lambda _: None)
    with pytest.raises(UserError, match="one set of embeddings can be explored at a time"):
        open_session(made.store, [made.embeddings, other.path], None, lambda _: None)
    session = open_session(made.store, [made.scores], None, lambda _: None)
    assert session.embeddings is not None
    assert session.embeddings.path.resolve() == made.embeddings.resolve()


def test_a_port_that_is_taken_is_said(listening: Listening, session: Session) -> None:
    with pytest.raises(UserError, match=f"--port {listening.server.port} of '127.0.0.1' cannot be used"):
        Server(session, listening.server.port)


@pytest.mark.whole
def test_the_command_prints_the_address_and_ends_with_ctrl_c(made: Made) -> None:
    words = [sys.executable, "-m", "hidisc", "explore", made.store, made.embeddings, "--no-browser", "--json"]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert command.stdout is not None
    address = json.loads(command.stdout.readline())["address"]
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})", address)
    assert found is not None
    connection = HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
    connection.request("GET", f"/cohort?token={found[2]}")
    assert connection.getresponse().status == 400  # the token is no detail of a question
    time.sleep(0.1)
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=60)
    assert command.returncode == 0
    assert "Traceback" not in said
