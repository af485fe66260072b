"""The Chat tab: the same question to the model before and after training, side by side, and files of questions."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.services.chat_service import say_place
from studio.ui.cards import heading, run_label
from studio.ui.context import Context
from studio.ui.quantities import size_words
from studio.ui.shell.html_events import read_said
from studio.ui.tabs.chat.cards import said_words, state_card, talk_card
from studio.ui.tabs.chat.components import OWN, PRESETS, UNTIL_ENTERED, ChatParts, draw
from studio.ui.tabs.chat.evaluate import EvaluateView
from studio.ui.tabs.chat.programs import ProgramAddress

BOTH = ("base", "tuned")
NOTHING = [gr.skip()] * 8
"""A handler that yields nothing at all would empty what it could have changed."""
EXAMPLES, LONGEST_EXAMPLE = 3, 160
SHOW_EVERY_S = 0.1
"""A growing answer is sent to the page at most so often."""
RUN_OF_ADDRESS = (
    "(run, place, talk) => { const one = window.studio.takeRun(); window.studio.entered = false;"
    " return [run, place, talk, one ? `!${one}` : new URLSearchParams(location.search).get('run') || '']; }"
)
"""The run for which a card elsewhere sent the person here, marked by !, else that of the page's address. Not by way of
the picker, which takes no run that it does not offer yet."""
ENTERED = "() => { window.studio.entered = true; }"


class ChatTab(ChatParts):
    """Handlers. Each page has its own talk; the last one with each run is kept for the next page."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        say = context.say
        self._stops: dict[str, threading.Event] = {}
        with gr.Column(elem_classes=["sheet"], elem_id="chat-head"):
            gr.HTML(heading(say("ui.chat.title"), say("ui.chat.lead")))
            self.make_picker()
        with gr.Tabs(elem_id="chat-views"):
            with gr.Tab(say("ui.chat.tab.talk"), id="talk", elem_id="chat-tab-talk"):
                self.make_talk()
            with gr.Tab(say("ui.chat.settings"), id="settings", elem_id="chat-tab-settings"):
                self.make_settings()
            with gr.Tab(say("ui.chat.tab.test"), id="test", elem_id="chat-tab-test"):
                self.questions = EvaluateView(context)
            with gr.Tab(
                say("ui.chat.tab.programs"), id="programs", elem_id="chat-tab-programs"
            ) as self.programs_tab:
                self.programs = ProgramAddress(context)

    def bind(self, tab: gr.Tab) -> None:
        """Bind every handler; opening the tab looks for runs, and shows the last talk."""
        on = self.context.on
        # States of a tab's hidden content are made when it is first shown: too late for the first handler.
        self.talk = gr.State({"key": "", "run": None, "base": [], "tuned": []})
        shown = [self.base, self.tuned, self.talk]
        who = [self.run, self.place, self.sides]
        entered = on(
            tab.select,
            self.enter,
            [self.run, self.place, self.talk, self.wanted],
            [self.run, self.place, *shown, self.system, self.state],
            js=RUN_OF_ADDRESS,
        )
        entered.then(None, js=ENTERED)
        on(self.run.input, self.pick_run, [self.run], [self.place, *shown, self.system, self.state])
        on(self.place.input, self.show_state, [self.run, self.place], [self.state])
        answers = [self.input, *shown, self.told, self.state, self.send, self.stop]
        asked = [*who, self.talk, self.system, *self.sampling]
        for event in (self.send.click, self.input.submit):
            on(
                on(event(None, js=UNTIL_ENTERED).then, self.ask, [self.input, *asked], answers).then,
                self.settle,
                [],
                [self.send, self.stop],
            )
        again = on(self.again.click, self.ask_again, [self.input, *asked], answers)
        on(again.then, self.settle, [], [self.send, self.stop])
        on(self.stop.click, self.end, [self.talk])
        on(self.edit.click, self.edit_last, [self.input, self.talk], [self.input, *shown])
        on(self.clear.click, self.forget, [self.run, self.talk], shown)
        saved = on(self.save.click, self.write_talk, [self.talk, self.system], [self.file])
        saved.then(None, [self.file], js="(file) => { if (file) window.studio.save(JSON.parse(file)); }")
        on(
            self.preset.input,
            self.set_preset,
            [self.preset],
            [self.temperature, self.top_p, self.top_k, self.penalty],
        )
        for part in (self.temperature, self.top_p, self.top_k, self.penalty):
            on(part.input, lambda: OWN, [], [self.preset])
        on(
            self.voice.said,
            self.hear,
            [self.voice, self.run, self.place],
            [self.state, self.input],
            trigger_mode="multiple",
        )
        self.questions.bind(tab, [self.run, self.place, self.system], self.voice, self.file)
        self.programs.bind(self.programs_tab, self.run, self.place, self.voice)

    # Whom to talk to ----------------------------------------------------------------------------------------

    def enter(self, run: str | None, place: str | None, talk: dict, wanted: str) -> list[Any]:
        """Return the pickers, the talk and the state of a page that opens this tab.

        The run of the page's address goes first (one marked by ! always), then the one chosen before, then the newest
        with a result.
        """
        choices = self._list_runs()
        known = [value for _, value in choices]
        sent, wanted = wanted.startswith("!"), wanted.removeprefix("!")
        first = wanted if wanted and wanted in known and (sent or talk["run"] is None) else run
        chosen = first if first in known else known[0]
        picker = gr.update(choices=choices, value=chosen)
        if talk["run"] == chosen:  # the page has its talk already
            places, kept = self._list_places(chosen, place)
            return [picker, places, *([gr.skip()] * 4), self._state(chosen, kept)]
        return [picker, *self.pick_run(chosen)]

    def pick_run(self, run: str) -> list[Any]:
        """Return the checkpoints, the last talk and the state of a run that was chosen."""
        places, place = self._list_places(run, None)
        kept = self.context.desk.chat.files.read(run)
        talk = {"key": secrets.token_hex(8), "run": run, "base": kept["base"], "tuned": kept["tuned"]}
        return [places, *self._cards(talk), kept["system"], self._state(run, place)]

    def _list_runs(self) -> list[tuple[str, str]]:
        """Return the runs that can answer, those with a result first, and the form's base model."""
        desk, say = self.context.desk, self.context.say
        found = desk.chat.choices(desk.runs.list())
        found = sorted(found, key=lambda choice: choice.record.state != "finished")
        names = [(run_label(choice.record, say), choice.record.run) for choice in found]
        source = self.context.draft().model.source
        return [*names, (say("ui.chat.base_alone", name=source), "")]

    def _list_places(self, run: str, chosen: str | None) -> tuple[dict, str]:
        """Return the picker of the run's places and the one that is chosen; those that cannot answer say why."""
        if not run:
            return gr.update(
                choices=[(self.context.say("ui.chat.as_it_came"), "")], value="", interactive=False
            ), ""
        desk, say = self.context.desk, self.context.say
        found = [one for one in desk.chat.choices([desk.runs.read(run)]) for one in one.places]
        names = []
        for place in found:
            label = say(say_place(place.name, place.step))
            if place.problem is not None:
                label = say("ui.chat.place.broken", place=label, reason=say(place.problem))
            names.append((label, place.name))
        usable = [place.name for place in found if place.problem is None]
        value = chosen if chosen in usable else (usable[0] if usable else None)
        return gr.update(choices=names, value=value, interactive=True), value or ""

    def show_state(self, run: str, place: str) -> str:
        """Return the card of what is in memory, or why an answer must wait."""
        return self._state(run or "", place or "")

    def _state(self, run: str, place: str) -> str:
        desk, say = self.context.desk, self.context.say
        state, loaded = desk.chat.state(), desk.chat.loaded()
        active = desk.runs.active
        left_s = self.context.view(active).left_s if active and not state.ok else None
        name, named = loaded.name if loaded else "", say("ui.chat.as_it_came")
        if loaded is not None and loaded.run:
            record = desk.runs.read(loaded.run)
            step = int(loaded.checkpoint.rpartition("-")[2]) if loaded.checkpoint else record.steps
            name, named = record.name, say(say_place(loaded.checkpoint, step))
        return state_card(
            run=run,
            loaded=loaded,
            waits="" if state.ok else say(state.reason),
            left_s=left_s,
            name=name,
            place=named,
            say=say,
            training=state.reason is not None and state.reason.id == "chat.waits",
        )

    def hear(self, said: object, run: str, place: str) -> list[Any]:
        """Do what a button in a card says, and return the state and the question."""
        do, value, _ = read_said(said)
        if do == "example":
            return [gr.skip(), value]
        if do == "unload":
            self.context.address.off()  # its next question would load the model again
            freed_bytes = self.context.desk.chat.unload()
            gr.Info(self.context.say("ui.chat.freed", size=size_words(freed_bytes)), duration=4)
        return [self.show_state(run, place), gr.skip()]

    # Answers ------------------------------------------------------------------------------------------------

    def ask(
        self, question: str, run: str, place: str, sides: str, talk: dict, system: str, *sampling: float
    ) -> Iterator[list[Any]]:
        """Yield the talks as the answers grow, the base model's first: one accelerator, one answer."""
        if run is None:
            raise StudioError(text("ui.chat.no_run"), text("ui.chat.no_run.why"), text("ui.chat.no_run.fix"))
        words = (question or "").strip().encode("utf-8", "replace").decode("utf-8")
        if not words:
            yield NOTHING
            return
        chosen = ("base",) if not run else BOTH if sides == "both" else (sides,)
        before = {**talk, "key": secrets.token_hex(8), "run": run}
        asked = before | {side: [*talk[side], {"role": "user", "content": words}] for side in chosen}
        yield from self._answer(before, asked, chosen, words, place, system, draw(*sampling))

    def ask_again(
        self, question: str, run: str, place: str, sides: str, talk: dict, system: str, *sampling: float
    ) -> Iterator[list[Any]]:
        """Ask the last question once more, with the next seed where chance has a part."""
        wished = ("base",) if not run else BOTH if sides == "both" else (sides,)
        chosen = tuple(side for side in wished if talk[side])
        if run is None or not chosen:
            yield NOTHING
            return
        drawn = draw(*sampling)
        if drawn["temperature"] > 0:
            last = [turn["seed"] for side in chosen for turn in talk[side][-1:] if "seed" in turn]
            drawn["seed"] = int(max(last, default=drawn["seed"] - 1)) + 1
        before = {**talk, "key": secrets.token_hex(8), "run": run}
        asked = before | {side: _without_answer(talk[side]) for side in chosen}
        yield from self._answer(before, asked, chosen, question, place, system, drawn)

    def _answer(
        self,
        before: dict,
        asked: dict,
        sides: Sequence[str],
        question: str,
        place: str,
        system: str,
        drawn: Mapping[str, float],
    ) -> Iterator[list[Any]]:
        stop = self._stops[asked["key"]] = threading.Event()
        shown = dict(asked)
        busy, free = gr.update(interactive=False), gr.update(interactive=True)
        still = [gr.skip(), gr.skip()]
        try:
            for side in sides:
                shown[side] = [*asked[side], {"role": "assistant", "content": ""}]
                waits = self._state(asked["run"], place)  # an export may be on: the page says so meanwhile
                yield ["", *self._cards(shown, side), gr.skip(), waits, busy, free]
                for turn in self._grow(asked[side], side, asked["run"], place, system, drawn, stop):
                    shown[side] = [*asked[side], turn]
                    yield [gr.skip(), *self._cards(shown, side), *still, busy, free]
                if stop.is_set():
                    break
            for side in sides:  # one that was not reached keeps its question for the next time
                if shown[side] == asked[side]:
                    shown[side] = before[side]
        except StudioError:
            shown = before  # and the question goes back into its box: nothing typed is lost
            yield [question, *self._cards(before), *still, free, busy]
            raise
        finally:
            self._stops.pop(asked["key"], None)
            self._keep(shown, system)
        told = said_words(shown, sides, self.context.say)
        yield [gr.skip(), *self._cards(shown), told, self._state(asked["run"], place), free, busy]

    def _grow(
        self,
        messages: Sequence[Mapping[str, Any]],
        side: str,
        run: str,
        place: str,
        system: str,
        drawn: Mapping[str, float],
        stop: threading.Event,
    ) -> Iterator[dict[str, Any]]:
        """Yield the answer's turn as it grows, the whole one last."""
        answers = self.context.desk.chat.answer(
            [{"role": turn["role"], "content": turn["content"]} for turn in messages],
            run=run,
            checkpoint=place or "",
            recipe=None if run else self.context.draft(),
            side=side,
            system=system or "",
            should_stop=stop.is_set,
            **drawn,
        )
        answer, told_s = None, 0.0
        for answer in answers:
            if time.monotonic() - told_s >= SHOW_EVERY_S:
                told_s = time.monotonic()
                yield {"role": "assistant", "content": answer.words}
        whole: dict[str, Any] = {"role": "assistant", "content": answer.words if answer else ""}
        if answer is not None:
            whole |= {
                "tokens": answer.tokens,
                "first_s": answer.first_s,
                "tokens_per_s": answer.tokens_per_s,
            }
            if answer.unfinished:
                whole["unfinished"] = True
        if drawn["temperature"] > 0:
            whole["seed"] = drawn["seed"]
        if stop.is_set():
            whole["stopped"] = True
        yield whole

    def settle(self) -> list[Any]:
        """Return the buttons as they are between two questions, however the last one ended."""
        return [gr.update(interactive=True), gr.update(interactive=False)]

    def end(self, talk: dict) -> None:
        """Ask the answer that this page waits for to end."""
        stop = self._stops.get(talk["key"])
        if stop is not None:
            stop.set()

    # The talk -----------------------------------------------------------------------------------------------

    def edit_last(self, question: str, talk: dict) -> list[Any]:
        """Return the last question in its box again, and the talks without it."""
        last = next(
            (turn["content"] for side in BOTH for turn in reversed(talk[side]) if turn["role"] == "user"),
            None,
        )
        if last is None:
            return [gr.skip()] * 4
        shorter = {side: _without_answer(talk[side])[:-1] for side in BOTH}
        return [last, *self._cards({**talk, **shorter})]

    def forget(self, run: str, talk: dict) -> list[Any]:
        """Return both talks empty; the kept one goes, too."""
        empty = {**talk, "run": run, "base": [], "tuned": []}
        self._keep(empty, "")
        return self._cards(empty)

    def write_talk(self, talk: dict, system: str) -> str:
        """Return both talks as a file to save: one line of {"messages": [...]} for each, as data sets have it."""
        front = [{"role": "system", "content": system.strip()}] if (system or "").strip() else []
        lines = [
            {
                "messages": [
                    *front,
                    *({"role": turn["role"], "content": turn["content"]} for turn in talk[side]),
                ]
            }
            for side in BOTH
            if talk[side]
        ]
        if not lines:
            raise StudioError(
                text("ui.chat.no_talk"), text("ui.chat.no_talk.why"), text("ui.chat.no_talk.fix")
            )
        written = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        return json.dumps({"name": f"talk-{talk['run'] or 'base'}.jsonl", "text": written})

    def set_preset(self, preset: str) -> list[Any]:
        """Return what a preset sets; one's own leaves all as it is."""
        return list(PRESETS[preset]) if preset in PRESETS else [gr.skip()] * 4

    def _keep(self, talk: dict, system: str) -> None:
        if talk["run"] is not None:
            self.context.desk.chat.files.keep(talk["run"], {**talk, "system": system or ""})

    def _cards(self, talk: dict, growing: str = "") -> list[Any]:
        say = self.context.say
        cards = [
            talk_card(
                say(f"ui.chat.{side}"),
                talk[side],
                say,
                empty=say(f"ui.chat.{side}.empty"),
                growing=side == growing,
                examples=self._find_examples(talk) if side == "tuned" else (),
            )
            for side in BOTH
        ]
        return [*cards, talk]

    def _find_examples(self, talk: dict) -> list[str]:
        """Return questions that the run's sample answers answer: what it was made for, in its own form."""
        if not talk["run"] or talk["tuned"]:
            return []
        samples = self.context.view(talk["run"]).samples
        short = (
            one.prompt for one in samples if "\n" not in one.prompt and len(one.prompt) <= LONGEST_EXAMPLE
        )
        return list(dict.fromkeys(short))[:EXAMPLES]


def _without_answer(turns: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list(turns[:-1] if turns and turns[-1]["role"] == "assistant" else turns)
