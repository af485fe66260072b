"""A text becomes words at the last moment, in either language, and is never lost."""

import pytest

from studio.core.i18n import LANGUAGES, Catalogue, choose_language, literal, load_catalogue, text

WORDS = Catalogue(
    language="en",
    words={
        "greet": "Hello {name}.",
        "nest": "Because: {reason}",
        "twice": "{n} of {n}",
        "plain": "No blanks",
        "word.yes": "ja",
    },
)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (text("greet", name="Ada"), "Hello Ada."),
        (text("greet", name=3), "Hello 3."),
        (text("greet", name=True), "Hello ja."),
        (text("greet", name=0.000123456), "Hello 0.0001235."),
        (text("greet", name=float("nan")), "Hello nan."),
        (text("greet", name=["a", 2]), "Hello a, 2."),
        (text("nest", reason=text("greet", name="Bo")), "Because: Hello Bo."),
        (text("nest", reason=literal("{name} as it is")), "Because: {name} as it is"),
        (text("twice", n=2), "2 of 2"),
        (text("plain", unused=1), "No blanks"),
        (literal("C:\\a {b}"), "C:\\a {b}"),
        ("already words", "already words"),
    ],
)
def test_say(message, words):
    assert WORDS.say(message) == words


def test_missing_value_shows_its_blank():
    assert WORDS.say(text("greet")) == "Hello {name}."


def test_missing_words_show_the_id_and_the_values():
    assert WORDS.say(text("gone")) == "gone"
    assert WORDS.say(text("gone", n=1)) == "gone {'n': '1'}"
    assert not WORDS.has("gone")


def test_a_recorded_run_cannot_reach_into_objects():
    words = Catalogue(language="en", words={"reach": "{a.__class__} {b[0]}"})
    assert words.say(text("reach", a=1, b="secret")) == "{a.__class__} {b[0]}"


def test_value_may_be_called_like_a_parameter():
    assert Catalogue(language="en", words={"x": "{id} {self}"}).say(text("x", id=1, self=2)) == "1 2"


def test_catalogue_falls_back_to_english(tmp_path):
    (tmp_path / "en.json").write_text('{"both": "two", "english": "only"}', encoding="utf-8")
    (tmp_path / "zh-CN.json").write_text('{"both": "二"}', encoding="utf-8")
    chinese = load_catalogue("zh-CN", tmp_path)
    assert (chinese.say(text("both")), chinese.say(text("english"))) == ("二", "only")
    assert load_catalogue("fr", tmp_path).language == "en"


def test_both_languages_load():
    said = {load_catalogue(language).say(text("run.unknown", run="r")) for language in LANGUAGES}
    assert len(said) == 2
    assert all("r" in words for words in said)


@pytest.mark.parametrize(
    ("environment", "wanted", "language"),
    [
        ({}, "", "en"),
        ({"LANG": "zh_CN.UTF-8"}, "", "zh-CN"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "", "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "", "zh-CN"),
        ({"LANG": "de_DE.UTF-8"}, "", "en"),
        ({"LANG": "de_DE.UTF-8", "FINETUNE_STUDIO_LANGUAGE": "zh-CN"}, "", "zh-CN"),
        ({"FINETUNE_STUDIO_LANGUAGE": "zh-CN"}, "en", "en"),
        ({"FINETUNE_STUDIO_LANGUAGE": "tlh"}, "xx", "en"),
    ],
)
def test_choose_language(environment, wanted, language):
    assert choose_language(environment, wanted) == language
