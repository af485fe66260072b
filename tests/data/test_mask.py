"""Row 3 of the data issue: for every family the trained tokens are the answers and their ends, letter by letter."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from studio.data.conversation import Conversation, Message, ToolCall
from studio.data.render import Renderer
from studio.data.row import RowError
from studio.data.template_skeleton import match, shape_of
from studio.data.templates.catalogue import read_family
from tests.each_time import every

CHATML = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
THINK = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
LLAMA3 = (
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
)
LLAMA2 = ("</s>", "<s>")
MISTRAL = (
    *("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
GEMMA = ("<end_of_turn>", "<bos>", "<start_of_turn>", "<eos>")
PHI = ("<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
COHERE = (
    *("<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>"),
    *("<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
)
DEEPSEEK = ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>")
DEEPSEEK_TURNS = (
    *(
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
    ),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
    *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<think>", "</think>"),
)
ARGUMENTS = {"city": 'Paris "x"', "days": 3}
SPOKEN = json.dumps(ARGUMENTS)
HERMES = f'<tool_call>\n{{"name": "find_weather", "arguments": {SPOKEN}}}\n</tool_call>'
LLAMA_CALL = f'{{"name": "find_weather", "parameters": {SPOKEN}}}'
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find_weather"
    f"\n```json\n{SPOKEN}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Family:
    """What is expected of one template."""

    specials: tuple[str, ...]
    end: str
    lead: str = ""
    """What the model writes before an answer."""
    last: str | None = None
    """The same for the last answer, where it differs."""
    call: str = ""
    """How a tool call is written; "" where the format has none."""
    extra: tuple[str, ...] = ()
    system: bool = True


FAMILIES = {
    "own:llama2": Family(LLAMA2, " </s>", " "),
    "trl:llama3": Family(LLAMA3, "<|eot_id|>"),
    "own:llama3": Family(LLAMA3, "<|eot_id|>"),
    "trl:llama3_1": Family(LLAMA3, "<|eot_id|>", call=LLAMA_CALL),
    "trl:llama3_2": Family(LLAMA3, "<|eot_id|>", call=LLAMA_CALL),
    "own:llama3.1": Family(LLAMA3, "<|eot_id|>", call=LLAMA_CALL),
    "trl:qwen2_5": Family(CHATML, "<|im_end|>", call=HERMES, extra=THINK[2:]),
    "own:qwen2": Family(CHATML, "<|im_end|>", call=HERMES, extra=THINK[2:]),
    "trl:qwen3": Family(CHATML, "<|im_end|>", last=EMPTY_THOUGHT, call=HERMES, extra=THINK),
    "own:qwen3": Family(CHATML, "<|im_end|>", last=EMPTY_THOUGHT, call=HERMES, extra=THINK),
    "trl:qwen3_instruct_2507": Family(CHATML, "<|im_end|>", call=HERMES, extra=THINK),
    "trl:qwen3_5_think": Family(CHATML, "<|im_end|>", last="\n</think>\n\n", extra=THINK),
    "own:mistral": Family(
        MISTRAL,
        "</s>",
        " ",
        call=f'[TOOL_CALLS] [{{"name": "find_weather", "arguments": {SPOKEN}, "id": "abcdef123"}}]',
    ),
    "trl:gemma": Family(GEMMA, "<end_of_turn>", system=False),
    "own:gemma2": Family(GEMMA, "<end_of_turn>", system=False),
    "trl:gemma3": Family(GEMMA, "<end_of_turn>"),
    "own:gemma3": Family(GEMMA, "<end_of_turn>"),
    "trl:phi3": Family(PHI, "<|end|>"),
    "trl:phi3_5": Family(PHI, "<|end|>"),
    "own:phi3": Family(PHI, "<|end|>"),
    "own:phi4": Family(("<|im_end|>", "<|im_start|>", "<|im_sep|>", "<|endoftext|>"), "<|im_end|>"),
    "own:phi4-mini": Family((*PHI, "<|tool|>", "<|/tool|>"), "<|end|>"),
    "trl:deepseekv3": Family(DEEPSEEK, DEEPSEEK[0], call=DEEPSEEK_CALL, extra=DEEPSEEK_TURNS),
    "trl:deepseek_r1_distill": Family(DEEPSEEK, DEEPSEEK[0], extra=DEEPSEEK_TURNS),
    "own:deepseek": Family(DEEPSEEK, DEEPSEEK[0], call=DEEPSEEK_CALL, extra=DEEPSEEK_TURNS),
    "own:chatml": Family(CHATML, "<|im_end|>"),
    "own:zephyr": Family(("</s>", "<s>", "<|user|>", "<|assistant|>", "<|system|>"), "</s>"),
    "trl:cohere": Family(COHERE, "<|END_OF_TURN_TOKEN|>"),
    "own:command-r": Family(COHERE, "<|END_OF_TURN_TOKEN|>"),
    "own:vicuna": Family(LLAMA2, "</s>", " "),
    "own:alpaca": Family(LLAMA2, "</s>"),
}
CALLING = [name for name, family in FAMILIES.items() if family.call]
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "find_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
)


def read_source(name: str) -> str:
    kind, _, name = name.partition(":")
    if kind == "own":
        return read_family(name)
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def renderer_of(tokenizers_of):
    """A function `get(name) -> Renderer` for a template of FAMILIES, made once."""
    made = {}

    def get(name: str) -> Renderer:
        if name not in made:
            family = FAMILIES[name]
            tokenizer = tokenizers_of[0](
                read_source(name), family.specials, extra=family.extra, bos=family.specials[1]
            )
            made[name] = Renderer(tokenizer, "answers")
        return made[name]

    return get


def show(renderer: Renderer, say, *messages: Message, tools=()) -> list[str]:
    """Return the trained stretches of one conversation."""
    layout = renderer.lay_out(Conversation(messages=messages, tools=tools))
    rendered = renderer.tokenize([layout], None)[0]
    assert renderer.tokenizer.decode(rendered.token_ids) == layout.text
    return say(rendered, renderer.tokenizer)


def turns(*answers: str) -> list[Message]:
    return [
        Message(role, words)
        for i, answer in enumerate(answers)
        for role, words in (("user", f"ask {i} same\nuser"), ("assistant", answer))
    ]


ANSWERS = [
    ("four",),
    ("four", "two\n\nlines", "ünï 漢字 🙂"),
    ("same", "same", "same"),
    ("user", "assistant\nuser", '{"json": [1, 2]} <b>&amp;</b>'),
    ("Q7x", "{{ braces }} {% raw %}", "ends with #\n# and 'quotes'"),
]


@pytest.mark.parametrize("answers", ANSWERS, ids=range(len(ANSWERS)))
@pytest.mark.parametrize("name", every(4, FAMILIES))
def test_answers_and_their_ends(renderer_of, say_trained, name, answers):
    family = FAMILIES[name]
    last = family.lead if family.last is None else family.last
    wanted = [family.lead + answer + family.end for answer in answers[:-1]] + [
        last + answers[-1] + family.end
    ]
    assert show(renderer_of(name), say_trained, *turns(*answers)) == wanted
    system = Message("system", "be kind")
    if family.system:
        assert show(renderer_of(name), say_trained, system, *turns(*answers)) == wanted


@pytest.mark.parametrize("name", CALLING)
def test_tool_calls_are_answers(renderer_of, say_trained, name):
    family = FAMILIES[name]
    call = ToolCall("find_weather", ARGUMENTS, "abcdef123")
    found = show(
        renderer_of(name),
        say_trained,
        Message("user", "ask 1"),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", 'rain "7"', name="find_weather", call_id="abcdef123"),
        Message("assistant", "it rains"),
        Message("user", "ask 2"),
        Message("assistant", "yes"),
        tools=TOOLS,
    )
    last = family.lead if family.last is None else family.last
    assert found == [
        family.call + family.end,
        family.lead + "it rains" + family.end,
        last + "yes" + family.end,
    ]


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if not FAMILIES[name].call and "qwen" not in name]
)
def test_tool_call_that_the_format_has_not_is_refused(renderer_of, name):
    messages = (
        Message("user", "ask 1"),
        Message("assistant", "wait", tool_calls=(ToolCall("find_weather", ARGUMENTS),)),
        Message("tool", "rain 7"),
        Message("assistant", "it rains"),
    )
    with pytest.raises(RowError) as refusal:
        renderer_of(name).lay_out(Conversation(messages=messages, tools=TOOLS))
    assert refusal.value.code == "E181"


@pytest.mark.parametrize("name", ["trl:qwen2_5", "trl:qwen3", "own:qwen3", "own:deepseek", "trl:deepseekv3"])
def test_words_and_two_calls_in_one_answer(renderer_of, say_trained, name):
    messages = (
        Message("user", "ask 1"),
        Message(
            "assistant",
            "wait",
            tool_calls=(ToolCall("find_weather", {"city": "Rome"}), ToolCall("find_weather", {"city": "漢"})),
        ),
        Message("tool", "rain 7"),
        Message("tool", "sun 9"),
        Message("assistant", "it rains"),
    )
    first, second = show(renderer_of(name), say_trained, *messages, tools=TOOLS)
    assert first.startswith("wait") and first.endswith(FAMILIES[name].end)
    assert first.count("find_weather") == 2 and '"Rome"' in first and '"漢"' in first
    assert "rain 7" not in first and second.endswith("it rains" + FAMILIES[name].end)


def test_thoughts(renderer_of, say_trained):
    messages = (
        Message("user", "ask 1"),
        Message("assistant", "one", reasoning="hm 1"),
        Message("user", "ask 2"),
        Message("assistant", "two", reasoning="hm 2"),
    )
    inline = tuple(
        message._replace(reasoning="", content=f"<think>\n{message.reasoning}\n</think>\n\n{message.content}")
        if message.reasoning
        else message
        for message in messages
    )
    for name in ("trl:qwen3", "own:qwen3"):
        # Earlier answers lose their thoughts: so the model will see them.
        wanted = ["one<|im_end|>", "<think>\nhm 2\n</think>\n\ntwo<|im_end|>"]
        assert show(renderer_of(name), say_trained, *messages) == wanted
        assert show(renderer_of(name), say_trained, *inline) == wanted
    # This prompt ends with the tag already.
    wanted = ["one<|im_end|>", "hm 2\n</think>\n\ntwo<|im_end|>"]
    assert show(renderer_of("trl:qwen3_5_think"), say_trained, *messages) == wanted
    assert show(renderer_of("own:chatml"), say_trained, *messages) == ["one<|im_end|>", "two<|im_end|>"]
    layout = renderer_of("own:chatml").lay_out(Conversation(messages=messages))
    assert layout.notes == ("reasoning_lost",)


def test_thoughts_that_a_template_cuts_off_are_noted(renderer_of, say_trained):
    """DeepSeek's templates keep what stands behind </think> only."""
    messages = (Message("user", "ask 1"), Message("assistant", "<think>\nhm 1\n</think>\n\none"))
    renderer = renderer_of("trl:deepseek_r1_distill")
    assert show(renderer, say_trained, *messages) == ["\n\none" + DEEPSEEK[0]]
    assert renderer.lay_out(Conversation(messages=messages)).notes == ("reasoning_lost",)
    ours = renderer_of("own:deepseek")
    assert show(ours, say_trained, *messages) == ["<think>\nhm 1\n</think>\n\none" + DEEPSEEK[0]]


