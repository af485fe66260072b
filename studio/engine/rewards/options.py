"""Options of a reward as a person types them, turned into what its fields hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.knob import Knob, knobs_of
from studio.engine.rewards.reward import RowReward

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def list_options(kind: type[RowReward]) -> tuple[Knob, ...]:
    """Return what a reward can be told; label and help of each are the texts `reward.option.NAME`, `.help`."""
    return tuple(knobs_of(kind))


def read_options(kind: type[RowReward], words: Mapping[str, str]) -> dict[str, Any]:
    """Return the typed `words` as values; unknown names stay, for from_json() to name the nearest.

    Raises StudioError for what is no number or no yes or no.
    """
    known = {knob.path: knob for knob in list_options(kind)}
    return {name: read_option(known[name], said) if name in known else said for name, said in words.items()}


def read_option(knob: Knob, words: str) -> Any:
    """Return the value that `words` name: a list has commas between its parts. Raises StudioError."""
    said = words.strip()
    value: Any = words if knob.kind is str else None
    if knob.kind is bool and said.lower() in (*YES, *NO):
        value = said.lower() in YES
    elif knob.kind is tuple:
        value = tuple(part.strip() for part in said.split(",") if part.strip())
    elif knob.kind in (int, float):
        try:
            value = knob.kind(said)
        except ValueError:
            value = None
    within = value is not None and (not knob.choices or value in knob.choices)
    if within and knob.kind in (int, float):
        within = (knob.minimum is None or value >= knob.minimum) and (
            knob.maximum is None or value <= knob.maximum
        )
    if not within:
        raise refuse_option(knob, said)
    return value


def refuse_option(knob: Knob, said: str) -> StudioError:
    """Return the refusal of a value."""
    if knob.choices:
        wanted = ", ".join(knob.choices)
    elif knob.kind is bool:
        wanted = "true, false"
    elif knob.minimum is not None:
        wanted = f"{knob.minimum:g}–{knob.maximum:g}"
    else:
        wanted = knob.kind.__name__
    return StudioError(
        text("reward.option", name=text(f"reward.option.{knob.path}"), value=said[:80]),
        text("reward.option.why", wanted=wanted),
        text("reward.option.fix"),
    )


def write_option(value: Any) -> str:
    """Return a value as it is typed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
