"""What pip's words mean: the reason why an installation stopped, and which server or proxy it could not reach.

Standard library only, imports nothing of studio, parses and runs on Python 3.8: it works before .venv exists.
"""

from __future__ import annotations

import re

# In the order of asking. A text without a sign of ours is "install.failed", with pip's own last error.
MEANINGS = (
    ("install.disk", re.compile(r"No space left on device|Errno 28\b|WinError 112\b|Disk quota exceeded")),
    # Access denied, sharing and lock violation; 225 and 226: taken away as a virus. Numbers, for words are localised.
    ("install.held", re.compile(r"WinError (?:5|32|33|225|226)\b")),
    # 3 and 206: what pip says where Windows cuts paths at 260 characters.
    ("install.path_too_long", re.compile(r"WinError 206\b|enable-long-paths|Enable Long Paths", re.I)),
    ("install.certificate", re.compile("CERTIFICATE_VERIFY_FAILED|SSLError")),
    ("install.no_proxy", re.compile("ProxyError|Cannot connect to proxy|Tunnel connection failed")),
    ("install.untrusted_index", re.compile("is not a trusted or secure host and is being ignored")),
    (
        "install.no_network",
        re.compile(
            "NewConnectionError|ConnectTimeout|ReadTimeout|NameResolution|name resolution|getaddrinfo"
            "|Network is unreachable|Connection refused|ConnectionResetError|RemoteDisconnected"
        ),
    ),
)
SECRET = re.compile(r"//[^/@\s]*@")


def find_meaning(words):
    """Return the id of the refusal for pip's output `words` of a failed call."""
    return next((id for id, pattern in MEANINGS if pattern.search(words)), "install.failed")


def find_reason(words):
    """Return pip's last error in one line, without passwords; "-" when it said nothing."""
    errors = (
        re.findall(r"^ERROR: (?!ResolutionImpossible)(.+)$", words, re.M)
        or words.strip().splitlines()[-1:]
        or ["-"]
    )
    return hide_secrets(errors[-1][:300])


def find_index(words):
    """Return the package servers that pip asked, as it named them; "" for the one it has by default."""
    named = re.findall(r"^Looking in indexes: (.+)$", words, re.M)
    return hide_secrets(named[-1].strip()) if named else ""


def find_proxy(environment):
    """Return the proxy that `environment` names, "" for none: pip may have another from its configuration."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"):
        if environment.get(name):
            return hide_secrets(environment[name])
    return ""


def is_offline(environment, configuration):
    """Return whether pip is told to ask no server: by PIP_NO_INDEX or in the output of `pip config list`."""
    asked = re.findall(r"\.no-index='?(\w+)", configuration) + [environment.get("PIP_NO_INDEX", "")]
    return any(value.lower() in ("1", "true", "yes", "on") for value in asked)


def hide_secrets(address):
    """Return `address` without the user name and password of its URLs."""
    return SECRET.sub("//", address)
