"""The Dataset tab: bring examples, answer what is unclear, see them as the model does, and what is learned of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.recipe import Recipe, read_value
from studio.data.split_discovery import SUFFIXES
from studio.services.dataset_session import Look, check_reach
from studio.services.uploads import keep_upload
from studio.ui.cards import note_card
from studio.ui.tabs.dataset.cards import (
    findings_card,
    format_card,
    prepared_card,
    problems_card,
    progress_card,
    question_cards,
    rows_table,
)
from studio.ui.tabs.dataset.components import FILE_TYPES, DatasetParts
from studio.ui.tabs.dataset.example import (
    TOKENS_SHOWN,
    chat_view,
    learned_view,
    lengths_view,
    packed_view,
    seen_view,
)

VIEWED = ("data.max_length", "data.fill", "data.accept_bad_rows")
"""Fields that change what is drawn, not what was measured."""
FORGOTTEN: dict[str, Any] = {
    "data.format": "auto",
    "data.mapping": {},
    "data.encoding": "auto",
    "data.speaker": "",
    "data.template": "",
    "data.accept_bad_rows": False,
    **dict.fromkeys(("data.sheet", "data.config", "data.split"), ""),
}
"""What was said of one source's columns and rows does not hold for another."""
FRESH = {"number": -1, "example": 0, "shown": TOKENS_SHOWN}
"""What a page shows before its first look at the server: number of the Look, example, tokens of it."""
TICK_S = 0.6
LAG_S = 5.0
"""A path that is typed reaches the draft letter by letter, on a busy machine so long after Enter."""
WHOLE = 2**62
"""No limit."""


def name_of(source: str) -> str:
    """Return what a run is called that learns from `source`: the demo, or the file's name without its ending."""
    return Path(source.rstrip("/\\")).stem if source else ""


