"""What guests are shown: the owner's own parts, with paths, names of accounts and secrets taken out first."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from studio.core.i18n import Text
from studio.core.run_record import RunRecord
from studio.machine.redact import redact
from studio.machine.workspace import Workspace
from studio.ui.run_state import LiveView
from studio.ui.tabs.chat.answer_text import show_answer
from studio.ui.tabs.training.cards import failure_card, log_card, samples_card, stall_card, verdict_cards
from studio.ui.tabs.training.run_advice import judge
from studio.ui.tabs.training.status import status_card
from studio.ui.templates import render

PLACE = "…/"
"""What stands for the folders of a path."""
LISTED = 60
# An absolute path of any system, but for its last part: after a letter, a digit or a slash it is something else, such
# as tokens/s or the rest of an address. A folder's name may hold up to four blanks; in running text a colon or a full
# stop before the blank ends the path.
START = r"(?<![\w/\\:.])(?:file:(?=/)|~|(?:\\\\[?.]\\)?[A-Za-z]:|\\\\[^\\/\s'\"<>|]+)?[\\/]+"
NAME = r"[^\\/\s'\"<>|,;)\]]+"
WORD = r"(?:[(][^()\\/\n]{1,40}[)]|[^\\/\s'\"<>|,;:()\]]*[^\\/\s'\"<>|,;:()\].])"
PATHS = re.compile(rf"{START}(?:(?:{NAME}|{WORD}(?: {{1,2}}{WORD}){{1,4}})[\\/]+)*(?=[^\\/\s'\"<>|])")


class GuestRedactor:
    """Takes out of words what is this machine's alone. `say` is Context.say."""

    def __init__(self, workspace: Workspace, say: Any) -> None:
        self._say = say
        own = [str(workspace.root), str(workspace.root.resolve()), str(Path.home())]
        spellings = {
            form for path in own for form in (path, path.replace("\\", "/"), path.replace("/", "\\"))
        }
        # As Python writes a path of Windows between quotes, and as addresses hold one.
        spellings |= {form.replace("\\", "\\\\") for form in spellings} | {
            quote(form, safe="/:") for form in spellings
        }
        known = sorted((form for form in spellings if len(form) > 2), key=len, reverse=True)
        self._own = re.compile("|".join(map(re.escape, known)) or "(?!)", re.IGNORECASE)

    def clean(self, words: str) -> str:
        """Return `words` with paths cut to their last part, user names and secrets replaced."""
        words = self._own.sub(lambda found: "/…" if found[0][0] == "/" else "…", words)
        return redact(PATHS.sub(PLACE, words))

    def say(self, message: Text | str, /, **values: object) -> str:
        """Return the words of a text, cleaned."""
        return self.clean(self._say(message, **values))

    def cover(self, view: LiveView) -> LiveView:
        """Return the run's view with what is shown of it verbatim cleaned: prompts and answers."""
        samples = [
            replace(one, **{name: self.clean(getattr(one, name)) for name in ("prompt", "answer", "expected", "base")})
            for one in view.samples
        ]  # fmt: skip
        stall = replace(view.stall, action="wait", frame="") if view.stall else None
        return replace(view, samples=tuple(samples), stall=stall)

    def name(self, record: RunRecord) -> str:
        """Return what a run is called."""
        return self.clean(record.name or record.base or record.run)


def run_list(
    records: Sequence[RunRecord], states: Mapping[str, str], chosen: str, redactor: GuestRedactor
) -> Markup:
    """Return the runs as a list of buttons that say {do: "show", value: run}; `states` go before the records' own."""
    runs = [
        (
            record.run,
            redactor.name(record),
            states.get(record.run, record.state),
            time.strftime("%m-%d %H:%M", time.localtime(record.created_s)),
        )
        for record in records[:LISTED]
    ]
    return render("guest/runs.html", redactor.say, runs=runs, chosen=chosen)


def run_cards(view: LiveView, state: str, record: RunRecord, redactor: GuestRedactor) -> dict[str, str]:
    """Return the cards of one run by name: `status` with what stands still or failed and the verdicts, samples, log."""
    shown, say = redactor.cover(view), redactor.say
    named = replace(record, name=redactor.name(record))
    verdicts = judge(shown, state, time.time())
    status = (
        status_card(shown, state, say, named)
        + stall_card(shown.stall, say)
        + failure_card(shown.diagnosis, say, fixable=False)
        + verdict_cards(verdicts, say, show_fields=False)
    )
    return {"status": status, "samples": samples_card(shown.samples, None, say), "log": log_card(shown, say)}


def guest_talk(turns: Sequence[Mapping[str, str]], redactor: GuestRedactor) -> Markup:
    """Return a talk as bubbles; an answer's image or link stays words."""
    thought = redactor.say("ui.chat.thought")
    shown = [
        (True, turn["content"])
        if turn["role"] == "user"
        else (False, show_answer(redactor.clean(turn["content"]), thought))
        for turn in turns
    ]
    return render("guest/talk.html", redactor.say, turns=shown)
