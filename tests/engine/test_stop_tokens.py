"""What ends an answer: one token, or words of several pieces; learned, saved with the result, and stopped at."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.core.events import SampleWritten, Warned
from studio.data.templates.catalogue import read_family
from studio.engine.chat import Partner, Sampling, Speaker
from studio.engine.exporters.exporter import ExportJob
from studio.engine.exporters.merged import MERGED
from studio.engine.generation import text_stream
from studio.engine.generation.end_test import EndTest
from studio.engine.generation.request import Completion, Request
from studio.engine.generation.text_stream import TextStream
from studio.engine.stop_tokens import Ends, find_ends
from studio.models.catalog import inspect_model
from studio.planning.run_plan import plan
from tests.conftest import make_tokenizer

LEARNS = {
    "data.max_length": 128,
    "adapter.method": "full",
    "optim.learning_rate": 1e-2,
    "optim.max_steps": 60,
    "run.samples": 1,
    "run.trial": False,
}


def test_a_growing_answer_never_shows_the_mark():
    ends = Ends((0,), "<|im_end|>")
    told = ["It is", "It is 5<", "It is 5<|im_", "It is 5<|im_end|>", "It is 5<|im_end|>\n<|im_start|>user"]
    assert [ends.cut(one, growing=True) for one in told] == ["It is", *["It is 5"] * 4]
    assert ends.cut("2 <") == "2 <" and Ends((0,)).cut("a<|im_end|>") == "a<|im_end|>"


def test_an_answer_ends_at_the_words_also_within_a_token(tmp_path):
    tokenizer = make_tokenizer(tmp_path)
    end = EndTest(Ends((0,), "<|im_end|>"), tokenizer)
    rows = ["say no more<|im_en", "well<|im_end|>", "well<|im_end|>,,,,"]
    assert [end(tokenizer(row)["input_ids"]) for row in rows] == [False, True, True]
    assert end([5, 0]) and not end([0, 5])


@pytest.mark.parametrize(
    ("template", "token", "words"),
    [("phi3", "<|end|>", ""), ("chatml", "", "<|im_end|>"), ("vicuna", "<|end|>", "")],
)
def test_the_mark_is_a_token_or_words(tmp_path, template, token, words):
    tokenizer = make_tokenizer(tmp_path, None)
    tokenizer.eos_token = "<|end|>" if template == "vicuna" else "<|pad|>"
    tokenizer.chat_template = read_family(template)
    ends = find_ends(tokenizer, [7])
    wanted = {7, tokenizer.eos_token_id, *([tokenizer.convert_tokens_to_ids(token)] if token else ())}
    assert (set(ends.ids), ends.words) == (wanted, words)


@pytest.mark.computing
@pytest.mark.parametrize("template", ["phi3", "chatml", "vicuna"])
def test_a_base_model_learns_to_end_and_says_so_wherever_it_is_loaded(
    ran, make_tiny_model, tmp_path, machine, template
):
    base = make_tiny_model(tmp_path / "base", template=None)
    result = ran({"model.source": str(base), "data.template": template} | LEARNS)
    assert result.record.state == "finished", result.log
    split = [
        event for event in result.of(Warned) if event.message.values["first"].values["mark"] == "<|im_end|>"
    ]
    assert len(split) == (template == "chatml")
    last = result.of(SampleWritten)[-1]
    assert not any("<|im_end" in words for words in (last.answer, last.expected)), last

    recipe, facts = result.folder.read_recipe(), inspect_model(str(base))
    folder, record = result.folder, result.record
    speaker = Speaker(
        Partner(facts=facts, plan=plan(machine, recipe, facts), recipe=recipe, folder=folder, record=record)
    )
    question = [{"role": "user", "content": "say 3"}]
    answer = speaker.stream(question, "tuned", Sampling(max_new_tokens=100), lambda _: None, lambda: False)
    assert answer.tokens < 100 and "<|" not in answer.words and answer.words.strip().startswith("it is")
    [again] = speaker.answer_all([question], "tuned", max_new_tokens=100)
    assert again == answer.words

    target = tmp_path / "merged"
    target.mkdir()
    MERGED.write(ExportJob(folder.path, record, facts, plan(machine, recipe, facts), target))
    assert AutoTokenizer.from_pretrained(target).chat_template == read_family(template)
    saved = json.loads((target / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    end = AutoTokenizer.from_pretrained(target).convert_tokens_to_ids("<|end|>")
    assert end in (saved if isinstance(saved, list) else [saved])
    assert AutoModelForCausalLM.from_pretrained(target).generation_config.eos_token_id == saved


class Words:
    """A tokenizer of numbers, of which 9 is the first half of a character."""

    def __init__(self, said: str = "") -> None:
        self.said = said

    def decode(self, ids, skip_special_tokens):
        return self.said or " ".join("\ufffd" if id == 9 else str(id) for id in ids)


@pytest.mark.parametrize(("reason", "unfinished"), [("limit", True), ("end", False), ("stopped", False)])
def test_an_answer_that_was_cut_off_says_so(monkeypatch, reason, unfinished):
    monkeypatch.setattr(text_stream, "EMIT_EVERY_S", 0.0)
    told = []
    stream, completion = TextStream(Words(), told.append, Ends((0,))), Completion(Request((1, 2)))
    for token in (5, 9, 7):
        completion.tokens.append(token)
        stream.grow(completion)
    completion.reason = reason
    stream.end(completion)
    assert told[-1].unfinished is unfinished and told[-1].tokens == 3
    assert not any(answer.unfinished for answer in told[:-1])
    assert [answer.tokens for answer in told] == [1, 3, 3], "half a character is not shown"


def test_an_answer_ended_by_words_is_no_cut_off_one():
    told = []
    stream = TextStream(Words("Paris.</s> and on"), told.append, Ends((), "</s>"))
    stream.end(Completion(Request((1,)), [5, 6], reason="end"))
    assert (told[-1].words, told[-1].unfinished) == ("Paris.", False)
