"""Paths, ranges, closed routes and uploads: nobody reads or writes a file that is not theirs."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.path_spellings import SPELLINGS
from tests.shared_studio import JSON
from tests.ui.attacks.attack import (
    FILES,
    WORDS,
    check_the_studio,
    is_held,
    patiently,
    secrets_of,
)

pytestmark = pytest.mark.long  # they mostly wait for answers

CLOSED = (
    *(
        "/login_check",
        "/token",
        "/app_id",
        "/monitoring",
        "/monitoring/x",
        "/logout",
        "/openapi.json",
        "/docs",
        "/redoc",
    ),
    *(
        "/user",
        "/queue/status",
        "/robots.txt",
        "/dev/reload",
        "/gradio_api/dev/reload",
        "/gradio_api/mcp/sse",
    ),
    *("/gradio_api/info", "/gradio_api/call/start", "/gradio_api/run/predict", "/gradio_api/api/start"),
    *("/gradio_api/upload", "/gradio_api/upload_progress?upload_id=a", "/gradio_api/file=/etc/passwd"),
    *(
        "/gradio_api/proxy=http://127.0.0.1:1/",
        "/gradio_api/deep_link",
        "/gradio_api/vibe-code",
        "/gradio_api/runs",
    ),
    *(
        "/gradio_api/component_server",
        "/gradio_api/component_server/",
        "/gradio_api/stream/a/b/c/playlist.m3u8",
    ),
    *("/gradio_api/custom_component/1/client/component/../../../../etc/passwd", "/custom_component/1/x/y/z"),
    *(
        "/gradio_api/process_recording",
        "/gradio_api/token",
        "/gradio_api/user",
        "/gradio_api/monitoring/summary",
    ),
    *("/svelte/../../x", "/ready", "/gradio_api/startup-events", "/gradio_api/queue/status", "/api/predict"),
)
"""What Gradio has, or had, beside what a guests' page asks for."""


def test_files(shared, ways, judge):
    secrets = secrets_of(shared)
    root = shared.workspace
    (root / "uploads").mkdir(exist_ok=True)
    for name, target in (("link.txt", "/etc/passwd"), ("key.txt", root / "gate.key"), ("root", "/")):
        for folder in (root, root / "uploads", root / "cache"):
            if folder.is_dir() and not (folder / name).is_symlink():
                os.symlink(target, folder / name)
    own = [
        root / name
        for name in ("gate.key", "share.json", "api.key", "link.txt", "uploads/key.txt", "cache/link.txt")
    ]
    own += [root / "root/etc/passwd", root / "runs", Path("/proc/self/environ"), Path("/dev/stdin")]
    spellings = [*SPELLINGS, *map(str, own), f"{root}/cache/gradio/../../gate.key", f"/../..{root}/gate.key"]
    for name, stranger, inside in ways:
        routes = FILES if name in ("window", "viewer direct") else FILES[:1]
        for spelling in spellings:
            written = quote(spelling.encode("utf-8", "surrogatepass")[:300], safe="/\\:")
            for route in routes:
                status, _, body = patiently(inside, route + written)
                judge(
                    "files",
                    (name, route + spelling, status),
                    is_held(status) and not any(s in body for s in secrets),
                )
        for spelling in spellings[::6]:
            status, _, body = patiently(stranger, FILES[0] + quote(spelling, safe="/"))
            judge(
                "files", (name, "stranger", status), is_held(status) and not any(s in body for s in secrets)
            )


def test_ranges(ways, judge):
    _, _, owner = ways[0]
    asset = re.search(rb'(?:src|href)="[^"]*?(/assets/[\w./-]+\.js)"', patiently(owner, "/")[2])[1].decode()
    whole = patiently(owner, asset)[2]
    ranges = [
        *(
            "bytes=0-0",
            "bytes=-1",
            "bytes=9-1",
            "bytes=-0",
            "bytes=99999999999999999999-",
            "bytes=a-b",
            "bytes=",
            "x=0-1",
        ),
        *(
            "bytes=0-,0-,0-",
            "bytes=" + "0-0," * 2000 + "0-0",
            "bytes=0-18446744073709551615",
            "bytes=-99999999999",
        ),
    ]
    for given in ranges:
        status, _, body = patiently(owner, asset, range=given)
        judge("ranges", (given[:30], status), status < 500 and len(body) <= 2 * len(whole) + 1_000_000)


