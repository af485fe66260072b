"""What the Export screen tells: the forms, what each takes, how writing goes, what was written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from studio.engine.exporters.exporter import PLACES
from studio.services.exports import Estimate, ExportItem, KeptExport, loading_lines
from studio.ui.cards import Say, note_card
from studio.ui.quantities import size_words
from studio.ui.templates import render

FILES_SHOWN = 12
LOSSES = (("tiny", 0.001), ("small", 0.005), ("some", float("inf")))
"""What a loss is called up to so many nats a token."""
FILES, FOLDERS = ("gguf_", "ollama", "adapter_gguf"), ("fp8", "w4a16", "mlx")
"""How forms begin, or are called, that commands load, not Python."""


def target_cards(estimates: Sequence[Estimate], say: Say, *, busy: bool, waits: str, run: str = "") -> Markup:
    """Return a card for each place with its forms and what each takes, loses and is checked by.

    waits: why none can be exported now.
    """
    forms = {place: [one for one in estimates if one.place == place] for place in PLACES}
    places = [
        {"name": place, "forms": [_describe_target(one, say, busy=busy or bool(waits)) for one in found]}
        for place, found in forms.items()
        if found
    ]
    return render("tabs/export/targets.html", say, places=places, waits=waits, run=run)


def _describe_target(found: Estimate, say: Say, *, busy: bool) -> dict[str, Any]:
    takes = [("ui.export.size", found.size_bytes, found.disk_bytes)]
    takes += [("ui.export.memory", found.memory_bytes, found.free_bytes)] if found.memory_bytes else []
    rows = [
        (say(id), say("ui.export.of_free", size=size_words(size), free=size_words(free)))
        for id, size, free in takes
    ]
    if found.checked_by:
        rows.append((say("ui.export.loss"), _say_loss(found.loss_kl, say)))
        rows.append((say("ui.export.check"), say(f"ui.export.check.{found.checked_by}")))
    size = say("ui.export.about", size=size_words(found.size_bytes))
    return {
        "name": found.target,
        "rows": rows if found.size_bytes else [],
        "short": [size, *(f"{label}: {value}" for label, value in rows[len(takes) :])]
        if found.size_bytes
        else [],
        "problem": found.problem,
        "off": busy or found.problem is not None,
        "id": "export-start" if found.target == "adapter" else f"export-start-{found.target}",
    }


def _say_loss(kl: float, say: Say) -> str:
    """Return the expected loss of quality in words, with its figure where there is one."""
    if not kl:
        return say("ui.export.loss.none")
    level = next(level for level, most in LOSSES if kl <= most)
    return say(f"ui.export.loss.{level}", kl=f"{kl:g}")


def _describe_item(item: ExportItem, *, local: bool) -> dict[str, Any]:
    return {
        "name": item.name,
        "path": str(item.path),
        "lines": "\n".join(loading_lines(item)),
        "size": size_words(item.size_bytes),
        "local": local,
        "told": _told(item.target),
        "ours": item.ours,
    }


def _told(target: str) -> tuple[str, str]:
    """Return the ids of what is said above the lines that use an export, and of what checked it."""
    if target == "script":
        return "ui.export.runs", "ui.export.about"
    if target.startswith(FILES):
        return "ui.export.commands", "ui.export.checked_file"
    if target in FOLDERS:
        return "ui.export.serves", "ui.export.checked_folder"
    return "ui.export.lines", "ui.export.checked"


def result_card(item: ExportItem, say: Say, *, local: bool) -> Markup:
    """Return what was written: path, size, files, that it was checked, and the lines that load it."""
    files = [*item.files[:FILES_SHOWN], *(["…"] if len(item.files) > FILES_SHOWN else [])]
    described = _describe_item(item, local=local)
    return render("tabs/export/result.html", say, item=described, files=files, count=len(item.files))


def items_card(
    items: Sequence[ExportItem], say: Say, *, local: bool, kept: Sequence[KeptExport] = ()
) -> Markup:
    """Return the exports that lie in the workspace, newest first, before them those that did not end."""
    described = []
    for item in items:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.written_s))
        about = [say(f"ui.export.{item.target}"), size_words(item.size_bytes), day]
        described.append(_describe_item(item, local=local) | {"run": item.run, "about": about})
    left = []
    for one in kept:
        about = [say(f"ui.export.{one.target}"), say("ui.export.kept", size=size_words(one.size_bytes))]
        left.append({"name": one.name, "run": one.run, "about": about})
    return render("tabs/export/items.html", say, items=described, kept=left)


def working_card(phase: str, written_bytes: int, total_bytes: int, say: Say, *, stopping: bool) -> Markup:
    """Return how far an export is."""
    share = min(1.0, written_bytes / total_bytes) if total_bytes else 0.0
    sizes = {"done": size_words(written_bytes), "total": size_words(total_bytes)}
    return render(
        "tabs/export/working.html",
        say,
        phase=phase,
        share=share if written_bytes else None,
        count=say("ui.export.written", **sizes) if total_bytes else "",
        stopping=stopping,
    )


def stopped_card(say: Say, *, kept: bool) -> Markup:
    """Return that an export was stopped, and whether parts of it are kept."""
    return note_card(say("ui.export.stopped_kept" if kept else "ui.export.stopped"), "")


def error_card(words: Any) -> Markup:
    """Return what went wrong, as sentences."""
    return render("tabs/export/error.html", words=str(words))
