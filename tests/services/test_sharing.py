"""Sharing: what opens and closes, who comes in, what survives a restart of the process, and what is kept of it."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.core.heartbeat import PARENT_VARIABLE
from studio.core.i18n import literal
from studio.core.private_file import write_private
from studio.hub.offline import OFFLINE_VARIABLE
from studio.services.share_files import PHRASES_VARIABLE, SESSION_VARIABLE, link_file, state_file
from studio.services.sharing import CONNECTIONS, Sharing
from tests.services.test_login_throttle import Clock


class Ports:
    """A window that notes which ports it opened and closed."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}
        self.wanted: list[int | None] = []

    def start(self, role: str, way: str, port: int | None) -> int:
        self.wanted.append(port)
        self.open[role] = port or 7960 + len(self.open)
        return self.open[role]

    def stop(self, role: str) -> None:
        self.open.pop(role, None)


@pytest.fixture(autouse=True)
def supervised(monkeypatch):
    """This process has a supervisor, and may use the network."""
    monkeypatch.setenv(SESSION_VARIABLE, "first")
    monkeypatch.setenv(PARENT_VARIABLE, "1")
    monkeypatch.delenv(OFFLINE_VARIABLE, raising=False)
    monkeypatch.delenv(PHRASES_VARIABLE, raising=False)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(workspace, clock):
    """A function that makes a Sharing of the workspace with ports of its own, as a new process would."""
    made = []

    def make(**wishes: str) -> Sharing:
        sharing = Sharing(workspace, clock)
        sharing.ports = Ports()
        sharing.begin(sharing.ports, wishes)
        made.append(sharing)
        return sharing

    yield make
    for sharing in made:
        sharing.leave()


def phrase_of(sharing: Sharing, role: str = "viewer") -> str:
    return next(one.phrase for one in sharing.view().openings if one.role == role)


def come_in(sharing: Sharing, role: str = "viewer") -> str:
    cookie = sharing.admit(role, phrase_of(sharing, role), "10.0.0.2", "Firefox").cookie
    assert sharing.knows(role, cookie)
    return cookie


def come_in_from(sharing: Sharing, role: str, address: str) -> str:
    return sharing.admit(role, phrase_of(sharing, role), address, "").cookie


# Phrases --------------------------------------------------------------------------------------------


def test_nobody_locks_the_owner_out_of_the_link(make):
    """All who come by it have the tunnel's address."""
    sharing = make()
    for role in ("owner", "viewer"):
        sharing.open("tunnel", role=role)
        answers = [sharing.admit(role, f"wrong {i}", "127.0.0.1", "") for i in range(60)]
        assert not any(answer.cookie for answer in answers) and all(a.wait_s > 0 for a in answers[2:])
        assert come_in_from(sharing, role, "127.0.0.1"), "the right one is looked at at any time"
    sharing.open("lan", role="owner")
    for _ in range(60):
        sharing.admit("owner", "wrong", "10.0.0.9", "")
    assert not come_in_from(sharing, "owner", "10.0.0.9"), "an address of the local network is one computer's"
    assert come_in_from(sharing, "owner", "10.0.0.2")


# Opening and closing -------------------------------------------------------------------------------------------------


def test_nothing_is_open_unless_asked_for(make):
    sharing = make()
    assert not sharing.view().on and not sharing.ports.open
    assert sharing.admit("viewer", "x", "a", "b").cookie == ""
    assert sharing.origin_of("viewer", "127.0.0.1:7960") == ""


def test_open_come_in_disconnect_close(make, workspace):
    sharing = make()
    (opening,) = sharing.open("lan").openings
    assert sharing.ports.open == {"viewer": opening.port}
    assert opening.link.endswith(f":{opening.port}") and opening.phrase
    first, second = come_in(sharing), come_in(sharing)
    one, two = sharing.view().connections
    assert (one.address, one.agent) == ("10.0.0.2", "Firefox")
    sharing.disconnect(one.id)
    assert not sharing.knows("viewer", first) and sharing.knows("viewer", second) == two.id
    sharing.disconnect("nobody")
    assert not sharing.close().on
    assert not sharing.knows("viewer", second) and not sharing.ports.open
    sharing.open("lan")
    assert not sharing.knows("viewer", second), "the kill switch ended it for good"
    events = [json.loads(line)["event"] for line in read_log(workspace)]
    assert events == ["opened", "connected", "connected", "disconnected", "closed", "opened"]


