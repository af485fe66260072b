"""The supervisor's tunnels: begun when the window wants them, begun again, ended; what the terminal is told."""

from __future__ import annotations

import json
import time

import psutil
import pytest

from studio.core.private_file import write_private
from studio.services.pass_phrase import hash_phrase
from studio.services.share_files import link_file, state_file
from studio.supervisor import tunnels as tunnel
from studio.supervisor.tunnels import Tunnels
from studio.ui.tunnel import TUNNEL_VARIABLE, find_link
from tests.launched import wait_for
from tests.shared_studio import is_alive, make_relay, read_note


@pytest.fixture(scope="module")
def relay(tmp_path_factory):
    """The relay's program, and the folder of its notes."""
    return make_relay(tmp_path_factory.mktemp("relay"))


@pytest.mark.parametrize(
    ("line", "link"),
    [
        ("your url is: https://Big-Cat.example.com", "https://big-cat.example.com"),
        ("INF |  https://big.trycloudflare.com  |", "https://big.trycloudflare.com"),
        ("https://x.example:8443/path?x=1", "https://x.example:8443"),
        ("http://x.example", ""),
        ("https://user:pass@x.example", ""),
        ("https://x.example@evil.example", ""),
        ("https://localhost", ""),
        ("https://<b>.example", ""),
        ("", ""),
    ],
)
def test_the_link_in_what_a_program_prints(line, link):
    assert find_link(line) == link


def want(
    workspace, session: str, *ways: str, port: int = 7960, phrase: str = "", expires_s: float = 2e9
) -> None:
    """Note what the window would: an opening for each way."""
    roles = zip(("viewer", "owner"), ways, strict=False)
    common = {"opened_s": 1.0, "expires_s": expires_s, "salt": "s", "phrase_hash": hash_phrase(phrase, "s")}
    openings = [{"role": role, "way": way, "port": port + i} | common for i, (role, way) in enumerate(roles)]
    state = {"session": session, "openings": openings, "connections": []}
    write_private(state_file(workspace), json.dumps(state).encode())


def read_links(workspace) -> dict:
    try:
        return json.loads(link_file(workspace).read_text(encoding="utf-8"))["links"]
    except OSError:
        return {}


@pytest.fixture
def tunnels(workspace, relay, monkeypatch):
    """The supervisor's tunnels through our relay, quick to look and to try again; and what was told to the terminal."""
    program, notes = relay
    monkeypatch.setenv(TUNNEL_VARIABLE, str(program))
    monkeypatch.setenv("TEST_RELAYS", str(notes))
    monkeypatch.setattr(tunnel, "LOOK_S", 0.0)
    monkeypatch.setattr(tunnel, "AGAIN_S", (0.1,))
    found = Tunnels(workspace, ["studio", "--share"], lambda message: found.heard.append(message))
    found.heard = []
    yield found
    found.close()


def follow(tunnels: Tunnels, condition) -> None:
    def looked() -> bool:
        tunnels()
        return condition()

    wait_for(looked, 30)


def test_a_tunnel_begins_breaks_begins_again_and_ends(tunnels, workspace, relay):
    tunnels()
    assert read_links(workspace) == {}, "nothing is started unasked"
    want(workspace, "another session", "tunnel")
    tunnels()
    assert read_links(workspace) == {}
    want(workspace, tunnels.session, "tunnel", phrase=tunnels.phrases["viewer"])
    follow(tunnels, lambda: read_links(workspace).get("viewer", {}).get("link"))
    assert read_links(workspace)["viewer"] == {
        "port": 7960,
        "link": "https://relay-7960.example",
        "problem": "",
    }
    (message,) = tunnels.heard
    assert message.values == {"link": "https://relay-7960.example", "phrase": tunnels.phrases["viewer"]}
    assert tunnels.phrases["viewer"] not in state_file(workspace).read_text(encoding="utf-8")

    first = psutil.Process(read_note(relay[1], 7960)[1])
    first.kill()
    follow(
        tunnels, lambda: read_note(relay[1], 7960)[1] != first.pid and read_links(workspace)["viewer"]["link"]
    )
    second = psutil.Process(read_note(relay[1], 7960)[1])
    want(workspace, tunnels.session, phrase="x")
    follow(tunnels, lambda: not is_alive(second))
    assert read_links(workspace) == {}
    tunnels.close()
    assert not state_file(workspace).exists() and not link_file(workspace).exists()
    assert len(tunnels.heard) == 1


def test_the_log_is_looked_at_before_each_start(tunnels, workspace, monkeypatch):
    monkeypatch.setattr(tunnel, "LOG_LIMIT_BYTES", 8)
    log = workspace.logs / "tunnel.log"
    log.write_bytes(b"a program that prints each request\n")
    want(workspace, tunnels.session, "tunnel")
    tunnels()
    assert log.with_name("tunnel.log.1").is_file() and b"each request" not in log.read_bytes()


def test_a_program_that_cannot_start_is_told(tunnels, workspace, monkeypatch, tmp_path):
    monkeypatch.setenv(TUNNEL_VARIABLE, str(tmp_path / "missing"))
    want(workspace, tunnels.session, "tunnel")
    follow(tunnels, lambda: read_links(workspace).get("viewer", {}).get("problem") == "program")
    tunnels()
    assert [message.id for message in tunnels.heard] == ["share.tunnel.program"], (
        "said once at the terminal too"
    )


def test_a_link_ends_at_its_hour_also_without_a_window(tunnels, workspace):
    want(workspace, tunnels.session, "tunnel", expires_s=time.time() + 1.0)
    tunnels()
    process = psutil.Process(tunnels._tunnels["viewer"].process.pid)
    follow(tunnels, lambda: not tunnels._tunnels)
    assert not is_alive(process) and read_links(workspace) == {}


def test_a_link_in_the_local_network_needs_no_process(tunnels, workspace):
    want(workspace, tunnels.session, "lan", phrase=tunnels.phrases["viewer"])
    tunnels()
    assert read_links(workspace) == {} and tunnels.heard[0].values["link"].endswith(":7960")
    want(workspace, tunnels.session, "lan", port=7970, phrase="made in the window")
    tunnels()
    assert len(tunnels.heard) == 1, "a phrase that is not the terminal's is not told there"
