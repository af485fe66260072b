"""The live charts: six canvases fed by one stream of rows; assets/chart.js draws them."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path

import gradio as gr

SCRIPT = Path(__file__).resolve().parents[2] / "assets" / "chart.js"
SERIES = ("loss", "learning_rate", "grad_norm", "tokens_per_s", "gpu_memory", "gpu_utilisation")


def make_charts(say: Callable[[str], str], elem_id: str) -> gr.HTML:
    """Return the component: its value is a payload of studio.ui.live.payload, its event `replay` asks for all rows.

    `say` turns a text's id into words. (A subclass of gr.HTML would be the natural form, but Gradio writes a .pyi file
    beside the module of every subclass when it is imported.)
    """
    script = SCRIPT.read_text(encoding="utf-8")
    return gr.HTML(
        {}, html_template=template(say), js_on_load=script, apply_default_css=False, elem_id=elem_id
    )


def template(say: Callable[[str], str]) -> str:
    """Return the figures' HTML; it holds no value, so that an update never touches the canvases."""
    figures = []
    for name in SERIES:
        title = html.escape(say(f"ui.chart.{name}"))
        words = {
            "empty": f"ui.chart.empty.{'gpu' if name.startswith('gpu') else 'run'}",
            "step": "ui.chart.step",
        }
        words |= {"train": "ui.chart.train", "eval": "ui.chart.eval"}
        data = " ".join(f'data-{key}="{html.escape(say(id))}"' for key, id in words.items())
        figures.append(
            f'<figure class="chart" data-series="{name}" {data}><figcaption><span>{title}</span>'
            f'<output></output></figcaption><canvas role="img" aria-label="{title}"></canvas></figure>'
        )
    return f'<div class="charts">{"".join(figures)}</div>'
