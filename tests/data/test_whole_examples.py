"""What holds an example as a whole is not read before its answer, nor learned from its own beginning."""

import json

import pytest

from studio.data.columns import measure_columns
from studio.data.whole_examples import ends_with, is_linked, is_part, writes_out

TOLD = [
    f"Boat {n} brought {n * 7} barrels to the pier before the fog came in from the sea." for n in range(12)
]
ASKED = [f"How many barrels did boat {n} bring?" for n in range(12)]
SAID = [f"It brought {n * 7} barrels." for n in range(12)]


def test_a_talk_that_is_written_out_beside_itself_is_not_read_before_it(tell):
    talks = [
        [{"role": "user", "content": ask}, {"role": "assistant", "content": said}]
        for ask, said in zip(ASKED, SAID, strict=True)
    ]
    whole = [f"<|user|>{ask}<|end|><|bot|>{said}<|end|>" for ask, said in zip(ASKED, SAID, strict=True)]
    rows = [{"text": text, "messages": json.dumps(talk)} for text, talk in zip(whole, talks, strict=True)]
    assert writes_out("text", "messages", rows)
    assert not writes_out("text", "messages", [*rows[1:], rows[0] | {"text": TOLD[0]}][-1:])
    report = tell(rows)
    assert not report["needs_answer"] and report["mapping"] == {"messages": "messages"}


@pytest.mark.parametrize("wrapped", ["[INST] {} [/INST] {}</s>", "### Instruction:\n{}\n\n### Response:\n{}"])
def test_a_written_out_text_beside_its_parts_is_no_transcript(tell, wrapped):
    whole = [wrapped.format(ask, said) for ask, said in zip(ASKED, SAID, strict=True)]
    report = tell(input=ASKED, output=SAID, text=whole)
    assert not report["needs_answer"]
    assert [turn["content"] for turn in report["preview"][0]["messages"]] == [ASKED[0], SAID[0]]


def test_code_that_stands_in_a_file_beside_it_is_not_learned_from_the_file(tell):
    code = [f"module Pier where\n\nload{n} :: Int -> Int\nload{n} x = x + {n}\n" for n in range(12)]
    rows = [{"content": f"-- | {said}\n{one}", "code": one} for said, one in zip(SAID, code, strict=True)]
    known = measure_columns(("content", "code"), rows)
    assert is_part(known["code"], known["content"], rows) and not is_part(
        known["content"], known["code"], rows
    )
    assert tell(rows)["needs_answer"]


def test_a_text_that_ends_with_its_answer_is_the_example(tell):
    traces = [f"{ask} {' '.join(TOLD[:4])} So the answer is {n * 7}." for n, ask in enumerate(ASKED)]
    rows = [{"trace": one, "final_answer": str(n * 7), "level": n % 3} for n, one in enumerate(traces)]
    assert ends_with("trace", "final_answer", rows)
    assert not ends_with("trace", "level", [row | {"trace": ASKED[0]} for row in rows])
    report = tell(rows)
    assert not report["needs_answer"] and report["mapping"] == {"text": "trace"}


def test_a_picture_with_its_words_is_no_material(tell):
    images = [
        {"alt": f"The pier with boat {n} in the fog", "src": f"https://pier.example/{n}.jpg"}
        for n in range(12)
    ]
    rows = [{"image_of": one, "question": ask} for one, ask in zip(images, ASKED, strict=True)]
    assert is_linked(measure_columns(("image_of",), rows)["image_of"], rows)
    assert not is_linked(measure_columns(("question",), rows)["question"], rows)


def test_the_only_long_text_of_a_row_is_learned_without_a_question(tell):
    pages = [f"{one} {two} {one}" for one, two in zip(TOLD, TOLD[1:] + TOLD[:1], strict=True)]
    report = tell(page_link=[f"https://pier.example/{n}" for n in range(12)], page_data=pages)
    assert not report["needs_answer"] and report["mapping"] == {"text": "page_data"}
    assert tell(page_link=[f"https://pier.example/{n}" for n in range(12)], page_data=ASKED)["needs_answer"]
