"""The loss mask: what is trained is exactly the answers with the token that ends them, whatever the template does."""

import numpy as np
import pytest

from studio.core.errors import StudioError
from studio.data.conversation import Conversation, Message, ToolCall
from studio.data.render import Renderer, render
from studio.data.row import RowError
from studio.data.special_tokens import ControlWords

USER, ANSWER, SYSTEM = "user", "assistant", "system"
ENDS = {
    "chatml": "<|im_end|>",
    "llama3": "<|eot|>",
    "gemma": "<end_of_turn>",
    "merged_system": "<|end|>",
    "mistral": "</s>",
    "no_prompt": "<|im_end|>",
    "final_eos": "<|end|>",
}


def chat(*turns: tuple[str, str]) -> Conversation:
    return Conversation(messages=tuple(Message(role, content) for role, content in turns))


@pytest.mark.parametrize("family", ENDS)
@pytest.mark.parametrize(
    "answers", [("four",), ("ll on", "ünï 漢字 🙂", "two\n\nlines"), ("same", "same", "same")]
)
def test_trained_tokens_are_the_answers_and_their_ends(tokenizer_of, family, answers, say_trained):
    tokenizer = tokenizer_of(family)
    turns = [turn for i, answer in enumerate(answers) for turn in ((USER, f"ask {i} same"), (ANSWER, answer))]
    rendered = render(chat(*turns), tokenizer, "answers", 4096)
    space = (
        " " if family == "mistral" else ""
    )  # Its prompt ends before the space, so the model must write it.
    assert say_trained(rendered, tokenizer) == [space + answer + ENDS[family] for answer in answers]
    assert tokenizer.decode(rendered.token_ids) == rendered.text


@pytest.mark.parametrize("family", ["chatml", "llama3", "merged_system", "final_eos"])
def test_system_prompt_is_context(tokenizer_of, family, say_trained):
    tokenizer = tokenizer_of(family)
    rendered = render(chat((SYSTEM, "be kind"), (USER, "hi"), (ANSWER, "hello")), tokenizer, "answers", 999)
    assert "be kind" in rendered.text
    assert say_trained(rendered, tokenizer) == ["hello" + ENDS[family]]


def test_shared_tokenizer_of_the_tests(tiny_models, say_trained):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_models("llama"))
    rendered = render(
        chat((USER, "q"), (ANSWER, "one"), (USER, "q"), (ANSWER, "two")), tokenizer, "answers", 999
    )
    assert say_trained(rendered, tokenizer) == ["one<|end|>", "two<|end|>"]
    assert rendered.token_ids.dtype == np.int32 and rendered.trained.dtype == bool


@pytest.mark.parametrize("family", ["llama3", "gemma"])
def test_trimmed_answer(tokenizer_of, family, say_trained):
    tokenizer = tokenizer_of(family)
    rendered = render(chat((USER, " q "), (ANSWER, "\n a b \n")), tokenizer, "answers", 999)
    assert say_trained(rendered, tokenizer) == ["a b" + ENDS[family]]


