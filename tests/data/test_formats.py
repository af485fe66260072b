"""Each format turns a row into the same Conversation, and says of a bad row what is wrong with it."""

import timeit
from random import Random

import pytest
from PIL import Image

from studio.core.i18n import LANGUAGES, load_catalogue
from studio.data.conversation import Conversation, Message, read_stored
from studio.data.formats import FORMATS
from studio.data.formats.cells import is_blank, shorten, show_names
from studio.data.formats.column_names import simplify
from studio.data.formats.vision import check_images
from studio.data.row import RowError
from studio.data.row_codes import RowCode

BY_NAME = {format.name: format for format in FORMATS}
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
SIMPLE = (Message("user", "hi"), Message("assistant", "hello"))
GPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
SEE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}


def read(name: str, values: dict) -> Conversation:
    format = BY_NAME[name]
    return format.read(values, format.match(list(values)).mapping)


@pytest.mark.parametrize(
    ("name", "values", "messages"),
    [
        ("messages", {"messages": [USER, {"role": "model", "content": "hello"}]}, SIMPLE),
        ("messages", {"conversation": [USER | {"role": "Human"}, ANSWER | {"role": "bot"}]}, SIMPLE),
        ("messages", {"messages": GPT}, SIMPLE),
        ("sharegpt", {"conversations": GPT}, SIMPLE),
        ("sharegpt", {"conversations": GPT, "system": "be brief"}, (Message("system", "be brief"), *SIMPLE)),
        ("alpaca", {"instruction": "hi", "input": "", "output": "hello"}, SIMPLE),
        ("alpaca", {"Instruction": "hi", "input": None, "response": "hello"}, SIMPLE),
        ("alpaca", {"instruction": "hi", "input": "\u200b", "output": "hello"}, SIMPLE),
        (
            "alpaca",
            {"instruction": "sum up", "input": "a text", "output": "short"},
            (Message("user", "sum up\n\na text"), Message("assistant", "short")),
        ),
        (
            "alpaca",
            {"instruction": "hi", "output": "hello", "history": [["a", "b"]], "system": "s"},
            (Message("system", "s"), Message("user", "a"), Message("assistant", "b"), *SIMPLE),
        ),
        (
            "alpaca",
            {"instruction": "hi", "output": "hello", "thinking": "hm"},
            (SIMPLE[0], Message("assistant", "hello", "hm")),
        ),
        ("alpaca", {"instruction": "hi", "output": 42}, (SIMPLE[0], Message("assistant", "42"))),
        ("alpaca", {"instruction": "hi", "output": 0.5}, (SIMPLE[0], Message("assistant", "0.5"))),
        ("alpaca", {"instruction": "hi", "output": False}, (SIMPLE[0], Message("assistant", "false"))),
        ("prompt_completion", {"prompt": "hi", "completion": "hello"}, SIMPLE),
        ("prompt_completion", {"question": "hi", "answer": "hello"}, SIMPLE),
        ("prompt_completion", {"prompt": "hi", "completion": 4}, (SIMPLE[0], Message("assistant", "4"))),
        ("prompt_completion", {"prompt": [USER], "completion": [ANSWER]}, SIMPLE),
        ("prompt_completion", {"prompt": [USER], "completion": "hello"}, SIMPLE),
        ("prompt_completion", {"prompt": "hi", "completion": ANSWER}, SIMPLE),
        ("prompt_completion", {"prompt": '[{"role":"user","content":"hi"}]', "completion": "hello"}, SIMPLE),
        (
            "prompt_completion",
            {"prompt": "[INST] hi", "completion": "[1]"},
            (Message("user", "[INST] hi"), Message("assistant", "[1]")),
        ),
        (
            "prompt_completion",
            {"prompt": "hi", "completion": "hello", "system": "s", "reasoning": "hm"},
            (Message("system", "s"), SIMPLE[0], Message("assistant", "hello", "hm")),
        ),
        ("kto", {"prompt": "hi", "completion": "hello", "label": True}, SIMPLE),
        ("kto", {"prompt": [USER], "completion": [ANSWER], "label": True}, SIMPLE),
        ("kto", {"messages": GPT, "kto_tag": "true"}, SIMPLE),
        ("rl", {"prompt": "hi", "answer": "4"}, SIMPLE[:1]),
        ("rl", {"prompt": [USER], "answer": "4", "system": "s"}, (Message("system", "s"), SIMPLE[0])),
        ("vision", {"image": "a.png", "conversations": GPT}, SIMPLE),
    ],
)
def test_read(name, values, messages):
    found = read(name, values)
    assert found.messages == messages
    assert read_stored(found.to_dict()) == found


