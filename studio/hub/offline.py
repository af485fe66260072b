"""Whether the person wants nothing to be fetched: the variables of the hub's own tools, and the studio's."""

from __future__ import annotations

from collections.abc import Mapping

OFFLINE_VARIABLE = "FINETUNE_STUDIO_OFFLINE"
"""1 when the person set one of HUB_OFFLINE, 0 when the studio alone did, for its own process (machine/workspace.py)."""
HUB_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
DATASETS_OFFLINE = "HF_DATASETS_OFFLINE"
"""For data alone: the studio never sets it, so it is the person's own wish."""
OFFLINE = (*HUB_OFFLINE, DATASETS_OFFLINE)


def wants_offline(environment: Mapping[str, str]) -> bool:
    """Return whether the person wants nothing to be fetched."""
    if OFFLINE_VARIABLE in environment:
        return environment[OFFLINE_VARIABLE] == "1"
    return any(is_set(environment, name) for name in HUB_OFFLINE)


def wants_data_offline(environment: Mapping[str, str]) -> bool:
    """Return whether the person wants no data to be fetched."""
    return is_set(environment, DATASETS_OFFLINE) or wants_offline(environment)


def is_set(environment: Mapping[str, str], name: str) -> bool:
    """Return whether a variable says yes, as the hub's own tools read it."""
    return environment.get(name, "").strip().upper() in ("1", "ON", "YES", "TRUE")
