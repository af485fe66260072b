"""Asking the model hub, against a hub of the test's own: the list, one model's facts, refusals, what is not fetched."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue, text
from studio.hub import access_token
from studio.hub.access_token import Mirror
from studio.hub.search import CONFIG_BYTES, KINDS, fetch_facts, search_hub

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
}


def make_entry(name: str, **changes) -> dict:
    """What the hub's list says of one model."""
    return {
        "id": name,
        "downloads": 1200,
        "likes": 34,
        "gated": False,
        "tags": ["safetensors", "license:apache-2.0"],
        "safetensors": {"parameters": {"BF16": 600, "F32": 10}, "total": 610},
    } | changes


class Handler(BaseHTTPRequestHandler):
    """The few addresses of a hub that a search uses."""

    def do_GET(self):
        hub, parts = self.server, urlsplit(self.path)
        hub.asked.append((parts.path, self.headers.get("Authorization", "")))
        if hub.hangs:
            hub.released.wait(20)
        if hub.status != 200:
            return self.answer(b"{}", hub.status)
        if parts.path == "/api/models":
            query = parse_qs(parts.query)
            hub.queries.append(query)
            found = [one for one in hub.models.values() if query["search"][0].lower() in one["id"].lower()]
            return self.answer(json.dumps(found).encode())
        if parts.path.startswith("/api/models/"):
            name = parts.path.removeprefix("/api/models/")
            if name not in hub.models:
                return self.answer(b"{}", 404, {"X-Error-Code": "RepoNotFound"})
            return self.answer(json.dumps(hub.models[name]).encode())
        name, _, file = parts.path.lstrip("/").partition("/resolve/main/")
        if hub.models.get(name, {}).get("gated") and not self.headers.get("Authorization"):
            return self.answer(b"{}", 401, {"X-Error-Code": "GatedRepo"})
        if (name, file) not in hub.files:
            return self.answer(b"{}", 404, {"X-Error-Code": "EntryNotFound"})
        self.answer(hub.files[name, file])

    def answer(self, data, status=200, headers=None):
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        return None


class Hub(ThreadingHTTPServer):
    """What the server plays and what was asked of it."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: dict[str, dict] = {}
        self.files: dict[tuple[str, str], bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.queries: list[dict] = []
        self.status = 200
        self.hangs = False
        self.released = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, config: bytes | None = json.dumps(CONFIG).encode(), **changes) -> None:
        self.models[name] = make_entry(name, **changes)
        if config is not None:
            self.files[name, "config.json"] = config


@pytest.fixture
def hub():
    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """As the studio's own process has it: offline for its libraries, the person does not mind the network."""
    import os

    monkeypatch.setattr(access_token, "_ask", lambda wish: {})
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    changes = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "FINETUNE_STUDIO_OFFLINE": "0"}
    return dict(os.environ) | changes


def refused(ask, *words, **options) -> tuple[str, str]:
    """Return the refusal's id and all its words in English; it has words in Chinese too."""
    with pytest.raises(StudioError) as caught:
        ask(*words, **options)
    parts = (caught.value.what, caught.value.why, caught.value.fix)
    assert all(load_catalogue("zh-CN").has(part.id) for part in parts)
    return caught.value.what.id, " ".join(map(load_catalogue("en").say, parts))


def test_list_tells_size_licence_and_shape(hub, environment):
    hub.add("Qwen/Qwen3-0.6B")
    hub.add("meta/Gated-qwen", gated="manual")
    hub.add("old/qwen-pickles", safetensors=None, tags=["license:mit"])
    hub.add("huge/qwen-config", config=b"[" + b"1," * CONFIG_BYTES + b"1]")
    hub.add("other/model")
    found = search_hub(" qwen ", Mirror(hub.address, token=True), environment | {"HF_TOKEN": "secret-token"})
    by_name = {one.source: one for one in found}
    assert list(by_name) == ["Qwen/Qwen3-0.6B", "meta/Gated-qwen", "old/qwen-pickles", "huge/qwen-config"]
    good = by_name["Qwen/Qwen3-0.6B"]
    assert (good.parameters, good.weight_bytes, good.downloads, good.likes) == (610, 1240, 1200, 34)
    assert (good.licence, good.gated, good.safetensors) == ("apache-2.0", False, True)
    assert good.config["hidden_size"] == 1024
    assert by_name["meta/Gated-qwen"].gated and not by_name["meta/Gated-qwen"].config
    assert not by_name["old/qwen-pickles"].safetensors
    assert by_name["huge/qwen-config"].config == {}, "more than the limit was read"
    assert hub.queries[0]["filter"] == ["text-generation"] and hub.queries[0]["limit"] == ["20"]
    configs = {path for path, _ in hub.asked if path.endswith("config.json")}
    assert configs == {
        f"/{name}/resolve/main/config.json" for name in ("Qwen/Qwen3-0.6B", "huge/qwen-config")
    }
    assert {token for _, token in hub.asked} == {"Bearer secret-token"}


