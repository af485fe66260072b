"""Preparing a data set: every row accounted for, refusals before training, methods, validation, packing, speed."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.prepare import PreparationStopped, prepare


def make_rows(count: int, answer: str = "it is {}") -> list[dict]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"say {i}"},
                {"role": "assistant", "content": answer.format(i)},
            ]
        }
        for i in range(count)
    ]


def prepare_file(path, tokenizer, method="auto", **settings_):
    return prepare(DatasetSpec(source=str(path), **settings_), method, tokenizer, seed=1)


def say(example, tokenizer) -> str:
    return tokenizer.decode(example.token_ids)


def test_chat(tmp_path, jsonl, tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    data = prepare_file(jsonl(tmp_path / "a.jsonl", make_rows(30)), tokenizer)
    assert data.method == "sft" and len(data.train) == 30 and len(data.validation) == 0
    assert (
        say(data.train[7], tokenizer)
        == "<|im_start|>user\nsay 7<|im_end|>\n<|im_start|>assistant\nit is 7<|im_end|>\n"
    )
    example = data.train[7]
    assert tokenizer.decode(example.token_ids[example.trained]) == "it is 7<|im_end|>"
    assert example.lengths == (len(example.token_ids),)
    facts = data.facts
    assert (facts.format, facts.rows_read, facts.rows_used, facts.rows_refused) == ("messages", 30, 30, 0)
    assert facts.tokens == sum(len(example.token_ids) for example in data.train)
    assert facts.trained_tokens == sum(example.trained.sum() for example in data.train)
    assert facts.problems == () and facts.rows_dropped == {} and len(facts.content_hash) == 64


def test_facts_survive_json(tmp_path, jsonl, tokenizer_of):
    from studio.core.codec import from_json, to_json
    from studio.core.facts import DataFacts

    facts = prepare_file(jsonl(tmp_path / "a.jsonl", make_rows(5)), tokenizer_of("chatml")).facts
    assert from_json(DataFacts, json.loads(json.dumps(to_json(facts)))) == facts


def test_system_prompt_goes_in_front_where_none_is(tmp_path, jsonl, tokenizer_of):
    rows = make_rows(2)
    rows[1]["messages"].insert(0, {"role": "system", "content": "own"})
    tokenizer = tokenizer_of("chatml")
    data = prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer, system_prompt="given")
    assert [say(example, tokenizer).split("<|im_end|>")[0] for example in data.train] == [
        "<|im_start|>system\ngiven",
        "<|im_start|>system\nown",
    ]


def test_broken_rows_are_counted_and_named(tmp_path, jsonl, tokenizer_of, english):
    rows = make_rows(400)
    rows[122]["messages"][1]["content"] = ""
    rows[299] = {"messages": None}
    data = prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"))
    assert (data.facts.rows_read, data.facts.rows_used, data.facts.rows_refused) == (400, 398, 2)
    assert [english(problem) for problem in data.facts.problems] == [
        "Line 123: Turn 2 is empty.",
        "Line 300: The column messages has no value.",
    ]


def test_too_many_broken_rows_stop_the_run(tmp_path, jsonl, tokenizer_of, english):
    rows = make_rows(100)
    for place in (4, 8, 15, 16, 23):
        rows[place] = {"messages": []}
    rows[42] = {"messages": [{"role": "user", "content": "alone"}]}
    with pytest.raises(StudioError) as refusal:
        prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"))
    assert (
        english(refusal.value.what)
        == "6 of 100 rows cannot be used: 5 with an empty turn or value, 1 without an answer."
    )
    assert english(refusal.value.why) == "Line 5: The column messages is empty."


@pytest.mark.computing
def test_few_broken_rows_are_left_out_with_a_warning(tmp_path, jsonl, tokenizer_of, english):
    rows = make_rows(4000)
    for place in range(0, 4000, 73):
        rows[place]["messages"][1]["content"] = " "
    data = prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"))
    told = "55 of 4,000 rows cannot be used and are left out: 55 with an empty turn or value."
    assert [english(one) for one in data.warnings] == [told] and data.facts.rows_used == 3945
    assert not prepare_file(jsonl(tmp_path / "b.jsonl", make_rows(20)), tokenizer_of("chatml")).warnings


def test_nothing_but_broken_rows(tmp_path, tokenizer_of, english):
    path = tmp_path / "a.jsonl"
    path.write_text("{broken\n" * 3, encoding="utf-8")
    with pytest.raises(StudioError) as refusal:
        prepare_file(path, tokenizer_of("chatml"))
    assert english(refusal.value.why) == "Line 1: This is not valid JSON; it breaks at character 2."


def test_template_refusals_count_as_broken_rows(tmp_path, jsonl, tokenizer_of, english):
    rows = make_rows(200)
    rows[10]["messages"].insert(0, {"role": "system", "content": "s"})
    data = prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("gemma"))
    assert data.facts.rows_refused == 1
    assert "Line 11" in english(data.facts.problems[0]) and "System role" in english(data.facts.problems[0])


def test_no_chat_template(tmp_path, jsonl, tokenizer_of):
    with pytest.raises(StudioError) as refusal:
        prepare_file(jsonl(tmp_path / "a.jsonl", make_rows(3)), tokenizer_of("plain"))
    assert refusal.value.what.id == "data.render.no_template"


def test_rows_cut_and_left_out_are_counted(tmp_path, jsonl, tokenizer_of, english):
    rows = make_rows(20)
    rows[3]["messages"][1]["content"] = "long " * 40
    rows[5]["messages"][0]["content"] = "long " * 40
    data = prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"), max_length=64)
    facts = data.facts
    assert (facts.rows_used, facts.rows_cut, facts.rows_dropped) == (19, 1, {"answer_beyond_max_length": 1})
    assert max(len(example.token_ids) for example in data.train) == 64
    assert [english(problem) for problem in facts.problems] == [
        "1 rows are left out: their answer begins after the maximum length.",
        "1 rows are longer than the maximum length; their end is cut off.",
    ]


def test_every_answer_beyond_the_limit(tmp_path, jsonl, tokenizer_of, english):
    with pytest.raises(StudioError) as refusal:
        prepare_file(jsonl(tmp_path / "a.jsonl", make_rows(5)), tokenizer_of("chatml"), max_length=8)
    assert english(refusal.value.why) == "All answers begin after the maximum length of 8 tokens."


def test_text_is_joined_into_full_blocks(tmp_path, jsonl, tokenizer_of):
    tokenizer = tokenizer_of("plain")
    texts = [f"document number {i} of many" for i in range(40)]
    data = prepare_file(
        jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts]), tokenizer, max_length=32
    )
    assert data.method == "pretrain"
    assert {len(block.token_ids) for block in data.train[:-1]} == {32}
    assert tokenizer.decode(np.concatenate([b.token_ids for b in data.train])) == "".join(
        f"{t}<|end|>" for t in texts
    )
    assert data.facts.rows_used == 40 and data.facts.rows_cut == 0
    assert data.facts.trained_tokens == data.facts.tokens - len(data.train)


def test_text_one_row_an_example(tmp_path, jsonl, tokenizer_of):
    tokenizer = tokenizer_of("plain")
    data = prepare_file(jsonl(tmp_path / "a.jsonl", [{"text": "abc"}, {"text": "de"}]), tokenizer, "sft")
    assert [say(example, tokenizer) for example in data.train] == ["abc<|end|>", "de<|end|>"]


@pytest.mark.parametrize(("rows", "held_out"), [(99, 0), (100, 5), (400, 20)])
def test_a_share_that_nobody_set_holds_five_per_cent_out_from_100_rows_on(
    tmp_path, jsonl, tokenizer_of, rows, held_out
):
    tokenizer = tokenizer_of("chatml")
    path = jsonl(
        tmp_path / "a.jsonl", [{"prompt": f"question {i}", "completion": f"answer {i}"} for i in range(rows)]
    )
    data = prepare_file(path, tokenizer)
    assert abs(len(data.validation) - held_out) <= 1 and len(data.train) + len(data.validation) == rows
    assert not data.facts.problems
    assert len(prepare_file(path, tokenizer, validation_share=0.0).validation) == 0


def test_validation_share(tmp_path, jsonl, tokenizer_of):
    rows = make_rows(40)
    tokenizer = tokenizer_of("chatml")
    data = prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer, validation_share=0.25)
    again = prepare_file(jsonl(tmp_path / "b.jsonl", rows[::-1]), tokenizer, validation_share=0.25)
    texts = [
        {say(example, tokenizer) for example in part}
        for part in (data.train, data.validation, again.validation)
    ]
    assert len(data.train) + len(data.validation) == 40 == data.facts.rows_used
    assert texts[1] == texts[2] and len(texts[1]) == 10 and not texts[0] & texts[1]


def test_validation_file(tmp_path, jsonl, tokenizer_of):
    held_out = jsonl(tmp_path / "v.jsonl", make_rows(6, "other {}"))
    tokenizer = tokenizer_of("chatml")
    path = jsonl(tmp_path / "a.jsonl", make_rows(20))
    data = prepare_file(path, tokenizer, validation=str(held_out), validation_share=0.5)
    assert (len(data.train), len(data.validation), data.facts.rows_read) == (20, 6, 20)
    assert all("other" in say(example, tokenizer) for example in data.validation)


def test_packing_keeps_rows_and_trained_tokens(tmp_path, jsonl, tokenizer_of):
    path = jsonl(tmp_path / "a.jsonl", make_rows(50))
    loose = prepare_file(path, tokenizer_of("chatml"), max_length=256)
    packed = prepare_file(path, tokenizer_of("chatml"), max_length=256, fill=True)
    assert len(packed.train) < 20 and sum(len(row.lengths) for row in packed.train) == 50
    assert packed.facts == loose.facts
    pieces = []
    for row in packed.train:
        for end, length in zip(np.cumsum(row.lengths), row.lengths, strict=True):
            pieces.append(
                (row.token_ids[end - length : end].tolist(), row.trained[end - length : end].tolist())
            )
    assert sorted(pieces) == sorted((row.token_ids.tolist(), row.trained.tolist()) for row in loose.train)


def test_progress_and_stop(tmp_path, jsonl, tokenizer_of):
    spec = DatasetSpec(source=str(jsonl(tmp_path / "a.jsonl", make_rows(600))))
    seen = []
    prepare(
        spec,
        "auto",
        tokenizer_of("chatml"),
        seed=0,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-3:] == [(256, 600), (512, 600), (600, 600)]
    size_bytes = Path(spec.source).stat().st_size
    assert seen[0] == (0, size_bytes) and (size_bytes, size_bytes) in seen
    with pytest.raises(PreparationStopped):
        prepare(spec, "auto", tokenizer_of("chatml"), seed=0, should_stop=lambda: True)


LINES = st.one_of(
    st.builds(
        lambda q, a: {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]},
        st.text(),
        st.text(),
    ),
    st.sampled_from(
        [{"messages": None}, {"messages": []}, {"other": 1}, 5, {"messages": [{"role": "x", "content": "y"}]}]
    ),
    st.just({"messages": [{"role": "user", "content": "q" * 99}, {"role": "assistant", "content": "a"}]}),
)


@pytest.mark.computing
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINES, max_size=12), broken=st.integers(0, 2))
def test_no_row_is_ever_lost(tmp_path, tokenizer_of, lines, broken):
    good = [json.dumps(row) for row in make_rows(200)]
    text = [*good, *(json.dumps(line) for line in lines), *["{broken"] * broken]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(text), encoding="utf-8")
    try:
        facts = prepare_file(path, tokenizer_of("chatml"), max_length=80).facts
    except StudioError as refusal:
        assert refusal.what.id == "data.prepare.refused" and int(refusal.what.values["refused"]) > 10
        assert refusal.what.values["read"] == str(len(text))
    else:
        assert (
            facts.rows_read
            == len(text)
            == facts.rows_used + facts.rows_refused + sum(facts.rows_dropped.values())
        )


@pytest.mark.computing
def test_speed(tmp_path, jsonl, tokenizer_of):
    path = jsonl(tmp_path / "a.jsonl", make_rows(5000, "a somewhat longer answer that says {} in the end"))
    begin = time.perf_counter()
    assert prepare_file(path, tokenizer_of("chatml"), max_length=512).facts.rows_used == 5000
    assert time.perf_counter() - begin < 20  # 2 s alone on two cores; the rest is room for a busy machine.


def pairs(count: int, name: str = "q") -> list[dict]:
    return [{"prompt": f"{name}{i}", "completion": "it is so"} for i in range(count)]


def test_an_open_question_stops_the_run(tmp_path, jsonl, tokenizer_of):
    rows = [{"question": "a", "answer": "b", "solution": "c"}] * 3
    with pytest.raises(StudioError) as refusal:
        prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"))
    assert refusal.value.what.id == "data.unclear"


def test_a_kind_that_no_method_learns_from(tmp_path, jsonl, tokenizer_of):
    image = "data:image/png;base64,iVBORw0KGgo="
    rows = [{"image": image, "question": "What is it?", "answer": f"Cat {i}."} for i in range(4)]
    with pytest.raises(StudioError) as refusal:
        prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"))
    assert refusal.value.what.id == "data.kind.untrained"


def test_questions_are_prepared_with_their_rows_at_hand(tmp_path, jsonl, tokenizer_of):
    asked = [{"role": "user", "content": "1 + 1?"}]
    rows = [{"prompt": asked, "reward_model": {"ground_truth": str(i)}, "level": i} for i in range(4)]
    found = prepare_file(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"))
    assert found.method == "grpo" and len(found.train) == len(found.asked) == 4
    assert found.asked.read(2).messages == ({"role": "user", "content": "1 + 1?"},)
    assert found.asked.read(2).columns == {"reward_model": {"ground_truth": "2"}, "level": 2}
    words = tokenizer_of("chatml").decode(found.train[0].token_ids)
    assert words.endswith("<|im_start|>assistant\n") and not found.train[0].trained.any()


def test_chats_are_questions_too_and_go_on_with_their_answers(tmp_path, jsonl, tokenizer_of):
    turns = [{"role": role, "content": word} for role, word in
             (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))]  # fmt: skip
    path = jsonl(tmp_path / "a.jsonl", [{"messages": turns}] * 4)
    spec = DatasetSpec(source=str(path), validation_share=0.0)
    found = prepare(spec, "grpo", tokenizer_of("chatml"), seed=1)
    assert [one["content"] for one in found.asked.read(0).messages] == ["a", "b", "c"]
    assert found.asked.read(0).columns == {"answer": "d"}


@pytest.mark.parametrize(
    ("row", "asked", "expected"),
    [
        ({"question": "a{}?", "answer": "so\n#### {}"}, "a{}?", {"answer": "so\n#### {}"}),
        (
            {"problem": "a{}", "solution": "long {}", "answer": "{}"},
            "a{}",
            {"solution": "long {}", "answer": "{}"},
        ),
        ({"prompt": "a{}"}, "a{}", {}),
        ({"messages": [{"role": "user", "content": "a{}"}]}, "a{}", {}),
        ({"prompt": [{"role": "user", "content": "a{}"}], "solution": "{}"}, "a{}", {"solution": "{}"}),
    ],
)
def test_an_objective_that_asks_says_what_rows_leave_open(
    tmp_path, jsonl, tokenizer_of, row, asked, expected
):
    def fill(value, i):
        if isinstance(value, str):
            return value.replace("{}", str(i))
        return (
            [fill(one, i) for one in value]
            if isinstance(value, list)
            else {k: fill(v, i) for k, v in value.items()}
        )

    path = jsonl(tmp_path / "a.jsonl", [fill(row, i) for i in range(12)])
    found = prepare_file(path, tokenizer_of("chatml"), "grpo", validation_share=0.0)
    read = found.asked.read(3)
    assert len(found.train) == 12 and read.messages[-1]["content"] == fill(asked, 3)
    assert {name: read.columns[name] for name in expected} == fill(expected, 3)


def test_prompts_that_leave_too_little_room_are_left_out_by_number(tmp_path, jsonl, tokenizer_of):
    rows = [{"prompt": "word " * (30 if i == 1 else 1), "answer": "x"} for i in range(4)]
    path = jsonl(tmp_path / "a.jsonl", rows)
    spec = DatasetSpec(source=str(path), format="rl", max_length=64, validation_share=0.0)
    found = prepare(spec, "grpo", tokenizer_of("chatml"), seed=1, answer_tokens=32)
    assert found.facts.rows_dropped == {"too_long": 1} and len(found.train) == 3


def test_broken_rows_can_be_accepted(tmp_path, jsonl, tokenizer_of):
    path = jsonl(tmp_path / "a.jsonl", pairs(10) + [{"prompt": "x", "completion": ""}] * 3)
    facts = prepare_file(path, tokenizer_of("chatml"), accept_bad_rows=True).facts
    assert (facts.rows_read, facts.rows_used, facts.rows_refused) == (13, 10, 3)


def test_sources_are_mixed_by_weight(tmp_path, jsonl, tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    one = jsonl(tmp_path / "a.jsonl", pairs(40))
    twice, half = (
        jsonl(tmp_path / "b.jsonl", pairs(10, "twice")),
        jsonl(tmp_path / "c.jsonl", pairs(200, "half")),
    )
    data = prepare_file(one, tokenizer, mix={str(twice): "2", str(half): "0.5"}, validation_share=0.0)
    said = [say(example, tokenizer) for example in data.train]
    counts = {name: sum(f"user\n{name}" in words for words in said) for name in ("q", "twice", "half")}
    assert counts["q"] == 40 and counts["twice"] == 20 and 70 <= counts["half"] <= 130
    facts = data.facts
    assert facts.rows_read == 250 == facts.rows_used + sum(facts.rows_dropped.values())
    with pytest.raises(StudioError):
        prepare_file(one, tokenizer, mix={str(twice): "much"})


def test_a_folder_brings_its_own_validation(tmp_path, jsonl, tokenizer_of):
    jsonl(tmp_path / "train.jsonl", pairs(12))
    jsonl(tmp_path / "validation.jsonl", pairs(3, "held"))
    data = prepare_file(tmp_path, tokenizer_of("chatml"))
    assert (len(data.train), len(data.validation), data.facts.rows_read) == (12, 3, 12)


def test_take_and_duplicates_are_counted(tmp_path, jsonl, tokenizer_of):
    path = jsonl(tmp_path / "a.jsonl", pairs(30) + pairs(5))
    facts = prepare_file(path, tokenizer_of("chatml"), duplicates="exact", max_rows=10).facts
    assert facts.rows_used == 10 and facts.rows_dropped == {"duplicate": 5, "not_taken": 20}


def test_rows_of_a_validation_file_are_not_counted_as_learned(tmp_path, jsonl, tokenizer_of):
    path, held_out = jsonl(tmp_path / "a.jsonl", make_rows(5)), tmp_path / "v.jsonl"
    jsonl(held_out, make_rows(50, answer="a far longer answer than those of the other file {}"))
    for method in ("sft", "pretrain"):
        alone = prepare_file(path, tokenizer_of("chatml"), method)
        both = prepare_file(path, tokenizer_of("chatml"), method, validation=str(held_out))
        assert len(both.validation) > 0
        assert both.facts.trained_tokens == alone.facts.trained_tokens
        assert both.facts.tokens == alone.facts.tokens


def test_validation_rows_of_the_first_source_are_left_out_of_the_others(tmp_path, jsonl, tokenizer_of):
    folder = tmp_path / "folder"
    folder.mkdir()
    jsonl(folder / "train.jsonl", make_rows(20, answer="own {}"))
    jsonl(folder / "validation.jsonl", make_rows(4))
    other = jsonl(tmp_path / "other.jsonl", make_rows(10))
    data = prepare_file(folder, tokenizer_of("chatml"), mix={str(other): "1"}, overlap="exact")
    assert (len(data.train), data.facts.rows_dropped) == (26, {"overlap": 4})


def test_the_validation_file_keeps_all_of_its_rows(tmp_path, jsonl, tokenizer_of):
    path, held_out = jsonl(tmp_path / "a.jsonl", make_rows(5)), jsonl(tmp_path / "v.jsonl", make_rows(3) * 2)
    data = prepare_file(
        path, tokenizer_of("chatml"), validation=str(held_out), duplicates="exact", max_rows=2
    )
    assert (len(data.train), len(data.validation)) == (2, 6)


def test_a_split_without_usable_rows_says_that_it_is_for_validation(tmp_path, jsonl, tokenizer_of):
    folder = tmp_path / "folder"
    folder.mkdir()
    jsonl(folder / "train.jsonl", make_rows(20))
    (folder / "validation.jsonl").write_text("{broken\n", encoding="utf-8")
    with pytest.raises(StudioError) as refusal:
        prepare_file(folder, tokenizer_of("chatml"))
    assert refusal.value.what.id == "data.problem.validation"


def test_pieces_of_which_nothing_is_learned_are_no_examples(tmp_path, jsonl, tokenizer_of):
    rows = [{"input_ids": list(range(1, 40)), "labels": [-100] * 30 + list(range(31, 40))}] * 3
    path = jsonl(tmp_path / "a.jsonl", rows)
    data = prepare_file(path, tokenizer_of("chatml"), max_length=8, too_long="split")
    learned = [int(one.trained.sum()) for one in data.train]
    assert data.facts.rows_used == 3 and 3 <= len(learned) <= 9 and min(learned) > 0
    assert sum(learned) == data.facts.trained_tokens


def test_validation_rows_are_a_sign_of_life(tmp_path, jsonl, tokenizer_of):
    path, held_out = jsonl(tmp_path / "a.jsonl", make_rows(5)), jsonl(tmp_path / "v.jsonl", make_rows(3))
    told: list[tuple[int, int]] = []
    spec = DatasetSpec(source=str(path), validation=str(held_out))
    prepare(spec, "auto", tokenizer_of("chatml"), seed=1, on_progress=lambda *place: told.append(place))
    assert told[0] == (0, 1) and (5, 5) in told and (3, 3) not in told


def test_rules_that_leave_nothing_are_named(tmp_path, jsonl, tokenizer_of, english):
    path = jsonl(tmp_path / "a.jsonl", make_rows(5))
    with pytest.raises(StudioError) as refusal:
        prepare_file(path, tokenizer_of("chatml"), filters={"min_characters": "100000"})
    assert english(refusal.value.why) == "The chosen rules leave out 5 of them."


def test_long_texts_are_split_where_a_sentence_ends(tmp_path, tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    sentence = "the quick brown fox jumps over it. "
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": sentence * 12}) for _ in range(3)), encoding="utf-8")
    spec = DatasetSpec(source=str(path), max_length=64, too_long="split")
    found = prepare(spec, "sft", tokenizer, seed=0, cache=tmp_path / "cache")
    pieces = [tokenizer.decode(example.token_ids.tolist()) for example in found.train]
    assert len(pieces) > 3 and found.facts.rows_used == 3
    inner = [piece.rstrip() for piece in pieces if not piece.endswith(tokenizer.eos_token)]
    assert inner and all(piece.endswith(".") for piece in inner)
