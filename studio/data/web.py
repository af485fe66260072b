"""Requests to addresses that a person named: over https, and never led on to http or into this network."""

from __future__ import annotations

import http.client
import ipaddress
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

TIMEOUT_S = 30.0


class Refused(Exception):
    """It cannot be done; `kind` names the texts `data.remote.KIND`."""

    def __init__(self, kind: str, words: str = "") -> None:
        super().__init__(words)
        self.kind = kind


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
        if not parts.hostname:
            raise Refused("redirect", address[:200])
        if parts.hostname not in self.named:
            self.require_public(parts.hostname)

    def require_public(self, host: str) -> None:
        """Raise Refused when `host` is written as an address of this machine or its network."""
        try:
            found = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
                raise Refused("redirect", host) from None
            return
        mapped = getattr(found, "ipv4_mapped", None) or found
        if not mapped.is_global or mapped.is_multicast:
            raise Refused("redirect", host)

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
                super().connect()
                # A public name may belong to a private address; through a proxy there is only the proxy's to see.
                if not self._tunnel_host and self.host not in web.named:
                    web.require_public(self.sock.getpeername()[0])

        return self.do_open(Connection, req, context=self.context)


def _origin(address: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