def test_kinds():
    assert read("text", {"text": " a text "}) == Conversation(text=" a text ", kind="text")
    assert read("prompt_completion", {"prompt": "a", "completion": "b"}).kind == "completion"
    assert read("prompt_completion", {"prompt": [USER], "completion": "b"}).kind == "chat"
    assert (
        read("prompt_completion", {"prompt": "a", "completion": "b", "tools": [{"name": "f"}]}).kind == "chat"
    )
    assert read("prompt_completion", {"prompt": "a", "completion": "b", "tools": None}).kind == "completion"
    assert read("alpaca", {"instruction": "a", "output": "b"}).kind == "chat"


def test_answers_that_are_calls_as_json():
    tools = '[{"name": "find", "parameters": {"q": {"type": "str"}}}]'
    calls = '[{"name": "find", "arguments": {"q": "a"}}, {"name": "find", "arguments": {"q": "b"}}]'
    found = read("prompt_completion", {"query": "hi", "answers": calls, "tools": tools})
    assert found.kind == "chat" and found.messages[1].content == ""
    assert [call.arguments for call in found.messages[1].tool_calls] == [{"q": "a"}, {"q": "b"}]
    for words in (
        '[{"name": "Ann", "age": 3}]',
        "[1, 2]",
        "[]",
        "{}",
        "[broken",
        '[{"name": 1, "arguments": {}}]',
    ):
        found = read("prompt_completion", {"query": "hi", "answers": words, "tools": tools})
        assert found.messages[1] == Message("assistant", words)
    found = read("prompt_completion", {"query": "hi", "answers": calls, "tools": "[]"})
    assert found.messages[1] == Message("assistant", calls)


def test_rl_passes_columns_on():
    found = read("rl", {"prompt": "hi", "solution": "4", "level": 3, "cases": [{"in": 1}]})
    assert found.kind == "rl" and found.extras == {"solution": "4", "level": 3, "cases": [{"in": 1}]}
    assert BY_NAME["rl"].notes(found) == ()


@pytest.mark.parametrize(
    ("label", "value"),
    [
        *[
            (yes, True)
            for yes in (True, 1, 1.0, "true", "True ", "1", "yes", "thumbs up", "👍", "good", "是")
        ],
        *[
            (no, False)
            for no in (False, 0, 0.0, "false", "FALSE", "0", "no", "thumbs_down", "👎", "bad", "否")
        ],
    ],
)
def test_labels(label, value):
    found = read("kto", {"prompt": "a", "completion": "b", "label": label})
    assert found.kind == "kto" and found.label is value


def test_vision():
    found = read(
        "vision", {"images": ["a.png", {"path": "b.png", "bytes": None}], "messages": [SEE, SEE, ANSWER]}
    )
    assert found.kind == "vision" and found.images == ("a.png", "b.png")
    assert found.messages[0].parts == ({"type": "image"}, {"type": "text", "text": "what?"})
    assert found.messages[0].content == "what?"
    inside = {"bytes": b"x", "path": "a.png"}
    assert read("vision", {"image": inside, "caption": "a cat"}).images == ("row:image",)
    found = read("vision", {"images": [inside, "data:image/png;base64,x"], "question": "a", "answer": "b"})
    assert found.images == ("row:images[0]", "row:images[1]")
    assert [message.content for message in found.messages] == ["a", "b"]
    shown = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}
    assert read("vision", {"messages": [shown, ANSWER]}).images == ("a.png",)
    assert read("vision", {"image": None, "messages": [USER, ANSWER]}).images == ()


def test_images_must_exist(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "broken.png").write_bytes(b"x")
    check_images(Conversation(images=("a.png", str(tmp_path / "a.png"), "row:image")), tmp_path)
    for name in ("b.png", "broken.png", "https://example.org/a.png", "a\0.png", "x" * 5000):
        with pytest.raises(RowError) as refusal:
            check_images(Conversation(images=(name,)), tmp_path)
        assert refusal.value.code == "E150"


