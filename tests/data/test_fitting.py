"""Which templates fit a tokenizer, what a model without one is asked, and end marks that are no token."""

from __future__ import annotations

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation, Message
from studio.data.prepare import prepare
from studio.data.preview import preview
from studio.data.render import Renderer
from studio.data.templates.catalogue import FAMILIES, list_names, read_family
from studio.data.templates.fitting import MARKS, WORDED, find_fitting, find_split_end

CHAT = Conversation(messages=(Message("user", "q"), Message("assistant", "a")) * 2)
ROWS = [
    {"messages": [{"role": "user", "content": f"ask {i}"}, {"role": "assistant", "content": f"say {i}"}]}
    for i in range(30)
]


@pytest.mark.parametrize(
    ("added", "fitting"),
    [
        ("<bos> <eos> <start_of_turn> <end_of_turn>", "gemma3 gemma2"),
        ("<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|>", "llama3"),
        ("<|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|>", "llama3.1 llama3"),
        ("<|endoftext|> <|im_start|> <|im_end|>", "chatml"),
        ("<|im_start|> <|im_end|> <|object_ref_start|>", "qwen2 chatml"),
        ("<|im_start|> <|im_end|> <|object_ref_start|> <think>", "qwen3 chatml"),
        ("<|im_start|> <|im_sep|> <|im_end|>", "phi4"),
        ("<s> </s> [INST] [/INST]", "mistral"),
        ("<s> </s> <|im_start|>", ""),
    ],
)
def test_the_fitting_one_comes_first_and_plain_words_always_do(added, fitting):
    assert find_fitting(added.split()) == (*fitting.split(), *WORDED)


@pytest.mark.parametrize("name", sorted(MARKS))
def test_what_is_offered_writes_the_tokens_that_it_is_offered_for(name, tokenizers_of):
    assert name in list_names() and set(MARKS) | set(WORDED) | {"llama2"} == set(FAMILIES)
    tokenizer = tokenizers_of[0](None, (*MARKS[name], "<eos>"), bos="<bos>")
    words = Renderer(tokenizer, "answers", name).lay_out(CHAT).text
    assert MARKS[name][0] in words and not find_split_end(read_family(name), MARKS[name])


@pytest.mark.parametrize("name", WORDED)
def test_plain_words_end_with_the_tokenizers_end(name, tokenizers_of):
    tokenizer = tokenizers_of[0](None, ("</s>",))
    renderer = Renderer(tokenizer, "answers", name)
    layout = renderer.lay_out(CHAT)
    assert not renderer.split_end and len(layout.trained) == 2
    assert all(layout.text[start:end].strip() == "a</s>" for start, end in layout.trained), layout


def test_an_end_mark_that_is_no_token_is_told_and_learned(tokenizers_of, tmp_path, jsonl, english):
    tokenizer = tokenizers_of[0](None, ("<eos>", "<start_of_turn>", "<end_of_turn>"))
    renderer = Renderer(tokenizer, "answers", "chatml")
    assert renderer.split_end == "<|im_end|>"
    layout = renderer.lay_out(CHAT)
    assert ["<|im_end|>" in layout.text[start:end] for start, end in layout.trained] == [True, True]
    spec = DatasetSpec(source=str(jsonl(tmp_path / "a.jsonl", ROWS)), template="chatml")
    (told,) = prepare(spec, "auto", tokenizer, seed=1).warnings
    assert "<|im_end|>" in english(told) and "gemma3 fits" in english(told)
    assert not Renderer(tokenizer, "answers", "gemma3").split_end


def test_a_model_without_a_template_is_asked_which(tokenizers_of, tmp_path, jsonl, english):
    tokenizer = tokenizers_of[0](None, ("<eos>", "<start_of_turn>", "<end_of_turn>"))
    spec = DatasetSpec(source=str(jsonl(tmp_path / "a.jsonl", ROWS)))
    (question,) = preview(spec, tokenizer).questions
    assert (question.field, question.choices[0]) == ("data.template", "gemma3")
    with pytest.raises(StudioError) as refusal:
        prepare(spec, "auto", tokenizer, seed=1)
    assert "--template gemma3" in english(refusal.value.fix)
