"""Fetching data sets, against a hub and a server of the test's own: what is chosen, resumed, refused and asked."""

import hashlib
import json
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue
from studio.core.recipe import DatasetSpec
from studio.data import remote
from studio.data.remote import fetch_remote, is_fetched, is_remote, look_remote
from studio.hub import dataset_download, https_client
from studio.hub.child import DownloadStopped
from tests.each_time import rarely

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = b'{"text": "one"}\n{"text": "two"}\n'
BIG = b"".join(b'{"text": "row %d"}\n' % i for i in range(200_000))
CUT_BYTES = 2_500_000
CERTIFICATE = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg5xmDJ8l2Wb7gB+4O
/57fiCa+4CqBoZ/C6KC0gk3ZYgOhRANCAASwY227zaGyz+0skntrPOakqfoKCZim
TOXegXOOScF5V6EVe7n8PK2zB7LW4jza3q4QWSaxOB7Y86owdnSd3UuK
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBqDCCAU6gAwIBAgIUUwr/ulY5M9T4u4pXPbKTIC3+AY0wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTA4MjI0MFoYDzIxMjYxMDI4
MDgyMjQwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASwY227zaGyz+0skntrPOakqfoKCZimTOXegXOOScF5V6EVe7n8PK2z
B7LW4jza3q4QWSaxOB7Y86owdnSd3UuKo3wwejAdBgNVHQ4EFgQU2EkNk37Fxjr4
LZhonuBZnCo5eqkwHwYDVR0jBBgwFoAU2EkNk37Fxjr4LZhonuBZnCo5eqkwDwYD
VR0TAQH/BAUwAwEB/zAnBgNVHREEIDAegglsb2NhbGhvc3SCC3B1YmxpYy50ZXN0
hwR/AAABMAoGCCqGSM49BAMCA0gAMEUCIBdcCrCMdTI0/kDvJZfmkqEsPWE+afWQ
FMCe41UiYykkAiEAxAmXvnagJG58Ki3UCnpLSbDVw7/I+PKLpvR4+rQcrE0=
-----END CERTIFICATE-----
"""
"""For localhost and the name public.test, which nobody can own; made for this test."""


class Handler(BaseHTTPRequestHandler):
    """A hub with `repos`, and a web server with `pages`: path -> (status, headers, body)."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        path = self.path.partition("?")[0]
        server.asked.append((path, self.headers.get("Range", ""), self.headers.get("Authorization", "")))
        if path in server.pages:
            return self.answer(*server.pages[path])
        if path.startswith("/api/datasets/"):
            return self.list_repository(path.removeprefix("/api/datasets/").removesuffix("/revision/main"))
        repo, _, rest = path.removeprefix("/datasets/").partition("/resolve/")
        data = server.repos.get(repo, {}).get(rest.partition("/")[2])
        if data is None:
            return self.answer(404, {"X-Error-Code": "EntryNotFound"}, b"")
        if repo in server.gated and self.headers.get("Authorization") != "Bearer good":
            return self.answer(403, {"X-Error-Code": "GatedRepo"}, b"")
        self.serve(data)

    def list_repository(self, repo):
        server = self.server
        if repo not in server.repos:
            return self.answer(401, {"X-Error-Code": "RepoNotFound"}, b"{}")
        siblings = [
            {"rfilename": name, "size": len(data)}
            | ({"lfs": {"sha256": hashlib.sha256(data).hexdigest()}} if len(data) > 1000 else {})
            for name, data in server.repos[repo].items()
        ]
        found = {"id": repo, "sha": server.commit, "siblings": siblings}
        if repo in server.cards:
            found["cardData"] = server.cards[repo]
        self.answer(200, {}, json.dumps(found).encode())

    def serve(self, data):
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        start = 0
        if self.headers.get("If-Range") == tag:
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        headers = {"ETag": tag} | (
            {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        )
        if self.server.cuts:
            how = self.server.cuts.pop(0)
            self.answer(200, headers, data[:CUT_BYTES], length=len(data))
            self.close_connection = True
            if how == "hang":
                self.server.released.wait(30)
            return
        self.answer(206 if start else 200, headers, data[start:])

    def answer(self, status, headers, body, length=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(length or len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_):
        return None


def make_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.repos, server.cards, server.pages, server.gated = {}, {}, {}, set()
    server.asked, server.cuts, server.commit = [], [], COMMIT
    server.released = threading.Event()
    return server


def run(server, scheme, host):
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    server.address = f"{scheme}://{host}:{server.server_address[1]}"
    return server


def stop(server):
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = run(make_server(), "http", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("FINETUNE_STUDIO_OFFLINE", "0")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield server
    stop(server)


@pytest.fixture
def site(hub, monkeypatch, tmp_path):
    """A server with a certificate that is trusted here."""
    path = tmp_path / "certificate.pem"
    path.write_text(CERTIFICATE, encoding="utf-8")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server = make_server()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    yield run(server, "https", "localhost")
    stop(server)


def make_spec(source, **fields):
    return DatasetSpec(source=source, **fields)


def refuse(call, *arguments) -> StudioError:
    with pytest.raises(StudioError) as refusal:
        call(*arguments)
    error = refusal.value
    for language in ("en", "zh-CN"):
        words = load_catalogue(language)
        for part in (error.what, error.why, error.fix):
            assert words.has(part.id), part.id
            assert len(words.say(part)) <= 300
    return error


def bodies(fetched, split="train"):
    return [(fetched.folder / name).read_bytes() for name in fetched.plan.splits.get(split, ())]


# What is remote ------------------------------------------------------------------------------------------------------


def test_what_is_remote(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_remote("owner/name") and is_remote("https://some.where/x.jsonl")
    for source in (
        "name",
        "owner/name.jsonl",
        "./owner/name",
        "a/b/c",
        "http://x/y",
        "file:///etc/passwd",
        "",
    ):
        assert not is_remote(source), source
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert not is_remote("owner/name")


# The hub -------------------------------------------------------------------------------------------------------------


def test_a_data_set_of_the_hub(hub, tmp_path):
    hub.repos["owner/name"] = {
        "README.md": b"words",
        "load.py": b"import os",
        "data/train-00000-of-00002.jsonl": ROWS,
        "data/train-00001-of-00002.jsonl": ROWS * 40,
        "data/test-00000-of-00001.jsonl": ROWS * 2,
    }
    spec = make_spec("owner/name")
    facts = look_remote(spec, tmp_path)
    assert facts.size_bytes == 43 * len(ROWS)
    assert facts.files == tuple(sorted(n for n in hub.repos["owner/name"] if n.startswith("data/")))[1:] + (
        "data/test-00000-of-00001.jsonl",
    )
    assert len(hub.asked) == 2  # the listing, and the card that it did not include
    seen = []
    fetched = fetch_remote(spec, tmp_path, lambda done, total: seen.append((done, total)))
    assert bodies(fetched) == [ROWS, ROWS * 40] and bodies(fetched, "test") == [ROWS * 2]
    assert seen[-1] == (facts.size_bytes, facts.size_bytes)
    assert not [path for path, *_ in hub.asked if path.endswith(".py")]
    assert not list(fetched.folder.rglob("*.part")) and not list(fetched.folder.rglob("*.tag"))


def test_what_is_here_is_not_asked_for_again(hub, tmp_path):
    hub.repos["owner/name"] = {"train.jsonl": ROWS}
    spec = make_spec("owner/name")
    assert not is_fetched(spec, tmp_path)
    first = fetch_remote(spec, tmp_path)
    stop(hub)
    assert is_fetched(spec, tmp_path)
    assert fetch_remote(spec, tmp_path) == first


@pytest.mark.computing
def test_a_new_version_is_fetched_after_a_new_look(hub, tmp_path):
    hub.repos["owner/name"] = {"train.jsonl": ROWS}
    spec = make_spec("owner/name")
    fetch_remote(spec, tmp_path)
    hub.repos["owner/name"], hub.commit = {"train.jsonl": ROWS * 3}, COMMIT[::-1]
    assert bodies(fetch_remote(spec, tmp_path)) == [ROWS]
    look_remote(spec, tmp_path)
    assert not is_fetched(spec, tmp_path)
    assert bodies(fetch_remote(spec, tmp_path)) == [ROWS * 3]


SMALL = [{"split": "train_sft", "path": "s/a-*"}, {"split": "test_sft", "path": "s/b-*"}]
CONFIGS = [
    {"config_name": "small", "data_files": SMALL},
    {"config_name": "large", "default": True, "data_files": "l/**.jsonl"},
]
CARD_FILES = {"s/a-1.jsonl": ROWS, "s/b-1.jsonl": ROWS * 2, "l/x/c.jsonl": ROWS * 3, "other.jsonl": ROWS * 4}


@pytest.mark.computing
@pytest.mark.parametrize("in_readme", [False, True])
def test_the_card_says_which_files(hub, tmp_path, in_readme):
    hub.repos["owner/name"] = dict(CARD_FILES)
    if in_readme:
        import yaml

        front = yaml.safe_dump({"license": "mit", "configs": CONFIGS})
        hub.repos["owner/name"]["README.md"] = f"---\n{front}---\n# Words\n---\n".encode()
    else:
        hub.cards["owner/name"] = {"configs": CONFIGS}
    facts = look_remote(make_spec("owner/name"), tmp_path)
    [question] = facts.questions
    assert (question.field, question.choices) == ("data.config", ("large", "small"))
    assert facts.files == () and facts.size_bytes is None and facts.configs == ("large", "small")
    asked = len(hub.asked)
    nothing = fetch_remote(make_spec("owner/name"), tmp_path)  # not before the question is answered
    assert nothing.plan.splits == {"train": ()} and nothing.plan.questions == (question,)
    assert len(hub.asked) == asked
    assert bodies(fetch_remote(make_spec("owner/name", config="large"), tmp_path)) == [ROWS * 3]
    small = fetch_remote(make_spec("owner/name", config="small"), tmp_path)
    assert bodies(small) == [ROWS] and bodies(small, "test") == [ROWS * 2]
    tested = fetch_remote(make_spec("owner/name", config="small", split="test_sft"), tmp_path)
    assert dict(tested.plan.splits) == {"train": ("s/b-1.jsonl",)}


@pytest.mark.computing
def test_a_card_without_a_train_split_asks(hub, tmp_path):
    splits = [{"split": name, "path": f"{name}.jsonl"} for name in ("en", "de")]
    hub.repos["owner/name"] = {"en.jsonl": ROWS, "de.jsonl": ROWS * 2}
    hub.cards["owner/name"] = {"configs": [{"config_name": "default", "data_files": splits}]}
    facts = look_remote(make_spec("owner/name"), tmp_path)
    assert facts.questions[0].field == "data.split" and facts.splits == ("en", "de")
    assert bodies(fetch_remote(make_spec("owner/name", split="de"), tmp_path)) == [ROWS * 2]
    assert refuse(look_remote, make_spec("owner/name", split="fr"), tmp_path).what.id == "data.remote.split"
    assert refuse(look_remote, make_spec("owner/name", config="x"), tmp_path).what.id == "data.remote.config"


def test_a_script_alone_is_no_data(hub, tmp_path):
    hub.repos["owner/name"] = {"name.py": b"import os", "README.md": b"---\nlicense: mit\n---\n"}
    assert refuse(look_remote, make_spec("owner/name"), tmp_path).what.id == "data.remote.no_data"


def test_names_that_lead_elsewhere_are_no_files(hub, tmp_path):
    names = ["../train.jsonl", "/train.jsonl", "a/../../train.jsonl", "C:\\train.jsonl", "train.jsonl:x"]
    hub.repos["owner/name"] = dict.fromkeys(names, ROWS) | {"good/train.jsonl": ROWS}
    assert look_remote(make_spec("owner/name"), tmp_path).files == ("good/train.jsonl",)


@pytest.mark.computing
def test_a_cut_line_is_gone_on_from(hub, tmp_path, monkeypatch):
    hub.repos["owner/name"] = {"train.jsonl": BIG}
    hub.cuts = ["close"]
    assert bodies(fetch_remote(make_spec("owner/name"), tmp_path)) == [BIG]
    ranges = [ranged for path, ranged, _ in hub.asked if path.endswith("train.jsonl")]
    assert ranges[0] == "" and ranges[1].startswith("bytes=") and int(ranges[1][6:-1]) > 2**20


@pytest.mark.computing
def test_a_stopped_transfer_is_gone_on_from(hub, tmp_path):
    hub.repos["owner/name"] = {"train.jsonl": BIG}
    hub.cuts = ["hang"]
    seen = []
    started_s = time.monotonic()
    with pytest.raises(DownloadStopped):
        fetch_remote(
            make_spec("owner/name"), tmp_path, lambda done, total: seen.append(done), lambda: bool(seen)
        )
    assert time.monotonic() - started_s < 10
    assert not list(tmp_path.rglob("train.jsonl"))
    assert bodies(fetch_remote(make_spec("owner/name"), tmp_path)) == [BIG]
    assert hub.asked[-1][1].startswith("bytes=")


def test_content_that_is_not_the_announced_is_not_kept(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_download, "PAUSE_S", 0.0)
    data = b"x" * 2000
    hub.repos["owner/name"] = {"train.jsonl": data}
    file = {"name": "train.jsonl", "size_bytes": 2000, "sha256": "0" * 64}
    file["address"] = f"{hub.address}/datasets/owner/name/resolve/{COMMIT}/train.jsonl"
    with pytest.raises(ConnectionError):
        dataset_download.fetch(https_client.Web(hub.address, ""), [file], tmp_path / "x")
    assert [path.name for path in (tmp_path / "x").iterdir() if path.name != ".lock"] == []


@pytest.mark.parametrize(("token", "kind"), [("", "gated"), rarely("bad", "gated"), rarely("good", "")])
def test_a_gated_data_set(hub, tmp_path, monkeypatch, token, kind):
    hub.repos["owner/name"] = {"train.jsonl": ROWS}
    hub.gated.add("owner/name")
    monkeypatch.setenv("HF_TOKEN", token)
    if kind:
        refusal = refuse(fetch_remote, make_spec("owner/name"), tmp_path)
        assert refusal.what.id == f"data.remote.{kind}" and "owner/name" in str(refusal)
    else:
        assert bodies(fetch_remote(make_spec("owner/name"), tmp_path)) == [ROWS]


def test_the_token_of_the_hubs_own_login(hub, tmp_path, monkeypatch):
    (tmp_path / "no-token").write_text("good\n", encoding="utf-8")
    hub.repos["owner/name"] = {"train.jsonl": ROWS}
    look_remote(make_spec("owner/name"), tmp_path)
    assert hub.asked[0][2] == "Bearer good"


@pytest.mark.computing
def test_refusals(hub, tmp_path, monkeypatch):
    assert refuse(look_remote, make_spec("owner/nothing"), tmp_path).what.id == "data.remote.missing"
    hub.pages["/api/datasets/owner/odd/revision/main"] = (200, {}, b"<html>sign in</html>")
    assert refuse(look_remote, make_spec("owner/odd"), tmp_path).what.id == "data.remote.no_hub"
    stop(hub)
    assert refuse(look_remote, make_spec("owner/name"), tmp_path).what.id == "data.remote.unreachable"
    monkeypatch.setenv("HF_ENDPOINT", "ftp://hub")
    assert refuse(look_remote, make_spec("owner/name"), tmp_path).what.id == "data.remote.endpoint"
    monkeypatch.setenv("FINETUNE_STUDIO_OFFLINE", "1")
    monkeypatch.delenv("HF_ENDPOINT")
    assert refuse(look_remote, make_spec("owner/name"), tmp_path).what.id == "data.remote.offline"


# Addresses -----------------------------------------------------------------------------------------------------------


def test_an_address(site, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "good")
    site.pages["/a/rows.jsonl"] = (200, {"ETag": '"1"'}, ROWS)
    spec = make_spec(f"{site.address}/a/rows.jsonl?key=secret")
    facts = look_remote(spec, tmp_path)
    assert (facts.size_bytes, facts.files) == (len(ROWS), ("rows.jsonl",))
    fetched = fetch_remote(spec, tmp_path)
    assert bodies(fetched) == [ROWS]
    assert {token for *_, token in site.asked} == {""} and hub.asked == []


@pytest.mark.parametrize(
    ("path", "headers", "name"),
    [
        rarely("/export", {"Content-Type": "text/csv"}, "export.csv"),
        ("/x", {"Content-Disposition": 'attachment; filename="../../my rows.jsonl"'}, "my_rows.jsonl"),
        rarely("/rows.csv", {"Content-Encoding": "gzip"}, "rows.csv.gz"),
    ],
)
def test_the_name_of_what_an_address_holds(site, tmp_path, path, headers, name):
    site.pages[path] = (200, headers, ROWS)
    assert look_remote(make_spec(site.address + path), tmp_path).files == (name,)


@pytest.mark.computing
def test_a_page_of_the_hub_is_its_data_set(hub, tmp_path, monkeypatch):
    hub.repos["owner/name"] = {"train.jsonl": ROWS}
    for rest in ("", "/tree/main", "/viewer/default/train"):
        spec = make_spec(f"https://huggingface.co/datasets/owner/name{rest}")
        assert look_remote(spec, tmp_path).files == ("train.jsonl",)


@pytest.mark.parametrize(
    "target",
    [
        "http://example.com/x.jsonl",
        rarely("https://192.168.1.1/x.jsonl"),
        rarely("https://127.0.0.1/x.jsonl"),
        rarely("https://[::1]/x.jsonl"),
        rarely("https://169.254.169.254/latest/meta-data"),
        "https://printer.local/x.jsonl",
        "file:///etc/passwd",
        rarely("ftp://example.com/x.jsonl"),
    ],
)
def test_where_an_address_may_not_lead(site, tmp_path, target):
    site.pages["/x.jsonl"] = (302, {"Location": target}, b"")
    refusal = refuse(look_remote, make_spec(f"{site.address}/x.jsonl"), tmp_path)
    assert refusal.what.id in ("data.remote.redirect", "data.remote.unreachable")
    if not target.startswith(("file", "ftp")):
        assert refusal.what.id == "data.remote.redirect"


def test_addresses_of_this_network():
    asked = https_client.Web("", "")
    inside = """10.0.0.1 ::ffff:10.0.0.1 fe80::1%eth0 0.0.0.0 224.0.0.1 fd00::1 127.1 0x7f000001 2130706433 0177.1
        localhost. a.localhost. x.internal. LOCALHOST 64:ff9b::7f00:1 2002:7f00:1:: 2002:a00:1:: 192.0.0.8 192.0.0.1
        2001:0:4136:e378:8000:63bf:80ff:fffe 127.0.0.1. ."""
    for address in inside.split():
        with pytest.raises(https_client.Refused):
            asked.require_public(address)
    for address in ("93.184.215.14", "example.org", "example.org.", "2606:2800:21f::1", "64:ff9b::5db8:d70e"):
        asked.require_public(address)
    for address in (r"https://127.0.0.1\@example.org/", "https://example.org/a b", "https:///x"):
        with pytest.raises(https_client.Refused):
            asked.require(address)


def test_a_public_name_of_a_private_address(site, monkeypatch):
    """Only the connection shows it: the name says nothing, and a look-up before could be answered otherwise."""
    look_up = socket.getaddrinfo

    def answer(host, *arguments, **options):
        return look_up("127.0.0.1" if host == "public.test" else host, *arguments, **options)

    connected = []
    create = socket.create_connection

    def connect(address, *options, **named):
        connected.append(address)
        return create(address, *options, **named)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    monkeypatch.setattr(socket, "create_connection", connect)
    port = site.server_address[1]
    site.pages["/y.csv"] = (200, {}, b"a,b\n")
    site.pages["/x.csv"] = (302, {"Location": f"https://public.test:{port}/y.csv"}, b"")
    with pytest.raises(https_client.Refused) as refusal:
        https_client.Web("", "").open(f"{site.address}/x.csv")
    assert refusal.value.kind == "redirect"
    assert [path for path, *_ in site.asked] == ["/x.csv"]
    assert port not in [address[1] for address in connected[1:]], "not even a connection is opened"
    with https_client.Web("", "").open(
        f"https://public.test:{port}/y.csv"
    ) as opened:  # named by the person: theirs to know
        assert opened.read() == b"a,b\n"


@pytest.mark.computing
def test_a_page_is_no_file(site, tmp_path):
    site.pages["/x"] = (200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>")
    assert refuse(look_remote, make_spec(f"{site.address}/x"), tmp_path).what.id == "data.remote.page"
    assert (
        refuse(look_remote, make_spec(f"{site.address}/none.csv"), tmp_path).what.id == "data.remote.missing"
    )
    site.pages["/y.csv"] = (403, {}, b"")
    assert refuse(look_remote, make_spec(f"{site.address}/y.csv"), tmp_path).what.id == "data.remote.login"


@pytest.mark.computing
def test_what_is_too_large_is_not_begun(site, tmp_path):
    site.pages["/x.csv"] = (200, {"Content-Length": str(300 * 10**9)}, b"a,b\n")
    spec = make_spec(f"{site.address}/x.csv")
    assert look_remote(spec, tmp_path).size_bytes == 300 * 10**9
    assert refuse(fetch_remote, spec, tmp_path).what.id == "data.remote.large"


def test_a_certificate_that_is_not_trusted(site, tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    refusal = refuse(look_remote, make_spec(f"{site.address}/x.csv"), tmp_path)
    assert refusal.what.id == "data.remote.unreachable" and "certificate" in str(refusal)


def test_messages_keep_keys_to_themselves():
    assert remote.show_source("file:///etc/passwd") == "file:///etc/passwd"
    assert remote.show_source("simplecache::http://me:word@x/y?t=1") == "simplecache::http://x/y"
    shown = remote.show_source("https://me:word@host.example:8443/a/b.csv?token=secret#x")
    assert shown == "https://host.example:8443/a/b.csv"


def test_data_stay_here_where_the_person_said_so_of_data_alone(monkeypatch):
    """The studio sets its own variable from what counts for models; a word about data alone was lost by that."""
    from studio.hub.offline import OFFLINE_VARIABLE, wants_data_offline, wants_offline

    said = {"HF_DATASETS_OFFLINE": "1", OFFLINE_VARIABLE: "0"}
    assert wants_data_offline(said) and not wants_offline(said)
    assert not wants_data_offline({OFFLINE_VARIABLE: "0"}) and wants_data_offline({OFFLINE_VARIABLE: "1"})
