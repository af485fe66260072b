"""What the page's own script and the window must agree on: the tabs, and what keeps the focus where it is redrawn."""

from __future__ import annotations

import json
import re

from studio.core.text import load_catalogue, text
from studio.ui.app import PAGE_SCRIPTS, TABS
from studio.ui.frame import chip, machine_strip
from studio.ui.live import LiveView
from tests.ui.conftest import MACHINE


def say(id: str, **values: object) -> str:
    return load_catalogue("en").say(text(id, **values))


def test_the_script_knows_the_window_s_tabs():
    listed = re.search(r"const TABS = (\[.*?\])", PAGE_SCRIPTS[0].read_text(encoding="utf-8"), re.S)
    assert tuple(json.loads(listed[1])) == TABS


def test_what_is_drawn_anew_each_second_names_its_buttons():
    """voice.js gives the focus back by this name: without it the keys would start at the top of the page again."""
    drawn = chip(LiveView(), "running", say, "demo") + machine_strip(MACHINE, "cpu", None, say)
    buttons = re.findall(r"<button[^>]*>", drawn)
    names = [re.search(r'data-focus="([^"]+)"', button) for button in buttons]
    assert len(buttons) == 3 and all(names)
    assert len({name[1] for name in names}) == 3
