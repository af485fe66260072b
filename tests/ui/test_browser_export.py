"""Export by mouse: a form with its size, loss and check is stopped, begun again, and what checked it is told."""

from __future__ import annotations

import pytest

from tests.ui.browser import show_tab
from tests.ui.test_browser_chat import run  # noqa: F401

pytestmark = pytest.mark.slow

SAYS = {
    "en": ("Expected loss of quality", "Will be checked by", "Size on disk", "llama.cpp"),
    "zh-CN": ("预计质量损失", "检查方式", "磁盘占用", "llama.cpp"),
}


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_a_file_is_stopped_begun_again_and_checked(start_studio, run, language):  # noqa: F811
    window = start_studio(language)
    page = window.open(language)
    show_tab(page, "export")
    page.wait_for_selector("#export-start-ollama:not(:disabled)")
    shown = page.inner_text("#export-place-computer")
    assert all(words in shown for words in SAYS[language])
    page.click("#export-start-ollama")
    page.click("#export-result [data-do=stop]")
    page.wait_for_selector("#export-start-ollama:not(:disabled)")
    page.wait_for_function("!document.querySelector('#export-result [data-do=stop]')")
    assert not list(window.workspace.exports.glob("*-ollama")), "nothing half-written stays"
    page.click("#export-place-computer summary")
    page.click("#export-start-gguf_q8_0")
    page.wait_for_selector(f"#export-result [data-name='{run}-gguf_q8_0']", timeout=120_000)
    card = (window.workspace.exports / f"{run}-gguf_q8_0" / "README.md").read_text(encoding="utf-8")
    assert "nats a token" in card and "README.md" in page.inner_text("#export-result")
    assert window.complaints == []
