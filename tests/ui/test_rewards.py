"""The Rewards section: what is chosen stands in the draft, code in its file, a trial shows its verdict."""

from __future__ import annotations

import html
import re
from pathlib import Path

import gradio as gr
import pytest

from studio.core.errors import StudioError
from studio.core.i18n import LANGUAGES, load_catalogue, text
from studio.core.recipe import RewardSpec, change_recipe
from studio.services.reward_code import NEW, RewardCode
from studio.services.run_answers import AnswerFilter, AnswersPage
from studio.ui.context import Context
from studio.ui.rewards.answers import answers_card, read_filter
from studio.ui.rewards.section import RewardsSection
from tests.conftest import write_jsonl
from tests.ui.conftest import FakeDesk
from tests.ui.sheet import Sheet

SAME = "def mine(completions, **columns):\n    return [1.0 for words in completions]\n"
RIGHT = "def mine(completions, answer, **columns):\n    return [float(c == a) for c, a in zip(completions, answer)]\n"


@pytest.fixture(params=LANGUAGES)
def section(request, workspace, keys, tmp_path):
    """A section whose draft learns the names of countries, with the reward `exact`."""
    rows = [
        {"prompt": f"Where is {city}?", "answer": land}
        for city, land in (("Rome", "Italy"), ("Oslo", "Norway"))
    ]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    context = Context(FakeDesk(workspace), workspace, keys, request.param)
    draft = change_recipe(context.draft(), {"data.source": str(data), "rewards": (RewardSpec(name="exact"),)})
    context.keep_draft(draft)
    with Sheet():
        made = RewardsSection(context)
    yield made
    context.desk.trials.close()


def press(section, do, value="", **fields):
    """Say what a button says, with the section's fields as they are drawn, and return what is shown."""
    shown = str(section._draw())
    unchecked = re.sub(r'<input type="checkbox"[^>]*(?<!checked)>', "", shown)
    found = re.findall(r'name="([\w.]+)" value="([^"]*)"', unchecked)
    form = {name: html.unescape(value) for name, value in found}
    codes = re.findall(r'<textarea name="([\w.]+)".*?>(.*?)</textarea>', shown, re.S)
    form |= {name: html.unescape(code)[1:] for name, code in codes}
    return list(section.hear({"do": do, "value": value, "form": form | fields}))[-1]


def rewards(section):
    return section.context.draft().rewards


def test_rewards_are_added_changed_and_removed(section):
    press(section, "reward_add", "length")
    assert [one.name for one in rewards(section)] == ["exact", "length"]
    press(section, "reward_keep", **{"1.weight": "0.5", "1.tokens": "64", "1.shape": "near"})
    assert rewards(section)[1] == RewardSpec(
        name="length", weight=0.5, options={"tokens": 64, "shape": "near"}
    )
    press(section, "reward_remove", "0")
    assert [one.name for one in rewards(section)] == ["length"]


def test_what_is_no_value_is_said_and_the_rest_is_kept(section):
    press(section, "reward_add", "length")
    with pytest.raises(StudioError) as caught:
        press(section, "reward_keep", **{"1.weight": "2", "1.tokens": "many"})
    assert "many" in str(caught.value)
    assert rewards(section)[1] == RewardSpec(name="length", weight=2.0)


def test_what_is_said_twice_counts_once(section):
    press(section, "reward_add", "length")
    list(
        section.hear(
            {"do": "reward_remove", "value": "0", "form": {"count": "2", "0.weight": "1", "1.weight": "1"}}
        )
    )
    list(
        section.hear(
            {"do": "reward_remove", "value": "0", "form": {"count": "2", "0.weight": "1", "1.weight": "1"}}
        )
    )
    assert [one.name for one in rewards(section)] == ["length"]


def test_code_is_kept_whatever_is_pressed(section, workspace):
    press(section, "reward_add", "file")
    (path,) = (workspace.root / "rewards").glob("*.py")
    assert path.read_text(encoding="utf-8") == NEW
    press(section, "reward_remove", "0", **{"1.code": SAME})
    assert path.read_text(encoding="utf-8") == SAME and [one.name for one in rewards(section)] == [
        f"file:{path}"
    ]
    broken = "def mine(completions\n"
    card = press(section, "reward_keep", **{"0.code": broken})[0]
    assert path.read_text(encoding="utf-8") == broken and "note bad" in card


def test_a_trial_refuses_and_after_mending_passes(section):
    say = section.context.say
    press(section, "reward_add", "file")
    press(section, "reward_remove", "0", **{"1.code": SAME})
    card = str(press(section, "reward_test", samples="0")[1])
    assert say("ui.rewards.refused") in card and "2 / 2" not in card and "0 / 2" in card
    card = str(press(section, "reward_test", **{"0.code": RIGHT, "samples": "0"})[1])
    assert say("ui.rewards.refused") not in card and "2 / 2" in card and say("ui.rewards.passed") in card
    assert "Norway" in card and "ui." not in re.sub(r"<[^>]*>", "", card)


