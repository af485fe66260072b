"""Whose account holds the other end of a connection within this machine, and whose process listens at a port."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ROOT = 0


def is_foreign(client: tuple[str, int], server: tuple[str, int], tables: tuple[Path, ...] = TABLES) -> bool:
    """Return whether the TCP connection from `client` to `server`, (IPv4 address, port) each, is another account's.

    Accounts are ours and root's, who reads our files anyway. False where it cannot be known: another system, another
    machine, a studio of root's, which serves whoever started it.
    """
    if os.name == "nt" or os.getuid() == ROOT:
        return False
    try:
        wanted = [_in_table(*client), _in_table(*server)]
    except (OSError, TypeError, ValueError):  # no address: a socket file, a test
        return False
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            # number, own address, other address, state, queues, timer, retransmits, account, ...
            parts = line.split()
            # A program that speaks IPv6 has its IPv4 address in the last 8 digits.
            if len(parts) > 7 and [part[-13:] for part in parts[1:3]] == wanted:
                return int(parts[7]) not in (os.getuid(), ROOT)
    return False


def is_listening(pid: int, port: int) -> bool:
    """Return whether the process `pid` is one of this account's and listens at `port` of 127.0.0.1.

    Asked before a key is sent there: whoever left a note of its port may have died, and another have the port now.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        if hasattr(os, "getuid") and process.uids().real != os.getuid():
            return False
        found = [
            (one.laddr.ip, one.laddr.port)
            for one in process.net_connections("inet4")
            if one.status == psutil.CONN_LISTEN
        ]
    # Gone, or another account's, of which the system tells nothing; or no number of a process.
    except (psutil.Error, ValueError, OverflowError):
        return False
    return ("127.0.0.1", port) in found


def _in_table(host: str, port: int) -> str:
    """Return an address as the kernel writes it: the bytes as a number of this machine, the port, both in hex."""
    (number,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{number:08X}:{port:04X}"