def test_facts_of_one_model_take_its_size_from_the_index(hub, environment):
    hub.add("a/b", safetensors=None)
    index = {"metadata": {"total_size": 16_000_000_000}, "weight_map": {}}
    hub.files["a/b", "model.safetensors.index.json"] = json.dumps(index).encode()
    facts = fetch_facts("a/b", environment=environment | {"HF_ENDPOINT": hub.address})
    assert (facts.weight_bytes, facts.config["model_type"]) == (16_000_000_000, "qwen3")
    assert not [path for path, _ in hub.asked if path.endswith(".safetensors")]


def test_saved_token_goes_to_a_mirror_only_where_it_is_allowed(hub, environment, monkeypatch):
    monkeypatch.setattr(access_token, "_ask", lambda wish: {"token": "kept"})
    hub.add("meta/Gated", gated="manual")
    id, words = refused(fetch_facts, "meta/Gated", Mirror(hub.address), environment | {"HF_TOKEN": "mine"})
    assert id == "hub.withheld" and hub.address in words and "Settings" in words
    assert {token for _, token in hub.asked} == {""}
    hub.asked.clear()
    allowed = Mirror(hub.address, token=True)
    assert fetch_facts("meta/Gated", allowed, environment).config["hidden_size"] == 1024
    assert {token for _, token in hub.asked} == {"Bearer kept"}


def test_gated_and_missing_models_are_told_apart(hub, environment):
    hub.add("meta/Gated", gated="manual")
    assert refused(fetch_facts, "meta/Gated", Mirror(hub.address, token=True), environment)[0] == "hub.gated"
    assert refused(fetch_facts, "no/such", Mirror(hub.address), environment)[0] == "hub.missing"


@pytest.mark.computing
def test_hub_that_does_not_answer_is_told_with_its_address(hub, environment):
    hub.status = 429
    assert refused(search_hub, "qwen", Mirror(hub.address), environment)[0] == "hub.limit"
    hub.status, hub.hangs = 200, True
    id, words = refused(search_hub, "qwen", Mirror(hub.address), environment, patience_s=3)
    assert id == "hub.slow" and hub.address in words


def test_nothing_is_sent_when_the_person_wants_no_network(hub, environment):
    offline = environment | {"FINETUNE_STUDIO_OFFLINE": "1"}
    assert refused(search_hub, "qwen", Mirror(hub.address), offline)[0] == "hub.offline"
    assert refused(search_hub, "qwen", Mirror("ftp://x"), environment)[0] == "hub.endpoint"
    assert not hub.asked


def test_child_that_dies_says_why(environment, tmp_path):
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError('a broken library')", encoding="utf-8")
    broken = environment | {"PYTHONPATH": str(tmp_path)}
    id, words = refused(search_hub, "qwen", Mirror("http://127.0.0.1:9"), broken)
    assert id == "hub.ended" and "a broken library" in words


def test_password_in_a_mirror_is_not_shown(environment):
    id, words = refused(search_hub, "qwen", Mirror("http://me:secret@127.0.0.1:9"), environment)
    assert id == "hub.unreachable" and "secret" not in words


@pytest.mark.parametrize("kind", KINDS)
def test_every_refusal_has_three_sentences(kind):
    for language in ("en", "zh-CN"):
        words = load_catalogue(language)
        assert all(words.has(f"hub.{kind}{part}") for part in ("", ".why", ".fix"))
        told = words.say(text(f"hub.{kind}.why", detail="Name or service not known"))
        assert told.endswith((".", "。")), "the next sentence follows it"