@pytest.mark.parametrize(
    ("values", "ids", "labels"),
    [
        ({"input_ids": [1, 2, 3]}, (1, 2, 3), ()),
        ({"input_ids": "[1, 2, 3]", "labels": [-100, 2, 3]}, (1, 2, 3), (-100, 2, 3)),
        ({"input_ids": [1, 2, 3], "labels": None}, (1, 2, 3), ()),
        ({"input_ids": [1, 2, 0], "labels": [1, 2, -100], "attention_mask": [1, 1, 0]}, (1, 2), (1, 2)),
        ({"input_ids": [1, 2, 0], "attention_mask": [1, True, False]}, (1, 2), ()),
        ({"input_ids": [1, 2, 3], "completion_mask": [0, 1, 1]}, (1, 2, 3), (-100, 2, 3)),
    ],
)
def test_pretokenized(values, ids, labels):
    assert read("pretokenized", values) == Conversation(kind="tokens", token_ids=ids, labels=labels)


@pytest.mark.parametrize(
    ("name", "values", "code", "message"),
    [
        ("messages", {"messages": None}, "E121", "data.row.null"),
        ("messages", {"messages": []}, "E122", "data.row.blank"),
        ("messages", {"messages": " "}, "E122", "data.row.blank"),
        ("messages", {"messages": "words"}, "E120", "data.row.not_turns"),
        ("messages", {"messages": 5}, "E120", "data.row.not_turns"),
        ("messages", {"messages": {"a": 1}}, "E120", "data.row.not_turns"),
        ("sharegpt", {"conversations": GPT[:1]}, "E131", "data.row.no_answer"),
        ("alpaca", {"instruction": "hi", "output": ""}, "E122", "data.row.blank"),
        ("alpaca", {"instruction": "hi", "output": "\u200b\u2060"}, "E122", "data.row.blank"),
        ("alpaca", {"instruction": None, "output": "x"}, "E121", "data.row.null"),
        ("alpaca", {"instruction": "hi", "output": float("nan")}, "E121", "data.row.null"),
        ("alpaca", {"instruction": "hi", "output": "x", "history": "b"}, "E120", "data.row.history"),
        ("prompt_completion", {"prompt": "hi", "completion": b"x"}, "E120", "data.row.not_text"),
        ("prompt_completion", {"prompt": "hi", "completion": [USER]}, "E131", "data.row.no_answer"),
        ("prompt_completion", {"prompt": "hi", "completion": ["", None]}, "E122", "data.row.blank"),
        ("text", {"text": None}, "E121", "data.row.null"),
        ("text", {"text": "\n"}, "E122", "data.row.blank"),
        ("text", {"text": 42}, "E120", "data.row.not_text"),
        *[
            ("kto", {"prompt": "a", "completion": "b", "label": label}, "E180", "data.row.label")
            for label in (-1, 2, 0.5, "maybe", "-1", [True])
        ],
        ("kto", {"prompt": "a", "completion": "b", "label": None}, "E121", "data.row.null"),
        ("kto", {"prompt": "a", "completion": "b", "label": ""}, "E122", "data.row.blank"),
        ("rl", {"prompt": "a", "answer": None}, "E121", "data.row.null"),
        ("rl", {"prompt": "", "answer": "4"}, "E122", "data.row.blank"),
        ("vision", {"image": None, "caption": "a"}, "E150", "data.row.no_image"),
        ("vision", {"image": [], "messages": [SEE, ANSWER]}, "E150", "data.row.no_image"),
        ("vision", {"image": 5, "caption": "a"}, "E150", "data.row.image.kind"),
        ("vision", {"images": ["a.png"], "messages": [SEE, SEE, ANSWER]}, "E150", "data.row.image.count"),
        ("pretokenized", {"input_ids": []}, "E122", "data.row.blank"),
        ("pretokenized", {"input_ids": None}, "E121", "data.row.null"),
        ("pretokenized", {"input_ids": "words"}, "E120", "data.row.not_ids"),
        ("pretokenized", {"input_ids": [1, "2"]}, "E120", "data.row.not_ids"),
        ("pretokenized", {"input_ids": [1, -1]}, "E120", "data.row.ids_range"),
        ("pretokenized", {"input_ids": [1, 2**40]}, "E120", "data.row.ids_range"),
        ("pretokenized", {"input_ids": [1, 2], "labels": [1]}, "E120", "data.row.ids_length"),
        ("pretokenized", {"input_ids": [1, 2], "labels": [-5, 2]}, "E120", "data.row.ids_range"),
    ],
)
def test_bad_row(name, values, code, message):
    with pytest.raises(RowError) as refusal:
        read(name, values)
    assert (refusal.value.code, refusal.value.message.id) == (code, message)
    for language in LANGUAGES:
        said = load_catalogue(language).say(refusal.value.message)
        assert "{" not in said and "data." not in said and len(said) < 300