@pytest.mark.parametrize("name", ["trl:llama3", "own:llama2", "own:mistral", "trl:cohere", "trl:gemma"])
def test_answers_of_blanks_only(renderer_of, say_trained, name):
    family = FAMILIES[name]
    for blank in ("\n", " ", ""):
        found = show(renderer_of(name), say_trained, *turns("one", blank))
        assert found[0] == family.lead + "one" + family.end
        assert "".join(found[1].split()) == family.end.strip()


def test_thoughts_in_front_where_the_family_writes_them(tokenizers_of, say_trained):
    source = read_family("chatml")
    tokenizer = tokenizers_of[0](source, CHATML, extra=("<think>", "</think>"), bos=None)
    messages = (Message("user", "ask 1"), Message("assistant", "one", reasoning="hm 1"))
    kept = show(Renderer(tokenizer, "answers"), say_trained, *messages)
    assert kept == ["<think>\nhm 1\n</think>\n\none<|im_end|>"]
    assert show(Renderer(tokenizer, "answers", reasoning="drop"), say_trained, *messages) == ["one<|im_end|>"]
    inline = (messages[0], Message("assistant", "<think>hm</think>one"))
    assert show(Renderer(tokenizer, "answers", reasoning="drop"), say_trained, *inline) == ["one<|im_end|>"]


