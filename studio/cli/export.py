"""`export`: writes what a run made as a folder that other programs load."""

from __future__ import annotations

import argparse
from pathlib import Path

from studio.cli.chat import find_place
from studio.cli.console import Console
from studio.cli.upload import upload
from studio.core.i18n import text
from studio.machine.workspace import Workspace


def export(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.desk import Desk
    from studio.supervisor.supervise import stop_requests

    if options.to == "hub":
        return upload(options, workspace, console)
    target = f"gguf_{options.type.lower()}" if options.to == "gguf" else options.to
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
        result = desk.exports.write(options.run, target, folder, should_stop, place)
    said = console.catalogue.say(
        text("cli.exported", path=str(result.path), mb=f"{result.size_bytes / 1e6:.1f}")
    )
    console.answer({"path": str(result.path), "bytes": result.size_bytes}, [said])
    return 0
