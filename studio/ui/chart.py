"""The live charts: six canvases fed by one stream of columns, with what steers them; assets/chart.js draws them."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path

import gradio as gr

SCRIPT = Path(__file__).resolve().parents[2] / "assets" / "chart.js"
SERIES = ("loss", "learning_rate", "grad_norm", "tokens_per_s", "gpu_memory", "gpu_utilisation")
CARD = ("gpu_utilisation", "gpu_temperature", "gpu_power")
"""What the last chart can show; the first of them is on show at first."""
WINDOWS = ("all", "steps 100", "steps 1000", "minutes 10", "minutes 60")
"""`all`, or the last so many steps or minutes."""
CELLS = ("step", "loss", "eval_loss", "learning_rate", "grad_norm", "tokens_per_s", "gpu_memory")


def make_charts(say: Callable[..., str], elem_id: str, *, fed_by_page: bool = False) -> gr.HTML:
    """Return the component: its value is a payload of studio.ui.metric_columns, its event `replay` asks for all rows.

    `fed_by_page` True: assets/run.js gives it the payloads, and no event of Gradio is needed. `say` turns a text's id
    into words. (A subclass of gr.HTML would be the natural form, but Gradio writes a .pyi file beside the module of
    every subclass when it is imported.)
    """
    words = template(say, "page" if fed_by_page else "value")
    script = SCRIPT.read_text(encoding="utf-8")
    return gr.HTML({}, html_template=words, js_on_load=script, apply_default_css=False, elem_id=elem_id)


def template(say: Callable[..., str], fed: str = "value") -> str:
    """Return the figures' HTML; it holds no value, so that an update never touches the canvases."""

    def words(id: str, **values: object) -> str:
        return html.escape(say(id, **values))

    figures = []
    for name in SERIES:
        title = words(f"ui.chart.{name}")
        caption = f"<span>{title}</span>"
        if name == CARD[0]:
            choices = "".join(f'<option value="{one}">{words(f"ui.chart.{one}")}</option>' for one in CARD)
            caption = f'<select aria-label="{words("ui.chart.card")}">{choices}</select>'
        empty = words(f"ui.chart.empty.{'gpu' if name.startswith('gpu') else 'run'}")
        # An <output> is a live region by itself: this one changes with every step, six times over.
        figures.append(
            f'<figure class="chart" data-series="{name}" data-empty="{empty}"><figcaption>{caption}'
            f'<output aria-live="off"></output></figcaption><canvas role="img" aria-label="{title}"></canvas></figure>'
        )
    windows = []
    for one in WINDOWS:
        what, _, amount = one.partition(" ")
        windows.append(f'<option value="{one}">{words(f"ui.chart.window.{what}", count=amount)}</option>')
    tools = (
        f'<label class="smooth"><span>{words("ui.chart.smooth")}</span>'
        '<input type="range" name="smooth" min="0" max="99" step="1"></label>'
        f'<label><input type="checkbox" name="log"><span>{words("ui.chart.log")}</span></label>'
        f'<label><span>{words("ui.chart.window")}</span><select name="window">{"".join(windows)}</select></label>'
    )
    heads = "".join(f'<th scope="col">{words(f"ui.chart.cell.{name}")}</th>' for name in CELLS)
    table = (
        f'<details class="chart-table"><summary>{words("ui.chart.table")}</summary><div class="scrolls" tabindex="0" '
        f'role="region" aria-label="{words("ui.chart.table")}"><table><thead><tr>{heads}</tr></thead>'
        "<tbody></tbody></table></div></details>"
    )
    spoken = " ".join(f'data-{name}="{words(f"ui.chart.{name}")}"' for name in ("step", "train", "eval"))
    return (
        f'<div class="chart-tools" role="group" aria-label="{words("ui.chart.tools")}">{tools}</div>'
        f'<div class="charts" data-fed="{fed}" {spoken}>{"".join(figures)}</div>{table}'
    )