# Ten odd templates ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Odd:
    """The parts of a generated template and what the model is to write by them."""

    header: str
    footer: str
    lead: str = ""
    end: str = ""
    prompt: str = "same"
    """The generation prompt: `same` as the header of an answer, "" for none, else itself."""
    before: str = ""
    content: str = "m.content"
    behind: str = ""
    opening: str = ""
    last: str | None = None
    specials: tuple[str, ...] = field(default=("<e>", "<b>", "<x>", "<h>", "</h>"))

    @property
    def source(self) -> str:
        header = self.header.replace("ROLE", "{{ m.role }}").replace("NUMBER", "{{ loop.index }}")
        prompt = self.header.replace("ROLE", "assistant").replace("NUMBER", "{{ messages | length + 1 }}")
        prompt = prompt if self.prompt == "same" else self.prompt
        return (
            f"{self.opening}{{% for m in messages %}}{header}"
            f"{{% if m.role == 'assistant' %}}{self.before}{{% endif %}}"
            f"{{{{ {self.content} }}}}{self.footer}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{prompt}{{% else %}}{self.behind}{{% endif %}}"
        )


ODD = {
    "numbered turns": Odd("<h>NUMBER ROLE</h>", "<e>", end="<e>"),
    "white space around everything": Odd("\n  <h>ROLE</h>  ", "  <e>  \n\n", end="  <e>"),
    "no prompt": Odd("<h>ROLE</h>\n", "<e>\n", end="<e>", prompt=""),
    "no special tokens": Odd("== ROLE ==\n", "\n", end="\n", specials=("<e>",)),
    "questions listed on top": Odd(
        "<h>ROLE</h>", "<e>", end="<e>", opening="{% for m in messages %}{{ m.content }};{% endfor %}"
    ),
    "three tokens end a turn": Odd("<h>ROLE</h>", "<x><x><e>\n", end="<x><x><e>"),
    "a sign at the end of all": Odd("<h>ROLE</h>", "<e>", end="<e>", behind="\n<b>"),
    "the last answer is announced": Odd(
        "<h>ROLE</h>", "<e>", end="<e>", before="{% if loop.last %}(final) {% endif %}", last="(final) "
    ),
    "the prompt says more than the turns": Odd(
        "<h>ROLE</h>", "<e>", end="<e>", prompt="<h>assistant</h><b>think:"
    ),
    "trimmed, and every answer bracketed": Odd(
        "<h>ROLE</h>", "]<e>", lead="[", end="]<e>", before="[", content="m.content | trim"
    ),
}


