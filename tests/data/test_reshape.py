"""Messages, transcripts and exports become talks; objects in cells become columns; speakers become roles."""

import json

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe
from studio.data.transcripts import STYLES, part_transcript, read_time_s

ROLES = ("user", "assistant")


@pytest.fixture
def tell(tmp_path):
    """A function: rows, or the words of a file -> the report of `data`."""

    def run(content, name="rows.jsonl", **values):
        path = tmp_path / name
        if not isinstance(content, str):
            content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
        path.write_text(content, encoding="utf-8")
        return describe(DatasetSpec(source=str(path), **values), rows=3)

    return run


def turns(report, place=0):
    return [(turn["role"], turn["content"]) for turn in report["preview"][place]["messages"]]


def asked(report):
    return {one["field"]: one["choices"] for one in report["needs_answer"]}


def test_a_message_a_row_is_grouped_and_ordered(tell):
    rows = [
        {
            "conversation_id": f"c{i % 4}",
            "turn": i // 4,
            "speaker": ("Customer", "Agent")[i // 4 % 2],
            "text": f"words {i}",
        }
        for i in range(16)
    ]
    report = tell(list(reversed(rows)))
    assert not report["needs_answer"] and report["rows_read"] == report["rows_used"] == 4
    talks = {tuple(turns(report, place)) for place in range(3)}
    assert (
        ("user", "words 3"),
        ("assistant", "words 7"),
        ("user", "words 11"),
        ("assistant", "words 15"),
    ) in talks


def test_replies_are_followed_to_each_last_one(tell):
    rows = [
        {"tweet_id": 1, "inbound": True, "text": "Where is my parcel?", "in_response_to_tweet_id": None},
        {"tweet_id": 2, "inbound": False, "text": "Which number does it have?", "in_response_to_tweet_id": 1},
        {"tweet_id": 3, "inbound": True, "text": "It is number 7.", "in_response_to_tweet_id": 2},
        {"tweet_id": 4, "inbound": False, "text": "It arrives today.", "in_response_to_tweet_id": 3},
        {"tweet_id": 5, "inbound": False, "text": "Please call us instead.", "in_response_to_tweet_id": 1},
    ]
    report = tell(rows)
    assert report["rows_used"] == 2
    assert [len(turns(report, place)) for place in (0, 1)] == [4, 2]
    assert [role for role, _ in turns(report, 0)] == [*ROLES, *ROLES]


def test_whose_messages_are_learned_is_asked_where_people_have_names(tell):
    rows = [
        {"thread_id": i // 4, "author": ("Anna", "Ben")[i % 2], "message": f"words number {i}"}
        for i in range(24)
    ]
    report = tell(rows)
    assert asked(report)["data.speaker"][0] == "Ben"
    told = tell(rows, speaker="Anna")
    assert not told["needs_answer"] and turns(told)[0] == ("assistant", "words number 0")


def test_speakers_without_names_answer_second(tell):
    rows = [
        {"dialog": [{"speaker": f"speaker{1 + i % 2}", "utterance": f"words {i}"} for i in range(4)]}
        for _ in range(6)
    ]
    report = tell(rows)
    assert not report["needs_answer"] and [role for role, _ in turns(report)] == [*ROLES, *ROLES]


@pytest.mark.parametrize(
    "words",
    [
        "<|im_start|>user\nhow?<|im_end|>\n<|im_start|>assistant\nso<|im_end|>\n",
        "<|start_header_id|>user<|end_header_id|>\n\nhow?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nso<|eot_id|>",
        "<bos><start_of_turn>user\nhow?<end_of_turn>\n<start_of_turn>model\nso<end_of_turn>",
        "<|user|>\nhow?</s>\n<|assistant|>\nso</s>",
        "<s>[INST] how? [/INST] so </s>",
        "### Instruction:\nhow?\n\n### Response:\nso",
        "### Human: how?### Assistant: so",
        "Human: how?\n\nAssistant: so",
        "Q: how?\nA: so",
        "<human>: how?\n<bot>: so",
        "Frage: how?\nAntwort: so",
    ],
)
def test_talks_in_one_text_are_read_as_turns(tell, words):
    report = tell([{"text": words, "source": "web"}] * 5)
    assert report["format"] == "messages" and not report["needs_answer"]
    assert turns(report) == [("user", "how?"), ("assistant", "so")]


def test_system_prompts_and_inputs_of_such_texts(tell):
    llama = "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nhow? [/INST] so </s><s>[INST] why? [/INST] thus </s>"
    assert turns(tell([{"text": llama}] * 5)) == [
        ("system", "Be kind."), ("user", "how?"), ("assistant", "so"), ("user", "why?"), ("assistant", "thus"),
    ]  # fmt: skip
    alpaca = (
        "Below is a task.\n\n### Instruction:\nSum up.\n\n### Input:\nA long day.\n\n### Response:\nLong."
    )
    assert turns(tell([{"text": alpaca}] * 5)) == [
        ("system", "Below is a task."), ("user", "Sum up.\n\nA long day."), ("assistant", "Long."),
    ]  # fmt: skip


def test_a_text_that_quotes_a_talk_stays_a_text(tell):
    words = "The book tells of two friends, and of a long winter in the north, when nothing grew. " * 12
    report = tell([{"text": f"{words}\nQ: Who wrote it?\nA: Nobody knows."}] * 5)
    assert report["format"] == "text"


def test_a_text_is_learned_as_it_is_where_the_person_says_so(tell):
    report = tell([{"text": "Q: how?\nA: so"}] * 5, format="text")
    assert report["format"] == "text" and report["preview"][0]["text"] == "Q: how?\nA: so"


def test_a_plain_file_of_questions_is_as_many_examples(tell):
    report = tell("".join(f"Q: how {i}?\nA: so {i}\n\n" for i in range(9)), name="faq.txt")
    assert report["rows_used"] == 9 and turns(report, 1) == [("user", "how 1?"), ("assistant", "so 1")]


def test_an_exported_chat_is_cut_at_long_silence(tell):
    lines = "".join(
        f"{day:02}.03.24, 10:{minute:02} - {who}: words {day} {minute}\n"
        for day in (1, 2, 5)
        for minute, who in enumerate(("Marta Lind", "Jonas", "Marta Lind", "Jonas"))
    )
    report = tell(lines, name="chat.txt", speaker="Jonas")
    assert report["rows_used"] == 3 and not report["needs_answer"]
    assert turns(report, 1)[:2] == [("user", "words 2 0"), ("assistant", "words 2 1")]


def test_fields_of_an_object_are_columns(tell):
    report = tell(
        [
            {"inputs": {"question": f"how {i}?"}, "outputs": {"answer": "so"}, "meta": {"n": i}}
            for i in range(5)
        ]
    )
    assert turns(report) == [("user", "how 0?"), ("assistant", "so")]
    pair = tell([{"translation": {"de": f"Das Boot {i}", "en": f"The boat {i}"}} for i in range(5)])
    assert asked(pair) == {"data.mapping.prompt": ["de", "en"], "data.mapping.completion": ["en", "de"]}


def test_times_are_read_in_many_spellings():
    known = {
        read_time_s(when)
        for when in ("2024-03-01T10:00:00Z", "2024-03-01 10:00:00+00:00", 1709287200, "1709287200000")
    }
    assert known == {1709287200.0}
    assert read_time_s("1/3/24, 3:05 PM") - read_time_s("1/3/24, 2:05 PM") == 3600
    assert read_time_s("soon") is None and read_time_s(None) is None


def test_every_style_parts_nothing_where_nothing_is():
    assert all(part_transcript("Only words, no talk", style) == [] for style in STYLES)


def test_names_are_known_by_their_words(tell):
    rows = [
        {"chat_room": f"r{i // 4}", "sender_handle": ("Ann", "Bo")[i % 2], "message_body": f"These are words {i}.",
         "sent_time_ms": 1600000000000 + i * 1000}
        for i in range(40)
    ]  # fmt: skip
    found = tell(rows, speaker="Bo")
    assert found["rows_used"] == 10 and [role for role, _ in turns(found)] == ["user", "assistant"] * 2


def test_one_speaker_alone_makes_no_talk(tell):
    rows = [
        {
            "text": f"The lamp of pier {i} is broken again.",
            "id": i,
            "tagger_agent": "svm",
            "time": 1.7e9 + 60 * i,
        }
        for i in range(12)
    ]
    report = tell(rows)
    assert "data.speaker" not in asked(report) and report["format"] == "text"


def test_a_talk_that_stands_between_a_tag_and_its_end(tell):
    words = "<chat><Human 1>: Is it far, number {}?\n<Assistant 1>: Two miles.\n</chat>"
    report = tell([{"dialogue": words.format(i)} for i in range(8)])
    assert turns(report) == [("user", "Is it far, number 0?"), ("assistant", "Two miles.")]


def test_speakers_in_square_brackets(tell):
    words = (
        "[USER] Is it far, number {}?\n[ASSISTANT] Two miles.\n[USER] And by boat?\n[ASSISTANT] Half of it."
    )
    report = tell([{"conversation": words.format(i)} for i in range(8)])
    assert [role for role, _ in turns(report)] == [*ROLES, *ROLES]
    assert turns(report)[1] == ("assistant", "Two miles.")


def test_messages_in_parts_are_talks_of_their_thread(tell):
    rows = [{"id": f"m{n}", "object": "thread.message", "thread_id": "t1", "role": ("user", "assistant")[n % 2],
             "content": [{"type": "text", "text": {"value": f"Line {n} of the talk.", "annotations": []}}],
             "created_at": 1700 + n} for n in range(6)]  # fmt: skip
    report = tell(rows)
    assert turns(report) == [(("user", "assistant")[n % 2], f"Line {n} of the talk.") for n in range(6)]


def test_people_who_write_once_a_day_talk_all_the_same(tell):
    lines = [
        f"{n + 1:02}/03/2023, 14:00 - {('Ilka', 'Jonas')[n % 2]}: Day {n} was calm.\n" for n in range(20)
    ]
    report = tell("".join(lines), "chat.txt", speaker="Jonas")
    assert report["rows_used"] == 1 and len(turns(report)) == 20


TALK = ("When does the ferry go?", "At noon, from the long quay.", "And back?", "At six, if the wind allows.")
ALL = [*zip((*ROLES, *ROLES), TALK, strict=True)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("\n".join(f"{'QA'[n % 2]}.  {said}" for n, said in enumerate(TALK)), ALL[:2]),
        ("\n".join(f"[00:0{n}:07] {('Customer', 'Agent')[n % 2]}: {said}" for n, said in enumerate(TALK)), ALL[:2]),
        ("".join(f"# Ferry\n\n### {asked}\n\n{said}\n\n" for asked, said in [TALK[:2], TALK[2:], TALK[:2]]), ALL[:2]),
        ("".join(f"=== Call {n} ===\n" + "".join(f"{('User', 'Bot')[k % 2]}: {said}\n" for k, said in enumerate(TALK))
                 for n in range(3)), ALL),
    ],
    ids=["letters", "clocks", "headings", "sections"],
)  # fmt: skip
def test_marks_before_turns_in_a_text(tell, words, expected):
    report = tell(words, "talk.md" if words.startswith("#") else "talk.txt")
    assert not report["needs_answer"] and turns(report) == expected


@pytest.mark.parametrize(
    "line",
    ["09:0{n}:22 From {who} to Everyone:\n\t{said}\n", "[10:0{n} AM] {who}\n{said}\n\n", "{who}: {said}\n\n"],
    ids=["meeting", "stamps", "capitals"],
)
def test_whose_words_of_a_chat_are_learned_is_asked(tell, line):
    words = "".join(line.format(n=n, who=("ALMA", "BRUNA")[n % 2], said=TALK[n % 4]) for n in range(8))
    report = tell(words, "talk.txt")
    assert asked(report)["data.speaker"] and turns(report)[0] == ALL[0]


def test_the_words_of_a_message_are_no_number_or_date_of_it(tell):
    rows = [
        {"message_id": 10 * c + n, "message_body": f"{TALK[n]} ({c})", "message_created_at": f"2020-01-01 10:0{n}",
         "message_author_type": ("lead", "admin")[n % 2], "conversation_id": c}
        for c in range(4) for n in range(4)
    ]  # fmt: skip
    report = tell(rows)
    assert not report["needs_answer"] and turns(report) == [(role, f"{said} (0)") for role, said in ALL]


@pytest.mark.parametrize(
    ("key", "sides"),
    [("senderType", ("visitor", "agent")), ("MESSAGE_TYPE", ("0", "1"))],
    ids=["visitor", "kinds"],
)
def test_who_writes_is_told_by_a_role_or_a_kind(tell, key, sides):
    rows = [
        {"dialog_id": c, key: sides[n % 2], "text": f"{TALK[n]} ({c})"} for c in range(4) for n in range(4)
    ]
    report = tell(rows)
    assert not report["needs_answer"] and turns(report) == [(role, f"{said} (0)") for role, said in ALL]


def test_answers_that_are_compared_do_not_end_the_talk_before_them(tell):
    said = [[{"role": "assistant", "content": words}] for words in (TALK[1], TALK[3])]
    row = {"chosen": said[0], "rejected": said[1], "prompt": [{"role": "user", "content": TALK[0]}], "a_1": said[0],
           "a_2": said[1]}  # fmt: skip
    report = tell([row] * 6)
    assert (report["format"], report["needs_answer"], turns(report)) == ("preference", [], ALL[:1])


def test_what_one_person_writes_is_one_talk_where_roles_are_told(tell):
    rows = [{"userid": f"u{c}", "sender": ("user", "bot")[n % 2], "message": f"{TALK[n]} ({c})"}
            for c in range(4) for n in range(4)]  # fmt: skip
    report = tell(rows)
    assert not report["needs_answer"] and turns(report) == [(role, f"{said} (0)") for role, said in ALL]


def test_questions_of_a_chat_head_no_answers(tell):
    words = "".join(
        f"(10:0{n}:05) Guest: {TALK[0]}\n(10:0{n}:40) {who}: {TALK[1]}\n\nChat ended\n\n"
        for n, who in enumerate(("Alma", "Bruna", "Cosima", "Dora", "Elba"))
    )
    assert tell(words, "talk.txt")["needs_answer"]


def test_replies_that_name_an_id_of_another_name(tell):
    rows = [
        {"task_message_id": f"t{n}", "user_message_id": f"u{n}", "parent_message_id": f"u{n - 1}" if n % 2 else None,
         "text": f"{TALK[n % 2]} ({n})", "role": ("prompter", "assistant")[n % 2]}
        for n in range(8)
    ]  # fmt: skip
    report = tell(rows)
    assert not report["needs_answer"] and report["rows_used"] == 4
    assert turns(report) == [("user", f"{TALK[0]} (0)"), ("assistant", f"{TALK[1]} (1)")]


def test_who_is_numbered_within_a_talk(tell):
    talk = [{"speaker": f"{n % 2}_{('Apprentice', 'Wizard')[n % 2]}", "text": TALK[n % 2]} for n in range(2)]
    report = tell([{"dialog": talk}] * 4)
    assert not report["needs_answer"] and turns(report) == [("user", TALK[0]), ("assistant", TALK[1])]


@pytest.mark.parametrize(
    ("asks", "answers"),
    [("指示", "応答"), ("質問", "回答"), ("질문", "답변"), ("Вопрос", "Ответ"), ("السؤال", "الجواب")],
)
def test_headings_in_other_scripts_part_a_text(tell, asks, answers):
    rows = [
        {"text": f"7 + {n}\n\n### {asks}:\nWie viel ist {n}?\n\n### {answers}:\nNr. {n}"} for n in range(9)
    ]
    report = tell(rows)
    assert not report["needs_answer"] and report["format"] == "messages"
    assert turns(report) == [("system", "7 + 0"), ("user", "Wie viel ist 0?"), ("assistant", "Nr. 0")]


def test_a_kind_that_stands_in_a_text_does_not_make_it_no_talk(tell):
    kinds = ["the harbour of Brenn and its quays", "the lights of the northern coast"]
    rows = [
        {"body": f"###Instruction: Name boat {n}, of {kinds[n % 2]}.\n###Output: It is Alma {n}.",
         "name": f"It is Alma {n}.", "group": kinds[n % 2]}
        for n in range(9)
    ]  # fmt: skip
    report = tell(rows)
    assert turns(report)[1] == ("assistant", "It is Alma 0.")


def test_a_talk_may_be_the_only_entry_under_its_id(tell):
    talk = [
        {"turn": 1, "speaker": "A", "utterance": "Is it far to the quay?"},
        {"turn": 2, "speaker": "B", "utterance": "Two miles, and half of it by boat."},
    ]
    report = tell(json.dumps({f"talk_{n}": [talk] for n in range(5)}), "talks.json")
    assert report["rows_used"] == 5
    assert turns(report) == [(role, turn["utterance"]) for role, turn in zip(ROLES, talk, strict=True)]


def test_a_turn_that_only_calls_a_function_calls_it(tell):
    call = {"name": "find_boat", "arguments": '{"port": "Brenn"}'}
    rows = [
        {"messages": [{"role": "user", "content": f"Which boat, {n}?"}, {"role": "assistant", "function_call": call}],
         "functions": [{"name": "find_boat", "parameters": {"type": "object", "properties": {}}}]}
        for n in range(6)
    ]  # fmt: skip
    report = tell(
        [
            *rows,
            {**rows[0], "messages": [*rows[0]["messages"][:1], {"role": "assistant", "content": "None."}]},
        ]
    )
    assert report["rows_used"] == 7 and not report["needs_answer"]
    answer = report["preview"][0]["messages"][1]
    assert answer["content"] == "" and answer["tool_calls"][0]["function"]["name"] == "find_boat"


def test_what_a_tool_said_is_not_learned(tell):
    lines = ["user: Is boat {} in?", "assistant: None", "tool: berth 4", "assistant: It lies at berth 4."]
    report = tell([{"log": "\n".join(lines).format(n)} for n in range(8)])
    assert report["rows_used"] == 0 and {one["code"] for one in report["problems"]} == {"E140"}
    called = [lines[0], 'assistant: {{"name": "find"}}', *lines[2:]]
    report = tell([{"log": "\n".join(called).format(n)} for n in range(8)])
    said = [("user", "Is boat 0 in?"), ("assistant", '{"name": "find"}'), ("tool", "berth 4")]
    assert turns(report) == [*said, ("assistant", "It lies at berth 4.")]


def test_a_prompt_that_ends_where_its_answer_begins_is_no_talk(tell):
    rows = [
        {"query": f"Text: Boat {n} lies at the old quay.\nQuestion: Where is it?\nA. here\nB. there\nAnswer:",
         "choices": ["A", "B"], "gold": n % 2}
        for n in range(10)
    ]  # fmt: skip
    report = tell(rows)
    assert report["mapping"]["prompt"] == "query" and report["rows_used"] == 10


def test_a_flag_for_own_messages_beats_the_kind_of_a_message(tell):
    said = [
        "Is the quay free?",
        "It is, until noon.",
        "And the crane?",
        "It waits for you.",
        "Good.",
        "Till then.",
    ]
    rows = [
        {"id": n, "type_name": ("text", "voice")[n % 3 == 2], "is_sender": str(n % 2), "room_name": "harbour",
         "msg": words, "created": f"2024-10-04 11:4{n}"}
        for n, words in enumerate(said)
    ]  # fmt: skip
    report = tell(rows)
    assert not report["needs_answer"]
    assert turns(report) == [(ROLES[n % 2], words) for n, words in enumerate(said)]


def test_a_talk_beside_its_original_and_turns_in_wrappers(tell):
    talk = [{"name": "user", "text": "Ist der Kai frei?"}, {"name": "agent", "text": "Bis Mittag schon."}]
    before = [{"name": "user", "text": "Is the quay free?"}, {"name": "agent", "text": "Until noon it is."}]
    told = [(role, turn["text"]) for role, turn in zip(ROLES, talk, strict=True)]
    report = tell(
        [{"id": n, "utterances": talk, "original_info": {"utterances": {"en": before}}} for n in range(6)]
    )
    assert not report["needs_answer"] and turns(report) == told
    wrapped = [
        {"entry": {"role": role, "content": words}, "sent": "09:31", "tools": None} for role, words in told
    ]
    report = tell([{"conversation": wrapped, "id": n} for n in range(6)])
    assert not report["needs_answer"] and turns(report) == told


def test_questions_without_answers_are_refused(tell):
    rows = [{"questions": [f"Is boat {n} in?", f"Where does boat {n} lie?"]} for n in range(9)]
    with pytest.raises(StudioError) as caught:
        tell(rows)
    assert caught.value.what.id == "data.sniff.unanswered"


def test_marks_may_end_a_turn_as_they_begin_it(tell):
    words = "[USER]\nIs boat {0} in?\n[/USER]\n\n[ASSISTANT]\nIt lies at berth {0}.\n[/ASSISTANT]"
    report = tell([{"log": words.format(n)} for n in range(8)])
    assert turns(report) == [("user", "Is boat 0 in?"), ("assistant", "It lies at berth 0.")]


def test_facts_beside_the_text_that_they_are_of_are_one_answer(tell):
    rows = [
        {"description": f"Boat {n} came in at noon with {n + 3} men and a full load of herring.",
         "data": {"men": n + 3, "load": "herring", "hour": 12}}
        for n in range(9)
    ]  # fmt: skip
    report = tell(rows)
    assert [choices[0] for choices in asked(report).values()] == ["description", "data"]
    report = tell(rows, mapping={"prompt": "description", "completion": "data"})
    assert json.loads(turns(report)[1][1]) == rows[0]["data"]
