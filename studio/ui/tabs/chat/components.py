"""The components of the Chat screen: whom to talk to, how answers are drawn, the two talks, the box for questions."""

from __future__ import annotations

import gradio as gr

from studio.ui.context import Context
from studio.ui.shell.html_events import make_escape, make_voice
from studio.ui.tabs.chat.cards import talk_card
from studio.ui.templates import render

PRESETS: dict[str, tuple[float, float, int, float]] = {
    "exact": (0.0, 1.0, 0, 1.0),
    "balanced": (0.7, 0.9, 0, 1.0),
    "creative": (1.1, 0.95, 0, 1.1),
}
"""Temperature, top-p, top-k and repetition penalty; `exact` always takes the likeliest token."""
OWN = "own"
SIDES = ("both", "tuned", "base")
UNTIL_ENTERED = (
    "async () => { for (let left = 300; !window.studio.entered && left; left -= 1)"
    " await new Promise((go) => setTimeout(go, 100)); }"
)
"""Who asks before the pickers are filled waits for that, 30 s at most: else no run, or the one before, would answer."""


class ChatParts:
    """Components alone; what they do is ChatTab's."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def make_picker(self) -> None:
        """The run, its checkpoint, which sides answer, and what is in memory."""
        say = self.context.say
        with gr.Row(elem_id="chat-who"):
            self.run = gr.Dropdown(
                choices=[], label=say("ui.chat.run"), elem_id="chat-run", filterable=False, interactive=True,
                scale=5, min_width=220,
            )  # fmt: skip
            self.place = gr.Dropdown(
                choices=[], label=say("ui.chat.place"), elem_id="chat-checkpoint", filterable=False,
                interactive=True, scale=3, min_width=180,
            )  # fmt: skip
            self.sides = gr.Radio(
                choices=[(say(f"ui.chat.sides.{side}"), side) for side in SIDES], value="both",
                label=say("ui.chat.sides"), elem_id="chat-sides", scale=4, min_width=280,
            )  # fmt: skip
        self.state = gr.HTML("", elem_id="chat-state")
        self.voice = make_voice("#tab-chat", "chat-said")
        self.takeaway = make_escape("#tab-chat", "chat-takeaway")
        self.told = gr.HTML(render("tabs/chat/said.html", words=""), elem_id="chat-told")
        self.wanted = gr.Textbox(visible=False)
        """The run that the page's address names."""
        self.file = gr.Textbox(visible=False)
        """What the page is to save: JSON {name, text}."""

    def make_settings(self) -> None:
        """How answers are drawn, and the system prompt."""
        say = self.context.say
        with gr.Column(elem_classes=["sheet"], elem_id="chat-settings"):
            self.preset = gr.Radio(
                choices=[(say(f"ui.chat.preset.{name}"), name) for name in (*PRESETS, OWN)], value="exact",
                label=say("ui.chat.preset"), info=say("ui.chat.preset.help"), elem_id="chat-preset",
            )  # fmt: skip
            with gr.Row():
                self.temperature = self._slider("temperature", 0, 2, 0.05, 0.0)
                self.top_p = self._slider("top_p", 0.05, 1, 0.05, 1.0)
                self.penalty = self._slider("penalty", 1, 2, 0.05, 1.0)
            with gr.Row():
                self.top_k = self._number("top_k", 0, 0, 1000)
                self.tokens = self._number("max_new_tokens", 256, 1, 32768)
                self.seed = self._number("seed", 0, 0, 2**31 - 1)
            self.system = gr.Textbox(
                label=say("ui.chat.system"), info=say("ui.chat.system.help"), elem_id="chat-system", lines=2,
                max_lines=8,
            )  # fmt: skip

    def _slider(self, name: str, low: float, high: float, step: float, value: float) -> gr.Slider:
        say, elem_id = self.context.say, f"chat-{name.replace('_', '-')}"
        return gr.Slider(
            low, high, value, step=step, label=say(f"ui.chat.{name}"), info=say(f"ui.chat.{name}.help"),
            elem_id=elem_id, buttons=[],
        )  # fmt: skip

    def _number(self, name: str, value: int, low: int, high: int) -> gr.Number:
        say, elem_id = self.context.say, f"chat-{name.replace('_', '-')}"
        return gr.Number(
            value, minimum=low, maximum=high, precision=0, label=say(f"ui.chat.{name}"),
            info=say(f"ui.chat.{name}.help"), elem_id=elem_id,
        )  # fmt: skip

    def make_talk(self) -> None:
        """Both talks, the box for questions, and what can be done with a talk."""
        say = self.context.say
        with gr.Row(equal_height=True, elem_id="chat-talks"):
            self.base = gr.HTML(self._empty("base"), elem_id="chat-base")
            self.tuned = gr.HTML(self._empty("tuned"), elem_id="chat-tuned")
        with gr.Row(elem_classes=["toolbar"], elem_id="chat-ask"):
            self.input = gr.Textbox(
                placeholder=say("ui.chat.placeholder"), label=say("ui.chat.question"), show_label=False,
                elem_id="chat-input", scale=8, lines=1, max_lines=8, container=False,
            )  # fmt: skip
            self.send = gr.Button(
                say("ui.chat.send"), elem_id="chat-send", variant="primary", scale=0, min_width=110
            )
            self.stop = gr.Button(
                say("ui.chat.stop"),
                elem_id="chat-stop",
                variant="stop",
                scale=0,
                min_width=110,
                interactive=False,
            )
        small = {"size": "sm", "scale": 0, "min_width": 60}
        with gr.Row(elem_id="chat-tools"):
            self.again = gr.Button(say("ui.chat.again"), elem_id="chat-again", **small)
            self.edit = gr.Button(say("ui.chat.edit"), elem_id="chat-edit", **small)
            self.clear = gr.Button(say("ui.chat.clear"), elem_id="chat-clear", **small)
            self.save = gr.Button(say("ui.chat.save"), elem_id="chat-save", **small)

    def _empty(self, side: str) -> str:
        say = self.context.say
        return talk_card(say(f"ui.chat.{side}"), [], say, empty=say(f"ui.chat.{side}.empty"))

    @property
    def sampling(self) -> list[gr.components.Component]:
        """What draw() reads, in its order."""
        return [self.tokens, self.temperature, self.top_p, self.top_k, self.penalty, self.seed]


def draw(
    tokens: float | None,
    temperature: float | None,
    top_p: float | None,
    top_k: float | None,
    penalty: float | None,
    seed: float | None,
) -> dict[str, float]:
    """Return the settings as engine.chat.Sampling has them, within their bounds; an empty field means the usual."""
    return {
        "max_new_tokens": int(_within(tokens, 256, 1, 32768)),
        "temperature": _within(temperature, 0.0, 0, 2),
        "top_p": _within(top_p, 1.0, 0.05, 1),
        "top_k": int(_within(top_k, 0, 0, 1000)),
        "repetition_penalty": _within(penalty, 1.0, 1, 2),
        "seed": int(_within(seed, 0, 0, 2**31 - 1)),
    }


def _within(value: float | None, usual: float, low: float, high: float) -> float:
    if not isinstance(value, (int, float)) or value != value:
        return usual
    return min(high, max(low, value))
