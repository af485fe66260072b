"""The documents' table of settings, made from the recipe's knobs: `python -m studio.cli.settings_table` writes it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from studio.core.i18n import Catalogue, load_catalogue, text
from studio.core.knob import Knob, knobs_of
from studio.core.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"en": ROOT / "docs" / "settings.md", "zh-CN": ROOT / "docs" / "zh-CN" / "settings.md"}
PLACE = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- /settings -->)", re.DOTALL)


def make_table(catalogue: Catalogue) -> str:
    """Return the table in the catalogue's language: key, meaning, default, what is allowed."""
    say = catalogue.say
    heads = [say(text(f"settings_table.{column}")) for column in ("key", "meaning", "default", "allowed")]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|---|---|"]
    for knob in knobs_of(Recipe):
        cost = f" *{say(knob.cost)}*" if knob.cost else ""
        help_text = say(knob.help).replace("|", "\\|").replace("\n", " ") + cost
        lines.append(
            f"| `{knob.path}` | **{say(knob.label)}.** {help_text} | {_default(knob, catalogue)} | {_allowed(knob)} |"
        )
    return "\n".join(lines) + "\n"


def update(language: str) -> str:
    """Return the page of settings in `language` with its table made anew."""
    table = make_table(load_catalogue(language))
    return PLACE.sub(lambda _: table, PAGES[language].read_text(encoding="utf-8"))


def _default(knob: Knob, catalogue: Catalogue) -> str:
    if knob.required:
        return catalogue.say(text("settings_table.required"))
    if isinstance(knob.default, bool):
        return "`true`" if knob.default else "`false`"
    if knob.default in ("", {}, ()):
        return "-"
    unit = f" {knob.unit}" if knob.unit and knob.unit != "share" else ""
    return f"`{knob.default}`{unit}"


def _allowed(knob: Knob) -> str:
    if knob.choices:
        return ", ".join(f"`{choice}`" for choice in knob.choices)
    if knob.kind is bool:
        return "`true`, `false`"
    if knob.minimum is not None and knob.maximum is not None:
        return f"{_number(knob.minimum)} – {_number(knob.maximum)}"
    return {dict: "{…}", tuple: "[…]"}.get(knob.kind, "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def main() -> int:
    """Rewrite the tables of both pages; returns the exit code 0."""
    for language, path in PAGES.items():
        path.write_text(update(language), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
