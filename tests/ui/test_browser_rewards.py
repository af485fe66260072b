"""Rewards in a real browser, in both languages: written, refused, mended, trained by, and what answers got."""

from __future__ import annotations

import json

import pytest

from studio.core.codec import to_json
from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, Recipe, RunSpec, SamplingSpec
from tests.ui.browser import PATIENCE_MS, show_tab

pytestmark = pytest.mark.slow

THINGS = ("hammers", "nails", "saws", "ropes")
SAME = "def mine(completions, **columns):\n    return [1.0 for words in completions]\n"
RIGHT = """def mine(completions, answer, **columns):
    return [len(set(words) & set(right)) / len(set(right)) for words, right in zip(completions, answer)]
"""
CODE = "#settings-rewards textarea"


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_a_reward_is_written_refused_mended_and_trained_by(start_studio, workspace, tmp_path, language):  # noqa: F811
    """By mouse; nothing is typed but the reward and the size of its test."""
    rows = [{"prompt": f"{i} {name}", "answer": name} for i in range(2) for name in THINGS]
    data = tmp_path / "rl.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = Recipe(
        model=ModelChoice(source="demo"),
        data=DatasetSpec(source=str(data), format="rl", max_length=128),
        sampling=SamplingSpec(group_size=4, answer_tokens=8),
        optim=OptimSpec(batch_size=2),
        run=RunSpec(trial=False, samples=0, scored_rows=0),
    )
    (workspace.root / "draft.json").write_text(json.dumps(to_json(recipe)), encoding="utf-8")
    window = start_studio(language)
    page = window.open(language)
    show_tab(page, "hyperparameters")
    page.click("label:has(> [name=plain-goal][value=scores])")
    page.wait_for_selector("#settings-rewards .rewards")
    page.click("label:has(> [name=plain-length][value=quick])")

    page.select_option("#settings-rewards [name=added]", "file")
    page.click("#settings-rewards [data-do=reward_add]")
    page.wait_for_selector(CODE)
    page.fill(CODE, SAME)
    for name, value in (("rows", "4"), ("samples", "2"), ("max_new_tokens", "8")):
        page.fill(f"#settings-rewards [name={name}]", value)
    page.click("[data-do=reward_test]")
    page.wait_for_selector("#settings-reward-trial .told.bad", timeout=PATIENCE_MS * 2)
    assert "4" in page.inner_text("#settings-reward-trial .told.bad")
    page.wait_for_selector("#settings-rewards [data-do=reward_insist]", timeout=PATIENCE_MS)
    show_tab(page, "training")
    page.click("#run-start")
    page.click("#run-problems li.error [data-mark=settings-rewards]", timeout=PATIENCE_MS)
    page.wait_for_selector(CODE)
    assert not list((workspace.root / "runs").glob("*/")), "what the test refused starts no run"

    page.fill(CODE, RIGHT)
    page.click("[data-do=reward_test]")
    page.wait_for_selector("#settings-reward-trial .told.good", timeout=PATIENCE_MS)
    assert page.locator("#settings-reward-trial .told.bad").count() == 0
    assert page.input_value(CODE) == RIGHT
    draft = json.loads((workspace.root / "draft.json").read_text(encoding="utf-8"))
    (reward,) = draft["rewards"]
    assert draft["objective"] == "grpo" and reward["name"].startswith("file:")

    show_tab(page, "training")
    page.click("#run-start")
    page.wait_for_selector("#run-answers tbody tr", timeout=PATIENCE_MS * 3)
    page.wait_for_function("document.body.dataset.training === 'no'", timeout=PATIENCE_MS * 5)
    page.select_option("#run-answers-box [name=which]", "best")
    page.wait_for_timeout(1500)
    totals = page.locator("#run-answers tbody td.number b").all_inner_texts()
    assert len(totals) == 8 and [float(one) for one in totals] == sorted(map(float, totals), reverse=True)
    page.click("#run-answers [data-focus=answers-earlier]")
    page.wait_for_selector("#run-answers [data-focus=answers-later]")
    page.fill("#run-answers-box [name=words]", "nobody says this")
    page.keyboard.press("Enter")
    page.wait_for_selector("#run-answers td[colspan]")
    assert not window.complaints
