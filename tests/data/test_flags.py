"""Flags that keep answers out of training are obeyed wherever files put them; what they leave unclear is refused."""

import pytest

from studio.core.i18n import LANGUAGES, load_catalogue
from studio.data.formats import FORMATS
from studio.data.formats.flags import find_sense
from studio.data.render import Renderer
from studio.data.row import RowError

BY_NAME = {format.name: format for format in FORMATS}
ASKED, AGAIN = {"role": "user", "content": "hi"}, {"role": "user", "content": "and now?"}
LAST = {"role": "assistant", "content": "good bye"}
OUT = [
    {"weight": 0},
    {"weight": "0"},
    {"train": False},
    {"training": False},
    {"loss": False},
    {"loss": 0.0},
    {"trainable": "no"},
    {"train_on_turn": "false"},
    {"loss_mask": 0},
    {"is_trainable": 0},
    {"ignore": True},
    {"masked": 1},
    {"mask": True},
    {"do_not_train": "yes"},
    {"ignore_loss": True},
    {"no_loss": True},
    {"include_in_loss": False},
    {"loss_scale": 0.0},
    {"use_for_training": "no"},
    {"is_training_target": 0},
    {"是否训练": False},
]


def read(*turns):
    return BY_NAME["messages"].read({"messages": list(turns)}, {"messages": "messages"})


def list_learned(found) -> list[str]:
    return [one.content for one in found.messages if one.role == "assistant" and one.learned]


@pytest.mark.parametrize("flag", OUT, ids=str)
def test_a_flag_on_a_turn(flag):
    answer = {"role": "assistant", "content": "hello"}
    assert list_learned(read(ASKED, answer | flag, AGAIN, LAST)) == ["good bye"]
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"} | flag]
    found = BY_NAME["sharegpt"].read({"conversations": turns}, {"conversations": "conversations"})
    assert list_learned(found) == []
    (key, value), other = next(iter(flag.items())), {False: True, True: False, "no": "yes", "yes": "no"}
    unflagged = {key: other.get(value, {0: 1, 1: 0, "0": "1", "false": "true"}.get(value))}
    assert list_learned(read(ASKED, answer | unflagged, AGAIN, LAST)) == ["hello", "good bye"]
    assert list_learned(read(ASKED, answer | {key: None}, AGAIN, LAST)) == ["hello", "good bye"]


def test_a_flag_in_the_notes_beside_a_turn():
    answer = {"role": "assistant", "content": "hello", "metadata": {"train": False, "by": "Ann"}}
    assert list_learned(read(ASKED, answer, AGAIN, LAST)) == ["good bye"]


@pytest.mark.parametrize("flag", OUT[:8], ids=str)
def test_a_flag_on_a_part(flag):
    parts = [{"type": "text", "text": "hello"} | flag]
    answer = {"role": "assistant", "content": parts}
    assert list_learned(read(ASKED, answer, AGAIN, LAST)) == ["good bye"]
    assert list_learned(read(ASKED, {"role": "assistant", "content": [{"text": "hello"} | flag]})) == []


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"train": "maybe"}, "data.row.flag"),
        ({"weight": -0.5}, "data.row.flag"),
        ({"loss": 0.5}, "data.row.flag"),
        ({"loss": [1, 0]}, "data.row.flag"),
        (
            {"training_detail": [{"begin_offset": 0, "end_offset": 2, "train": False}]},
            "data.row.flag_stretch",
        ),
        ({"content": [{"text": "a", "loss": False}, {"text": "b", "loss": True}]}, "data.row.flag_parts"),
    ],
)
def test_what_is_unclear_is_refused(more, sentence):
    with pytest.raises(RowError) as refusal:
        read(ASKED, {"role": "assistant", "content": "hello"} | more)
    assert (refusal.value.code, refusal.value.message.id) == ("E135", sentence)
    for language in LANGUAGES:
        assert "{" not in load_catalogue(language).say(refusal.value.message)


def test_a_weight_says_how_much_and_what_stands_beside_a_turn_does_not():
    def weight_of(**more):
        found = read(ASKED, {"role": "assistant", "content": "hello"} | more)
        return [one.weight for one in found.messages if one.role == "assistant"]

    assert weight_of(weight=0.25) == [0.25] and weight_of(loss_scale=2, weight=3) == [6.0]
    assert weight_of(weight=0) == [0] and weight_of(metadata={"weight": 1}) == [1]
    for more in ({"metadata": {"weight": 70}}, {"weight": 1e-50}, {"weight": 900, "loss_scale": 900}):
        with pytest.raises(RowError) as refusal:
            weight_of(**more)
        assert refusal.value.message.id == "data.row.flag"


def test_a_mask_that_fits_both_ways_is_refused():
    answer = {"role": "assistant", "content": "hello", "mask": True}
    assert list_learned(
        read(ASKED | {"mask": True}, answer, AGAIN | {"mask": True}, LAST | {"mask": False})
    ) == ["good bye"]
    assert list_learned(read(ASKED | {"mask": False}, LAST | {"mask": False})) == ["good bye"]
    with pytest.raises(RowError) as refusal:
        read(ASKED | {"mask": False}, answer)
    assert refusal.value.message.id == "data.row.flag_mask"


@pytest.mark.parametrize(
    "name",
    ["weights_file", "training_data", "loss_value", "train_id", "mask_token_id", "learning", "is_user", ""],
)
def test_other_names_are_no_flags(name):
    assert find_sense(name) == ""


def test_what_is_kept_out_has_no_loss(tokenizer_of):
    answer = {"role": "assistant", "content": [{"text": "hello", "loss": False}]}
    renderer = Renderer(tokenizer_of("chatml"), "answers")
    layouts = [renderer.lay_out(read(ASKED, answer, AGAIN, LAST))]
    rendered = renderer.tokenize(layouts, None)[0]
    ids = [one for one, learned in zip(rendered.token_ids, rendered.trained, strict=True) if learned]
    assert "".join(tokenizer_of("chatml").decode([one]) for one in ids).startswith("good bye")