def test_refused_rewards_are_told_until_they_change_or_a_person_insists(section):
    say, find = section.context.say, section.context.desk.trials.verdicts.find
    press(section, "reward_add", "file")
    press(section, "reward_remove", "0", **{"1.code": SAME})
    assert "reward_insist" not in section._draw()
    card = str(press(section, "reward_test", samples="0")[0])
    assert say("ui.rewards.refused.start") in card and say("ui.rewards.insist") in card
    assert find(rewards(section), section.context.draft().data) is not None
    card = str(press(section, "reward_insist", "1")[0])
    assert say("ui.rewards.insists") in card and all(one.insist for one in rewards(section))
    press(section, "reward_keep")
    assert all(one.insist for one in rewards(section)), "nothing was changed"
    press(section, "reward_insist")
    assert not any(one.insist for one in rewards(section))
    press(section, "reward_insist", "1")
    card = str(press(section, "reward_keep", **{"0.code": RIGHT})[0])
    assert "reward_insist" not in card and not any(one.insist for one in rewards(section)), "other code"
    assert find(rewards(section), section.context.draft().data) is None


def test_foreign_code_is_shown_and_runs_only_once_confirmed(section, tmp_path):
    path = tmp_path / "theirs.py"
    ran = tmp_path / "ran"
    path.write_text(f"open({str(ran)!r}, 'w').close()\n{RIGHT}", encoding="utf-8")
    section.context.edit({"rewards": (RewardSpec(name=f"file:{path}"),)})
    shown = str(section._draw())
    assert "def mine" in shown and "readonly" in shown and "reward_confirm" in shown
    with pytest.raises(StudioError):
        press(section, "reward_test", samples="0")
    (problem,) = section.context.desk.reward_code.find_problems(rewards(section))
    assert problem.severity == "error" and not ran.exists()
    press(section, "reward_keep", **{"0.code": SAME})
    assert RIGHT in path.read_text(encoding="utf-8"), "nobody's file but one's own is written"
    press(section, "reward_confirm", "0")
    assert "reward_confirm" not in section._draw() and not section.context.desk.reward_code.find_problems(
        rewards(section)
    )
    assert section.context.say("ui.rewards.passed") in str(press(section, "reward_test", samples="0")[1])
    path.write_text(SAME, encoding="utf-8")
    assert section.context.desk.reward_code.find_problems(rewards(section)), "other code is asked about anew"


def test_confirmed_is_what_the_editor_wrote(workspace):
    shelf = RewardCode(workspace)
    path = shelf.create()
    assert shelf.is_confirmed(path) and shelf.create() != path
    path.write_text(SAME, encoding="utf-8")
    assert not shelf.is_confirmed(path)
    with pytest.raises(StudioError):
        shelf.write(Path(path.parent.parent / "other.py"), SAME)
    with pytest.raises(StudioError):
        shelf.write(path.parent / ".." / "other.py", SAME)


def test_words_of_a_page_are_escaped(section):
    evil = "<img src=x onerror=alert(1)>"
    press(section, "reward_add", "contains")
    press(section, "reward_keep", **{"1.words": evil})
    shown = str(section._draw())
    assert evil not in shown and html.escape(evil) in shown


def test_no_section_without_scores(section):
    section.context.edit({"rewards": ()})
    assert section._draw() == "" and section.follow("sft") == ""
    assert "reward_add" in section.follow("grpo")


def test_every_handler_is_the_owners(section):
    class Asked:
        scope = {}

    heard = section.context.guarded(section.hear)
    with pytest.raises(gr.Error):
        list(heard(Asked(), {"do": "reward_add", "value": "file", "form": {"count": "1"}}))
    assert not list(section.context.desk.reward_code.folder.glob("*.py"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_runs_answers_are_shown_and_escaped(language):
    say = load_catalogue(language).say
    row = {
        "step": 3, "row": 7, "prompt": "<b>q</b>", "answer": "a", "scores": {"exact": None, "mine": 0.25},
        "total": 0.25, "advantage": -1.5, "length_tokens": 4, "ended": False, "notes": ["exact: raised: x"],
    }  # fmt: skip
    page = AnswersPage(step=3, steps=(1, 3), names=("exact", "mine"), rows=(row,), count=2)
    card = str(answers_card(page, lambda id, **values: say(text(id, **values))))
    assert "<b>q</b>" not in card and "&lt;b&gt;q" in card and "-1.50" in card and "exact: raised: x" in card
    assert say(text("ui.answers.cut")) in card and 'data-step="1"' in card and "ui.answers" not in card
    assert answers_card(None, say) == ""


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"step": "12", "which": "best", "words": " x "}, AnswerFilter(step=12, which="best", words="x")),
        ({"step": "-1", "which": "drop table", "words": 5}, AnswerFilter(words="5")),
        ("nonsense", AnswerFilter()),
        ({"step": "9" * 50}, AnswerFilter()),
    ],
)
def test_a_page_may_ask_anything(said, wanted):
    assert read_filter(said) == wanted
