"""The hub's card of the Export screen: where to, what of it, every file before, how it goes, where it lies."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.hub.child import DownloadStopped
from studio.services.hub_uploads import FORMS, Sent, Upload, UploadWish
from studio.ui.context import Context
from studio.ui.quantities import size_words
from studio.ui.shell.html_events import read_said
from studio.ui.templates import render

LOOK_EVERY_S = 0.3
EXAMPLE = "apache-2.0"
"""A licence as the hub names it."""
STOP = "hub"
"""The value of this card's Stop button: exports have one, too."""


def split_state(state: str) -> tuple[str, str]:
    """Return run and place of a state as the picker names it: RUN or RUN@PLACE."""
    run, _, place = state.partition("@")
    return run, place


class HubCard:
    """The card and its handlers. What is sent belongs to the desk: a page that comes back sees it again."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.card = gr.HTML("", elem_id="export-hub")

    def show(self, state: str | None) -> str:
        """Return the card for a state of a run: of the last wish, where that was about it, else the form."""
        job, wish = self.context.desk.uploads.job, self.context.desk.uploads.wish
        if job is None or (job.ended and (wish.run, wish.place) != split_state(state or "")):
            return self._form(state, None)
        if not job.ended:
            return self._working(job, wish)
        if job.error is not None:
            return self._failed(job.error, wish)
        found = job.result()
        return self._sent(found) if isinstance(found, Sent) else self._shown(found)

    def hear(self, said: object, state: str | None) -> Iterator[Any]:
        """Do what a button of this card says; what other cards say is theirs."""
        do, value, form = read_said(said)
        uploads = self.context.desk.uploads
        if do == "hub_look":
            if not state:
                raise StudioError(*(text(f"ui.chat.no_run{part}") for part in ("", ".why", ".fix")))
            uploads.look(read_wish(state, form))
            yield from self.watch(state)
        elif do == "hub_send" and uploads.job is not None and uploads.wish is not None:
            done = uploads.job.result() if uploads.job.ended and uploads.job.error is None else None
            if isinstance(done, Upload):
                uploads.send(done)
            elif uploads.job.ended and not isinstance(done, Sent):
                uploads.go_on()
            yield from self.watch(state)
        elif do == "hub_back":
            yield self._form(state, uploads.wish)
        elif do == "stop" and value == STOP and uploads.job is not None:
            uploads.job.stop()
            yield gr.skip()
        else:
            yield gr.skip()

    def watch(self, state: str | None) -> Iterator[Any]:
        """Yield how the last wish goes until it ends, then what became of it."""
        uploads = self.context.desk.uploads
        job, told = uploads.job, None
        if job is None:
            yield self._form(state, None)
            return
        while not job.ended:
            now = (job.phase, job.done, job.total, job.stopping)
            if now != told:
                told = now
                yield self._working(job, uploads.wish)
            time.sleep(LOOK_EVERY_S)
        yield self.show(state)

    def _form(self, state: str | None, wish: UploadWish | None) -> str:
        desk, say = self.context.desk, self.context.say
        run, place = split_state(state or "")
        wish = wish if wish is not None and (wish.run, wish.place) == (run, place) else None
        forms, repo = [], ""
        if run:
            try:
                found = [(form, desk.exports.estimate(run, form, place)) for form in FORMS]
            except StudioError:  # the forms beside this card say why
                found = []
            forms = [form for form, one in found if one.size_bytes]
            repo = wish.repo if wish else desk.uploads.suggest_name(run)
        return render(
            "tabs/export/hub.html", say, part="form", forms=forms, repo=repo,
            chosen=wish.form if wish else (forms or [""])[0],
            licence=wish.licence if wish else "", public=bool(wish and wish.public),
            waits=bool(desk.runs.active), ready=bool(forms), example=EXAMPLE,
        )  # fmt: skip

    def _working(self, job: Any, wish: UploadWish) -> str:
        say = self.context.say
        count = ""
        if job.total:
            count = say("ui.export.written", done=size_words(job.done), total=size_words(job.total))
        phase = say(job.phase) if job.phase is not None else say("ui.chat.waiting")
        share = min(1.0, job.done / job.total) if job.total and job.done else None
        return render(
            "tabs/export/hub.html", say, part="working", phase=phase, share=share, count=count,
            stopping=job.stopping, repo=wish.repo, form_name=wish.form, stop=STOP,
        )  # fmt: skip

    def _shown(self, found: Upload) -> str:
        say = self.context.say
        files = [(one.name, size_words(one.size_bytes)) for one in found.files]
        return render(
            "tabs/export/hub.html", say, part="shown", files=files, size=size_words(found.size_bytes),
            card=found.card, repo=found.wish.repo, public=found.wish.public, address=found.address,
            has_token=found.has_token, form_name=found.wish.form,
        )  # fmt: skip

    def _failed(self, error: BaseException, wish: UploadWish) -> str:
        say = self.context.say
        stopped = isinstance(error, DownloadStopped) or type(error).__name__ == "ExportStopped"
        words = say("ui.hub.stopped") if stopped else self.context.say_error(error)
        return render(
            "tabs/export/hub.html", say, part="failed", words=words, stopped=stopped, repo=wish.repo
        )

    def _sent(self, sent: Sent) -> str:
        upload = sent.upload
        size = size_words(upload.size_bytes)
        return render(
            "tabs/export/hub.html", self.context.say, part="sent", url=sent.url, account=sent.account, size=size,
            count=len(upload.files), public=upload.wish.public, repo=upload.wish.repo,
        )  # fmt: skip


def read_wish(state: str, form: Mapping[str, object]) -> UploadWish:
    """Return the wish that a page's form says; private unless it says public. Raises StudioError without a name."""
    run, place = split_state(state)
    repo = str(form.get("repo") or "").strip()
    if not repo:
        raise StudioError(*(text(f"ui.hub.no_name{part}") for part in ("", ".why", ".fix")))
    return UploadWish(
        run=run, place=place, form=str(form.get("form") or ""), repo=repo,
        licence=str(form.get("licence") or "").strip(), public=form.get("who") == "public",
    )  # fmt: skip