@pytest.mark.parametrize("name", every(2, ODD))
def test_odd_templates(tokenizers_of, say_trained, name):
    odd = ODD[name]
    if name == "trimmed, and every answer bracketed":
        source = odd.source.replace("]<e>", "{{ ']' if m.role == 'assistant' else '' }}<e>")
    else:
        source = odd.source
    renderer = Renderer(tokenizers_of[0](source, odd.specials), "answers")
    eos = "<e>" if name == "no special tokens" else ""
    for answers in (("four",), ("one", "two\nlines", "same"), ("same", "same")):
        leads = [odd.lead] * (len(answers) - 1) + [odd.lead if odd.last is None else odd.last]
        wanted = [lead + answer + odd.end for lead, answer in zip(leads, answers, strict=True)]
        wanted[-1] += eos
        for front in ((), (Message("system", "be kind"),)):
            assert show(renderer, say_trained, *front, *turns(*answers)) == wanted, source


# Both ways give the same ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_one_by_one_finds_the_same_as_the_skeleton(renderer_of, name):
    renderer = renderer_of(name)
    mask = renderer._masks[False]
    messages, _ = mask.writer.settle(turns("four", " two\n", "two"))
    full = mask.template.render(mask.writer.write(messages))
    skeleton = mask.build_skeleton(messages, ())
    found = match(skeleton, full, messages)
    assert found is not None and found == mask.find_answers(full, messages, ())


def test_a_text_that_departs_from_the_skeleton_is_not_taken_for_it(renderer_of):
    mask = renderer_of("own:chatml")._masks[False]
    messages = turns("one", "two")
    full = mask.template.render(mask.writer.write(messages))
    skeleton = mask.build_skeleton(messages, ())
    assert match(skeleton, full, messages)
    for wrong in (full.replace("two", "tw0"), full + "x", full[:-1], full.replace("user\n", "user \n", 1)):
        assert match(skeleton, wrong, messages) is None


def test_one_skeleton_a_shape(renderer_of):
    renderer = renderer_of("own:zephyr")
    before = len(renderer._skeletons)
    for i in range(20):
        renderer.lay_out(Conversation(messages=tuple(turns(f"a{i}", f"b{i}", f"c{i}", f"d{i}", f"e{i}"))))
    assert len(renderer._skeletons) <= before + 1
    assert shape_of(turns("a"), ()) != shape_of(turns("a", "b"), ())
    assert shape_of(turns("a"), TOOLS) != shape_of(turns("a"), ())


