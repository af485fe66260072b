"""Tokens on disk: the same as rendered at once, kept, cut at use without being made again."""

import numpy as np
import pytest

from studio.core.recipe import DatasetSpec
from studio.data import tokens as module
from studio.data.convert import PreparationStopped, convert
from studio.data.examples import Cutting, join_examples
from studio.data.render import Renderer
from studio.data.sequence_packing import pack
from studio.data.tokens import tokenise


def make(tmp_path, jsonl, tokenizer, rows=None, train_on="answers", **settings):
    rows = rows or [{"prompt": f"say {i}", "completion": "it is " + "x" * i} for i in range(20)]
    spec = DatasetSpec(source=str(jsonl(tmp_path / "a.jsonl", rows)), **settings)
    converted = convert(spec, tmp_path / "cache")
    renderer = Renderer(tokenizer, train_on)
    return converted, renderer, tokenise(converted, renderer, spec, tmp_path / "cache"), spec


def test_same_as_rendered_one_by_one(tmp_path, jsonl, tokenizer_of):
    converted, renderer, tokens, _ = make(tmp_path, jsonl, tokenizer_of("chatml"))
    assert len(tokens) == 20 and tokens.rows.tolist() == list(range(20))
    for row, conversation in converted.iterate():
        one = renderer.tokenize([renderer.lay_out(conversation)], None)[0]
        ids, trained = tokens.example(row)
        assert np.array_equal(ids, one.token_ids) and np.array_equal(trained, one.trained)
        places = np.flatnonzero(one.trained)
        assert (tokens.first_trained[row], tokens.trained_end[row]) == (places[0], places[-1] + 1)
        assert tokens.trained_counts[row] == len(places) and tokens.full_lengths[row] == len(ids)


def test_kept_until_something_changes(tmp_path, jsonl, tokenizer_of, monkeypatch):
    converted, renderer, tokens, spec = make(tmp_path, jsonl, tokenizer_of("chatml"))
    keys = {tokens.key}
    for tokenizer, train_on in (("llama3", "answers"), ("chatml", "everything")):
        other = Renderer(tokenizer_of(tokenizer), train_on)
        keys.add(tokenise(converted, other, spec, tmp_path / "cache").key)
    assert len(keys) == 3
    monkeypatch.setattr(module, "TokenWriter", None)
    assert tokenise(converted, renderer, spec, tmp_path / "cache").key == tokens.key


def test_a_stop_leaves_nothing(tmp_path, jsonl, tokenizer_of):
    converted, renderer, _, spec = make(tmp_path, jsonl, tokenizer_of("chatml"))
    with pytest.raises(PreparationStopped):
        tokenise(converted, renderer, spec, tmp_path / "other", should_stop=lambda: True)
    assert not any(path.is_dir() for path in (tmp_path / "other").iterdir())


def test_refused_rows_are_set_aside_with_their_line(tmp_path, jsonl, tokenizer_of):
    rows = [{"prompt": f"q{i}", "completion": "a"} for i in range(6)]
    rows[4]["completion"] = "a <|im_end|> b"
    _, _, tokens, _ = make(tmp_path, jsonl, tokenizer_of("chatml"), rows)
    assert tokens.refused.tolist() == [4] and len(tokens) == 5
    (problem,) = tokens.problems
    assert (problem.code, problem.line) == ("E191", 5)
    assert b"E191" in tokens.quarantine.read_bytes()


def cut(converted, tokens, limit, too_long="cut"):
    return Cutting(converted, tokens, np.arange(len(tokens)), limit, too_long)


@pytest.mark.parametrize("limit", [8, 30, 40, 45, 1000])
@pytest.mark.parametrize("too_long", ["cut", "drop"])
def test_limit(tmp_path, jsonl, tokenizer_of, limit, too_long):
    converted, _, tokens, _ = make(tmp_path, jsonl, tokenizer_of("chatml"))
    found = cut(converted, tokens, limit, too_long)
    assert found.used + found.dropped.total() == len(tokens)
    assert all(len(one.token_ids) <= limit and one.trained.any() for one in found.examples)
    assert found.examples.count_trained() == sum(int(one.trained.sum()) for one in found.examples)
    long = int((tokens.full_lengths > limit).sum())
    assert found.cut + found.dropped["too_long"] + found.dropped["answer_beyond_max_length"] == long
    assert sum(found.problems.counts.values()) == long


