"""The Dataset screen in a real browser: a file is dropped, understood, mended, looked at, and trained on."""

from __future__ import annotations

import json
import shutil

import pytest

from studio.models.catalog import DEMO_MODEL
from tests.ui.browser import (
    english_in,
    labels_of,
    show_tab,
    wait_for_state,
    wait_for_steps,
)

pytestmark = pytest.mark.long  # no clock looks at it: a minute for what takes seconds

ROWS = 120
EVIL = '<img src=x onerror="window.caught=1"><script>window.caught=1</script>${window.caught=1}{{value}}'


def write_csv(path):
    """Write a file as a German Excel does: `;` between cells, cp1252, names that no format knows."""
    lines = ["Frage;Antwort;Entwurf"]
    for i in range(ROWS):
        answer = "Schöne Grüße aus Köln! " * (1 + i % 12)
        lines.append(f'Wie heißt die Straße Nr. {i}, "für" wen?;{answer.strip()} €{i};nö {i}')
    path.write_bytes("\r\n".join(lines).encode("cp1252"))
    return path


def make_base(folder, marks: bool):
    """Copy the demo's model without its chat template; without `marks` its tokens are called otherwise too."""
    shutil.copytree(DEMO_MODEL, folder, ignore=shutil.ignore_patterns("chat_template.jinja"))
    for name in ("tokenizer.json", "tokenizer_config.json") if not marks else ():
        words = (folder / name).read_text(encoding="utf-8")
        words = words.replace("<|im_start|>", "<|begin|>").replace("<|im_end|>", "<|end|>")
        (folder / name).write_text(words, encoding="utf-8")
    return folder


def wait_until_read(page):
    """Wait until nothing is done in the background any more."""
    page.wait_for_function("!document.querySelector('#dataset-progress .reading')")


def see(page, view: str):
    """Open one of the views."""
    page.click(f"#dataset-tab-{view}-button")
    page.wait_for_selector(f"#dataset-tab-{view}", state="visible")


def answer(page, field: str, choice: str):
    """Answer one question."""
    card = page.locator(f'#dataset-questions fieldset[data-field="{field}"]')
    if card.locator("select").count():
        card.locator("select").select_option(choice)
    else:
        card.locator(f'input[value="{choice}"]').check()
    card.locator("button").click()
    card.wait_for(state="detached")


def choose_role(page, column: str, role: str):
    """Choose what a column holds, above it."""
    page.select_option(f'#dataset-rows select[data-column="{column}"]', role)
    page.wait_for_function(
        "([column, role]) => "
        "document.querySelector(`#dataset-rows select.used[data-column='${column}']`)?.value === role",
        arg=[column, role],
    )


def asked(page) -> list[str]:
    """Return the fields of the open questions."""
    return page.eval_on_selector_all(
        "#dataset-questions fieldset", "cards => cards.map((c) => c.dataset.field)"
    )


def rows_cut(page) -> int:
    """Return how many rows the limit cuts."""
    return int(page.inner_text('[data-figure="rows_cut"]').replace(",", ""))


