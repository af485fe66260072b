"""What the page's own script and the window must agree on: the tabs, and what keeps the focus where it is redrawn."""

from __future__ import annotations

import json
import re

import pytest

from studio.core.i18n import load_catalogue, text
from studio.core.run_record import RunRecord
from studio.ui.app import PAGE_SCRIPTS, TABS
from studio.ui.header.strip import chip, machine_strip
from studio.ui.run_state import LiveView
from studio.ui.shell.scripts import read_script
from studio.ui.tabs.training.charts import SERIES, template
from tests.ui.conftest import MACHINE


def say(id: str, **values: object) -> str:
    return load_catalogue("en").say(text(id, **values))


def test_the_script_knows_the_window_s_tabs():
    listed = re.search(r"const TABS = (\[.*?\])", read_script(PAGE_SCRIPTS[0]), re.S)
    assert tuple(json.loads(listed[1])) == TABS


def test_the_charts_do_not_speak():
    """Screen readers say what changes in an <output>: each chart writes its newest value there with every step."""
    figures = re.findall("<output[^>]*>", template(say))
    assert len(figures) == len(SERIES) and all('aria-live="off"' in figure for figure in figures)


def test_what_is_drawn_anew_each_second_names_its_buttons():
    """The focus is given back by this name: without it the keys would start at the top of the page again."""
    record = RunRecord(run="demo", name="demo", state="running", created_s=0)
    drawn = chip(LiveView(), "running", say, record, here=True) + machine_strip(MACHINE, "cpu", None, say)
    buttons = re.findall(r"<button[^>]*>", drawn)
    names = [re.search(r'data-focus="([^"]+)"', button) for button in buttons]
    assert len(buttons) == 3 and all(names)
    assert len({name[1] for name in names}) == 3


@pytest.mark.parametrize(
    ("left_s", "language", "told"),
    [
        (20.0, "en", "under a minute left"),
        (3540.0, "en", "59 min left"),
        (3900.0, "en", "1:05 h left"),
        (20.0, "zh-CN", "还需 不到一分钟"),
        (150.0, "zh-CN", "还需 2 分钟"),
        (3900.0, "zh-CN", "还需 1:05 小时"),
    ],
)
def test_the_header_tells_the_time_left_in_the_window_s_language(left_s, language, told):
    record = RunRecord(run="demo", name="demo", state="running", created_s=0)
    catalogue = load_catalogue(language)
    pace = ((1, 0.0), (2, left_s))  # and one step is left
    drawn = chip(
        LiveView(state="running", phase="train", pace=pace, step=2, total_steps=3),
        "running",
        lambda id, **values: catalogue.say(text(id, **values)),
        record,
    )
    assert told in drawn
