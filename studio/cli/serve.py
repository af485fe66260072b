"""`serve`: an OpenAI-compatible address of a run's model, or of a model as it came, until it is told to stop."""

from __future__ import annotations

import argparse
import time
from typing import Any

from studio.cli.chat import find_place
from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.packages import import_package
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.machine.workspace import Workspace

LOOK_S = 0.2


def serve(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    import_package("uvicorn", "gradio")  # it comes with it
    from studio.services.desk import Desk
    from studio.services.preload import load_ahead
    from studio.supervisor.restarts import stop_requests
    from studio.ui.completions.app import Completions, Limits
    from studio.ui.completions.served import OneModel
    from studio.ui.completions.server import LOCAL, AddressServer

    desk = Desk(workspace, keep_queue=False)
    desk.machine.hurry(lambda: True)  # kernels are proved by the first answer itself
    load_ahead(desk.machine, "studio.engine.chat")
    with stop_requests() as asked:
        whom = _choose(desk, options, console)
        loaded = desk.chat.load(**whom)
        served = OneModel(whom["run"] or loaded.name, **whom)
        limits = Limits(tokens=options.max_tokens, waiting=options.queue)
        app = Completions(desk.chat, served, lambda: console.catalogue.language, limits)
        server = AddressServer(app, host=options.host, port=options.port, key=options.key)
        names = [one.name for one in served.list()]
        console.answer(
            {"address": server.url, "key": server.key, "models": names},
            console.plain([text("serve.address", url=server.url), text("serve.models", names=names),
                           text("serve.key_is", key=server.key)]),
        )  # fmt: skip
        if options.host != LOCAL:
            console.say(text("serve.open", host=options.host))
        console.note(text("serve.stop"))
        while not asked:
            time.sleep(LOOK_S)
        server.close()
    desk.close(LOOK_S)
    return 0


def _choose(desk: Any, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Return what ChatService.load() takes: the run that is named, else the model. Raises StudioError."""
    from studio.engine.run_folder import find_run

    try:
        find_run(desk.workspace.runs, options.run)
    except StudioError:
        if options.checkpoint:  # of a run alone
            raise
        recipe = Recipe(model=ModelChoice(source=options.run), data=DatasetSpec(source="demo"))
        return {"run": "", "checkpoint": "", "recipe": recipe}
    place = find_place(desk, options, console, "cli.chat.checkpoint")
    return {"run": options.run, "checkpoint": place, "recipe": None}