class DatasetTab(DatasetParts):
    """Handlers of the parts; what is known of the data lives at the desk, so every page shows the same."""

    def bind(self, tab: gr.Tab) -> None:
        """Look on the button, on Enter, on an upload, when a field of the data changes, and when the tab is opened."""
        form = self.form
        # One after the other: an answer that was made before another must not be shown after it. The timer's own would
        # show the last data set again, and rest.
        on = partial(self.context.on, concurrency_id="dataset-page", concurrency_limit=1)
        self._brought_s = -LAG_S
        """When a source was named last, by Enter or by leaving its field."""
        # A hidden tab's timer and state would not run; bind() is called outside of all tabs.
        self.timer = gr.Timer(TICK_S)
        self.page = gr.State(FRESH)
        own = ("name",) if "name" in form.components else ()
        self.fields = {
            path: part for path, part in form.components.items() if path.startswith("data.") or path in own
        }
        inputs = list(form.components.values())
        state = [self.page, *inputs]
        self.parts = [
            self.page, self.timer, self.verdict, self.progress, self.questions, self.row, self.table,
            self.chat, self.seen, self.learned, self.packed, self.lengths, self.problems, self.download, self.prepared,
        ]  # fmt: skip
        everything = [*self.fields.values(), *self.parts]
        on(self.timer.tick, self.tick, [self.page], self.parts)
        on(self.button.click, self.look_again, state, self.parts)
        on(tab.select, self.open, [self.page], self.parts)
        for path, part in self.fields.items():
            if path in own:
                continue
            if path in VIEWED:
                on(part.input, self.redraw, state, self.parts, trigger_mode="always_last")
            elif path == "data.format":
                on(part.input, self.reformat, state, everything)
            elif isinstance(part, gr.Dropdown | gr.Checkbox):
                on(part.input, self.look, state, self.parts)
            elif path != "data.source":
                on(part.blur, self._looker(path), state, self.parts)
                on(part.submit, self._looker(path), state, self.parts)
        on(self.source.submit, self.bring, state, everything)
        on(self.source.blur, self.bring, state, everything)
        taken = on(self.upload.upload, self.take_file, [self.upload], [self.upload, *everything])
        on(taken.failure, self.free_zone, [], [self.upload])
        # Of two choices made in one breath both count.
        on(self.said.said, self.hear, [self.said, self.page], everything, trigger_mode="multiple")
        on(self.save.click, self.save_mapping, inputs, [self.saved])
        shown = [self.page, self.row, self.chat, self.seen, self.learned]
        on(self.row.input, self.pick, [self.row, *state], shown)
        on(self.back.click, lambda *values: self.step(-1, *values), state, shown)
        on(self.forth.click, lambda *values: self.step(1, *values), state, shown)

    # Handlers -----------------------------------------------------------------------------------------------------

    def look(self, page: dict, *values: Any) -> list[Any]:
        """Look at the form's data set; nothing is asked again that is known."""
        recipe = self._read(values)
        check_reach(self.context.owner_asks, recipe.data.source)
        return self._show(self.context.desk.datasets.look(recipe), page, recipe)

    def open(self, page: dict) -> list[Any]:
        """Look at the draft's data set and draw every part: those of a hidden tab are not there before."""
        recipe, datasets = self.context.draft(), self.context.desk.datasets
        check_reach(self.context.owner_asks, recipe.data.source)
        # The draft hears of a path letter by letter and may be behind Enter, which looked at the whole of it.
        looked, source = datasets.view(), recipe.data.source
        begun = source not in ("", looked.source) and looked.source.startswith(source)
        look = looked if begun and time.monotonic() - self._brought_s < LAG_S else datasets.look(recipe)
        return self._show(look, page | {"number": -1}, recipe)

    def reformat(self, page: dict, *values: Any) -> list[Any]:
        """Look at the data set in the format that was chosen."""
        with self.context.editing:
            recipe = self._read(values)
            changes = {"data.format": recipe.data.format} | self._fit(recipe.data.mapping, recipe.data.format)
            recipe = self.context.edit(changes)
        look = self.context.desk.datasets.look(recipe)
        return [*self._fields(changes), *self._show(look, FRESH, recipe)]

    def _looker(self, path: str):
        def look(page: dict, *values: Any) -> list[Any]:
            """Look anew when the field that is left was changed; a click elsewhere has its own say."""
            looked = self.context.desk.datasets.recipe
            if looked and read_value(looked, path) == read_value(self._read(values), path):
                return [gr.skip()] * len(self.parts)
            return self.look(page, *values)

        return look

    def bring(self, page: dict, *values: Any) -> list[Any]:
        """Look at another source, if it is another one; a recipe that was brought along keeps its columns."""
        source, self._brought_s = self._read(values).data.source, time.monotonic()
        before = self.context.desk.datasets.view().source
        if before == source:
            return [gr.skip()] * (len(self.fields) + len(self.parts))
        if not before:
            return [*self._fields({}), *self.look(page, *values)]
        return self._take(source)

    def look_again(self, page: dict, *values: Any) -> list[Any]:
        """Look at the data set anew: the file may have changed."""
        recipe = self._read(values)
        check_reach(self.context.owner_asks, recipe.data.source)
        return self._show(self.context.desk.datasets.look(recipe, again=True), FRESH, recipe)

    def tick(self, page: dict) -> list[Any]:
        """Show what is new since this page's last look at the server; the timer rests while nothing is done.

        A page that is just being loaded has not got its draft yet: here and in open() the server's own counts.
        """
        return self._show(self.context.desk.datasets.view(), page, self.context.draft())

    def redraw(self, page: dict, *values: Any) -> list[Any]:
        """Draw mask, packing and lengths for another limit."""
        return self._show(self.context.desk.datasets.view(), page | {"number": -1}, self._read(values))

    def hear(self, said: dict, page: dict) -> list[Any]:
        """Do what a part of our own reports (script.js), on the draft as it is then."""
        datasets, changes = self.context.desk.datasets, {}
        said = said if isinstance(said, dict) else {}
        do, value = str(said.get("do", "")), said.get("value", "")
        if do == "cancel":
            look = datasets.cancel()
        elif do in ("size", "fetch"):
            check_reach(self.context.owner_asks, datasets.view().source)
            look = datasets.ask_size() if do == "size" else datasets.fetch()
        elif do == "more":
            page = page | {"number": -1, "shown": page["shown"] + TOKENS_SHOWN}
            look = datasets.view()
        elif do == "limit":
            return self._move_limit(int(value), page)
        elif do == "accept":
            recipe = self.context.edit(changes := {"data.accept_bad_rows": True})
            return [*self._fields(changes), *self._show(datasets.view(), FRESH, recipe)]
        else:
            with self.context.editing:
                changes = self._change(do, said, self.context.draft())
                recipe = self.context.edit(changes)
            look = datasets.look(recipe)
            page = FRESH
        return [*self._fields(changes), *self._show(look, page, self.context.draft())]

    def pick(self, number: str, page: dict, *values: Any) -> list[Any]:
        """Show another example."""
        return self._turn(int(number) - 1 if str(number).isdigit() else 0, page, self._read(values))

    def step(self, by: int, page: dict, *values: Any) -> list[Any]:
        """Show the next or the previous example."""
        return self._turn(page["example"] + by, page, self._read(values))

    def save_mapping(self, *values: Any) -> str:
        """Save format and columns beside the data."""
        path = self.context.desk.datasets.save_mapping(self._read(values))
        return note_card(self.context.say("ui.dataset.mapping.saved", path=literal(str(path))), "good")

    def take_file(self, uploaded: str | None) -> list[Any]:
        """Copy an uploaded file into the workspace's data sets and look at it; the drop zone is free again."""
        if not uploaded:
            return [gr.skip()] * (1 + len(self.fields) + len(self.parts))
        return [None, *self._take(str(self._keep(Path(uploaded))))]

    def free_zone(self) -> None:
        """Take a refused file out of the drop zone, so that another one can be dropped."""

    # Inside -------------------------------------------------------------------------------------------------------

    def _keep(self, source: Path) -> Path:
        if source.suffix.lower() not in FILE_TYPES:
            raise StudioError(
                text("ui.dataset.type", name=literal(source.name)),
                text("ui.dataset.type.why", types=", ".join(SUFFIXES)),
                text("ui.dataset.type.fix"),
            )
        words = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in source.stem)
        return keep_upload(
            source,
            self.context.workspace.datasets / f"{words.strip('.')[:80] or 'data'}{source.suffix.lower()}",
        )

    def _take(self, source: str) -> list[Any]:
        """Make `source` the draft's and look at it anew, be it under the name of one that was there.

        What was said of the last one's columns does not hold for it.
        """
        check_reach(self.context.owner_asks, source)
        changes = {"data.source": source} | FORGOTTEN
        with self.context.editing:
            if self.context.draft().name in ("demo", name_of(self.context.desk.datasets.view().source)):
                changes["name"] = name_of(source)
            recipe = self.context.edit(changes)
        look = self.context.desk.datasets.look(recipe, again=True)
        return [*self._fields(changes), *self._show(look, FRESH, recipe)]

    def _change(self, do: str, said: dict, recipe: Recipe) -> dict[str, Any]:
        """Return what an answer, or a column's role, changes of the recipe."""
        value = str(said.get("value", ""))
        if do == "role":
            known = self.context.desk.datasets.view().report.get("mapping") or {}
            mapping = {**known, **recipe.data.mapping}
            column = str(said.get("column", ""))
            played = [role for role, name in mapping.items() if name == column]
            mapping = {role: name for role, name in mapping.items() if name != column}
            # A column that was said to be of no use must not be recognised by its name again.
            mapping |= {value: column} if value else dict.fromkeys(played, "")
            return {"data.mapping": mapping}
        if do == "answer" and str(said.get("field", "")).startswith("data.") and value:
            field = str(said["field"])
            head, _, role = field.partition("data.mapping.")
            if role and not head:
                return {"data.mapping": {**recipe.data.mapping, role: value}}
            if field == "data.format":
                return {field: value} | self._fit(recipe.data.mapping, value)
            if field in self.fields:
                return {field: value}
        return {}

    def _fit(self, mapping: Mapping[str, str], format: str) -> dict[str, Any]:
        """Return what another format changes of the mapping: roles that it does not know are forgotten."""
        roles = self.context.desk.datasets.roles(format)
        known = {role: column for role, column in mapping.items() if role in roles}
        return {} if known == mapping else {"data.mapping": known}

    def _move_limit(self, limit: int, page: dict) -> list[Any]:
        """The page has moved its line already: only the field, the mask and the packing follow."""
        changes = {"data.max_length": max(8, limit)}
        recipe = self.context.edit(changes)
        look = self.context.desk.datasets.view()
        answer: dict[Any, Any] = dict.fromkeys(self.parts, gr.skip())
        answer[self.learned], answer[self.packed] = self._learned(look, page, recipe)
        return [*self._fields(changes), *answer.values()]

    def _turn(self, example: int, page: dict, recipe: Recipe) -> list[Any]:
        look = self.context.desk.datasets.view()
        examples = look.report.get("preview", ())
        if not examples:
            return [gr.skip()] * 5
        page = page | {"example": min(max(0, example), len(examples) - 1), "shown": TOKENS_SHOWN}
        return [page, str(page["example"] + 1), *self._example(look, page, recipe)]

    def _show(self, look: Look, page: dict, recipe: Recipe) -> list[Any]:
        """Return every part of the page that is new to it."""
        say = self.context.say
        answer: dict[Any, Any] = dict.fromkeys(self.parts, gr.skip())
        answer[self.progress] = progress_card(look, say, training=bool(self.context.desk.runs.active))
        answer[self.timer] = gr.Timer(active=look.working)
        if look.number == page["number"]:
            return list(answer.values())
        report = look.report
        examples = report.get("preview", ())
        page = page | {"number": look.number, "example": min(page["example"], max(0, len(examples) - 1))}
        numbers = [str(i + 1) for i in range(len(examples))]
        path = self.context.desk.datasets.quarantine() if look.whole else None
        chat, seen, learned = self._example(look, page, recipe)
        answer |= {
            self.page: page,
            self.verdict: format_card(look, say, self.context.desk.datasets.count(recipe)),
            self.questions: question_cards(report.get("needs_answer", ()), say),
            self.row: gr.update(choices=numbers, value=str(page["example"] + 1) if numbers else None),
            self.table: rows_table(report, self._name_role, say) if "rows" in report else "",
            self.chat: chat,
            self.seen: seen,
            self.learned: learned,
            self.packed: self._learned(look, page, recipe)[1],
            self.lengths: self._lengths(look, recipe),
            self.problems: self._problems(look) + findings_card(report, say),
            self.download: gr.update(value=str(path) if path else None, visible=path is not None),
            self.prepared: prepared_card(report, say) if look.whole else "",
        }
        return list(answer.values())

    def _example(self, look: Look, page: dict, recipe: Recipe) -> Sequence[str]:
        say, examples = self.context.say, look.report.get("preview", ())
        if not examples:
            return [note_card(say("ui.dataset.example.none"))] * 3
        example = examples[min(page["example"], len(examples) - 1)]
        seen = seen_view(example, look.report.get("specials", ()), say)
        return [chat_view(example, say), seen, self._learned(look, page, recipe)[0]]

    def _learned(self, look: Look, page: dict, recipe: Recipe) -> tuple[str, str]:
        say, examples = self.context.say, look.report.get("preview", ())
        if not examples:
            return note_card(say("ui.dataset.example.none")), ""
        limit = WHOLE if self._is_text(look, recipe) else recipe.data.max_length
        example = examples[min(page["example"], len(examples) - 1)]
        packed = packed_view(examples, limit, say) if recipe.data.fill and limit != WHOLE else ""
        return learned_view(example, limit, page["shown"], say), packed

    def _lengths(self, look: Look, recipe: Recipe) -> str:
        say = self.context.say
        if not look.whole:
            asked = bool(look.report.get("needs_answer")) and not look.working
            return note_card(say("ui.dataset.lengths.question" if asked else "ui.dataset.lengths.wait"))
        datasets = self.context.desk.datasets
        blocks = datasets.histogram and not datasets.cuts
        note = note_card(say("ui.dataset.lengths.blocks")) if blocks else ""
        limit = recipe.data.max_length
        return lengths_view(datasets.histogram, datasets.cuts, limit, say, datasets.cut_at(limit)) + note

    def _is_text(self, look: Look, recipe: Recipe) -> bool:
        """Whether texts are learned in blocks, so that no limit cuts them."""
        format = look.report.get("format")
        return recipe.objective == "pretrain" or (recipe.objective == "auto" and format == "text")

    def _problems(self, look: Look) -> str:
        """Return the problems; what is not read yet, or waits for an answer, has none that anybody knows of."""
        say = self.context.say
        found = problems_card(look.report, say)
        if look.whole or not look.report or look.report.get("problems"):
            return found
        return note_card(
            say(
                "ui.dataset.problems.asked" if look.report.get("needs_answer") else "ui.dataset.problems.wait"
            )
        )

    def _name_role(self, role: str) -> str:
        id = f"ui.dataset.role.{role}"
        return self.context.say(id) if self.context.words.has(id) else role

    def _fields(self, changes: Mapping[str, Any]) -> list[Any]:
        """Return what the fields of `changes` show now; what stands in the others, typed by half maybe, stays."""
        return self.form.show_changes(changes, self.fields)

    def _read(self, values: Sequence[Any]) -> Recipe:
        """Return the recipe as the page shows it; of a field that is typed by half what the draft says."""
        return self.form.read_over(self.context.draft(), values)
