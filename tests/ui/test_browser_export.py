"""Export by mouse: a form with its size, loss and check is stopped, gone on with, and what checked it is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from studio.engine.exporters.kept_parts import KeptParts
from studio.services.export_folder import staging_of
from tests.hub.hub_server import TOKEN, open_hub
from tests.ui.browser import show_tab, wait_for
from tests.ui.test_browser_chat import run  # noqa: F401

pytestmark = pytest.mark.slow

SAYS = {
    "en": ("Expected loss of quality", "Will be checked by", "Size on disk", "llama.cpp"),
    "zh-CN": ("预计质量损失", "检查方式", "磁盘占用", "llama.cpp"),
}


def keep_picture(page, name: str) -> None:
    """Keep what the page shows, where $PICTURES names a folder."""
    if folder := os.environ.get("PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_a_file_is_stopped_gone_on_with_and_checked(start_studio, run, language):  # noqa: F811
    window = start_studio(language)
    page = window.open(language)
    show_tab(page, "export")
    page.wait_for_selector("#export-start-ollama:not(:disabled)")
    shown = page.inner_text("#export-place-computer")
    assert all(words in shown for words in SAYS[language])
    page.click("#export-start-ollama")
    final = window.workspace.exports / f"{run}-ollama"
    wait_for(lambda: KeptParts(staging_of(final)).list_files(), 120)
    page.click("#export-result [data-do=stop]")
    page.wait_for_selector("#export-items [data-do=go_on]")
    assert not final.exists(), "nothing half-written is offered"
    keep_picture(page, f"export-stopped-{language}")
    page.reload()
    show_tab(page, "export")
    page.click("#export-items [data-do=go_on]")
    page.wait_for_selector(f"#export-result [data-name='{run}-ollama']", timeout=120_000)
    assert "nats a token" in (final / "README.md").read_text(encoding="utf-8")
    assert not page.query_selector("#export-items [data-do=go_on]")
    keep_picture(page, f"export-done-{language}")
    page.click("#export-place-computer summary")
    page.click("#export-start-gguf_q8_0")
    page.wait_for_selector(f"#export-result [data-name='{run}-gguf_q8_0']", timeout=120_000)
    card = (window.workspace.exports / f"{run}-gguf_q8_0" / "README.md").read_text(encoding="utf-8")
    assert "nats a token" in card and "README.md" in page.inner_text("#export-result")
    assert window.complaints == []


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_a_size_is_picked_on_the_measured_curve(start_studio, run, language):  # noqa: F811
    window = start_studio(language)
    page = window.open(language)
    show_tab(page, "export")
    page.wait_for_selector("#export-start-ollama:not(:disabled)")
    page.click("#export-place-computer summary")
    page.click("#export-measure")
    page.wait_for_selector("#export-fit", timeout=240_000)
    dots = page.query_selector_all(".size-curve .dot")
    size_bytes = int(dots[2].get_attribute("data-value"))
    dots[2].click()
    page.wait_for_selector(f".size-curve .dot.on[data-value='{size_bytes}']")
    keep_picture(page, f"curve-{language}")
    page.click("#export-fit")
    page.wait_for_selector(f"#export-result [data-name='{run}-gguf_fit']", timeout=240_000)
    (file,) = (window.workspace.exports / f"{run}-gguf_fit").glob("*.gguf")
    assert 0 <= size_bytes - file.stat().st_size < 0.01 * size_bytes
    assert window.complaints == []


HUB = {
    "en": ("Private: only you", "Nothing was sent yet", "Stopped.", "in the account me"),
    "zh-CN": ("私有：仅您自己", "尚未发送", "已停止", "账户 me"),
}


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_a_result_is_shown_sent_stopped_and_gone_on_with(start_studio, run, language, monkeypatch):  # noqa: F811
    hub = open_hub(monkeypatch)
    private, shown, stopped, sent = HUB[language]
    try:
        window = start_studio(language)
        page = window.open(language)
        show_tab(page, "export")
        page.wait_for_selector("#hub-look:not(:disabled)")
        assert page.eval_on_selector("#hub-who", "one => one.selectedOptions[0].text") == private
        keep_picture(page, f"hub-form-{language}")
        page.fill("#hub-repo", "my-orders")
        page.fill("#hub-licence", "apache-2.0")
        page.click("#hub-look")
        page.wait_for_selector("#hub-send:not(:disabled)", timeout=120_000)
        words = page.inner_text("#export-hub")
        assert shown in words and "adapter_model.safetensors" in words and "README.md" in words
        assert not hub.sent and TOKEN not in page.content()
        page.click("#export-hub summary")
        assert "license: apache-2.0" in page.inner_text("#export-hub pre")
        keep_picture(page, f"hub-shown-{language}")
        hub.wait_s = 120.0
        page.click("#hub-send")
        page.wait_for_selector("#hub-stop")
        wait_for(lambda: hub.waiting, 60)
        keep_picture(page, f"hub-sending-{language}")
        page.click("#hub-stop")
        page.wait_for_selector("#hub-again")
        assert stopped in page.inner_text("#export-hub")
        keep_picture(page, f"hub-stopped-{language}")
        hub.wait_s = 0.0
        page.reload()
        show_tab(page, "export")
        page.click("#hub-again")
        page.wait_for_selector("#export-hub [data-part=sent]", timeout=120_000)
        assert sent in page.inner_text("#export-hub") and f"{hub.address}/me/my-orders" in page.content()
        keep_picture(page, f"hub-sent-{language}")
        repo = hub.repos["me/my-orders"]
        assert repo["private"] and "adapter_model.safetensors" in repo["files"]
        assert TOKEN not in page.content() and window.complaints == []
    finally:
        hub.close()
