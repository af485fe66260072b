"""Fetching a hub model, against a hub of the test's own: progress, cut lines, refusals, a full disk, a stop."""

import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue
from studio.hub import child
from studio.hub.access_token import NO_MIRROR, Mirror, show_address
from studio.hub.child import DownloadStopped
from studio.hub.model_download import download_model
from studio.hub.offline import OFFLINE_VARIABLE
from studio.models.catalog import inspect_model
from studio.models.resolve import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHT_BYTES = 24_000_000
"""More than two blocks of the hub library, which writes 10 MiB at a time: a cut one has something to go on from."""
CUT_BYTES = 15_000_000
HARMFUL = {"pytorch_model.bin": b"pickle", "modeling_x.py": b"evil", "training_args.pkl": b"pickle"}


def make_weights(fill: bytes = b"\0") -> bytes:
    """A safetensors file of one fp32 tensor, as the format lays it out."""
    entry = {"dtype": "F32", "shape": [WEIGHT_BYTES // 4], "data_offsets": [0, WEIGHT_BYTES]}
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    return struct.pack("<Q", len(header)) + header + fill * WEIGHT_BYTES


def make_files(fill: bytes = b"\0", **config) -> dict[str, bytes]:
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8} | config
    return {
        "config.json": json.dumps(shape).encode(),
        "tokenizer_config.json": b"{}",
        "model.safetensors": make_weights(fill),
        "consolidated.safetensors": b"the same again",
        "original/params.json": b"{}",
        **HARMFUL,
    }


class Hub:
    """What the server plays: repositories by name, what is wrong with them, and what was asked of it."""

    def __init__(self):
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.accepts = "good-token"
        self.sizes: dict[str, int] = {}
        self.asked: list[tuple[str, str, str, str]] = []
        """(method, file, Range, Authorization) of every request for a file."""
        self.cuts: list[str] = []
        """How the next answers with the weights end early: `close`, `reset` or `hang`."""
        self.released = threading.Event()

    def served(self, name):
        return [ranged for method, file, ranged, _ in self.asked if file == name and method == "GET"]


class Handler(BaseHTTPRequestHandler):
    """The few addresses of a hub that a download uses."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        token = self.headers.get("Authorization", "")
        path = self.path.partition("?")[0]
        if token and token != f"Bearer {hub.accepts}":
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        if path.startswith("/api/models/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            if name not in hub.repos:
                return self.refuse(404 if token else 401, "RepoNotFound")
            if revision not in ("", "main", "v1", COMMIT):
                return self.refuse(404, "RevisionNotFound")
            return self.answer(json.dumps(self.describe(name)).encode())
        repo, _, rest = path.lstrip("/").partition("/resolve/")
        file = rest.partition("/")[2]
        hub.asked.append((self.command, file, self.headers.get("Range", ""), token))
        if repo in hub.gated and not token:
            return self.refuse(401, "GatedRepo")
        if file not in hub.repos.get(repo, {}):
            return self.refuse(404, "EntryNotFound")
        self.serve(hub.repos[repo][file])

    def describe(self, name):
        siblings = []
        for file, data in self.server.hub.repos[name].items():
            size = self.server.hub.sizes.get(file, len(data))
            entry = {"rfilename": file, "size": size, "blobId": hashlib.sha1(data).hexdigest()}
            if file.endswith((".safetensors", ".bin")):
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": size, "pointerSize": 134}
            siblings.append(entry)
        return {"id": name, "modelId": name, "sha": COMMIT, "private": False, "siblings": siblings}

    def serve(self, data):
        kind = hashlib.sha256 if len(data) > 1000 else hashlib.sha1
        extra = {"ETag": f'"{kind(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start = 0
        if ranged := self.headers.get("Range"):
            start = int(ranged.removeprefix("bytes=").split("-")[0])
            extra["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if self.command == "GET" and len(data) > 1000 and self.server.hub.cuts:
            return self.cut(data[start:], 206 if start else 200, extra, self.server.hub.cuts.pop(0))
        self.answer(data[start:], 206 if start else 200, extra)

    def cut(self, data, status, extra, how):
        """Announce all, send CUT_BYTES."""
        self.begin(status, len(data), extra)
        self.wfile.write(data[:CUT_BYTES])
        self.wfile.flush()
        self.close_connection = True
        if how == "hang":
            self.server.hub.released.wait(30)
        if how == "reset":
            time.sleep(0.5)  # a reset throws away what the other side has not read yet
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def refuse(self, status, code, message=""):
        self.answer(b"{}", status, {"X-Error-Code": code, "X-Error-Message": message})

    def answer(self, data, status=200, extra=None):
        self.begin(status, len(data), extra or {})
        if self.command == "GET":
            self.wfile.write(data)

    def begin(self, status, length, extra):
        self.send_response(status)
        for name, value in ({"Content-Length": str(length)} | extra).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        return None


class Server(ThreadingHTTPServer):
    """One thread a connection; a line that breaks is what the tests are about."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A running Hub that HF_ENDPOINT names, with an empty hub cache on this side."""
    server = Server(("127.0.0.1", 0), Handler)
    server.hub = Hub()
    server.hub.repos["good/tiny"] = make_files()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    home = tmp_path / "hf"
    tokens = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN")
    for name in (*tokens, "HF_HUB_CACHE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the supervisor sets it: only the child may go out
    monkeypatch.setenv("FINETUNE_STUDIO_OFFLINE", "0")
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hub"))
    yield server.hub
    server.hub.released.set()
    server.shutdown()
    server.server_close()


def fetch(source="good/tiny", revision="", events=None, should_stop=lambda: False, mirror=NO_MIRROR):
    return resolve_model(source, revision, (events if events is not None else []).append, should_stop, mirror)


def refused(source="good/tiny", revision="", mirror=NO_MIRROR):
    with pytest.raises(StudioError) as caught:
        fetch(source, revision, mirror=mirror)
    error = caught.value
    english = load_catalogue("en")
    assert all(english.has(part.id) for part in (error.what, error.why, error.fix))
    return error


def test_model_comes_with_progress_and_without_what_can_run(hub):
    events = []
    facts = fetch(events=events)
    assert (facts.name, facts.source, facts.parameters) == ("good/tiny", "good/tiny", WEIGHT_BYTES // 4)
    megabytes = [event.detail.values["done_mb"] for event in events if "done_mb" in event.detail.values]
    assert megabytes[-1] == 24
    assert megabytes == sorted(megabytes)
    assert all(event.kind == "phase_started" and event.phase == "download" for event in events)
    asked = {file for _, file, _, _ in hub.asked}
    assert asked == {"config.json", "tokenizer_config.json", "model.safetensors"}
    assert inspect_model("good/tiny").folder == facts.folder  # chat and export find it later, offline


@pytest.mark.parametrize("how", ["close", pytest.param("reset", marks=pytest.mark.computing)])
def test_cut_line_goes_on_where_it_stopped(hub, how):
    hub.cuts = [how]
    events = []
    facts = fetch(events=events)
    first, *later = hub.served("model.safetensors")
    assert first == ""
    assert [int(ranged[6:-1]) for ranged in later] == [10 * 2**20]
    assert facts.parameters == WEIGHT_BYTES // 4
    assert max(event.detail.values.get("done_mb", 0) for event in events) == 24


@pytest.mark.computing
def test_stop_ends_it_at_once_and_the_next_start_goes_on(hub, tmp_path):
    hub.cuts = ["hang"]
    asked_s = []

    def should_stop():
        partial = [path.stat().st_size for path in (tmp_path / "hf").rglob("*.studio.incomplete")]
        if sum(partial) >= 10 * 2**20 and not asked_s:
            asked_s.append(time.monotonic())
        return bool(asked_s)

    with pytest.raises(DownloadStopped):
        fetch(should_stop=should_stop)
    assert time.monotonic() - asked_s[0] < 2
    hub.released.set()
    fetch()
    first, second = hub.served("model.safetensors")
    assert first == "" and int(second[6:-1]) > 0


def test_stop_before_the_first_byte(hub):
    started_s = time.monotonic()
    with pytest.raises(DownloadStopped):
        fetch(should_stop=lambda: True)
    assert time.monotonic() - started_s < 2
    assert not hub.asked


@pytest.mark.computing
def test_file_that_is_not_what_the_hub_announced_is_fetched_anew(hub, tmp_path):
    blobs = tmp_path / "hf" / "hub" / "models--good--tiny" / "blobs"
    blobs.mkdir(parents=True)
    digest = hashlib.sha256(hub.repos["good/tiny"]["model.safetensors"]).hexdigest()
    (blobs / f"{digest}.studio.incomplete").write_bytes(b"\1" * 1000)  # of a machine that lost power
    fetch()
    assert hub.served("model.safetensors") == ["bytes=1000-", ""]


@pytest.mark.computing
def test_gated_model_says_so_and_the_token_opens_it(hub, monkeypatch):
    hub.gated.add("good/tiny")
    error = refused()
    assert (error.what.id, error.exit_code) == ("download.gated", 2)
    assert "model.safetensors" not in {file for _, file, _, _ in hub.asked}
    monkeypatch.setenv("HF_TOKEN", "good-token")
    assert fetch().parameters == WEIGHT_BYTES // 4
    monkeypatch.setenv("HF_TOKEN", "stale-token")
    hub.repos["good/other"] = make_files()
    error = refused("good/other")
    assert (error.what.id, error.exit_code) == ("download.login", 2)


@pytest.mark.computing
def test_a_mirror_gets_the_token_only_where_it_is_allowed(hub, monkeypatch):
    hub.gated.add("good/tiny")
    address = os.environ["HF_ENDPOINT"]
    monkeypatch.setenv("HF_TOKEN", "good-token")
    error = refused(mirror=Mirror(address))
    assert (error.what.id, error.exit_code) == ("hub.withheld", 2)
    assert {token for *_, token in hub.asked} == {""}
    assert "Settings" in load_catalogue("en").say(error.fix)
    assert fetch(mirror=Mirror(address, token=True)).parameters == WEIGHT_BYTES // 4


@pytest.mark.parametrize("token", ["", pytest.param("good-token", marks=pytest.mark.computing)])
def test_unknown_model(hub, monkeypatch, token):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    error = refused("good/absent")
    assert (error.what.id, error.exit_code) == ("download.missing", 2)


@pytest.mark.computing
def test_revision(hub):
    error = refused(revision="v9")
    assert (error.what.id, error.exit_code) == ("download.revision", 2)
    folder = fetch(revision="v1").folder
    assert inspect_model("good/tiny", revision="v1").folder == folder
    assert inspect_model("good/tiny", revision=COMMIT).folder == folder


def test_too_large_for_the_disk_is_said_before_the_first_byte(hub):
    hub.sizes["model.safetensors"] = 10**18
    error = refused()
    assert (error.what.id, error.exit_code) == ("download.no_space", 1)
    assert not hub.asked


@pytest.mark.computing
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only on Linux: a disk that is always full")
def test_disk_that_fills_up_on_the_way(hub, tmp_path):
    blobs = tmp_path / "hf" / "hub" / "models--good--tiny" / "blobs"
    blobs.mkdir(parents=True)
    digest = hashlib.sha256(hub.repos["good/tiny"]["model.safetensors"]).hexdigest()
    (blobs / f"{digest}.studio.incomplete").symlink_to("/dev/full")
    error = refused()
    assert (error.what.id, error.exit_code) == ("download.no_space", 1)
    assert not (blobs / digest).exists()
    assert inspect_model("good/tiny").folder == ""


@pytest.mark.computing
def test_cache_that_is_no_folder(hub, tmp_path):
    (tmp_path / "hf").write_text("a file", encoding="utf-8")
    error = refused()
    assert (error.what.id, error.exit_code) == ("download.unwritable", 1)


def free_address(user=""):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://{user}127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.computing
def test_hub_that_does_not_answer_is_named_and_a_mirror_advised(hub, monkeypatch):
    address = free_address(user="me:secret@")
    monkeypatch.setenv("HF_ENDPOINT", address)
    error = refused()
    assert (error.what.id, error.exit_code) == ("download.unreachable", 1)
    for language in ("en", "zh-CN"):
        words = [load_catalogue(language).say(part) for part in (error.what, error.why, error.fix)]
        assert address.replace("me:secret@", "") in words[0] and "secret" not in words[0]
        assert "HF_ENDPOINT" in words[2] and "hf-mirror" in words[2]


@pytest.mark.computing
def test_mirror_of_the_settings_stands_before_the_environments(hub, monkeypatch):
    mirror = os.environ["HF_ENDPOINT"]
    monkeypatch.setenv("HF_ENDPOINT", free_address())
    assert fetch(mirror=Mirror(f"{mirror}/")).parameters == WEIGHT_BYTES // 4
    assert hub.served("model.safetensors") == [""]


@pytest.mark.parametrize("endpoint", ["hf-mirror.com", "ftp://mirror", "https://:80", "https://mirror:port"])
def test_mirror_that_is_no_address(hub, monkeypatch, endpoint):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a child was started"))
    error = refused(mirror=Mirror(endpoint))
    assert (error.what.id, error.exit_code) == ("download.endpoint", 2)
    assert endpoint in load_catalogue("en").say(error.what)


def test_addresses_are_shown_without_passwords():
    assert show_address("https://me:secret@mirror.example:8443/hub") == "https://mirror.example:8443/hub"
    assert show_address("mirror.example") == ""


@pytest.mark.parametrize(
    "variables",
    [
        {OFFLINE_VARIABLE: "1"},
        {OFFLINE_VARIABLE: None},  # HF_HUB_OFFLINE=1 in a process that no supervisor made: a person's own
        {OFFLINE_VARIABLE: None, "HF_HUB_OFFLINE": None, "TRANSFORMERS_OFFLINE": "yes"},
    ],
)
def test_person_who_wants_no_network_is_refused_at_once(hub, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a child was started"))
    error = refused()
    assert (error.what.id, error.exit_code) == ("download.offline", 2)
    assert not hub.asked


@pytest.fixture
def started(monkeypatch):
    """What each child's environment got that is not this process's own."""
    seen = []
    real = child.start

    def start(module, words, wish, environment, errors):
        seen.append({name: value for name, value in environment.items() if os.environ.get(name) != value})
        return real(module, words, wish, environment, errors)

    monkeypatch.setattr(child, "start", start)
    return seen


class Clock:
    """Runs a thousand times as fast while `hurries()`."""

    def __init__(self, hurries):
        self.hurries, self.shown_s, self.last_s = hurries, 0.0, time.monotonic()

    def __call__(self):
        now_s = time.monotonic()
        self.shown_s += (now_s - self.last_s) * (1000 if self.hurries() else 1)
        self.last_s = now_s
        return self.shown_s


@pytest.mark.computing
def test_download_that_stands_still_goes_on_in_another_child_without_xet(hub, monkeypatch, tmp_path, started):
    hub.cuts = ["hang"]
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "30")  # else the hub library gives up by itself after 10 s

    def hurries():
        partial = [path.stat().st_size for path in (tmp_path / "hf").rglob("*.studio.incomplete")]
        return len(started) == 1 and sum(partial) >= 10 * 2**20

    folder = download_model("good/tiny", "", lambda *_: None, lambda: False, clock=Clock(hurries))
    assert (folder / "model.safetensors").stat().st_size > WEIGHT_BYTES
    assert ["HF_HUB_DISABLE_XET" in changes for changes in started] == [False, True]
    assert hub.served("model.safetensors") == ["", f"bytes={10 * 2**20}-"]


def test_download_that_stands_still_twice_is_refused(hub, monkeypatch, started):
    hub.cuts = ["hang", "hang"]
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "30")
    with pytest.raises(StudioError) as caught:
        download_model("good/tiny", "", lambda *_: None, lambda: False, clock=Clock(lambda: True))
    assert (caught.value.what.id, len(started)) == ("download.stalled", 2)
    words = load_catalogue("en").say(caught.value.why)
    assert os.environ["HF_ENDPOINT"] in words and "60 s" in words


@pytest.mark.computing
def test_model_without_safetensors_is_not_fetched(hub):
    hub.repos["old/pickles"] = {"config.json": b"{}"} | HARMFUL
    hub.repos["old/gguf"] = {"model.gguf": b"GGUF"}
    assert refused("old/pickles").what.id == "download.pickle_only"
    assert refused("old/gguf").what.id == "download.no_weights"
    assert not hub.asked


@pytest.mark.computing
def test_model_that_cannot_be_trained_is_refused_before_it_is_loaded(hub):
    hub.repos["good/tiny"] = make_files(architectures=["BertForMaskedLM"], model_type="bert")
    error = refused()
    assert (error.what.id, error.exit_code) == ("download.not_trainable", 2)


@pytest.mark.computing
def test_same_folder_name_of_two_owners(hub):
    hub.repos["other/tiny"] = make_files(b"\1", hidden_size=16)
    mine, theirs = fetch("good/tiny"), fetch("other/tiny")
    assert mine.folder != theirs.folder
    assert (mine.name, theirs.name) == ("good/tiny", "other/tiny")
    assert (mine.hidden_size, theirs.hidden_size) == (8, 16)


@pytest.mark.computing
def test_child_that_dies_says_why(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "not a number")
    error = refused()
    assert (error.what.id, error.exit_code) == ("download.ended", 1)
    assert "ValueError" in load_catalogue("en").say(error.why)


@pytest.mark.computing
def test_cached_model_needs_no_child(hub, monkeypatch):
    folder = fetch().folder
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a child was started"))
    assert fetch().folder == folder
