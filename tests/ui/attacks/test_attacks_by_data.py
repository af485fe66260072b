"""Hostile data by the window's own way: each file is refused in clear words or read soundly, and nothing stays."""

from __future__ import annotations

import gzip
import html
import io
import json
import os
import zipfile
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.shared_studio import JOIN, Browser
from tests.ui.launched_studio import LaunchedStudio, family

pytestmark = pytest.mark.long  # they mostly wait for answers

GOOD = b'{"prompt": "What lies at the quay?", "completion": "A tug lies there."}\n' * 20
TABLE = b"question,answer\n" + b"What lies at the quay?,A tug.\nWho mends nets?,Marit.\n" * 10


def pack(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    """Return a zip of these members."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return packed.getvalue()


def link(name: str) -> zipfile.ZipInfo:
    """Return a member that unpackers make a symbolic link of."""
    found = zipfile.ZipInfo(name)
    found.create_system, found.external_attr = 3, 0o120777 << 16
    return found


REFUSED = {
    "program.exe": (b"MZ" + bytes(200), "is not a data file"),
    "no_ending": (GOOD, "is not a data file"),
    "archive.tar": (b"not a tar", "is not a data file"),
    "empty.jsonl": (b"", "is empty"),
    "blank.csv": (b"\n\n   \n", "is empty"),
    "zeros.jsonl": (bytes(100_000), "NUL"),
    "picture.jsonl": (b"\x89PNG\r\n\x1a\n" + bytes(range(128, 256)) * 4, "None of the rows"),
    "deep.json": (b"[" * 200_000, "begins here"),
    "deep_object.json": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested more than"),
    "number.json": (b'[{"prompt":' + b"9" * 6000 + b"}]", "too long"),
    "surrogate.jsonl": (b'{"prompt":"\\ud800","completion":"x"}\n' * 20, "half a pair"),
    "twice.jsonl": (b'{"prompt":"a","prompt":"b","completion":"c"}\n' * 20, "twice"),
    "long_line.jsonl": (b'{"prompt":"' + b"a" * 20_000_000, "None of the rows"),
    "cut.parquet": (b"PAR1" + bytes(500), "no Parquet file"),
    "cut.xlsx": (pack(("xl/workbook.xml", b"<workbook/>"))[:120], "no Excel workbook"),
    "bad.xlsx": (pack(("xl/workbook.xml", b"<workbook/>")), "no Excel workbook"),
    "bomb.zip": (pack(("rows.jsonl", bytes(100_000_000))), "250 times its size"),
    "bomb.jsonl.gz": (gzip.compress(b'{"text":"' + bytes(100_000_000)), "250 times its size"),
    "nested.zip": (pack(("inner.zip", pack(("rows.jsonl", GOOD)))), "another archive"),
    "slip.zip": (pack(("../../../../tmp/studio-slipped.jsonl", GOOD)), "leads out of the archive"),
    "rooted.zip": (pack(("/tmp/studio-slipped.jsonl", GOOD)), "leads out of the archive"),
    "link.zip": (pack((link("train.jsonl"), b"/etc/passwd")), "not valid JSON"),
    "cut.zip": (pack(("rows.jsonl", os.urandom(4000)))[:90], "damaged or cut short"),
    "many.zip": (pack(*((f"{n}.txt", b"") for n in range(5000))), "is empty"),
    "cut.jsonl.gz": (gzip.compress(os.urandom(4000))[:60], "damaged or cut short"),
    "utf32.csv": ("question,answer\nWho?,He.\n".encode("utf-32"), "UTF-32"),
    "page.csv": (b"<!DOCTYPE html><html><script>alert(1)</script></html>", "web page"),
    "pointer.jsonl": (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n", "Git LFS"),
    "columns.csv": (b",".join(b"c%d" % n for n in range(20_000)) + b"\n1\n", "16384 columns"),
    "loop.yaml": (b"a: &a [*a]\nb: *a\n", "no YAML"),
    "laughs.yaml": (b"a: &a [x,x]\nb: &b [*a,*a,*a]\nc: &c [*b,*b,*b]\nd: [*c,*c,*c]\n" * 9, "no YAML"),
}  # fmt: skip
"""Name -> the file, and words of its refusal."""
READ = {
    "plain.jsonl": (GOOD, "plain.jsonl"),
    "utf16.jsonl": (GOOD.decode().encode("utf-16"), "utf16.jsonl"),
    "odd.jsonl": (GOOD.decode().encode("utf-16")[:-1], "odd.jsonl"),
    "script.csv": (TABLE.replace(b"A tug", b"<script>alert(1)</script>"), "script.csv"),
    "name<script>.csv": (TABLE, "namescript.csv"),
    "..%2f..%2fx.csv": (TABLE, "-2f..-2fx.csv"),
    "../../../gate.csv": (TABLE, "gate.csv"),
    "con.csv": (TABLE, "_con.csv"),
    ".hidden.csv": (TABLE, "hidden.csv"),
    "\u202egnp.csv": (TABLE, "-gnp.csv"),
    "a" * 300 + ".csv": (TABLE, "a" * 80 + ".csv"),
}
"""Name -> the file, and what it is called where it is kept."""


class Window:
    """The owner's page, as far as a file is dropped into it."""

    def __init__(self, studio: LaunchedStudio) -> None:
        self.browser = Browser(studio.port, f"127.0.0.1:{studio.port}")
        given = self.browser.ask(studio.url.partition(str(studio.port))[2])[1]["set-cookie"]
        self.browser.cookie = given.partition(";")[0]
        config = json.loads(self.browser.ask("/config")[2])
        self.zone = next(
            one["id"] for one in config["components"] if one["props"].get("elem_id") == "dataset-upload"
        )
        self.handler = next(
            one["id"] for one in config["dependencies"] if [self.zone, "upload"] in map(list, one["targets"])
        )
        self.dropped = 0

    def drop(self, name: str, data: bytes) -> dict:
        """Upload a file and let the page take it; return the outcome of the event."""
        head = f'--b\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
        kind = "multipart/form-data; boundary=b"
        status, _, answer = self.browser.ask(
            "/gradio_api/upload", "POST", head + data + b"\r\n--b--\r\n", content_type=kind
        )
        assert status == 200, (name[:40], status)
        self.dropped += 1
        session = f"hostile{self.dropped}"
        file = {"path": json.loads(answer)[0], "orig_name": name, "meta": {"_type": "gradio.FileData"}}
        event = {"data": [file], "fn_index": self.handler, "session_hash": session, "trigger_id": self.zone}
        assert self.browser.status(JOIN, "POST", json.dumps(event), content_type="application/json") == 200
        connection = HTTPConnection("127.0.0.1", self.browser.port, timeout=120)
        try:
            sent = {"host": self.browser.host, "cookie": self.browser.cookie}
            connection.request("GET", f"/gradio_api/queue/data?session_hash={session}", headers=sent)
            for line in connection.getresponse():
                if b"process_completed" in line:
                    return json.loads(line.removeprefix(b"data: "))
        finally:
            connection.close()
        raise AssertionError(f"no outcome for {name[:40]}")


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    found = LaunchedStudio(tmp_path_factory.mktemp("hostile") / "workspace")
    yield found
    for process in family(found.process)[::-1]:
        process.kill()
    found.process.wait()


@pytest.fixture(scope="module")
def window(studio):
    return Window(studio)


def held(studio) -> set[str]:
    return {path.name for path in (studio.workspace / "datasets").rglob("*")}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_and_nothing_stays(studio, window, name):
    before = held(studio)
    data, words = REFUSED[name]
    outcome = window.drop(name, data)
    said = html.unescape(str(outcome["output"].get("error")))
    assert outcome["success"] is False and words in said, said
    assert "Traceback" not in said and held(studio) == before
    assert not Path("/tmp/studio-slipped.jsonl").exists()


@pytest.mark.parametrize("name", READ)
def test_what_can_be_read_is_kept_under_a_name_of_its_own(studio, window, name):
    data, kept = READ[name]
    outcome = window.drop(name, data)
    assert outcome["success"] is True
    path = studio.workspace / "datasets" / kept
    assert path.read_bytes() == data
    assert "<script>alert" not in str(outcome["output"])


def test_a_file_that_was_there_is_not_lost_to_one_that_cannot_be_read(studio, window):
    assert window.drop("kept.jsonl", GOOD)["success"] is True
    assert window.drop("kept.jsonl", bytes(500))["success"] is False
    assert (studio.workspace / "datasets" / "kept.jsonl").read_bytes() == GOOD


def test_the_studio_is_well(studio, window):
    """Last."""
    logs = "".join(path.read_text("utf-8", "replace") for path in (studio.workspace / "logs").glob("*"))
    assert "Traceback" not in logs
    assert not [path for path in (studio.workspace / "datasets").iterdir() if path.name.startswith(".")]
    assert window.drop("well.jsonl", GOOD)["success"] is True