# Whatever people write -----------------------------------------------------------------------------------------------

WORDS = st.text(
    alphabet=st.one_of(
        st.sampled_from(" \n\t<>|[]/{}%#\"'\\_aeé漢🙂"), st.characters(exclude_categories=("Cs",))
    ),
    min_size=1,
    max_size=12,
).filter(str.strip)
STRIPPING = ("own:llama2", "trl:llama3", "trl:gemma3", "trl:cohere", "own:mistral")


@pytest.mark.parametrize("name", ["own:chatml", "own:zephyr", "trl:qwen2_5", "trl:phi3", *STRIPPING])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(questions=st.lists(WORDS, min_size=2, max_size=2), answers=st.lists(WORDS, min_size=2, max_size=2))
def test_whatever_people_write(renderer_of, say_trained, name, questions, answers):
    family, renderer = FAMILIES[name], renderer_of(name)
    messages = [
        Message(role, words)
        for pair in zip(questions, answers, strict=True)
        for role, words in zip(("user", "assistant"), pair, strict=True)
    ]
    # Words that steer the model are refused (E191): a test of its own. Some day or other they are drawn.
    assume(not any(renderer.controls.find_in_message(message) for message in messages))
    layout = renderer.lay_out(Conversation(messages=tuple(messages)))
    found = [layout.text[start:end] for start, end in layout.trained]
    kept = [answer.strip() if name in STRIPPING else answer for answer in answers]
    assert found == [family.lead + answer + family.end for answer in kept]
    rendered = renderer.tokenize([layout], None)[0]
    assert say_trained(rendered, renderer.tokenizer) == found


@pytest.mark.parametrize("name", ["trl:qwen3", "own:qwen3"])
def test_thoughts_of_earlier_turns_that_are_left_out_are_noted(renderer_of, name):
    thoughts = (Message("assistant", "one", reasoning="hm 1"), Message("assistant", "two", reasoning="hm 2"))
    messages = (Message("user", "ask 1"), thoughts[0], Message("user", "ask 2"), thoughts[1])
    layout = renderer_of(name).lay_out(Conversation(messages))
    assert "hm 1" not in layout.text and "hm 2" in layout.text
    assert layout.notes == ("reasoning_lost",)
    inline = tuple(
        one._replace(reasoning="", content=f"<think>{one.reasoning}</think>{one.content}\n")
        if one.reasoning
        else one
        for one in messages
    )
    assert renderer_of(name).lay_out(Conversation(inline)).notes == ("reasoning_lost",)


@pytest.mark.parametrize("asked", ["ask 1", "before <think>hm</think> behind"])
@pytest.mark.parametrize("more", [(), (Message("user", "ask 2"), Message("assistant", "two"))])
def test_half_an_answer_is_never_lost_in_silence(renderer_of, more, asked):
    answer = Message("assistant", "before <think>hm</think> behind")
    with pytest.raises(RowError) as caught:
        renderer_of("own:qwen3").lay_out(Conversation((Message("user", asked), answer, *more)))
    assert caught.value.code == "E181"


def test_thoughts_whose_opening_belongs_to_the_prompt(renderer_of, say_trained):
    messages = (Message("user", "ask 1"), Message("assistant", "hm 1\n</think>\n\none"))
    wanted = ["<think>\nhm 1\n</think>\n\none<|im_end|>"]
    assert show(renderer_of("own:qwen3"), say_trained, *messages) == wanted


@pytest.mark.parametrize("train_on", ["answers", "last_answer"])
def test_answers_kept_out_of_training_are_context(tokenizers_of, say_trained, train_on):
    renderer = Renderer(tokenizers_of[0](read_family("chatml"), CHATML), train_on)
    one, two, three = turns("one", "two", "three")[1::2]
    asks = turns("", "", "")[::2]

    def trained(*answers: Message) -> list[str]:
        return show(
            renderer, say_trained, *(turn for pair in zip(asks, answers, strict=True) for turn in pair)
        )

    kept = trained(one._replace(weight=0), two, three._replace(weight=0))
    assert kept == ["two<|im_end|>"]
    assert trained(*(answer._replace(weight=0) for answer in (one, two, three))) == []