def test_what_is_no_cookie_of_ours_is_refused(make):
    sharing = make(viewer="lan", owner="lan")
    cookie = come_in(sharing)
    name, _, token = cookie.partition(".")
    wrong = (
        "",
        ".",
        name,
        f"{name}.",
        f"{name}.{token[:-1]}x",
        f".{token}",
        f"{token}.{name}",
        "\0" * 99,
        "é.é",
    )
    for forged in wrong:
        assert not sharing.knows("viewer", forged), forged
    assert not sharing.knows("owner", cookie), "another door's"


def test_roles_have_their_own_phrases_and_one_can_be_closed_alone(make):
    sharing = make(viewer="lan", owner="lan")
    assert phrase_of(sharing, "viewer") != phrase_of(sharing, "owner")
    assert sharing.admit("owner", phrase_of(sharing, "viewer"), "a", "b").cookie == ""
    guest, owner = come_in(sharing), come_in(sharing, "owner")
    sharing.close("viewer")
    assert not sharing.knows("viewer", guest) and sharing.knows("owner", owner)


def test_who_guesses_at_the_guests_door_locks_out_neither_the_owner_nor_who_is_in(make):
    """Behind a relay all have one address."""
    sharing = make(viewer="lan", owner="lan")
    guest = come_in(sharing)
    for _ in range(60):
        assert sharing.admit("viewer", "wrong", "127.0.0.1", "").cookie == ""
    assert sharing.admit("viewer", phrase_of(sharing, "viewer"), "127.0.0.1", "").wait_s > 0
    assert sharing.knows("viewer", guest)
    assert sharing.admit("owner", phrase_of(sharing, "owner"), "127.0.0.1", "").cookie


def test_guests_who_come_in_a_hundred_times_put_out_their_own_kind_alone(make):
    sharing = make()
    sharing.open("lan", role="owner")
    sharing.open("lan")
    phrases = {one.role: one.phrase for one in sharing.view().openings}
    owner = sharing.admit("owner", phrases["owner"], "1.1.1.1", "").cookie
    for _ in range(CONNECTIONS + 10):
        guest = sharing.admit("viewer", phrases["viewer"], "2.2.2.2", "").cookie
    assert sharing.knows("owner", owner) and sharing.knows("viewer", guest)
    assert len(sharing.view().connections) == CONNECTIONS + 1


def test_it_ends_by_itself(make, clock):
    sharing = make()
    sharing.open("lan", hours=1)
    cookie, host = come_in(sharing), f"127.0.0.1:{sharing.view().openings[0].port}"
    assert sharing.origin_of("viewer", host) == f"http://{host}"
    clock.now_s += 3601
    assert not sharing.knows("viewer", cookie) and sharing.origin_of("viewer", host) == ""
    assert sharing.admit("viewer", phrase_of(sharing), "a", "b").cookie == ""
    sharing._expire()
    assert not sharing.view().on and not sharing.ports.open


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_clock_that_is_set_keeps_nothing_open_for_longer(workspace, clock, jump_s):
    steady = Clock()
    sharing = Sharing(workspace, clock, steady)
    sharing.begin(Ports(), {})
    sharing.open("lan", hours=8)
    cookie = come_in(sharing)
    clock.now_s += jump_s
    assert bool(sharing.knows("viewer", cookie)) == (jump_s < 0) and sharing.left_s("viewer") <= 8 * 3600
    steady.now_s += 8 * 3600 + 1
    assert not sharing.knows("viewer", cookie) and sharing.left_s("viewer") == 0
    sharing.close()


def test_the_port_is_closed_at_the_hour(workspace):
    sharing, ports = Sharing(workspace), Ports()
    sharing.begin(ports, {})
    sharing.open("lan", hours=0.4 / 3600)
    until_s = time.monotonic() + 5
    while ports.open and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not ports.open and not sharing.view().on


@pytest.mark.parametrize(
    ("way", "role", "hours"),
    [("wan", "viewer", 8), ("lan", "admin", 8), ("lan", "viewer", 0), ("lan", "viewer", 1e9), ("", "", -1)],
)
def test_only_what_is_on_offer(make, way, role, hours):
    with pytest.raises(StudioError):
        make().open(way, role=role, hours=hours)


def test_a_link_needs_a_launcher_and_the_network(make, monkeypatch, workspace):
    sharing = make()
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    with pytest.raises(StudioError, match="off the network"):
        sharing.open("tunnel")
    monkeypatch.delenv(OFFLINE_VARIABLE)
    monkeypatch.delenv(PARENT_VARIABLE)
    with pytest.raises(StudioError, match="held by the launcher"):
        sharing.open("tunnel")
    with pytest.raises(StudioError, match="still starting"):
        Sharing(workspace).open("lan")
    assert not sharing.view().on


# Links and hosts -----------------------------------------------------------------------------------------------------


