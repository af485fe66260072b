"""The mirrors that the person has set, as environment variables: for a Linux that does not have their settings."""

from __future__ import annotations

from collections.abc import Mapping

PIP_SETTINGS = {
    "global.index-url": "PIP_INDEX_URL",
    "global.extra-index-url": "PIP_EXTRA_INDEX_URL",
    "global.trusted-host": "PIP_TRUSTED_HOST",
}
"""Name in pip's own configuration -> the variable of the same meaning."""
VARIABLES = (*PIP_SETTINGS.values(), "HF_ENDPOINT")


def find_mirrors(environment: Mapping[str, str], configuration: str = "") -> dict[str, str]:
    """Return the mirrors of `environment` and of `configuration`, the output of `pip config list`.

    What the environment says goes first, as it does for pip.
    """
    configured = {}
    for line in configuration.splitlines():
        name, _, value = line.partition("=")
        if name in PIP_SETTINGS and value:
            # pip prints Python's repr; a list of several is lines in one string.
            configured[PIP_SETTINGS[name]] = " ".join(value.strip().strip("'\"").split("\\n")).strip()
    return configured | {name: environment[name] for name in VARIABLES if environment.get(name)}
