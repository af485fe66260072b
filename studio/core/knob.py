"""`knob()`: a recipe field together with what a form, the check, the README table and a person need to know of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from studio.core.i18n import Text, text

EFFECTS = ("none", "more", "less")
AUTO = "auto"
"""What a field shows for 0, where that is what is usual."""
UNITS = (
    "", "tokens", "steps", "examples", "epochs", "rows", "share", "evaluations", "checkpoints", "layers", "answers",
    "rounds",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob:
    """What is known of one recipe field."""

    path: str
    """Dotted path in the recipe, such as `optim.learning_rate`."""
    kind: type
    """bool, int, float, str, tuple (of strings), or dict (a mapping of strings)."""
    default: Any
    unit: str
    """One of UNITS; "" for a bare number, a name or a switch."""
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    level: str
    """`basic`: always shown; `common`: in the common settings; `advanced`: under Everything."""
    required: bool
    memory: str = "none"
    """One of EFFECTS: what a higher value, a switch that is on or a filled field does to the memory needed."""
    time: str = "none"
    """One of EFFECTS, likewise: to how long the run takes."""
    effect: str = ""
    """`own` where `memory` and `time` cannot say it: then the text `knob.PATH.effect` does."""
    useful: tuple[float, ...] = ()
    """Values that a person usually chooses among, ascending."""
    auto: bool = False
    """Whether 0 stands for what is usual: a person reads and types AUTO for it."""

    @property
    def label(self) -> Text:
        """The name that a person sees."""
        return text(f"knob.{self.path}.label")

    @property
    def help(self) -> Text:
        """What it does, when to raise or lower it, and the symptom that the user will see."""
        return text(f"knob.{self.path}.help")

    @property
    def cost(self) -> Text | None:
        """What it does to memory and time, in words; None for nothing."""
        if self.effect:
            return text(f"knob.{self.path}.effect")
        if (self.memory, self.time) == ("none", "none"):
            return None
        kind = {int: "higher", float: "higher", bool: "on"}.get(self.kind, "filled")
        return text(f"effect.{kind}", what=text(f"effect.{self.memory}.{self.time}"))

    def choice_label(self, choice: str) -> Text:
        """The name of one choice; names such as `nf4` need none and show as they are."""
        return text(f"knob.{self.path}.choice.{choice}")


def knob(
    default: Any = dataclasses.MISSING,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    level: str = "advanced",
    memory: str = "none",
    time: str = "none",
    effect: str = "",
    useful: tuple[float, ...] = (),
    auto: bool = False,
) -> Any:
    """Return a dataclass field with its Knob facts as metadata. A field without `default` is required."""
    facts = {"unit": unit, "minimum": minimum, "maximum": maximum, "choices": choices, "level": level}
    facts |= {"memory": memory, "time": time, "effect": effect, "useful": useful, "auto": auto}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=facts)
    return field(default=default, metadata=facts)


def knobs_of(cls: type, prefix: str = "") -> Iterator[Knob]:
    """Yield the Knobs of a recipe dataclass in the order of its fields, parts included."""
    hints = get_type_hints(cls)
    for part in dataclasses.fields(cls):
        hint = hints[part.name]
        path = f"{prefix}{part.name}"
        if dataclasses.is_dataclass(hint):
            yield from knobs_of(hint, path + ".")
        elif part.metadata:
            missing = part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING
            default = (
                part.default_factory() if part.default_factory is not dataclasses.MISSING else part.default
            )
            yield Knob(
                path=path,
                kind=getattr(hint, "__origin__", hint),
                default=None if missing else default,
                required=missing,
                **part.metadata,
            )