def test_a_file_is_dropped_understood_mended_looked_at_and_trained_on(start_studio, tmp_path):  # noqa: F811
    window = start_studio("zh-CN")
    page = window.open("zh-CN")
    show_tab(page, "dataset")
    page.set_input_files("#dataset-upload input[type=file]", write_csv(tmp_path / "größe.csv"))

    # The file's encoding is a guess: the person says which one it is.
    page.wait_for_selector('#dataset-questions fieldset[data-field="data.encoding"]')
    page.wait_for_selector("#dataset-rows td")
    answer(page, "data.encoding", "cp1252")
    page.wait_for_selector("text=Wie heißt die Straße Nr. 0")
    assert "data.encoding" not in asked(page)
    heads = page.eval_on_selector_all(
        "#dataset-rows th select", "parts => parts.map((p) => p.dataset.column)"
    )
    assert sorted(heads) == ["Antwort", "Entwurf", "Frage"], "`;` parts the cells"

    # Which column is learned is changed above it, and back.
    if "data.format" in asked(page):
        answer(page, "data.format", "prompt_completion")
    choose_role(page, "Frage", "prompt")
    choose_role(page, "Entwurf", "completion")
    see(page, "learned")
    page.wait_for_function("document.querySelector('#dataset-mask .mask mark')?.innerText.startsWith('nö 0')")
    see(page, "rows")
    choose_role(page, "Antwort", "completion")
    assert page.input_value('#dataset-rows select[data-column="Entwurf"]') == ""
    wait_until_read(page)
    assert asked(page) == []
    page.wait_for_selector("#dataset-verdict .law")
    assert f"{ROWS}" in page.inner_text("#dataset-verdict .law")

    see(page, "chat")
    assert "Schöne Grüße" in page.inner_text("#dataset-chat .assistant")
    see(page, "seen")
    page.wait_for_selector("#dataset-rendered code.special")
    see(page, "learned")
    page.wait_for_selector("#dataset-mask .mask mark")
    assert "Schöne Grüße" in page.inner_text("#dataset-mask .mask mark")
    assert "Straße" in page.inner_text("#dataset-mask .mask span")
    page.click("#dataset-next")
    page.wait_for_function("document.querySelector('#dataset-mask').innerText.includes('Nr. 1')")

    # The limit is moved by mouse, by keys and in its field; what it cuts follows at once.
    see(page, "lengths")
    page.wait_for_selector("#dataset-lengths .limit")
    page.fill("#knob-data-max-length input", "2048")
    page.wait_for_function(
        "document.querySelector('.lengths .limit').getAttribute('aria-valuenow') === '2048'"
    )
    assert rows_cut(page) == 0
    box = page.locator(".lengths .plot").bounding_box()
    tallest = page.locator(".lengths .bars i").last.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] - 1, y)
    page.mouse.down()
    page.mouse.move(tallest["x"] - 40, y, steps=5)
    dragged = rows_cut(page)
    assert 0 < dragged < ROWS, "it changes while the line is dragged"
    page.mouse.up()
    limit = page.get_attribute(".lengths .limit", "aria-valuenow")
    page.wait_for_function(f"document.querySelector('#knob-data-max-length input').value === '{limit}'")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"document.querySelector('#knob-data-max-length input').value < {limit}")
    assert rows_cut(page) >= dragged
    see(page, "learned")
    page.wait_for_selector("#dataset-mask", state="visible")

    # A reload finds everything again: it lives at the desk.
    page.reload()
    page.wait_for_selector("#tab-dataset-button")
    show_tab(page, "dataset")
    page.wait_for_selector("#dataset-verdict .law")
    page.wait_for_selector('#dataset-rows select.used[data-column="Antwort"]')
    see(page, "problems")
    page.wait_for_selector("#dataset-problems .card")
    words = [one for one in labels_of(page) if "Frage" not in one]
    assert english_in(words) == []

    show_tab(page, "hyperparameters")
    page.fill("#settings-filter", "max_steps")
    page.wait_for_selector("#knob-optim-max-steps", state="visible")
    page.fill("#knob-optim-max-steps input", "2")
    page.press("#knob-optim-max-steps input", "Tab")
    show_tab(page, "training")
    page.click("#run-start")
    wait_for_steps(page, 2)
    wait_for_state(page, "finished")
    assert window.complaints == []


