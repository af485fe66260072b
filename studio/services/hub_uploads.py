"""Results on their way to a repository of the person's own: every file shown first, then sent by a job that goes on.

The export that is sent is made first, where it is not there or older than the run's result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.run_record import RunRecord
from studio.engine.exporters import EXPORTERS
from studio.engine.run_states import RESULT
from studio.hub.access_token import Mirror, choose_token, find_token, show_address
from studio.hub.child import DownloadStopped, Report
from studio.hub.model_upload import UploadFile, list_files, refuse, require_name, upload_folder
from studio.services.exports import ASK_S, Exports
from studio.services.model_card import plain_name, write_card
from studio.services.runs import Runs
from studio.services.worker import Job, Worker

FORMS = tuple(exporter.name for exporter in EXPORTERS if exporter.name not in ("script", "ollama"))
"""What is sent: a script holds rows of the data, and Ollama's folder is that of its GGUF file."""
LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,59}|")


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadWish:
    """What is to be sent, and where to."""

    run: str
    form: str
    repo: str = ""
    """owner/name, or a name alone; may be "" where nothing is sent."""
    place: str = RESULT
    """The run's result, or the name of a checkpoint."""
    licence: str = ""
    """Of the base, as the hub names it; "" where nobody said."""
    public: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """What would be sent, before anything is."""

    wish: UploadWish
    folder: Path
    files: tuple[UploadFile, ...]
    card: str
    address: str
    """Whom it would go to."""
    has_token: bool
    """Whether there is a token for that address; which one is never told."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(one.size_bytes for one in self.files)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """Where a result lies now."""

    url: str
    commit: str
    account: str
    upload: Upload


class Uploads:
    """What this workspace sends. Methods may be called from any thread; sending has a thread of its own."""

    def __init__(self, exports: Exports, runs: Runs, mirror: Callable[[], Mirror]) -> None:
        """`mirror` gives what the person set to stand for the hub."""
        self.job: Job | None = None
        """The last one: its result is an Upload where it only looked, and Sent where it sent."""
        self.wish: UploadWish | None = None
        """What that job is about."""
        self._exports, self._runs, self._mirror = exports, runs, mirror
        self._again: Callable[[], Job] | None = None
        self._worker = Worker("upload")

    @property
    def busy(self) -> bool:
        """Whether something is looked at or sent that nobody has asked to end."""
        return self.job is not None and not self.job.ended and not self.job.stopping

    def look(self, wish: UploadWish) -> Job:
        """Begin to find out what would be sent; the Job's result is an Upload.

        Raises StudioError for a wish that cannot be, and while another one is on.
        """
        self.require(wish)
        return self._begin(wish, lambda job: self._make(wish, job), lambda: self.look(wish))

    def send(self, upload: Upload) -> Job:
        """Begin to send what was shown; the Job's result is Sent. What is there already is not sent again.

        Raises StudioError while another one is on, and without a name.
        """
        require_name(upload.wish.repo)
        self.require(upload.wish)

        def work(job: Job) -> Sent:
            phase = text("upload.phase.send")
            job.tell(phase, 0, upload.size_bytes)
            shown = self.describe(upload.wish, upload.folder)
            if shown.files != upload.files or shown.card != upload.card:  # exported anew meanwhile
                raise refuse("changed", upload.wish.repo)
            return self.push(upload, lambda done, total: job.tell(phase, done, total), lambda: job.stopping)

        return self._begin(upload.wish, work, lambda: self.send(upload))

    def go_on(self) -> Job | None:
        """Begin again what was stopped or failed: what was exported and sent is kept. Raises StudioError."""
        if (
            isinstance(error := self.job and self.job.error, StudioError)
            and error.what.id == "upload.changed"
        ):
            return self.look(self.wish)
        return self._again() if self._again is not None else None

    def push(self, upload: Upload, report: Report, should_stop: Callable[[], bool]) -> Sent:
        """Send it and wait. Raises DownloadStopped, StudioError."""
        answer = upload_folder(
            upload.folder,
            upload.wish.repo,
            upload.card,
            report,
            should_stop,
            public=upload.wish.public,
            mirror=self._mirror(),
        )
        return Sent(url=answer["url"], commit=answer["commit"], account=answer["account"], upload=upload)

    def require(self, wish: UploadWish) -> None:
        """Raise StudioError for a repository, a form or a licence that is none."""
        if wish.repo:
            require_name(wish.repo)
        if wish.form not in FORMS:
            fix = text("export.unknown.fix", known=list(FORMS))
            raise StudioError(text("export.unknown", target=wish.form), text("export.unknown.why"), fix)
        if not LICENCE.fullmatch(wish.licence):
            raise refuse("licence", wish.licence[:60])

    def find(self, wish: UploadWish) -> Path | None:
        """Return the export that is sent, where it is there and made of the run's newest result."""
        state = f"{wish.run}-{wish.place}" if wish.place else wish.run
        since_s = self._read(wish.run).ended_s
        found = (one for one in self._exports.items() if (one.run, one.target) == (state, wish.form))
        return next((one.path for one in found if one.ours and one.written_s >= since_s), None)

    def describe(self, wish: UploadWish, folder: Path) -> Upload:
        """Return what of the export in `folder` would be sent. Raises StudioError where a file holds a secret."""
        record, mirror = self._read(wish.run), self._mirror()
        events = self._runs.events(wish.run)
        card = write_card(record, self._runs.recipe(wish.run), events, wish.form, wish.licence)
        address = mirror.find_address(os.environ)
        token = choose_token(mirror)
        has_token = not token.withheld and bool(any(token.changes.values()) or find_token())
        return Upload(
            wish=wish, folder=folder, files=list_files(folder, card), card=card,
            address=show_address(address) or address, has_token=has_token,
        )  # fmt: skip

    def suggest_name(self, run: str) -> str:
        """Return a repository's name for `run`, of what it is called."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", plain_name(self._read(run).name)).strip("-.")
        return plain[:60] or run

    def close(self) -> None:
        """Let the thread end; what is being sent is stopped."""
        if self.job is not None:
            self.job.stop()
        self._worker.close(2.0)

    # Inside ----------------------------------------------------------------------------------------------------------

    def _begin(self, wish: UploadWish, work: Callable[[Job], object], again: Callable[[], Job]) -> Job:
        if self.job is not None and not self.job.ended:
            raise StudioError(text("upload.busy"), text("upload.busy.why"), text("upload.busy.fix"))
        self.wish, self.job, self._again = wish, Job(), again
        return self.job.begin(self._worker, work)

    def _make(self, wish: UploadWish, job: Job) -> Upload:
        """Return what would be sent; exports the run before, where that is needed. Raises StudioError."""
        folder = self.find(wish)
        if folder is None:
            export = self._exports.start(wish.run, wish.form, wish.place)
            while not export.ended:
                if job.stopping:
                    export.stop()
                if export.phase is not None:
                    job.tell(export.phase, self._exports.written_bytes(), export.total)
                with suppress(TimeoutError):
                    export.result(ASK_S)
            folder = export.result().path
        if job.stopping:
            raise DownloadStopped(*(text(f"upload.stopped{part}") for part in ("", ".why", ".fix")))
        job.tell(text("upload.phase.look"))
        return self.describe(wish, folder)

    def _read(self, run: str) -> RunRecord:
        return self._runs.read(run)