def test_template_that_rewrites_earlier_turns(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("thinking")
    turns = ((USER, "q"), (ANSWER, "<think>hm</think>\n\none"), (USER, "r"), (ANSWER, "two"))
    rendered = render(chat(*turns), tokenizer, "answers", 999)
    assert say_trained(rendered, tokenizer) == ["one<|im_end|>", "<think>\n\n</think>\n\ntwo<|im_end|>"]


def test_answer_first(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("chatml")
    rendered = render(chat((ANSWER, "welcome"), (USER, "hi"), (ANSWER, "yes")), tokenizer, "answers", 999)
    assert say_trained(rendered, tokenizer) == ["welcome<|im_end|>", "yes<|im_end|>"]


def test_answer_that_looks_like_the_template(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("chatml")
    turns = ((USER, "assistant"), (ANSWER, "assistant"), (USER, "user"), (ANSWER, "user\nassistant"))
    rendered = render(chat(*turns), tokenizer, "answers", 999)
    assert say_trained(rendered, tokenizer) == ["assistant<|im_end|>", "user\nassistant<|im_end|>"]


def test_template_without_special_tokens_gets_an_end(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("no_specials")
    rendered = render(
        chat((USER, "q"), (ANSWER, "one"), (USER, "r"), (ANSWER, "two")), tokenizer, "answers", 999
    )
    assert say_trained(rendered, tokenizer) == ["one\n", "two\n<|endoftext|>"]


def test_last_answer_and_everything(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("chatml")
    example = chat((USER, "q"), (ANSWER, "one"), (USER, "r"), (ANSWER, "two"))
    assert say_trained(render(example, tokenizer, "last_answer", 999), tokenizer) == ["two<|im_end|>"]
    everything = render(example, tokenizer, "everything", 999)
    assert everything.trained.tolist() == [False] + [True] * (len(everything.token_ids) - 1)


def test_question_behind_the_last_answer_is_context(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("final_eos")
    rendered = render(chat((USER, "q"), (ANSWER, "one"), (USER, "more")), tokenizer, "answers", 999)
    assert say_trained(rendered, tokenizer) == ["one<|end|>"]


def test_cut_keeps_the_start(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    example = chat((USER, "q"), (ANSWER, "x" * 50))
    whole, cut = render(example, tokenizer, "answers", 999), render(example, tokenizer, "answers", 40)
    assert not whole.cut and cut.cut
    assert cut.token_ids.tolist() == whole.token_ids[:40].tolist()
    assert cut.trained.tolist() == whole.trained[:40].tolist()


def test_refusal_of_the_template_names_its_words(tokenizer_of, english):
    with pytest.raises(RowError) as refusal:
        render(chat((SYSTEM, "s"), (USER, "q"), (ANSWER, "a")), tokenizer_of("gemma"), "answers", 99)
    assert "System role not supported" in english(refusal.value.message)


def test_no_chat_template(tokenizer_of, english):
    with pytest.raises(StudioError) as refusal:
        render(chat((USER, "q"), (ANSWER, "a")), tokenizer_of("plain"), "answers", 99)
    assert english(refusal.value.what) == "This model has no chat template."
    assert refusal.value.exit_code == 2


def test_completion_without_template(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("plain")
    example = Conversation(messages=(Message(USER, "2+2="), Message(ANSWER, "4")), kind="completion")
    rendered = render(example, tokenizer, "answers", 99)
    assert rendered.text == "2+2=4<|end|>"
    assert say_trained(rendered, tokenizer) == ["4<|end|>"]


def test_plain_text_is_trained_whole_and_ended(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    rendered = render(Conversation(text="abc", kind="text"), tokenizer, "answers", 99)
    assert rendered.text == "abc<|im_end|>"
    assert rendered.trained.tolist() == [False, True, True, True]


def test_control_word_in_a_message_is_refused(tokenizer_of, english):
    tokenizer = tokenizer_of("chatml")
    with pytest.raises(RowError) as refusal:
        render(chat((USER, "q"), (ANSWER, "a <|im_end|> sign")), tokenizer, "answers", 99)
    assert refusal.value.code == "E191"
    said = english(refusal.value.message)
    assert "Turn 2 " in said and "<|im_end|>" in said
    assert render(chat((USER, "im_end <|im_en |>"), (ANSWER, "a")), tokenizer, "answers", 99).notes == ()


def test_template_that_loses_turns(tokenizer_of, english):
    tokenizer = tokenizer_of("loses_system")
    rendered = render(chat((SYSTEM, "be kind"), (USER, "q"), (ANSWER, "a")), tokenizer, "answers", 99)
    assert rendered.notes == ("system_lost",)
    for family, message in (("loses_user", "turn 1"), ("loses_answer", "answer in turn 2")):
        with pytest.raises(RowError) as refusal:
            render(chat((USER, "question"), (ANSWER, "hello")), tokenizer_of(family), "answers", 99)
        assert message in english(refusal.value.message)


def test_middle_turns_that_end_unlike_the_last(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("two_ends")
    rendered = render(
        chat((USER, "q"), (ANSWER, "one"), (USER, "r"), (ANSWER, "two")), tokenizer, "answers", 99
    )
    assert say_trained(rendered, tokenizer) == ["one", "two<|return|>"]


def test_two_tokens_that_end_a_turn_together(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("double_end")
    rendered = render(
        chat((USER, "q"), (ANSWER, "one"), (USER, "r"), (ANSWER, "two")), tokenizer, "answers", 99
    )
    assert say_trained(rendered, tokenizer) == ["one<|end_text|><|end|>", "two<|end_text|><|end|>"]


def test_token_astride_the_edge_of_an_answer_is_parted(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("no_specials")
    assert len(tokenizer(" t")["input_ids"]) == 1
    rendered = render(chat((USER, "q"), (ANSWER, "two")), tokenizer, "answers", 99)
    assert say_trained(rendered, tokenizer) == ["two\n<|endoftext|>"]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "q"}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(prompt)["input_ids"]
    assert rendered.token_ids[: len(ids)].tolist() == ids


class Slow:
    """A tokenizer that tells no offsets, as those in pure Python."""

    is_fast = False

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __call__(self, words, add_special_tokens=True):
        return self.inner(words, add_special_tokens=add_special_tokens)


def test_tokenizer_without_offsets(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    example = chat((USER, "q"), (ANSWER, "one"), (USER, "r"), (ANSWER, "two"))
    slow, fast = (render(example, one, "answers", 99) for one in (Slow(tokenizer), tokenizer))
    assert slow.token_ids.tolist() == fast.token_ids.tolist()
    assert slow.trained.tolist() == fast.trained.tolist()


def test_many_at_once_equal_one_by_one(tokenizer_of):
    tokenizer = tokenizer_of("llama3")
    examples = [chat((USER, "q" * i), (ANSWER, "a" * (i + 1))) for i in range(5)]
    examples.insert(2, Conversation(text="plain words", kind="text"))
    renderer = Renderer(tokenizer, "answers")
    together = renderer.tokenize([renderer.lay_out(example) for example in examples], 64)
    for example, row in zip(examples, together, strict=True):
        alone = render(example, tokenizer, "answers", 64)
        assert row.token_ids.tolist() == alone.token_ids.tolist()
        assert row.trained.tolist() == alone.trained.tolist()


# What must not be passed over ----------------------------------------------------------------------------------------


def refusal_of(conversation, tokenizer, **settings) -> RowError:
    with pytest.raises(RowError) as refusal:
        render(conversation, tokenizer, "answers", 99, **settings)
    return refusal.value


CALL = ToolCall("find_weather", {"city": "Rome"})
TOOLS = ({"type": "function", "function": {"name": "find_weather", "parameters": {"type": "object"}}},)
CALLING = (
    Message(USER, "q"),
    Message(ANSWER, "", tool_calls=(CALL,)),
    Message("tool", "rain"),
    Message(ANSWER, "a"),
)


@pytest.mark.parametrize(
    "message",
    [
        Message(USER, "look: <|im_start|>system"),
        Message("tool", "<|im_end|>"),
        Message(ANSWER, "fine", reasoning="hm <|im_end|>"),
        Message(ANSWER, "", tool_calls=(ToolCall("f", {"word": {"deep": ["<|im_end|>"]}}),)),
        Message(ANSWER, "", tool_calls=(ToolCall("f<|im_end|>", {}),)),
        Message("tool", "x", name="<|im_end|>"),
    ],
)
def test_control_words_are_found_everywhere(tokenizer_of, message, english):
    error = refusal_of(Conversation(messages=(Message(USER, "q"), message)), tokenizer_of("chatml"))
    assert error.code == "E191" and "Turn 2" in english(error.message) and "<|im_" in english(error.message)
    assert len(english(error.message)) <= 300


def test_control_words_in_tools_texts_and_completions(tokenizer_of):
    tools = ({"type": "function", "function": {"name": "f", "description": "ends with <|im_end|>"}},)
    tokenizer = tokenizer_of("chatml")
    assert refusal_of(chat((USER, "q"), (ANSWER, "a"))._replace(tools=tools), tokenizer).code == "E191"
    assert refusal_of(Conversation(text="a<|im_end|>b", kind="text"), tokenizer).code == "E191"
    example = Conversation(messages=(Message(USER, "2+2="), Message(ANSWER, "4<|end|>5")), kind="completion")
    assert refusal_of(example, tokenizer_of("plain")).code == "E191"
    ended = render(Conversation(text="abc<|im_end|>", kind="text"), tokenizer, "answers", 99)
    assert ended.text == "abc<|im_end|>" and ended.notes == ()


def test_words_that_are_no_control_words(tokenizers_of):
    template = "{% for m in messages %}<b>{{ m.role }}<c>{{ m.content }}<e>{% endfor %}"
    tokenizer = tokenizers_of[0](template, ("<e>", "<b>", "<c>"), extra=("<think>", "<tool_call>", "<turn>"))
    said = "<think> <tool_call> <turn> </e> <E> & <br>"
    assert render(chat((USER, said), (ANSWER, said)), tokenizer, "answers", 999).notes == ()
    # A turn's own word is one though the tokenizer does not call it special.
    tokenizer.chat_template = template.replace("<b>", "<turn>")
    assert refusal_of(chat((USER, "<turn>"), (ANSWER, "a")), tokenizer).code == "E191"


def test_signs_of_tool_calls_may_stand_in_answers(tokenizers_of):
    template = (
        "{% for m in messages %}<b>{{ m.role }}<c>{{ m.content }}"
        "{% if m.tool_calls %}<call>{{ m.tool_calls[0].function | tojson }}{% endif %}<e>{% endfor %}"
    )
    tokenizer = tokenizers_of[0](template, ("<e>", "<b>", "<c>", "<call>", "<other>"))
    assert render(chat((USER, "q"), (ANSWER, '<call>{"name": "f"}')), tokenizer, "answers", 99).trained.any()
    for example in (chat((USER, "<call>"), (ANSWER, "a")), chat((USER, "q"), (ANSWER, "<other>"))):
        assert refusal_of(example, tokenizer).code == "E191"
    assert refusal_of(chat((USER, "q"), (ANSWER, "a <e> b")), tokenizer).code == "E191"


def test_headers_may_not_stand_in_answers(tokenizer_of):
    for word in ("<|system|>", "<|user|>", "<|end|>", "<|endoftext|>"):
        assert refusal_of(chat((USER, "q"), (ANSWER, f"a {word}")), tokenizer_of("final_eos")).code == "E191"


def test_first_of_many_control_words_is_named():
    words = ControlWords(("<s>", "</s>", *(f"<|sign_{n}|>" for n in range(300)), "[INST]"))
    assert words.find("a <|sign_7|> b </s> [INST]") == "<|sign_7|>"
    assert words.find("[INST] <s>") == "[INST]" and words.find("<|sign_300|> < s > [I]") == ""
    assert ControlWords(()).find("<s>") == ""


def test_text_that_is_laid_out_already(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("chatml")
    words = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    rendered = render(Conversation(text=words, kind="text"), tokenizer, "everything", 99)
    assert rendered.text == words and rendered.notes == ("laid_out",)
    assert rendered.token_ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")


def test_lost_tool_calls_and_results_are_refused(tokenizer_of, english):
    conversation = Conversation(messages=CALLING, tools=TOOLS)
    error = refusal_of(conversation, tokenizer_of("chatml"))
    assert error.code == "E181"
    assert english(error.message) == "The chat template loses the call of find_weather in turn 2."
    error = refusal_of(conversation, tokenizer_of("loses_tools"))
    assert english(error.message) == "The chat template loses the tool result in turn 3."
    kept = chat((USER, "q"), (ANSWER, "a"))._replace(tools=TOOLS)
    assert render(kept, tokenizer_of("chatml"), "answers", 99).notes == ("tools_lost",)


def test_lost_turns_have_the_code(tokenizer_of):
    for family in ("loses_user", "loses_answer"):
        assert refusal_of(chat((USER, "question"), (ANSWER, "hello")), tokenizer_of(family)).code == "E181"
    assert refusal_of(chat((SYSTEM, "s"), (USER, "q"), (ANSWER, "a")), tokenizer_of("gemma")).code == "E181"


def test_an_answer_that_a_template_changes_is_refused(tokenizers_of):
    template = "{% for m in messages %}<b>{{ m.role }}:{{ m.content[:4] }}<e>{% endfor %}"
    tokenizer = tokenizers_of[0](template, ("<e>", "<b>"))
    assert refusal_of(chat((USER, "ask"), (ANSWER, "longer than four")), tokenizer).code == "E181"
    assert refusal_of(chat((USER, "longer than four"), (ANSWER, "a")), tokenizer).code == "E181"


def test_no_answer_is_nothing_to_learn(tokenizer_of):
    rendered = render(chat((USER, "q"), (USER, "r")), tokenizer_of("chatml"), "answers", 99)
    assert not rendered.trained.any()


# Data that come as tokens --------------------------------------------------------------------------------------------


def test_tokens_and_labels_are_taken_as_they_are(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    ids = tuple(tokenizer("hello you")["input_ids"])
    labels = (-100, -100, *ids[2:])
    rendered = render(Conversation(token_ids=ids, labels=labels, kind="tokens"), tokenizer, "answers", 5)
    assert rendered.token_ids.tolist() == list(ids[:5]) and rendered.cut
    assert rendered.trained.tolist() == [False, False, True, True, True]
    assert rendered.token_ids.dtype == np.int32 and rendered.text == "hello you"
    everything = render(Conversation(token_ids=ids, kind="tokens"), tokenizer, "answers", None)
    assert everything.trained.tolist() == [False] + [True] * (len(ids) - 1)


def test_token_ids_beyond_the_vocabulary(tokenizer_of, english):
    tokenizer = tokenizer_of("chatml")
    size = len(tokenizer)
    for wrong in (size, -1, 2**40):
        error = refusal_of(Conversation(token_ids=(1, wrong), kind="tokens"), tokenizer)
        assert error.code == "E192"
        said = f"Token 2 has the id {wrong}; the model knows ids from 0 to {size - 1}."
        assert english(error.message) == said
    # A model may have more rows than its tokenizer has tokens.
    conversation = Conversation(token_ids=(1, size), kind="tokens")
    assert render(conversation, tokenizer, "answers", 9, vocab_size=size + 1).token_ids.tolist() == [1, size]


def test_labels_that_do_not_fit(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    for labels in ((-100,), (1, 2, 4)):
        example = Conversation(token_ids=(1, 2, 3), labels=labels, kind="tokens")
        assert refusal_of(example, tokenizer).code == "E120"


# Tokenizers ----------------------------------------------------------------------------------------------------------


def test_sentencepiece_like_tokenizer(tokenizers_of, say_trained):
    from studio.data.templates.catalogue import read_family

    tokenizer = tokenizers_of[1](read_family("llama2"), ("</s>", "<s>"))
    rendered = render(
        chat((USER, "ask one"), (ANSWER, "say two"), (USER, "say"), (ANSWER, "rain")),
        tokenizer,
        "answers",
        99,
    )
    assert [words.strip() for words in say_trained(rendered, tokenizer)] == ["say two </s>", "rain </s>"]
    whole = tokenizer(rendered.text, add_special_tokens=False)["input_ids"]
    assert rendered.token_ids.tolist() == whole


def test_bytes_of_one_character_stay_together(tokenizer_of, say_trained):
    tokenizer = tokenizer_of("no_specials")
    rendered = render(
        chat((USER, "🙂"), (ANSWER, "漢🙂"), (USER, "é"), (ANSWER, "🙂é")), tokenizer, "answers", 99
    )
    assert say_trained(rendered, tokenizer) == ["漢🙂\n", "🙂é\n<|endoftext|>"]


def test_cutting_and_padding_of_the_tokenizers_file_are_off(tokenizer_of):
    import copy

    tokenizer = copy.deepcopy(tokenizer_of("chatml"))
    wanted = render(chat((USER, "q" * 50), (ANSWER, "a")), tokenizer, "answers", None).token_ids.tolist()
    tokenizer.backend_tokenizer.enable_truncation(8)
    tokenizer.backend_tokenizer.enable_padding(length=300)
    assert (
        render(chat((USER, "q" * 50), (ANSWER, "a")), tokenizer, "answers", None).token_ids.tolist() == wanted
    )


def test_offsets_agree_with_the_tokenizers_list_of_them(tokenizer_of):
    from studio.data.encoder import _find_by_offsets, _find_tokens

    tokenizer = tokenizer_of("no_specials")
    words = "User: ll on t\n\n漢🙂 on"
    encoding = tokenizer.backend_tokenizer.encode(words, add_special_tokens=False)
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            assert _find_tokens(encoding, len(encoding.ids), start, end) == _find_by_offsets(
                encoding, start, end
            )


# Today and tomorrow --------------------------------------------------------------------------------------------------


def test_the_date_in_a_template_does_not_move(tokenizers_of):
    template = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}<b>{{ m.content }}<e>{% endfor %}"
    tokenizer = tokenizers_of[0](template, ("<e>", "<b>"))
    assert (
        render(chat((USER, "q"), (ANSWER, "a")), tokenizer, "answers", 99).text == "26 Jul 2024<b>q<e><b>a<e>"
    )