def tell_link(workspace, session: str = "first", **links: dict) -> None:
    write_private(link_file(workspace), json.dumps({"session": session, "links": links}).encode())


def test_the_link_comes_from_the_supervisor_and_its_host_alone_is_answered(make, workspace):
    sharing = make()
    port = sharing.open("tunnel").openings[0].port
    assert sharing.view().openings[0].link == "" and sharing.origin_of("viewer", "abc.example") == ""
    tell_link(workspace, viewer={"port": port, "link": "https://abc.example", "problem": ""})
    assert sharing.view().openings[0].link == "https://abc.example"
    assert sharing.origin_of("viewer", "abc.example") == "https://abc.example"
    foreign = (
        "evil.example",
        "abc.example:80",
        "abc.example.evil.example",
        "x.abc.example",
        "",
        "abc.example@x",
    )
    for host in (*foreign, f"192.168.1.5:{port}"):
        assert sharing.origin_of("viewer", host) == "", host
    assert sharing.origin_of("owner", "abc.example") == ""
    before = sharing.view().number
    tell_link(workspace, viewer={"port": port, "link": "", "problem": "relay"})
    view = sharing.view()
    assert (
        view.number != before
        and view.openings[0].problem
        and sharing.origin_of("viewer", "abc.example") == ""
    )


@pytest.mark.parametrize(
    "words",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        '{"session": "first"}',
        '{"session": "first", "links": {"viewer": {}}}',
        '{"session": "first", "links": [3]}',
        '{"session": "first", "links": {"viewer": 3}}',
    ],
)
def test_a_damaged_or_foreign_note_of_the_supervisor_is_no_link(make, workspace, words):
    sharing = make()
    port = sharing.open("tunnel").openings[0].port
    link_file(workspace).write_text(words, encoding="utf-8")
    assert sharing.view().openings[0].link == ""
    tell_link(workspace, session="other", viewer={"port": port, "link": "https://abc.example"})
    assert sharing.view().openings[0].link == ""
    tell_link(workspace, viewer={"port": port + 1, "link": "https://abc.example"})
    assert sharing.view().openings[0].link == ""


# Restarts ------------------------------------------------------------------------------------------------------------


def test_a_restart_keeps_port_phrase_and_connections(make, clock):
    before = make()
    opening = before.open("lan").openings[0]
    cookie = come_in(before)
    before.leave()
    assert not before.ports.open
    after = make(viewer="lan")
    (again,) = after.view().openings
    assert after.ports.wanted == [opening.port] and again.expires_s == opening.expires_s
    assert after.knows("viewer", cookie)
    assert again.phrase == "", "only its hash was kept"
    assert after.admit("viewer", opening.phrase, "a", "b").cookie, "but it is still the right one"
    after.renew_phrase("viewer")
    assert phrase_of(after) != opening.phrase
    assert not after.admit("viewer", opening.phrase, "a", "b").cookie
    assert after.knows("viewer", cookie), "who is connected stays so"


def noted(workspace) -> list[str]:
    """The roles whose tunnels the supervisor holds."""
    return [one["role"] for one in json.loads(state_file(workspace).read_text(encoding="utf-8"))["openings"]]


def test_a_restart_cuts_no_link_that_was_given_away(make, workspace, monkeypatch):
    """The supervisor ends the tunnel of whom it does not find noted, at whatever moment it looks."""
    before = make(owner="tunnel", viewer="tunnel")
    cookie, phrase = come_in(before), phrase_of(before, "owner")
    before.leave()
    seen, start = [], Ports.start

    def look_and_start(ports, role, way, port):
        started = start(ports, role, way, port)
        if role == "viewer":  # the owner's port listens already: somebody comes in by it
            assert sharing.knows("viewer", cookie) and sharing.admit("owner", phrase, "a", "b").cookie
        seen.append(noted(workspace))
        return started

    monkeypatch.setattr(Ports, "start", look_and_start)
    sharing = Sharing(workspace, before._clock)
    sharing.begin(Ports(), {})
    sharing.leave()
    assert [*seen, noted(workspace)] == [["owner", "viewer"]] * 3


def test_what_does_not_come_up_again_is_not_noted_any_more(make, workspace, clock, monkeypatch):
    """Else its tunnel leads to whatever program takes the port."""
    before = make(owner="tunnel")
    before.open("tunnel", hours=1)
    before.leave()
    clock.now_s += 3601
    after = make()
    assert noted(workspace) == ["owner"] == [one.role for one in after.view().openings]
    after.open("tunnel")
    cookie = come_in(after)
    after.leave()
    start = Ports.start

    def refuse_guests(ports, role, way, port):
        if role == "viewer":
            raise StudioError(literal("taken"), literal("taken"), literal("taken"))
        return start(ports, role, way, port)

    monkeypatch.setattr(Ports, "start", refuse_guests)
    last = make()
    assert noted(workspace) == ["owner"] and not last.knows("viewer", cookie)
    assert last.view().connections == ()