@pytest.mark.parametrize("name", BY_NAME)
def test_missing_cell(name):
    format = BY_NAME[name]
    mapping = {role: names[0] for role, names in format.roles.items() if names}
    with pytest.raises(RowError) as refusal:
        format.read({"other": "x"}, mapping)
    assert refusal.value.code == "E120"


def test_every_format_and_code_has_its_words():
    for language in LANGUAGES:
        catalogue = load_catalogue(language)
        assert all(catalogue.has(f"data.format.{format.name}.reason") for format in FORMATS)
        for code in RowCode:
            said = [catalogue.say(one) for one in (code.heading, code.fix)]
            assert all("data." not in one and len(one) < 100 for one in said)


def test_names_of_columns():
    assert simplify(" Chosen Response\u200b") == "chosen_response" and simplify("ＩＮＰＵＴ") == "input"
    assert simplify(None) == simplify("x" * 1000) == ""
    assert shorten("a\nb") == "a b" and len(shorten("x" * 500)) == 60
    assert show_names(["a", "b"]) == "a, b" and len(show_names(["x" * 99] * 500)) < 400
    assert is_blank("\u3000\u200b") and not is_blank("\u200bx")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("messages", {"messages": [{"role": "system", "content": "be brief"}, USER, ANSWER]}),
        ("sharegpt", {"conversations": [{"from": "system", "value": "be brief"}, *GPT]}),
        ("alpaca", {"instruction": "hi", "input": "there", "output": "hello"}),
        ("prompt_completion", {"prompt": "hi", "completion": "hello"}),
    ],
)
def test_reading_a_row_is_fast(name, values):
    format = BY_NAME[name]
    mapping = format.match(list(values)).mapping
    spent_s = min(timeit.repeat(lambda: format.notes(format.read(values, mapping)), number=1000, repeat=5))
    assert spent_s / 1000 < 15e-6  # 2.5 us on an idle core; the rate leaves 23 for all work on a row


def make_value(random, depth: int = 0) -> object:
    """Return anything that a row may hold, with a liking for what formats look for."""
    words = [
        "",
        "hi",
        "\u200b",
        "user",
        "assistant",
        "tool",
        "[",
        "[]",
        "[1]",
        "\n\nHuman: a\n\nAssistant:",
        "image",
    ]
    words += ["function_call", '{"name": "f"}', '[{"role": "user", "content": "x"}]', "[{'role': 'user'}]"]
    kind = random.random()
    if kind < 0.5 or depth > 3:
        return random.choice(words)
    if kind < 0.6:
        return random.choice([None, True, -1, 2.5, float("nan"), 10**30, b"x", [1, 2], object()])
    if kind < 0.8:
        return [make_value(random, depth + 1) for _ in range(random.randrange(4))]
    keys = [
        "role",
        "content",
        "from",
        "value",
        "type",
        "text",
        "image",
        "tool_calls",
        "function",
        "name",
        "id",
    ]
    return {random.choice(keys): make_value(random, depth + 1) for _ in range(random.randrange(5))}


@pytest.mark.parametrize("format", FORMATS, ids=BY_NAME)
def test_anything_is_read_or_refused(format, english):
    random = Random(format.name)
    for _ in range(400):
        mapping = {role: role for role in format.roles if random.random() < 0.7}
        mapping |= {role: role for roles in format.required for role in roles.split("|")}
        values = {role: make_value(random) for role in mapping if random.random() < 0.9}
        try:
            format.notes(format.read(values, mapping))
        except RowError as refusal:
            said = english(refusal.message)
            assert isinstance(refusal.code, RowCode) and len(said) < 300 and "data." not in said


def test_prompts_of_turns_alone_are_answered_by_the_model(tell):
    rows = [{"prompt": [{"role": "user", "content": f"Is berth {n} free?"}]} for n in range(8)]
    assert tell(rows)["format"] == "rl" and not tell(rows)["needs_answer"]
