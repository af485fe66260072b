"""Requests to addresses that a person named: over https, and never led on to http or into this network."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from studio.hub.child import Refused

TIMEOUT_S = 30.0
NAT64 = ipaddress.ip_network("64:ff9b::/96")
SPECIAL = ipaddress.ip_network("192.0.0.0/24")
"""Kept for protocols; Python calls some of it public."""


class Web:
    """Requests to what a person named, and to where that leads: never on to http, nor to a machine of this network."""

    def __init__(self, endpoint: str, token: str) -> None:
        """endpoint: address of the hub, the only one that may be http and the only one that the token is sent to."""
        self.endpoint, self.token = endpoint.rstrip("/"), token
        self.named: set[str] = set()
        """Hosts in the address that the person gave."""
        context = ssl.create_default_context()
        paths = ssl.get_default_verify_paths()
        if not (paths.cafile or paths.capath or context.get_ca_certs()):
            import certifi  # a Python that was built elsewhere looks where this system has nothing

            context.load_verify_locations(certifi.where())
        self._opener = urllib.request.build_opener(_Redirects(self), _Https(self, context))

    def open(self, address: str, headers: Mapping[str, str] | None = None) -> Any:
        """Return the open answer. Raises Refused for an address that may not be asked, HTTPError and URLError."""
        host = urllib.parse.urlsplit(address).hostname or ""
        self.named.add(host)
        self.require(address)
        asked = {"User-Agent": "finetune-studio", "Accept-Encoding": "identity", **(headers or {})}
        if self.token and self._is_endpoint(address) and (address.startswith("https:") or _is_here(host)):
            asked["Authorization"] = f"Bearer {self.token}"
        return self._opener.open(urllib.request.Request(address, headers=asked), timeout=TIMEOUT_S)

    def require(self, address: str) -> None:
        """Raise Refused unless `address` may be asked."""
        parts = urllib.parse.urlsplit(address)
        if parts.scheme != "https" and not (parts.scheme == "http" and self._is_endpoint(address)):
            raise Refused("redirect", address[:200])
        if not parts.hostname or "\\" in address or any(sign <= " " for sign in address):
            raise Refused("redirect", address[:200])
        if parts.hostname not in self.named:
            self.require_public(parts.hostname)

    def require_public(self, host: str) -> None:
        """Raise Refused when `host` is written as an address of this machine or its network."""
        name = host.rstrip(".").lower()  # a dot at the end is the same name
        found = _read_ip(name)
        if found is None:
            if not name or name == "localhost" or name.endswith((".localhost", ".local", ".internal")):
                raise Refused("redirect", host)
            return
        inner = _unwrap(found)
        if not inner.is_global or inner.is_multicast or inner in SPECIAL:
            raise Refused("redirect", host)

    def connect_public(self, address: tuple[str, int], *options: Any) -> socket.socket:
        """Return a connection to `address`. Raises Refused, before any is opened, when one of its machines is inside.

        What is looked up is what is connected to: a name whose next answer is another one gains nothing.
        """
        machines = _look_up(*address)
        for machine in machines:
            self.require_public(machine)
        for machine in machines[:-1]:
            try:
                return socket.create_connection((machine, address[1]), *options)
            except OSError:
                continue
        return socket.create_connection((machines[-1], address[1]), *options)

    def _is_endpoint(self, address: str) -> bool:
        return bool(self.endpoint) and _origin(address) == _origin(self.endpoint)


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = 5

    def __init__(self, web: Web) -> None:
        self.web = web

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        self.web.require(newurl)
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and _origin(newurl) != _origin(req.full_url):
            following.remove_header("Authorization")
        return following


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, web: Web, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self.web, self.context = web, context

    def https_open(self, req: Any) -> Any:
        web = self.web

        class Connection(http.client.HTTPSConnection):
            def connect(self) -> None:
                # A public name may belong to a private address.
                if self._tunnel_host and self._tunnel_host not in web.named:
                    with suppress(OSError):  # behind a proxy a machine need not know any name of outside
                        for machine in _look_up(self._tunnel_host, self._tunnel_port or 443):
                            web.require_public(machine)
                elif not self._tunnel_host and self.host not in web.named:
                    self._create_connection = web.connect_public
                super().connect()

        return self.do_open(Connection, req, context=self.context)


def _read_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that `host` is, in any spelling that a system takes (127.1, 0x7f000001); None for a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


def _unwrap(found: Any) -> Any:
    """Return the IPv4 address that an IPv6 one leads to: mapped, by 6to4, Teredo or NAT64; else `found`."""
    if found.version == 4:
        return found
    teredo = found.teredo
    through = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF) if found in NAT64 else None
    return found.ipv4_mapped or found.sixtofour or through or (teredo and teredo[1]) or found


def _look_up(host: str, port: int) -> list[str]:
    """Return the addresses of `host`, at least one. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def _origin(address: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
