"""The window: the command without a name."""

from __future__ import annotations

import argparse
import os
import threading
from typing import Any

from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.heartbeat import RESTART_CODE
from studio.machine.workspace import Workspace


def studio(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.supervisor.parent_pipe import watch_parent
    from studio.ui.serve import serve

    stopped = threading.Event()
    desks: list[Any] = []
    if os.environ.get("FINETUNE_STUDIO_PARENT"):
        watch_parent(stopped.set)

    def open_desk() -> Any:
        from studio.services.desk import Desk

        desk = Desk(workspace, on_end=stopped.set)
        desks.append(desk)
        try:
            desk.reopen(
                resumed=os.environ.get("FINETUNE_STUDIO_RESUME", ""),
                failed=os.environ.get("FINETUNE_STUDIO_FAILED", ""),
            )
        except StudioError as error:  # a run that cannot go on: the window opens all the same
            console.refuse(error)
        return desk

    code = serve(
        open_desk,
        workspace,
        port=options.port,
        open_browser=False,  # the supervisor opens it: it outlives a restart of this process
        language=console.catalogue.language,
        stopped=stopped,
        shared=_read_shared(options),
    )
    return RESTART_CODE if any(desk.restarting for desk in desks) else code


def _read_shared(options: argparse.Namespace) -> dict[str, str]:
    """Return who is let in from outside from the start, role -> way. The owner alone where only that is asked for."""
    way = "lan" if options.lan else "tunnel"
    roles = {"viewer": options.share or options.lan, "owner": options.share_owner}
    return {role: way for role, wanted in roles.items() if wanted}
