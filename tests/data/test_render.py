"""The loss mask: what is trained is exactly the answers with the token that ends them, whatever the template does."""

import numpy as np
import pytest

from studio.core.errors import StudioError
from studio.data.conversation import Conversation, Message
from studio.data.render import Renderer, render
from studio.data.row import RowError

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


def say_trained(rendered, tokenizer) -> list[str]:
    """Return the trained stretches, decoded."""
    parts, current = [], []
    for token, trained in zip(rendered.token_ids.tolist(), rendered.trained.tolist(), strict=True):
        if trained:
            current.append(token)
        elif current:
            parts.append(current)
            current = []
    return [tokenizer.decode(part) for part in [*parts, current] if part]


@pytest.mark.parametrize("family", ENDS)
@pytest.mark.parametrize(
    "answers", [("four",), ("ll on", "ünï 漢字 🙂", "two\n\nlines"), ("same", "same", "same")]
)
def test_trained_tokens_are_the_answers_and_their_ends(tokenizer_of, family, answers):
    tokenizer = tokenizer_of(family)
    turns = [turn for i, answer in enumerate(answers) for turn in ((USER, f"ask {i} same"), (ANSWER, answer))]
    rendered = render(chat(*turns), tokenizer, "answers", 4096)
    space = (
        " " if family == "mistral" else ""
    )  # Its prompt ends before the space, so the model must write it.
    assert say_trained(rendered, tokenizer) == [space + answer + ENDS[family] for answer in answers]
    assert tokenizer.decode(rendered.token_ids) == rendered.text


@pytest.mark.parametrize("family", ["chatml", "llama3", "merged_system", "final_eos"])
def test_system_prompt_is_context(tokenizer_of, family):
    tokenizer = tokenizer_of(family)
    rendered = render(chat((SYSTEM, "be kind"), (USER, "hi"), (ANSWER, "hello")), tokenizer, "answers", 999)
    assert "be kind" in rendered.text
    assert say_trained(rendered, tokenizer) == ["hello" + ENDS[family]]


def test_shared_tokenizer_of_the_tests(tiny_models):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_models("llama"))
    rendered = render(
        chat((USER, "q"), (ANSWER, "one"), (USER, "q"), (ANSWER, "two")), tokenizer, "answers", 999
    )
    assert say_trained(rendered, tokenizer) == ["one<|end|>", "two<|end|>"]
    assert rendered.token_ids.dtype == np.int32 and rendered.trained.dtype == bool


@pytest.mark.parametrize("family", ["llama3", "gemma"])
def test_trimmed_answer(tokenizer_of, family):
    tokenizer = tokenizer_of(family)
    rendered = render(chat((USER, " q "), (ANSWER, "\n a b \n")), tokenizer, "answers", 999)
    assert say_trained(rendered, tokenizer) == ["a b" + ENDS[family]]


def test_template_that_rewrites_earlier_turns(tokenizer_of):
    tokenizer = tokenizer_of("thinking")
    turns = ((USER, "q"), (ANSWER, "<think>hm</think>\n\none"), (USER, "r"), (ANSWER, "two"))
    rendered = render(chat(*turns), tokenizer, "answers", 999)
    assert say_trained(rendered, tokenizer) == ["one<|im_end|>", "<think>\n\n</think>\n\ntwo<|im_end|>"]


def test_answer_first(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    rendered = render(chat((ANSWER, "welcome"), (USER, "hi"), (ANSWER, "yes")), tokenizer, "answers", 999)
    assert say_trained(rendered, tokenizer) == ["welcome<|im_end|>", "yes<|im_end|>"]


def test_answer_that_looks_like_the_template(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    turns = ((USER, "assistant"), (ANSWER, "assistant"), (USER, "user"), (ANSWER, "user\nassistant"))
    rendered = render(chat(*turns), tokenizer, "answers", 999)
    assert say_trained(rendered, tokenizer) == ["assistant<|im_end|>", "user\nassistant<|im_end|>"]


def test_template_without_special_tokens_gets_an_end(tokenizer_of):
    tokenizer = tokenizer_of("no_specials")
    rendered = render(
        chat((USER, "q"), (ANSWER, "one"), (USER, "r"), (ANSWER, "two")), tokenizer, "answers", 999
    )
    assert say_trained(rendered, tokenizer) == ["one\n", "two\n<|endoftext|>"]


def test_last_answer_and_everything(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    example = chat((USER, "q"), (ANSWER, "one"), (USER, "r"), (ANSWER, "two"))
    assert say_trained(render(example, tokenizer, "last_answer", 999), tokenizer) == ["two<|im_end|>"]
    everything = render(example, tokenizer, "everything", 999)
    assert everything.trained.tolist() == [False] + [True] * (len(everything.token_ids) - 1)


def test_question_behind_the_last_answer_is_context(tokenizer_of):
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


def test_completion_without_template(tokenizer_of):
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


def test_control_token_in_a_message_is_noticed(tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    rendered = render(
        chat((USER, "what is <|im_end|>?"), (ANSWER, "a <|im_end|> sign")), tokenizer, "answers", 99
    )
    assert rendered.notes == ("control",)
    assert render(chat((USER, "q"), (ANSWER, "a")), tokenizer, "answers", 99).notes == ()


def test_template_that_loses_turns(tokenizer_of, english):
    tokenizer = tokenizer_of("loses_system")
    rendered = render(chat((SYSTEM, "be kind"), (USER, "q"), (ANSWER, "a")), tokenizer, "answers", 99)
    assert rendered.notes == ("system_lost",)
    for family, message in (("loses_user", "turn 1"), ("loses_answer", "answer in turn 2")):
        with pytest.raises(RowError) as refusal:
            render(chat((USER, "question"), (ANSWER, "hello")), tokenizer_of(family), "answers", 99)
        assert message in english(refusal.value.message)


def test_middle_turns_that_end_unlike_the_last(tokenizer_of):
    tokenizer = tokenizer_of("two_ends")
    rendered = render(
        chat((USER, "q"), (ANSWER, "one"), (USER, "r"), (ANSWER, "two")), tokenizer, "answers", 99
    )
    assert say_trained(rendered, tokenizer) == ["one", "two<|return|>"]


def test_two_tokens_that_end_a_turn_together(tokenizer_of):
    tokenizer = tokenizer_of("double_end")
    rendered = render(
        chat((USER, "q"), (ANSWER, "one"), (USER, "r"), (ANSWER, "two")), tokenizer, "answers", 99
    )
    assert say_trained(rendered, tokenizer) == ["one<|end_text|><|end|>", "two<|end_text|><|end|>"]


def test_token_astride_the_edge_of_an_answer_is_parted(tokenizer_of):
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
