"""This machine's names and addresses in its local network, and free ports on them."""

from __future__ import annotations

import socket
import sys


def list_addresses() -> tuple[str, ...]:
    """Return the machine's own IPv4 addresses, loopback left out, the one of the way out first."""
    import psutil

    found = [
        part.address
        for parts in psutil.net_if_addrs().values()
        for part in parts
        if part.family == socket.AF_INET and not part.address.startswith(("127.", "169.254."))
    ]
    first = _find_way_out()
    return tuple(dict.fromkeys(([first] if first in found else []) + found))


def list_names() -> tuple[str, ...]:
    """Return the names by which other machines may call this one."""
    name = socket.gethostname().lower()
    return (name, f"{name}.local") if name and "." not in name else (name,) if name else ()


def bind_port(host: str, ports: range, wanted: int | None = None) -> socket.socket | None:
    """Return a socket bound to `wanted` or else to the first free one of `ports`, not yet listening; None without."""
    for port in ([wanted] if wanted else []) + list(ports):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Windows lets two programs share a port unless told otherwise; elsewhere a port stays taken for a minute.
        exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
        found.setsockopt(socket.SOL_SOCKET, exclusive if sys.platform == "win32" else socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
        except OSError:
            found.close()
            continue
        return found
    return None


def _find_way_out() -> str:
    """Return the address that this machine would send from; no packet is sent for it. "" without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address (RFC 5737): it is nobody's
        except OSError:
            return ""
        return probe.getsockname()[0]
