"""The Hyperparameters tab: the goal in plain words, common settings, everything with a filter; presets; the draft."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr

from studio.core.errors import RecipeError, StudioError
from studio.core.recipe import Recipe, change_recipe, read_value, share_held_out
from studio.models.rope_scaling import count_positions
from studio.services import presets
from studio.services.goal_settings import CONTROLS, OWN, Scope, Wish, apply, apply_to, make_scope, recognise
from studio.services.recipe_problems import look
from studio.services.recipes import DEMO_SETTINGS, follow_model, usual_value
from studio.ui.cards import heading, note_card, plan_card, problems_card
from studio.ui.context import Context
from studio.ui.field_badges import elem_id, mark_changes, mark_problems
from studio.ui.form import Form
from studio.ui.rewards.section import RewardsSection
from studio.ui.shell.html_events import make_voice, read_said
from studio.ui.tabs.hyperparameters.cards import difference_card, done_note, plain_card, presets_card
from studio.ui.tabs.hyperparameters.imported import imported_card, open_settings
from studio.ui.templates import render

SECTIONS = (
    ("learning", ("optim",)),
    ("comparing", ("preference",)),
    ("sampling", ("sampling",)),
    ("adapter", ("adapter",)),
    ("run", ("name", "objective", "seed", "run")),
)
COMMON = (
    "optim.learning_rate",
    "optim.epochs",
    "adapter.method",
    "adapter.rank",
    "adapter.alpha",
    "optim.batch_size",
    "run.eval_every",
    "run.save_every",
)
"""The settings that are changed most; all others are one fold away."""
BESIDE_PLAIN = (
    "run.keep_awake",
    "run.tracker",
    "run.on_stall",
    "run.trial",
    "run.keep_checkpoints",
    "name",
    "seed",
)
"""Fields that no plain control and no figure on its card depends on."""
IMPORTED = "file:imported"


class HyperparametersTab:
    """Components and handlers of a run's settings; the draft is kept here for the fields of all tabs."""

    def __init__(self, context: Context, form: Form) -> None:
        self.context = context
        self.form = form
        self._last: dict[str, tuple[Any, Any]] = {}
        """What the last change of many settings did, for undo: by path the value before and the one that it set."""
        self._imported: Recipe | None = None
        self._scope: tuple[str, Scope] = ("", Scope())
        self._seen: tuple[Recipe, Scope | None] = context.draft(), None
        """The settings as this screen last saw them, and for which model and data; None: not asked yet."""
        say = context.say
        with gr.Column(elem_classes=["sheet"], elem_id="settings-goal"):
            self.plain = gr.HTML(plain_card(Wish(), (), context.words, say), elem_id="settings-plain")
            self.note = gr.HTML("", elem_id="settings-note")
            self.rewards = RewardsSection(context)
        with gr.Column(elem_classes=["sheet"], elem_id="settings-all"):
            gr.HTML(render("tabs/hyperparameters/tools.html", say), elem_id="settings-tools")
            form.fields(COMMON)
            with gr.Accordion(say("ui.settings.everything"), open=False, elem_id="settings-everything"):
                for name, prefixes in SECTIONS:
                    with gr.Column(elem_classes=["section"]):
                        gr.HTML(heading(say(f"ui.settings.{name}"), level=3))
                        form.fields(form.section(prefixes, ["basic", "common", "advanced"]))
        with gr.Column(elem_classes=["sheet"], elem_id="settings-keep"):
            self.presets = gr.HTML(presets_card((), "", say), elem_id="settings-presets")
        with gr.Column(elem_classes=["sheet"], elem_id="settings-examined"):
            with gr.Row(elem_classes=["toolbar"]):
                self.check = gr.Button(
                    say("ui.settings.check"), elem_id="settings-check", size="sm", scale=0, min_width=180
                )
            self.problems = gr.HTML(note_card(say("ui.settings.check.lead")), elem_id="settings-problems")
            self.plan = gr.HTML("", elem_id="settings-plan")
        self.voice = make_voice("#tab-hyperparameters", "hyperparameters-said")

    def bind(self, measured: Callable) -> None:
        """Keep the draft on every edit, hear the screen's own parts, check on the button. After all fields are made.

        `measured`: the event of the Dataset screen's knowing more.
        """
        on, form = self.context.on, self.form
        inputs = list(form.components.values())
        shown = [form.marks, self.plain, self.note, self.presets, *inputs]
        for path, component in form.components.items():
            kept = [form.marks, self.plain]
            on(component.input, self.keeper(path), [component], kept, trigger_mode="always_last")
        on(self.voice.said, self.hear, [self.voice, *inputs], shown, trigger_mode="multiple")
        self.rewards.bind(self.voice, form.components["objective"])
        on(form.marks.said, self.hear, [form.marks, *inputs], shown, trigger_mode="multiple")
        chosen = [form.components[path].change for path in ("model.source", "data.source")]
        on(partial(gr.on, [*chosen, measured]), self.follow, [], shown, trigger_mode="always_last")
        results = [self.problems, self.plan, form.marks]
        on(self.check.click, self.examine_and_mark, inputs, results, show_progress="minimal")

    # Edits ------------------------------------------------------------------------------------------------------

    def keeper(self, path: str):
        """Return the handler of one field's edits."""

        def keep(raw: Any) -> list[Any]:
            """Keep what was typed into one field, whole or half, and mark it where it cannot be read."""
            context, words = self.context, self.context.words
            with context.editing:
                recipe, typed, problems = self.form.read_typed(context.draft(), {path: raw})
                context.edit({path: read_value(recipe, path)}, typed)
            marks = mark_problems(problems, words, of=path) | mark_changes(recipe, words)
            return [marks, gr.skip() if path in BESIDE_PLAIN else self._plain(recipe)]

        return keep

    def hear(self, said: dict, *values: Any) -> list[Any]:
        """Do what a part of the screen, or a field's own button, asks for, on the form as the page shows it."""
        do, value, form = read_said(said)
        if do == "look":
            return self._look()
        answers = {
            "reset": lambda recipe: self._reset(value),
            "reset_all": self._reset_all,
            "preset": lambda recipe: self._choose(recipe, value),
            "preset_apply": lambda recipe: self._apply_preset(recipe, value),
            "preset_leave": lambda recipe: self._tell(card=self._presets()),
            "preset_save": lambda recipe: self._save(recipe, str(form.get("name", ""))),
            "preset_delete": lambda recipe: self._delete(value),
            "import": lambda recipe: self._import(recipe, value, str(form.get("name", ""))),
            "export": self._export,
            "undo": lambda recipe: self._undo(),
        }
        self.scope(self.context.draft())  # may take seconds the first time, in which edits must be kept
        with self.context.editing:
            recipe = self.form.read_over(self.context.draft(), values)
            if do in CONTROLS and value in CONTROLS[do]:
                return self._wish(recipe, do, value)
            return answers[do](recipe) if do in answers else self._tell()

    def _look(self) -> list[Any]:
        """Draw what a tab that is opened shows; settings that were plain choices follow another model or data set."""
        if (made := self._take_follow()) is not None:
            return made
        recipe = self.context.draft()
        words = self.context.words
        problems = self.form.read_typed(recipe, self.context.typed())[2]
        marks = mark_problems(problems, words, more=True) | mark_changes(recipe, words)
        return [marks, self._plain(recipe), gr.skip(), self._presets(), *self._same]

    def follow(self) -> list[Any]:
        """Answer another model or data set, wherever it was chosen: what nobody set follows it, before any start."""
        made = self._take_follow()
        return [gr.skip()] * (4 + len(self.form.components)) if made is None else made

    def _take_follow(self) -> list[Any] | None:
        self.scope(self.context.draft())  # may take seconds the first time, in which edits must be kept
        with self.context.editing:
            recipe = self.context.draft()
            made = self._follow(recipe)
            if made == recipe:
                return None
            count = len(presets.compare(recipe, made))
            return self._set(recipe, made, self.context.say("ui.settings.followed", count=count))

    def _follow(self, recipe: Recipe) -> Recipe:
        """Return `recipe` with what nobody set, for the last model and data, made for those of now.

        The demo's learning rate, say, is ten times too high for a real model. What a person set stays: a control whose
        values were their own, and all settings if other ones came with the model.
        """
        old, old_scope = self._seen
        if old.model.source == recipe.model.source and old.data == recipe.data and old_scope is None:
            return recipe
        old_scope = old_scope or self.scope(old)
        moved = old.model.source != recipe.model.source
        settings = [
            path
            for path in self.form.knobs
            if path.split(".")[0] in ("objective", "preference", "sampling", "adapter", "optim", "run")
            and path not in BESIDE_PLAIN
        ]
        came = any(read_value(old, path) != read_value(recipe, path) for path in settings)
        fitted = follow_model(old, recipe) if moved and not came else recipe
        scope = self.scope(fitted)
        self._seen = recipe, scope
        if came or (old_scope == scope and not moved):
            return recipe
        forgotten = {
            path: value
            for path in DEMO_SETTINGS
            if (value := read_value(fitted, path)) != read_value(recipe, path)
        }
        wish = recognise(change_recipe(old, forgotten), old_scope)  # the demo's goal was nobody's choice
        if old.model.quantization != recipe.model.quantization:
            wish = replace(wish, room=OWN)  # chosen with the model
        return apply_to(wish, fitted, scope)

    def _wish(self, recipe: Recipe, control: str, choice: str) -> list[Any]:
        """Set what a plain control decides; another goal takes the other controls' choices along."""
        scope = self.scope(recipe)
        now = recognise(recipe, scope)
        chosen = {control: choice}
        if control == "goal":
            chosen = {name: getattr(now, name) for name in CONTROLS if getattr(now, name) != OWN} | chosen
            chosen = {"length": "balanced", "strength": "normal"} | chosen
        else:
            chosen["goal"] = now.goal
        wanted = Wish(**chosen)
        made = apply_to(wanted, recipe, scope)
        count = len(presets.compare(recipe, made))
        return self._set(recipe, made, self.context.say("ui.settings.set", count=count))

    def _reset(self, name: str) -> list[Any]:
        knob = next((knob for knob in self.form.knobs.values() if elem_id(knob.path) == name), None)
        if knob is None or knob.required:
            return self._tell()
        changes = {knob.path: usual_value(self.context.draft(), knob)}
        return self._show(self.context.edit(changes), changes)

    def _reset_all(self, recipe: Recipe) -> list[Any]:
        defaults = {
            knob.path: usual_value(recipe, knob)
            for knob in self.form.knobs.values()
            if knob.path not in presets.BOUND
        }
        made = change_recipe(recipe, defaults)
        return self._set(recipe, made, self.context.say("ui.settings.reset.done"), defaults)

    def _undo(self) -> list[Any]:
        """Take back what the last change set; what a person has set since stays."""
        if not self._last:
            return self._tell()
        draft, typed, say = self.context.draft(), self.context.typed(), self.context.say
        changes = {
            path: before for path, (before, made) in self._last.items()
            if path not in typed and read_value(draft, path) == made
        }  # fmt: skip
        kept, self._last = len(self._last) - len(changes), {}
        sentence = say("ui.settings.undone.partly", count=kept) if kept else say("ui.settings.undone")
        note = done_note(sentence, say, undo=False)
        return self._show(self.context.edit(changes), changes, note=note)

    # Presets ----------------------------------------------------------------------------------------------------

    def _choose(self, recipe: Recipe, id: str) -> list[Any]:
        if not id:
            return self._tell(card=self._presets())
        preset = self.context.desk.presets.find(id)
        say = self.context.say
        made = presets.apply(preset, recipe, self._positions(recipe))
        about = say(preset.about) if preset.about else ""
        details = difference_card(
            say(preset.name), about, presets.compare(recipe, made), self.context.words, say,
            id=id, mine=preset.kind == "mine",
        )  # fmt: skip
        return self._tell(card=self._presets(id, details))

    def _apply_preset(self, recipe: Recipe, id: str) -> list[Any]:
        if id == IMPORTED and self._imported is not None:
            made, name = self._imported, self.context.say("ui.presets.imported")
        else:
            preset = self.context.desk.presets.find(id)
            made = presets.apply(preset, recipe, self._positions(recipe))
            name = self.context.say(preset.name)
        said = self.context.say("ui.presets.applied", name=name, count=len(presets.compare(recipe, made)))
        return self._set(recipe, made, said, self.form.knobs if id == IMPORTED else ())

    def _save(self, recipe: Recipe, name: str) -> list[Any]:
        preset = self.context.desk.presets.save(name, recipe)
        said = self.context.say("ui.presets.saved", name=preset.name)
        return self._tell(done_note(said, self.context.say, undo=False), self._presets())

    def _delete(self, id: str) -> list[Any]:
        name = self.context.desk.presets.find(id).name
        self.context.desk.presets.delete(id)
        said = self.context.say("ui.presets.deleted", name=name)
        return self._tell(done_note(said, self.context.say, undo=False), self._presets())

    def _import(self, recipe: Recipe, words: str, name: str) -> list[Any]:
        """Show what a file of settings would change and what became of each, or everything that is wrong with it."""
        say = self.context.say
        try:
            opened = open_settings(words, name, recipe)
        except RecipeError as error:
            return self._tell(card=self._presets("", problems_card(error.problems, say)))
        except StudioError as error:
            return self._tell(card=self._presets("", note_card(self.context.say_error(error), "bad")))
        self._imported = opened.recipe
        more = imported_card(opened.imported, say) if opened.imported else ""
        details = difference_card(
            say("ui.presets.imported"), say("ui.presets.imported.about"), presets.compare(recipe, opened.recipe),
            self.context.words, say, id=IMPORTED, more=more,
        )  # fmt: skip
        return self._tell(card=self._presets("", details))

    def _export(self, recipe: Recipe) -> list[Any]:
        name = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in recipe.name) or "recipe"
        answer = self._tell()
        answer[0] = {
            "download": {"name": f"{name}.json", "text": presets.write(recipe)},
            "number": str(time.time_ns()),
        }
        return answer

    def _presets(self, chosen: str = "", details: str = "") -> str:
        say = self.context.say
        return presets_card(self.context.desk.presets.all(), chosen, say, details)

    def _positions(self, recipe: Recipe) -> int:
        try:
            return count_positions(self.context.desk.models.inspect(recipe.model.source), recipe)
        except StudioError:
            return 0  # the model's own screen says what is wrong with it

    # Answers ----------------------------------------------------------------------------------------------------

    @property
    def _same(self) -> list[Any]:
        """Leave every field as it is."""
        return [gr.skip()] * len(self.form.components)

    def _tell(self, note: Any = None, card: Any = None) -> list[Any]:
        """Answer without a change of the form."""
        return [gr.skip(), gr.skip(), note or gr.skip(), card or gr.skip(), *self._same]

    def _set(self, before: Recipe, made: Recipe, sentence: str, over: Iterable[str] = ()) -> list[Any]:
        """Set what `made` has otherwise than `before`; a field typed by half stays, unless it is one of `over`."""
        last = {one.path: (one.before, one.after) for one in presets.compare(before, made)}
        replaced = {path: read_value(made, path) for path in over if path in self.context.typed()}
        changes = replaced | {path: value for path, (_, value) in last.items()}
        recipe = self.context.edit(changes | {"rewards": made.rewards})
        if not last:
            return self._show(recipe, changes, card=self._presets())
        self._last = last
        return self._show(recipe, changes, note=done_note(sentence, self.context.say), card=self._presets())

    def _show(
        self, recipe: Recipe, changes: Mapping[str, Any], note: Any = None, card: Any = None
    ) -> list[Any]:
        """Answer with the fields of `changes`; what stands in the others may be newer than what the server knows."""
        typed = self.context.typed()
        problems = self.form.read_typed(recipe, typed)[2]
        words = self.context.words
        marks = mark_problems(problems, words) | mark_changes(recipe, words)
        return [
            marks,
            self._plain(recipe),
            note or gr.skip(),
            card or gr.skip(),
            *self.form.show_changes(changes, self.form.components),
        ]

    def _plain(self, recipe: Recipe) -> str:
        scope = self.scope(recipe)
        if self._seen[1] in (None, scope) and self._seen[0].model.source == recipe.model.source:
            self._seen = recipe, scope
        wish = recognise(recipe, scope)
        return plain_card(wish, apply(wish, recipe, scope), self.context.words, self.context.say)

    def scope(self, recipe: Recipe) -> Scope:
        """Return what the plain controls' figures depend on; asked again only for another model, data set or device."""
        seen = self.context.desk.datasets.view()
        parts = (recipe.model.source, recipe.model.revision, recipe.data, recipe.run.device, seen.number)
        if self._scope[0] != (key := repr(parts)):
            try:
                model = self.context.desk.models.inspect(recipe.model.source)
            except StudioError:
                model = None
            machine = self.context.desk.machine.facts()
            self._scope = key, make_scope(recipe, machine, model, self._rows(recipe))
        return self._scope[1]

    def _rows(self, recipe: Recipe) -> int:
        """Return how many examples are learned from, 0 while nobody has counted them."""
        seen = self.context.desk.datasets.view()
        if seen.whole and seen.source == recipe.data.source:
            rows = int(seen.report.get("rows_used") or 0)
        else:
            try:
                rows = look(recipe.data, self.context.workspace.data_cache, recipe.objective).rows_used
            except StudioError:
                rows = 0
        rows = min(rows, recipe.data.max_rows) if recipe.data.max_rows > 0 else rows
        return round(rows * (1 - min(1.0, max(0.0, share_held_out(recipe.data, rows)))))

    # Check ------------------------------------------------------------------------------------------------------

    def examine(self, *values: Any) -> tuple[str, str]:
        """Return all problems of the form as it stands, and what the run would use."""
        return self.examine_and_mark(*values)[:2]

    def examine_and_mark(self, *values: Any) -> tuple[str, str, dict]:
        """Return examine()'s answers and the marks beside the fields."""
        say, words = self.context.say, self.context.words
        try:
            recipe = self.form.read(values, self.context.draft().rewards)
        except RecipeError as error:
            return problems_card(error.problems, say), "", mark_problems(error.problems, words)
        problems = self.context.desk.recipes.check(recipe)
        marks = mark_problems(problems, words)
        if any(problem.severity == "error" for problem in problems):
            return problems_card(problems, say), "", marks
        return problems_card(problems, say), plan_card(self.context.desk.recipes.plan(recipe), (), say), marks