def test_routes_that_are_closed(ways, judge):
    for name, stranger, inside in ways:
        shut_to = [("stranger", stranger)] + ([("guest", inside)] if name.startswith("viewer") else [])
        for who, browser in shut_to:
            for path in CLOSED[:: 1 if who == "guest" else 3]:
                for method, extra in (("GET", {}), ("POST", JSON)):
                    status = patiently(browser, path, method, "{}" if method == "POST" else None, **extra)[0]
                    fine = (path in ("/ready", "/gradio_api/startup-events") and name == "window") or is_held(
                        status
                    )
                    judge("routes", (name, who, method, path, status), fine)


def parts() -> Iterator[tuple[str, bytes]]:
    """Yield a boundary and a body of an upload each."""
    stuffed = io.BytesIO()
    with zipfile.ZipFile(stuffed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../../../tmp/finetune-studio-slipped.txt", "slipped")
        archive.writestr("/tmp/finetune-studio-slipped.txt", "slipped")
        archive.writestr("rows.jsonl", b"0" * 20_000_000)
    names = [
        *SPELLINGS[:24],
        *WORDS,
        "con",
        "nul.txt",
        "a" * 400 + ".zip",
        ".bashrc",
        "x\u0000.txt",
        "a/b/c",
        "~/x",
        "$(id)",
        "`id`",
    ]
    for name in names:
        written = (
            name.encode("utf-8", "replace")
            .replace(b"\r", b"%0D")
            .replace(b"\n", b"%0A")
            .replace(b'"', b"%22")
        )
        head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="' + written + b'"\r\n\r\n'
        yield "b", head + (stuffed.getvalue() if name.endswith(".zip") else b"owned") + b"\r\n--b--\r\n"
    yield from (
        ("b", b""),
        ("b", b"--b"),
        ("b", b"--b--"),
        ("b", b"--c\r\n\r\n--c--"),
        ("", b"--\r\n\r\n----"),
        ("b" * 300, b"x"),
    )
    yield "b", b"--b\r\n" + b"X: 1\r\n" * 20000 + b"\r\nx\r\n--b--\r\n"
    yield (
        "b",
        b"--b\r\nContent-Disposition: form-data; name=files; filename="
        + b"\xff" * 90
        + b"\r\n\r\nx\r\n--b--\r\n",
    )
    yield (
        "b",
        b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n' + b"y" * 3_000_000 + b"\r\n--b--\r\n",
    )


def test_uploads(shared, ways, judge):
    outside = {path for path in shared.workspace.parent.iterdir()} | set(Path.home().glob("*"))
    for name, _, inside in (ways[0], ways[1], ways[3]):
        for boundary, body in parts():
            kind = f"multipart/form-data; boundary={boundary}"
            status, given, answer = patiently(inside, "/gradio_api/upload", "POST", body, content_type=kind)
            held = status in (403, 415) if name.startswith("viewer") else status < 500
            if status == 200:
                kept = [Path(path) for path in json.loads(answer)]
                held = held and all(
                    path.resolve().is_relative_to(shared.workspace.resolve()) for path in kept
                )
                for path in kept[:1]:
                    back = patiently(inside, FILES[0] + quote(str(path), safe="/"))
                    shown = (back[1].get("content-type") or "").partition(";")[0]
                    attached = "attachment" in (back[1].get("content-disposition") or "")
                    held = held and (attached or shown not in ("text/html", "image/svg+xml", "text/xml"))
            judge("uploads", (name, body[:90], status), held and b"owned=1" not in str(given).encode())
    assert {path for path in shared.workspace.parent.iterdir()} | set(Path.home().glob("*")) == outside
    assert not Path("/tmp/finetune-studio-slipped.txt").exists()


def test_the_studio_is_well(shared, ways, tried):
    """Last."""
    print(dict(tried.kinds))
    assert sum(tried.kinds.values()) >= 1800
    check_the_studio(shared, ways)
