"""An assertion without words is read by its condition; what says nothing is left alone."""

import pytest

from studio.core.i18n import load_catalogue
from studio.machine.failures import weigh_text
from studio.machine.failures.conditions import read_condition

ENGLISH = load_catalogue("en")
PLACE = (
    'Traceback (most recent call last):\n  File "/w/model.py", line 78, in build\n    assert {condition}\n'
)


@pytest.mark.parametrize(
    ("condition", "answer"),
    {
        "q.is_cuda and k.is_cuda": "q must be on the graphics card (cuda).",
        "config is not None": "config: this is needed, and was not given.",
        "isinstance(data, dict)": "data must be of the kind dict.",
        "hidden % heads == 0": "hidden must be divisible by heads.",
        "x.shape[-1] == self.width": "x.shape[-1] and self.width do not fit together.",
        "len(rows) > 0": "len(rows) must be > 0.",
        "mode in ('train', 'eval')": "mode has to be in ('train', 'eval').",
        "os.path.exists(args.data)": "args.data is not there, or was not found.",
        "torch.cuda.is_available()": "the graphics card (torch.cuda.is_available()) is not there, or was not found.",
        "self.tokenizer": "self.tokenizer: this is needed, and was not given.",
    }.items(),
)
def test_a_condition_says_what_it_wants(condition, answer):
    assert ENGLISH.say(read_condition(condition).spoken()) == answer


@pytest.mark.parametrize("condition", ["", "False", "a b c", "x if", "(yield)", "lambda: 3", "\0"])
def test_what_is_no_condition_says_nothing(condition):
    assert read_condition(condition) is None


def test_a_message_that_is_only_the_value_leaves_the_word_to_the_condition():
    words = PLACE.format(condition="len(config) == 1, name") + "AssertionError: TinyModel-1b\n"
    found = weigh_text(words).first
    assert ENGLISH.say(found.values["about"]) == "len(config) must be == 1."
    words = (
        PLACE.format(condition="len(config) == 1, name")
        + "AssertionError: No model is called TinyModel-1b here\n"
    )
    said = "The program checks a condition, and says: No model is called TinyModel-1b here"
    assert ENGLISH.say(weigh_text(words).first.values["about"]) == said


def test_a_traceback_that_ends_in_a_bare_assertion_names_what_is_wanted():
    words = PLACE.format(condition="q.is_cuda and k.is_cuda and v.is_cuda") + "AssertionError\n"
    found = weigh_text(words).first
    assert found.entry.id == "asserted"
    assert ENGLISH.say(found.values["about"]) == "q must be on the graphics card (cuda)."