def test_a_phrase_of_the_supervisor_is_known_after_a_restart(make, monkeypatch):
    for _ in range(2):
        monkeypatch.setenv(PHRASES_VARIABLE, json.dumps({"viewer": "lusab-babad"}))
        sharing = make(viewer="lan")
        assert PHRASES_VARIABLE not in os.environ
        assert phrase_of(sharing) == "lusab-babad"
        sharing.leave()


def test_what_was_closed_or_is_over_stays_closed(make, clock):
    make(viewer="lan").close()
    assert not make(viewer="lan").view().on, "the person closed it: a crash does not open it again"
    sharing = make()
    sharing.open("lan", hours=1)
    sharing.leave()
    clock.now_s += 3601
    assert not make(viewer="lan").view().on


def test_the_next_studio_opens_nothing_of_the_last_ones(make, monkeypatch, workspace):
    cookie = come_in(make(viewer="lan"))
    for session in ("second", ""):
        monkeypatch.setenv(SESSION_VARIABLE, session)
        sharing = make()
        assert not sharing.view().on and not sharing.knows("viewer", cookie)
        assert not state_file(workspace).exists()


OPENING = (
    '{"role": "%s", "way": "%s", "port": 7960, "opened_s": 1, "expires_s": %s, "salt": "", "phrase_hash": ""}'
)


@pytest.mark.parametrize(
    "words",
    [
        *("", "[]", "{", "null", "[" * 100_000, '{"session": "first"}'),
        '{"session": "first", "openings": [3], "connections": []}',
        '{"session": "first", "openings": 3, "connections": []}',
        '{"session": "first", "openings": [], "connections": [{}]}',
        '{"session": "first", "openings": [%s], "connections": []}' % (OPENING % ("admin", "lan", 1.9e6)),
        '{"session": "first", "openings": [%s], "connections": []}' % (OPENING % ("viewer", "wan", 1.9e6)),
        '{"session": "first", "openings": [%s], "connections": []}' % (OPENING % ("viewer", "lan", "1e999")),
        '{"session": "first", "openings": [%s], "connections": []}' % (OPENING % ("viewer", "lan", "NaN")),
    ],
)
def test_a_damaged_note_opens_nothing(make, workspace, words):
    state_file(workspace).write_text(words, encoding="utf-8")
    assert not make().view().on


def test_a_port_that_was_taken_meanwhile_does_not_keep_the_window_from_coming_back(
    make, monkeypatch, workspace
):
    make(viewer="lan").leave()

    def refuse(*_):
        raise StudioError(literal("taken"), literal("taken"), literal("taken"))

    monkeypatch.setattr(Ports, "start", refuse)
    assert not make(viewer="lan").view().on
    assert json.loads(read_log(workspace)[-1])["event"] == "not opened again"


def test_a_full_disk_opens_nothing_new_lets_guests_in_and_keeps_nothing_open(make, monkeypatch, workspace):
    sharing = make()
    sharing.open("tunnel")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("studio.services.sharing.write_private", fail)
    assert come_in(sharing) and state_file(workspace).exists(), "the link goes on"
    with pytest.raises(StudioError):
        sharing.open("tunnel", role="owner")
    assert list(sharing.ports.open) == ["viewer"] and state_file(workspace).exists()
    assert come_in(sharing)
    sharing.close()
    assert not sharing.view().on and not state_file(workspace).exists(), "else a restart would open it again"


def test_no_phrase_and_no_cookie_is_written_anywhere(make, workspace):
    sharing = make(viewer="lan", owner="lan")
    secrets = [phrase_of(sharing, "viewer"), phrase_of(sharing, "owner"), come_in(sharing).partition(".")[2]]
    sharing.admit("viewer", "some wrong words", "10.0.0.3", 'Evil\n"agent')
    secrets += ["some wrong words", sharing.renew_phrase("viewer").openings[0].phrase]
    assert not any(secret in repr(sharing.view()) for secret in secrets)
    for path in (path for path in workspace.root.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in secrets), path
    assert stat.S_IMODE(state_file(workspace).stat().st_mode) == 0o600 or os.name == "nt"
    assert all(json.loads(line) for line in read_log(workspace)), "one line an event, whatever a browser says"


def read_log(workspace) -> list[str]:
    return Path(workspace.logs / "share.log").read_text(encoding="utf-8").splitlines()
