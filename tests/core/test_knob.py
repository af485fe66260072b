"""Every knob can be shown in both languages, and both languages say the same things."""

import json
import string

import pytest

from studio.core.i18n import LOCALES, load_catalogue
from studio.core.knob import EFFECTS, UNITS, knobs_of
from studio.core.recipe import Recipe

KNOBS = tuple(knobs_of(Recipe))
WORDS = {tag: json.loads((LOCALES / f"{tag}.json").read_text(encoding="utf-8")) for tag in ("en", "zh-CN")}


def blanks(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.path)
def test_knob_has_words_in_both_languages(knob):
    for tag, words in WORDS.items():
        asked = [knob.label, knob.help, *(knob.choice_label(choice) for choice in knob.choices)]
        asked += [knob.cost] if knob.effect else []
        missing = [text.id for text in asked if not words.get(text.id, "").strip()]
        assert not missing, tag
        assert not any(blanks(words[text.id]) for text in asked)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.path)
def test_help_is_two_or_three_short_sentences(knob):
    english = load_catalogue("en").say(knob.help)
    assert 40 <= len(english) <= 320
    assert english.endswith(".")
    assert load_catalogue("zh-CN").say(knob.help).endswith("。")


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.path)
def test_default_is_acceptable(knob):
    assert knob.unit in UNITS
    assert knob.level in ("basic", "common", "advanced")
    if knob.required:
        return
    assert type(knob.default) is knob.kind
    if knob.choices:
        assert knob.default in knob.choices
    if knob.minimum is not None:
        assert knob.minimum <= knob.default
    if knob.maximum is not None:
        assert knob.default <= knob.maximum


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.path)
def test_cost_is_said_once_and_short(knob):
    assert knob.memory in EFFECTS and knob.time in EFFECTS and knob.effect in ("", "own")
    assert not (knob.effect and (knob.memory, knob.time) != ("none", "none"))
    for tag in WORDS:
        said = load_catalogue(tag).say(knob.cost) if knob.cost else ""
        assert len(said) <= 60 and "effect." not in said and "{" not in said
    assert not knob.choices or not (knob.memory, knob.time) != ("none", "none"), "a choice is not raised"


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.useful], ids=lambda knob: knob.path)
def test_useful_values_are_allowed_and_ascend(knob):
    assert list(knob.useful) == sorted(set(knob.useful))
    assert knob.minimum <= knob.useful[0] and knob.useful[-1] <= knob.maximum


def test_what_costs_memory_and_time_says_so():
    costs = {knob.path: knob.cost for knob in KNOBS}
    said = load_catalogue("en").say(costs["data.max_length"])
    assert said == "Higher: ▲ more memory · ▲ longer"
    assert "▲ more memory · ▼ shorter" in load_catalogue("en").say(costs["optim.micro_batch"])
    assert costs["seed"] is None and costs["optim.learning_rate"] is None


def test_no_words_for_knobs_that_do_not_exist():
    known = {
        text.id for knob in KNOBS for text in (knob.label, knob.help, *map(knob.choice_label, knob.choices))
    } | {knob.cost.id for knob in KNOBS if knob.effect}
    assert {id for id in WORDS["en"] if id.startswith("knob.")} == known


def test_both_languages_have_the_same_texts_with_the_same_blanks():
    assert set(WORDS["en"]) == set(WORDS["zh-CN"])
    different = [id for id, words in WORDS["en"].items() if blanks(words) != blanks(WORDS["zh-CN"][id])]
    assert not different
    assert not [id for table in WORDS.values() for id, words in table.items() if not words.strip()]


def test_a_person_is_addressed_politely():
    assert not [id for id, words in WORDS["zh-CN"].items() if "\u4f60" in words]
