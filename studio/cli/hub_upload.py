"""`export --to hub`: a result as a repository of the person's own, private at first; every file is listed before."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from studio.cli.chat import find_place
from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.engine.run_folder import find_run
from studio.machine.workspace import Workspace
from studio.services.hub_uploads import UploadWish


def upload(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Export the run as `--form`, where that is not done yet, and send it to `--repo`; `--dry-run` sends nothing."""
    from studio.services.desk import Desk
    from studio.supervisor.restarts import stop_requests

    if not options.repo and not options.dry_run:
        parts = ("cli.upload.repo", "cli.upload.repo.why", "cli.upload.repo.fix")
        raise StudioError(*(text(part) for part in parts))
    record = find_run(workspace.runs, options.run).read_record()
    form = options.form or ("adapter" if record.adapter else "merged")
    desk = Desk(workspace)
    place = find_place(desk, options, console, "cli.export.checkpoint")
    wish = UploadWish(
        run=options.run, place=place, form=form, repo=options.repo, licence=options.license, public=options.public
    )  # fmt: skip
    desk.uploads.require(wish)
    with stop_requests() as asked:

        def should_stop() -> bool:
            return bool(asked)

        made = desk.uploads.find(wish)
        made = made or desk.exports.write(options.run, form, None, should_stop, place).path
        shown = desk.uploads.describe(wish, made)
        if options.dry_run:
            said = text("cli.upload.dry", mb=f"{shown.size_bytes / 1e6:.1f}")
            rows = [f"  {one.size_bytes:>14,}  {one.name}" for one in shown.files]
            listed = [asdict(one) for one in shown.files]
            console.answer(
                {"files": listed, "bytes": shown.size_bytes, "card": shown.card},
                [console.catalogue.say(said), *rows],
            )
            return 0
        phase = text("cli.upload.progress")
        sent = desk.uploads.push(
            shown, lambda now, whole: console.progress(phase, now // 10**6, whole // 10**6), should_stop
        )
    kind = text("cli.upload.public" if options.public else "cli.upload.private")
    said = text("cli.uploaded", url=sent.url, private=kind, account=sent.account)
    told = {"url": sent.url, "commit": sent.commit, "account": sent.account}
    told |= {"bytes": shown.size_bytes, "private": not options.public}
    console.answer(told, [console.catalogue.say(said)])
    return 0