def test_texts_are_split_without_a_loss(tmp_path, jsonl, tokenizer_of):
    rows = [{"text": "word " * n} for n in (1, 8, 9, 40)]
    converted, _, tokens, _ = make(tmp_path, jsonl, tokenizer_of("plain"), rows, "everything")
    found = cut(converted, tokens, 16, "split")
    assert found.used == 4 and found.dropped.total() == 0
    assert np.array_equal(np.concatenate([one.token_ids for one in found.examples]), tokens.ids)
    assert not any(one.trained[0] for one in found.examples)
    assert found.examples.count_trained() == sum(int(one.trained.sum()) for one in found.examples)


def test_examples_are_a_sequence(tmp_path, jsonl, tokenizer_of):
    converted, _, tokens, _ = make(tmp_path, jsonl, tokenizer_of("chatml"))
    examples = join_examples([cut(converted, tokens, 1000).examples] * 2)
    assert len(examples) == 40 and len(list(examples)) == 40
    assert np.array_equal(examples[-1].token_ids, examples[19].token_ids)
    assert [len(one.token_ids) for one in examples[3:6]] == examples.lengths[3:6].tolist()
    with pytest.raises(IndexError):
        examples[40]
    packed = pack(examples.pick(np.arange(30)), 128)
    assert sum(len(row.lengths) for row in packed) == 30
    assert sum(int(row.trained.sum()) for row in packed) == examples.pick(np.arange(30)).count_trained()


def test_a_manifest_that_the_disk_lost_is_made_again(tmp_path, jsonl, tokenizer_of):
    converted, renderer, tokens, spec = make(tmp_path, jsonl, tokenizer_of("chatml"))
    for left in ("", "\0" * 40):
        (tokens.folder / "manifest.json").write_text(left, encoding="utf-8")
        assert len(tokenise(converted, renderer, spec, tmp_path / "cache")) == 20


def test_another_process_that_makes_them_can_be_waited_for(tmp_path, jsonl, tokenizer_of, monkeypatch):
    from studio.data import cache as kept

    monkeypatch.setattr(kept, "WAIT_S", 0.01)
    converted, renderer, tokens, spec = make(tmp_path, jsonl, tokenizer_of("chatml"))
    (tokens.folder / "manifest.json").unlink()
    told = []
    with kept.hold(tmp_path / "cache" / f"{tokens.key}.lock", pytest.fail):
        with pytest.raises(PreparationStopped):
            tokenise(
                converted,
                renderer,
                spec,
                tmp_path / "cache",
                on_progress=lambda *place: told.append(place),
                should_stop=lambda: len(told) > 2,
            )
    assert told == [(0, 20)] * 3


@pytest.mark.parametrize("too_long", ["cut", "drop"])
def test_a_pair_is_two_sequences_of_one_example_and_never_cut(tmp_path, jsonl, tokenizer_of, too_long):
    """Both answers are rendered as talks of their own, lie behind each other, and are packed as two documents."""
    rows = [
        {"prompt": f"say {i}", "chosen": f"it is {i}", "rejected": "no" + " x" * (300 if i == 3 else i)}
        for i in range(8)
    ]
    converted, renderer, tokens, _ = make(tmp_path, jsonl, tokenizer_of("chatml"), rows, "last_answer")
    sides = [renderer.lay_out(side) for side in dict(converted.iterate())[2].sides]
    both = renderer.tokenize(sides, None)
    examples = cut(converted, tokens, 200, too_long).examples
    assert len(examples) == 7, "the pair that is too long is left out whole"
    example = examples[2]
    assert example.lengths == tuple(len(one.token_ids) for one in both)
    assert example.token_ids.tolist() == np.concatenate([one.token_ids for one in both]).tolist()
    assert example.trained.sum() == sum(one.trained.sum() for one in both)
    packed = pack(examples, 400)
    assert [len(row.lengths) for row in packed] == packed.documents.tolist() and packed.documents.sum() == 14
