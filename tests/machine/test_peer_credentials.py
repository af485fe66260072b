"""Whose account a connection is of: asked of the kernel for a real one, and of tables that a test wrote."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from studio.machine import peer_credentials as peer
from studio.machine.peer_credentials import TABLES, is_foreign

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
CLIENT, SERVER = ("127.0.0.1", 40000), ("127.0.0.1", 7860)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return a function that writes a table with one connection of an account; we are account 1000."""
    if sys.byteorder != "little":
        pytest.fail("the addresses below are those of a little-endian kernel")
    monkeypatch.setattr(os, "getuid", lambda: 1000, raising=False)

    def write(uid: int, own: str = "0100007F:9C40", other: str = "0100007F:1EB4"):
        path = tmp_path / "tcp"
        tail = "01 00000000:00000000 00:00000000 00000000"
        line = f"   1: {own} {other} {tail} {uid:5}        0 12345 1 0000000000000000 20 4 0 10 -1\n"
        path.write_text(HEAD + "   0: 0100007F:1EB4 00000000:0000 0A\n" + line, encoding="ascii")
        return (path,)

    return write


@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: processes of neighbours")
@pytest.mark.parametrize(("uid", "foreign"), [(1000, False), (0, False), (1001, True), (65534, True)])
def test_the_account_is_the_kernels_word(table, uid, foreign):
    assert is_foreign(CLIENT, SERVER, table(uid)) is foreign
    six = "0000000000000000FFFF00000100007F"
    assert is_foreign(CLIENT, SERVER, table(uid, f"{six}:9C40", f"{six}:1EB4")) is foreign


@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: processes of neighbours")
def test_what_cannot_be_known_is_not_refused(table, tmp_path, monkeypatch):
    other = table(1001, other="0100007F:1EB5")
    assert not is_foreign(CLIENT, SERVER, other), "another connection"
    assert not is_foreign(CLIENT, SERVER, (tmp_path / "absent",))
    for client in (("testclient", 1), ("::1", 4), ("127.0.0.1", None), ("", 0)):
        assert not is_foreign(client, SERVER, table(1001))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert not is_foreign(CLIENT, SERVER, table(1001)), "a studio of root's serves whoever started it"


@pytest.mark.skipif(not TABLES[0].exists(), reason="only on Linux: it alone tells")
def test_a_real_connection_of_our_own(monkeypatch):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        mine, there = client.getsockname(), server.getsockname()
        own = os.getuid()
        assert not is_foreign(mine, there)
        monkeypatch.setattr(peer, "ROOT", -1)
        monkeypatch.setattr(os, "getuid", lambda: own + 1)
        assert is_foreign(mine, there), "the kernel names the account that holds the connection"
