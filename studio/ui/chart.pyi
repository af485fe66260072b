"""The live charts: six canvases fed by one stream of rows; assets/chart.js draws them."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path

import gradio as gr

SCRIPT = Path(__file__).resolve().parents[2] / "assets" / "chart.js"
SERIES = ("loss", "learning_rate", "grad_norm", "tokens_per_s", "gpu_memory", "gpu_utilisation")

from gradio.events import Dependency

class Charts(gr.HTML):
    """Shows payloads of studio.ui.live.payload; asks for all rows anew through its event `replay`."""

    def __init__(self, value: dict | None = None, *, say: Callable[[str], str] = str, **options: object) -> None:
        """`say` turns a text's id into words; the other options are gr.HTML's."""
        self.say = say
        options = {
            "html_template": template(say),
            "js_on_load": SCRIPT.read_text(encoding="utf-8"),
            "apply_default_css": False,
        } | options
        super().__init__(value or {}, **options)

    def get_config(self) -> dict:
        """Return the component's properties for the page, without the function that made its words."""
        config = super().get_config()
        config.pop("say", None)
        return config
    from typing import Callable, Literal, Sequence, Any, TYPE_CHECKING
    from gradio.blocks import Block
    if TYPE_CHECKING:
        from gradio.components import Timer
        from gradio.components.base import Component


def template(say: Callable[[str], str]) -> str:
    """Return the figures' HTML; it holds no value, so that an update never touches the canvases."""
    figures = []
    for name in SERIES:
        title = html.escape(say(f"ui.chart.{name}"))
        words = {"empty": f"ui.chart.empty.{'gpu' if name.startswith('gpu') else 'run'}", "step": "ui.chart.step"}
        words |= {"train": "ui.chart.train", "eval": "ui.chart.eval"}
        data = " ".join(f'data-{key}="{html.escape(say(id))}"' for key, id in words.items())
        figures.append(
            f'<figure class="chart" data-series="{name}" {data}><figcaption><span>{title}</span>'
            f'<output></output></figcaption><canvas role="img" aria-label="{title}"></canvas></figure>'
        )
    return f'<div class="charts">{"".join(figures)}</div>'