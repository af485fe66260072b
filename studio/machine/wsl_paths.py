"""Paths of Windows, as a Linux of WSL sees them; pure."""

from __future__ import annotations

import configparser
import ntpath
import posixpath
import re

from studio.core.errors import StudioError
from studio.core.i18n import text

AUTOMOUNT = "/mnt/"
"""Where WSL shows the drives of Windows unless /etc/wsl.conf says otherwise."""
SHARES = ("wsl$", "wsl.localhost")


def read_automount(wsl_conf: str) -> str:
    """Return the folder, with a slash at its end, that shows the drives according to /etc/wsl.conf; "" for none."""
    parser = configparser.ConfigParser(
        strict=False, interpolation=None, allow_no_value=True, inline_comment_prefixes=("#",)
    )
    try:
        parser.read_string(wsl_conf)
    except configparser.Error:  # WSL reads on where a line is broken, and so do the defaults here
        return AUTOMOUNT
    if not parser.has_section("automount"):
        return AUTOMOUNT
    section = parser["automount"]
    if (section.get("enabled") or "true").strip().strip('"').lower() in ("false", "0"):
        return ""
    root = (section.get("root") or AUTOMOUNT).strip().strip('"')
    return root.rstrip("/") + "/" if root.startswith("/") else AUTOMOUNT


def to_linux(path: str, distribution: str = "", automount: str = AUTOMOUNT) -> str:
    r"""Return the absolute Windows `path` as `distribution` sees it: C:\data -> /mnt/c/data.

    \\wsl.localhost\NAME\home\me -> /home/me, when NAME is `distribution` ("" takes any). Raises StudioError for a
    path that no Linux can see by itself: relative to a folder or drive, in the network, of another distribution.
    """
    plain = path.replace("/", "\\")
    for prefix, instead in (("\\\\?\\UNC\\", "\\\\"), ("\\\\?\\", "")):
        if plain.upper().startswith(prefix):
            plain = instead + plain[len(prefix) :]
            break
    if plain.startswith("\\\\"):
        return _from_share(path, plain, distribution)
    drive, rest = ntpath.splitdrive(plain)
    if not re.fullmatch(r"[A-Za-z]:", drive) or not rest.startswith("\\"):
        raise _refuse("relative", path)
    if not automount:
        raise _refuse("no_automount", path)
    inside = ntpath.normpath(rest).strip("\\").replace("\\", "/")
    return posixpath.join(automount, drive[0].lower(), inside).rstrip("/")


def _from_share(path: str, plain: str, distribution: str) -> str:
    server, _, rest = plain[2:].partition("\\")
    name, _, inside = rest.partition("\\")
    if server.lower() not in SHARES:
        raise _refuse("network", path)
    if not name or (distribution and name.lower() != distribution.lower()):
        raise _refuse("other", path)
    return posixpath.normpath("/" + inside.replace("\\", "/").strip("/"))


def _refuse(kind: str, path: str) -> StudioError:
    return StudioError(
        text("wsl.path", path=path), text(f"wsl.path.{kind}.why"), text(f"wsl.path.{kind}.fix")
    )
