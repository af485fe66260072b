"""`export --to hub`: a result as a repository of the person's own, private at first; every file is listed before."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.engine.run_folder import find_run
from studio.hub.model_upload import list_files, upload_folder
from studio.machine.workspace import Workspace
from studio.services.model_card import write_card


def upload(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Export the run as `--form`, where that is not done yet, and send it to `--repo`; `--dry-run` sends nothing."""
    from studio.services.desk import Desk
    from studio.supervisor.supervise import stop_requests

    if not options.repo and not options.dry_run:
        parts = ("cli.upload.repo", "cli.upload.repo.why", "cli.upload.repo.fix")
        raise StudioError(*(text(part) for part in parts))
    desk = Desk(workspace)
    record = find_run(workspace.runs, options.run).read_record()
    form = options.form or ("adapter" if record.adapter else "merged")
    with stop_requests() as asked:
        done = [item for item in desk.exports.items() if item.run == options.run and item.target == form]
        made = done[0].path if done else desk.exports.write(options.run, form, None, lambda: bool(asked)).path
        events = desk.runs.events(options.run)
        card = write_card(record, desk.runs.recipe(options.run), events, form, options.license)
        files = list_files(made, card)
        total_bytes = sum(one.size_bytes for one in files)
        if options.dry_run:
            said = text("cli.upload.dry", mb=f"{total_bytes / 1e6:.1f}")
            rows = [f"  {one.size_bytes:>14,}  {one.name}" for one in files]
            listed = [asdict(one) for one in files]
            console.answer(
                {"files": listed, "bytes": total_bytes, "card": card}, [console.catalogue.say(said), *rows]
            )
            return 0
        answer = upload_folder(
            made,
            options.repo,
            card,
            lambda now, whole: console.progress(text("cli.upload.progress"), now // 10**6, whole // 10**6),
            lambda: bool(asked),
            public=options.public,
            mirror=desk.machine.mirror(),
        )
    kind = text("cli.upload.public" if options.public else "cli.upload.private")
    said = text("cli.uploaded", url=answer["url"], private=kind, account=answer["account"])
    console.answer(
        answer | {"bytes": total_bytes, "private": not options.public}, [console.catalogue.say(said)]
    )
    return 0
