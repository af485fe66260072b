"""What guests are shown, as HTML: the owner's own parts, with paths, names of accounts and secrets taken out first."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from studio.core.i18n import Text
from studio.core.run_record import RunRecord
from studio.machine.redact import redact
from studio.machine.workspace import Workspace
from studio.ui.answer_text import show_answer
from studio.ui.live import LiveView
from studio.ui.run_advice import judge
from studio.ui.run_view import failure_card, log_card, samples_card, stall_card, verdict_cards
from studio.ui.status_view import status_card

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


class Curtain:
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


def run_list(records: Sequence[RunRecord], states: Mapping[str, str], chosen: str, curtain: Curtain) -> str:
    """Return the runs as a list of buttons that say {do: "show", value: run}; `states` go before the records' own."""
    title = escape(curtain.say("ui.guest.runs"))
    if not records:
        none = escape(curtain.say("ui.guest.none"))
        return f'<div class="card guest-runs"><h2>{title}</h2><p class="soft">{none}</p></div>'
    rows = []
    for record in records[:LISTED]:
        state = states.get(record.run, record.state)
        here = ' aria-current="true"' if record.run == chosen else ""
        when = time.strftime("%m-%d %H:%M", time.localtime(record.created_s))
        rows.append(
            f'<li><button type="button" data-do="show" data-value="{escape(record.run)}"{here}>'
            f"<b>{escape(curtain.name(record))}</b><span><i class='dot {escape(state)}' aria-hidden='true'></i>"
            f"{escape(curtain.say(f'ui.state.{state}'))} · {when}</span></button></li>"
        )
    return f'<div class="card guest-runs"><h2>{title}</h2><ul>{"".join(rows)}</ul></div>'


def run_cards(view: LiveView, state: str, record: RunRecord, curtain: Curtain) -> dict[str, str]:
    """Return the cards of one run by name: `status` with what stands still or failed and the verdicts, samples, log."""
    shown, say = curtain.cover(view), curtain.say
    named = replace(record, name=curtain.name(record))
    verdicts = judge(shown, state, time.time())
    status = (
        status_card(shown, state, say, named)
        + stall_card(shown.stall, say)
        + failure_card(shown.diagnosis, say, fixable=False)
        + verdict_cards(verdicts, say, show_fields=False)
    )
    return {"status": status, "samples": samples_card(shown.samples, None, say), "log": log_card(shown, say)}


def guest_talk(turns: Sequence[Mapping[str, str]], curtain: Curtain) -> str:
    """Return a talk as bubbles; an answer's image or link stays words."""
    say = curtain.say
    bubbles = []
    for turn in turns:
        if turn["role"] == "user":
            bubbles.append(f'<div class="bubble mine">{escape(turn["content"])}</div>')
        else:
            words = show_answer(curtain.clean(turn["content"]), say("ui.chat.thought")) or "…"
            bubbles.append(f'<div class="bubble theirs">{words}</div>')
    body = "".join(bubbles) or f'<p class="soft">{escape(say("ui.guest.chat.empty"))}</p>'
    return (
        f'<div class="talk"><div class="scroll" tabindex="0" aria-label="{escape(say("ui.guest.chat"))}">'
        f'<div class="bubbles">{body}</div></div></div>'
    )
