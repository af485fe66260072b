"""`export`: writes what a run made as a folder that other programs load."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from studio.cli.chat import find_place
from studio.cli.console import Console
from studio.cli.hub_upload import upload
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.engine.exporters.exporter import NO_LIMITS, FileLimits
from studio.machine.workspace import Workspace

FITTED = "gguf_fit"


def export(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.desk import Desk
    from studio.supervisor.restarts import stop_requests

    if options.to == "hub":
        return upload(options, workspace, console)
    target = f"gguf_{options.type.lower()}" if options.to == "gguf" else options.to
    limits = read_limits(options.size, options.within)
    if limits != NO_LIMITS:
        target = FITTED
    folder = Path(options.folder).absolute() if options.folder else None
    with stop_requests() as asked:
        seen = 0

        def should_stop() -> bool:
            nonlocal seen
            if len(asked) > 1:
                raise KeyboardInterrupt  # at once: what is half-written stays
            if len(asked) > seen:
                console.say(text("ui.export.stopping"))
            seen = len(asked)
            return seen > 0

        desk = Desk(workspace)
        place = find_place(desk, options, console, "cli.export.checkpoint")
        result = desk.exports.write(options.run, target, folder, should_stop, place, limits)
    said = console.catalogue.say(
        text("cli.exported", path=str(result.path), mb=f"{result.size_bytes / 1e6:.1f}")
    )
    console.answer({"path": str(result.path), "bytes": result.size_bytes}, [said])
    return 0


def read_limits(size: str, within: str) -> FileLimits:
    """Return what `--size 6GB` and `--within 1%` say. Raises StudioError for what is no size or no share."""
    sized = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG])(i?)B?", size.strip(), re.IGNORECASE) if size else None
    shared = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", within.strip()) if within else None
    for given, found, id in ((size, sized, "size"), (within, shared, "within")):
        if given and (found is None or not float(found[1])):
            raise StudioError(
                *(text(f"cli.export.{id}{part}", given=given[:40]) for part in ("", ".why", ".fix"))
            )
    unit_bytes = (1024 if sized[3] else 1000) ** (1 + "KMG".index(sized[2].upper())) if sized else 0
    return FileLimits(
        size_bytes=int(float(sized[1]) * unit_bytes) if sized else 0,
        kl=math.log1p(float(shared[1]) / 100) if shared else 0.0,
    )