def test_the_columns_are_saved_and_found_again(start_studio, tmp_path):  # noqa: F811
    window = start_studio("en")
    page = window.open("en")
    show_tab(page, "dataset")
    file = tmp_path / "pairs.jsonl"
    rows = [{"xa": f"What is {i}?", "xb": f"It is {i}.", "id": i} for i in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    page.fill("#dataset-source input, #dataset-source textarea", str(file))
    page.press("#dataset-source input, #dataset-source textarea", "Enter")
    page.wait_for_selector('#dataset-rows select[data-column="xa"]')
    assert asked(page) == ["data.mapping.prompt", "data.mapping.completion"]
    choose_role(page, "xa", "prompt")
    assert asked(page) == ["data.mapping.completion"]  # a question alone is not taken for one of rewards
    answer(page, "data.mapping.completion", "xb")
    wait_until_read(page)
    page.click("#dataset-save-mapping")
    page.wait_for_selector("#dataset-saved .good")
    saved = json.loads((tmp_path / "pairs.jsonl.mapping.json").read_text(encoding="utf-8"))
    assert saved["mapping"]["completion"] == "xb"

    page.fill("#dataset-source input, #dataset-source textarea", "demo")
    page.press("#dataset-source input, #dataset-source textarea", "Enter")
    page.wait_for_selector('#dataset-rows select[data-column="messages"]')
    page.fill("#dataset-source input, #dataset-source textarea", str(file))
    page.press("#dataset-source input, #dataset-source textarea", "Enter")
    page.wait_for_selector('#dataset-rows select.used[data-column="xb"]')
    assert asked(page) == []


def test_a_refused_file_leaves_the_drop_zone_free(start_studio, tmp_path):  # noqa: F811
    window = start_studio("zh-CN")
    page = window.open("zh-CN")
    show_tab(page, "dataset")
    for name, data in (("brief.docx", b"PK" + bytes(200)), ("leer.jsonl", b""), ("cut.zip", b"PK\x03\x04")):
        file = tmp_path / name
        file.write_bytes(data)
        page.set_input_files("#dataset-upload input[type=file]", file)
        page.wait_for_selector(f".toast-body >> text={name}")
        page.wait_for_selector("#dataset-upload input[type=file]", state="attached")
    page.set_input_files("#dataset-upload input[type=file]", write_csv(tmp_path / "gut.csv"))
    page.wait_for_selector("#dataset-rows td")
    assert sorted(path.name for path in window.workspace.datasets.iterdir()) == ["gut.csv"]


def test_nothing_in_the_data_runs_in_the_page(start_studio, tmp_path):  # noqa: F811
    turns = [{"role": "user", "content": EVIL}, {"role": "assistant", "content": EVIL}]
    file = tmp_path / "evil.jsonl"
    file.write_text(
        "".join(json.dumps({"messages": turns, EVIL: EVIL}) + "\n" for _ in range(3)), encoding="utf-8"
    )
    window = start_studio("en")
    page = window.open("en")
    show_tab(page, "dataset")
    page.set_input_files("#dataset-upload input[type=file]", file)
    page.wait_for_selector(".rows th:nth-child(2)")
    wait_until_read(page)
    assert "window.caught=1" in page.inner_text("#dataset-rows")
    for view, part in (("chat", "chat"), ("seen", "rendered"), ("learned", "mask")):
        see(page, view)
        page.wait_for_function(f"document.querySelector('#dataset-{part}').innerText.includes('<img src=x')")
    see(page, "lengths")
    see(page, "problems")
    page.wait_for_timeout(500)
    assert page.evaluate("window.caught") is None
    assert window.complaints == []


@pytest.mark.parametrize(("language", "marks"), [("en", False), ("zh-CN", True)])
def test_a_base_model_is_offered_templates_learns_with_one_and_stops(start_studio, tmp_path, language, marks):
    """The demo's model without its template; and one whose tokenizer has ChatML's marks as tokens."""
    base = make_base(tmp_path / "shelf" / "basis", marks)
    fitting, end = ("chatml", "<|im_end|>") if marks else ("vicuna", "<|end|>")
    settings = tmp_path / "workspace" / "settings.json"
    settings.write_text(json.dumps({"model_folders": [str(base.parent)]}), encoding="utf-8")
    window = start_studio(language)
    page = window.open(language)
    show_tab(page, "model")
    page.locator(f'.model-row input[value="{base}"]').check(force=True)
    page.wait_for_function(
        "document.querySelector('#model-card .card.model')?.dataset.source.endsWith('basis')"
    )
    show_tab(page, "training")
    page.wait_for_selector('#run-problems [data-errors="1"] button[data-go="dataset"]')
    page.screenshot(path=str(tmp_path / "training.png"))
    page.click('#run-problems button[data-go="dataset"]')

    card = page.locator('#dataset-questions fieldset[data-field="data.template"]')
    card.wait_for(timeout=180_000)  # the tokenizer and its libraries are loaded first
    offered = card.locator("input").evaluate_all("parts => parts.map((p) => p.value)")
    assert (
        offered[0] == fitting
        and {"vicuna", "alpaca"} <= set(offered)
        and card.locator("input:checked").count() == 1
    )
    if language == "zh-CN":
        assert (
            english_in([card.inner_text().replace("chatml", "").replace("vicuna", "").replace("alpaca", "")])
            == []
        )
    page.screenshot(path=str(tmp_path / "question.png"))
    card.locator("button").click()
    card.wait_for(state="detached")
    wait_until_read(page)
    draft = json.loads((window.workspace.root / "draft.json").read_text(encoding="utf-8"))
    assert draft["data"]["template"] == fitting
    see(page, "seen")
    page.wait_for_selector("#dataset-rendered code.special")
    see(page, "learned")
    page.wait_for_function("document.querySelector('#dataset-mask .mask mark')?.innerText.length > 2")
    assert end in page.inner_text("#dataset-mask .mask")
    page.screenshot(path=str(tmp_path / "learned.png"))

    show_tab(page, "training")
    page.click("#run-start")
    wait_for_state(page, "finished", 300)
    show_tab(page, "chat")
    page.wait_for_selector("#chat-input textarea")
    page.fill("#chat-input textarea", "What is 1 plus 1?")
    page.press("#chat-input textarea", "Enter")
    page.wait_for_function("document.querySelectorAll('#chat-tuned .foot').length > 0")
    said = page.inner_text("#chat-tuned .theirs")
    assert 0 < len(said.strip()) < 200 and "<|" not in said, "it ends, long before the longest answer"
    page.screenshot(path=str(tmp_path / "chat.png"))
    assert window.complaints == []
