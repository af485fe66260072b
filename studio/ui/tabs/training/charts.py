"""The live charts: six plots fed by one stream of columns, with what steers them; chart.js has uPlot draw them."""

from __future__ import annotations

from collections.abc import Callable

import gradio as gr

from studio.ui.shell.scripts import read_script
from studio.ui.templates import render

SERIES = ("loss", "learning_rate", "grad_norm", "tokens_per_s", "gpu_memory", "gpu_utilisation")
CARD = ("gpu_utilisation", "gpu_temperature", "gpu_power")
"""What the last chart can show; the first of them is on show at first."""
WINDOWS = ("all", "steps 100", "steps 1000", "minutes 10", "minutes 60")
"""`all`, or the last so many steps or minutes."""
CELLS = ("step", "loss", "eval_loss", "learning_rate", "grad_norm", "tokens_per_s", "gpu_memory")


def make_charts(say: Callable[..., str], elem_id: str, *, fed_by_page: bool = False) -> gr.HTML:
    """Return the component: its value is a payload of studio.ui.metric_columns, its event `replay` asks for all rows.

    `fed_by_page` True: run.js gives it the payloads, and no event of Gradio is needed. `say` turns a text's id
    into words. (A subclass of gr.HTML would be the natural form, but Gradio writes a .pyi file beside the module of
    every subclass when it is imported.)
    """
    words = template(say, "page" if fed_by_page else "value")
    script = read_script("tabs/training/chart.js")
    return gr.HTML({}, html_template=words, js_on_load=script, apply_default_css=False, elem_id=elem_id)


def template(say: Callable[..., str], fed: str = "value") -> str:
    """Return the figures' HTML; it holds no value, so that an update never touches the plots."""

    return render(
        "tabs/training/charts.html", say, fed=fed, series=SERIES, card=CARD, windows=WINDOWS, cells=CELLS
    )
