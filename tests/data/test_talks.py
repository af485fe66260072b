"""Talks of every form become plain lists of turns; a row that does not say which answer is meant stays as it is."""

import json
import random

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe
from studio.data.row import Row
from studio.data.speakers import find_speakers
from studio.data.talks.rows import recast
from studio.data.talks.selection import find_talks, list_unread
from studio.data.talks.sides import find_side

Q, A, Q2, A2 = "Is it far?", "Two miles.", "And by boat?", "Half of it."
FOUR = [("user", Q), ("assistant", A), ("user", Q2), ("assistant", A2)]
TWO = FOUR[:2]
PLAIN = [{"role": role, "content": words} for role, words in FOUR]


def show(values, **more):
    """The turns that a row becomes, and its other columns."""
    (found,) = recast(values)
    turns = found.pop(
        next(name for name, cell in found.items() if isinstance(cell, list) and "role" in cell[0])
    )
    said = [(turn["role"].lower(), _join(turn["content"])) for turn in turns]
    assert found == more
    return [
        ({"model": "assistant", "human": "user", "ai": "assistant"}.get(role, role), words)
        for role, words in said
    ]


def _join(words):
    return (
        words
        if isinstance(words, str)
        else "".join(one if isinstance(one, str) else one["text"] for one in words)
    )


def parts(role, words):
    return {"role": {"assistant": "model"}.get(role, role), "parts": [{"text": words}]}


FORMS = {
    "gemini": {"contents": [parts(*turn) for turn in FOUR]},
    "pairs": {"conversation": [{"human": Q, "assistant": A}, {"human": Q2, "assistant": A2}]},
    "questions": {"dialog": [{"question": Q, "answer": A}, {"question": Q2, "answer": A2}]},
    "lists": {"chat": [[Q, A], [Q2, A2]]},
    "roles in lists": {"turns": [list(turn) for turn in FOUR]},
    "one key a turn": {"messages": [{role: words} for role, words in FOUR]},
    "texts": {"conversation": [words for _, words in FOUR]},
    "texts with names": {"conversation": [f"{role.title()}: {words}" for role, words in FOUR]},
    "numbered": {"chat": {"turn_1": {"Human": f"<|Human|>: {Q}<eoh>\n", "Commands": "<|Commands|>: None<eoc>\n",
                                     "MOSS": f"<|MOSS|>: {A}<eom>\n"}, "turn_2": {"Human": Q2, "MOSS": A2}}},
    "lists by key": {"turns": {"speaker": [r for r, _ in FOUR], "utterance": [w for _, w in FOUR]}},
    "langchain": {"messages": [{"type": {"user": "human"}.get(r, "ai"), "data": {"content": w}} for r, w in FOUR]},
    "sender": {"chat_messages": [{"sender": r, "text": w, "content": [{"text": w}]} for r, w in FOUR]},
    "inside": {"body": {"chat": {"messages": PLAIN}}},
    "as text": {"anything": json.dumps(PLAIN)},
    "as python": {"dialogue": repr([words for _, words in FOUR])},
    "texts of objects": {"messages": [json.dumps(turn) for turn in PLAIN]},
    "history": {"chat_history": PLAIN[:2], "message": Q2, "response": A2},
    "answer apart": {"request": {"messages": PLAIN[:3]}, "response": {"choices": [{"message": PLAIN[3]}]}},
    "answer in parts": {"request": {"contents": [parts(*t) for t in FOUR[:3]]},
                        "response": {"candidates": [{"content": parts(*FOUR[3])}]}},
}  # fmt: skip


@pytest.mark.parametrize("values", FORMS.values(), ids=FORMS)
def test_forms(values):
    assert show(values) == FOUR


@pytest.mark.parametrize(
    "values",
    [
        {"messages": PLAIN},
        {"conversations": [{"from": "human", "value": Q}, {"from": "gpt", "value": A}], "system": "s"},
        {"prompt": PLAIN[:1], "completion": PLAIN[1:2]},
        {"prompt": PLAIN[:1], "chosen": PLAIN[1:2], "rejected": PLAIN[3:]},
        {"question": Q, "answer": A},
        {"topics": ["one", "two", "three"], "text": Q},
        {"pairs": [{"question": Q, "answer": A}]},
        {"tools": [{"type": "function", "name": "f"}], "messages": PLAIN},
        {"comments": [{"name": "Ann", "text": Q}, {"name": "Bob", "text": A}]},
        {"messages": PLAIN[:1], "choices": [{"message": PLAIN[1]}, {"message": PLAIN[3]}]},
        {"content": [{"type": "text", "text": Q}]},
    ],
)
def test_other_rows_stay_as_they_are(values):
    assert recast(values) is None


def test_system_and_tools_of_services():
    turns = [parts(*turn) for turn in TWO]
    for system in ({"parts": [{"text": "Be short."}]}, {"parts": {"text": "Be short."}}):
        assert show({"systemInstruction": system, "contents": turns}, system="Be short.") == TWO
    log = {"request": {"system": [{"text": "Be short."}], "messages": PLAIN[:2], "toolConfig": {"tools": []}}}
    assert show(log, system="Be short.", tools={"tools": []}) == TWO
    palm = {"context": "Be short.", "messages": [{"author": role, "content": words} for role, words in TWO]}
    assert show(palm, system="Be short.") == TWO


def test_a_preference_keeps_its_answers():
    row = {
        "input": {"messages": PLAIN[:1], "tools": []},
        "preferred_output": PLAIN[1:2],
        "non_preferred_output": PLAIN[3:],
    }
    (found,) = recast(row)
    assert [turn["content"] for turn in found.pop("prompt")] == [Q]
    assert found == {"preferred_output": PLAIN[1:2], "non_preferred_output": PLAIN[3:]}


def node(id, parent, role, words, children=(), **more):
    message = {
        "author": {"role": role},
        "content": {"content_type": "text", "parts": [words]},
        "weight": 1.0,
        **more,
    }
    return {"id": id, "message": message, "parent": parent, "children": list(children)}


def test_an_export_is_followed_from_its_current_node():
    nodes = {
        "r": {"id": "r", "message": None, "parent": None, "children": ["s"]},
        "s": node("s", "r", "system", "", ["q"]),
        "q": node("q", "s", "user", Q, ["old", "new"]),
        "old": node("old", "q", "assistant", "A draft."),
        "new": node("new", "q", "assistant", A),
    }
    (found,) = recast({"title": "t", "mapping": nodes, "current_node": "new"})
    assert [(t["role"], t["content"]) for t in found["messages"]] == [("user", [Q]), ("assistant", [A])]
    assert recast({"mapping": nodes}) is None  # two branches, and nothing says which was kept
    del nodes["old"]
    assert len(recast({"mapping": nodes})) == 1


def test_a_list_that_branches_is_followed_to_its_leaf():
    said = [("1", "0", "human", Q), ("2", "1", "assistant", "A draft."), ("3", "1", "assistant", A)]
    turns = [
        {"uuid": i, "parent_message_uuid": up, "sender": who, "text": words} for i, up, who, words in said
    ]
    (found,) = recast({"current_leaf_message_uuid": "3", "chat_messages": turns})
    assert [turn["content"] for turn in found["messages"]] == [Q, A]
    assert recast({"chat_messages": turns}) is None
    assert len(recast({"chat_messages": turns[:2]})[0]["messages"]) == 2


def test_words_under_an_unknown_key_are_not_left_out():
    assert recast({"conversation": [{"narration": "Somebody came in and sat.", "answer": A}]}) is None
    turns = recast({"turns": [{"user": "customer", "text": Q}, {"user": "agent", "text": A}]})[0]["turns"]
    assert [(turn["role"], turn["content"]) for turn in turns] == [("customer", Q), ("agent", A)]


def test_what_a_model_put_out_answers_an_open_talk():
    assert show({"messages": PLAIN[:1], "output": A}) == TWO
    assert recast({"messages": PLAIN[:1], "solution": A}) is None


@pytest.mark.parametrize(
    ("column", "flags"),
    [
        ({"loss_mask": [0, 0, 0, 1]}, [0, 0, 0, 1]),
        ({"train": [False, True]}, [None, False, None, True]),
        ({"train": False}, [None, False, None, False]),
        ({"weight": [1, 0, 1]}, [None, [1, 0, 1], None, [1, 0, 1]]),
        ({"loss": 0.3}, None),
    ],
)
def test_flags_in_a_column_beside(column, flags):
    (key,) = column
    made = recast({"messages": PLAIN} | column)
    assert (made and [turn.get(key) for turn in made[0]["messages"]]) == flags


def test_questions_alone_are_no_talk():
    rows = [{"turns": [f"Is it {i}?", "And what now?"]} for i in range(5)]
    assert find_talks(["turns"], rows) is None


def test_a_history_alone_is_the_talk():
    assert show({"history": [parts(*turn) for turn in FOUR]}) == FOUR
    assert recast({"history": PLAIN, "query": Q2, "response": A2}) is None


def test_calls_between_turns():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "seven"}
    (found,) = recast({"input": [PLAIN[0], call, result, PLAIN[1]], "id": 1})
    assert [turn["role"] for turn in found["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_open_talks_have_their_roles():
    rows = [{"messages": [{"role": "system", "content": "Be short."}, PLAIN[0]]}] * 3
    assert find_speakers(["messages"], rows, "") == (None, ())
    assert find_speakers(["messages"], [{"messages": PLAIN[:1]}] * 3, "") == (None, ())
    swapped = [{"messages": [PLAIN[0], {"role": "system", "content": A}]}] * 3
    assert find_speakers(["messages"], swapped, "")[0] is not None


def test_each_end_of_a_tree_is_a_row():
    tree = {"role": "prompter", "text": Q, "replies": [{"role": "assistant", "text": A, "replies": []},
                                                       {"role": "assistant", "text": A2, "replies": []}]}  # fmt: skip
    rows = [Row(4, {"tree": "x", "prompt": tree}, None, 2, 40, b"raw")]
    step = find_talks(["tree", "prompt"], [rows[0].values])
    made = list(step.apply(rows))
    assert [[t["content"] for t in row.values["messages"]] for row in made] == [[Q, A], [Q, A2]]
    assert [(row.line, row.row, row.offset, row.raw) for row in made] == [
        (4, 1, 40, b"raw"),
        (4, 2, 40, b"raw"),
    ]


def test_flags_stay_with_their_turns():
    pair = {"conversation": [{"human": Q, "assistant": A, "loss": False}]}
    assert recast(pair)[0]["conversation"][1] == {"role": "assistant", "content": A, "loss": False}


def test_texts_alternate_only_where_something_says_so():
    rows = [{"data": [f"Is it {i} miles?", "Yes, it is.", "Or more?", "No."]} for i in range(5)]
    assert find_talks(["data"], rows).named == {"data"}
    assert find_talks(["data"], [{"data": ["It is far.", "It is near.", "Go.", "Stay."]}] * 5) is None
    assert find_talks(["dialog"], [{"dialog": ["far", "near", "go"]}] * 5) is None
    assert find_talks(["dialog"], [{"dialog": ["far", "near", "go"]}] * 5, sure=True) is not None


def test_a_first_row_of_names_is_a_header():
    rows = [
        Row(1, {"messages": ["question", "answer"]}),
        Row(2, {"messages": [Q, A]}),
        Row(3, {"messages": [Q]}),
    ]
    step = find_talks(["messages"], [row.values for row in rows])
    made = [row.values for row in step.apply(rows)]
    assert made == [{"question": Q, "answer": A}, {"messages": [Q]}]


@pytest.mark.parametrize(
    ("key", "side"),
    [("User utterance", "user"), ("systemResponse", "assistant"), ("bot_text", "assistant"), ("问", "user"),
     ("user_id", ""), ("answer_start", ""), ("system", "system"), ("dialog history", ""), (3, "")],
)  # fmt: skip
def test_sides(key, side):
    assert find_side(key) == side


def test_words_of_turns_that_are_not_read_are_named():
    turns = [turn | {"note": "a thing that somebody wrote beside it", "id": "m1"} for turn in PLAIN]
    assert list_unread(["messages"], [{"messages": turns}]) == ("note",)
    assert list_unread(["messages"], [{"messages": PLAIN}]) == ()


@pytest.mark.parametrize(
    "row",
    [
        {"audio": {"path": "a.wav", "bytes": None}, "text": A},
        {"question": Q, "answer": A, "video": "clips/1.mp4"},
        {"messages": PLAIN, "videos": ["a.mp4"]},
        {"messages": PLAIN, "videos": [["f1.jpg", "f2.jpg"]]},
        {"prompt": "<image>\nWhat is it?", "completion": A},
        {"messages": [{"role": "user", "content": "Is <image> like <image> or not?"}, PLAIN[1]]},
        {"sound": {"array": [0.1], "sampling_rate": 16000}, "text": A},
    ],
)
def test_columns_of_films_and_recordings_are_refused(row, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([json.dumps(row)] * 3), encoding="utf-8")
    with pytest.raises(StudioError) as refusal:
        describe(DatasetSpec(source=str(path)))
    assert refusal.value.what.id.startswith("data.media.")
    named = {name: name for name in ("prompt", "completion") if name in row} or {"text": "text"}
    if {*named} <= {*row}:
        assert describe(DatasetSpec(source=str(path), mapping=named))["rows_used"] == 3


def test_anything_becomes_turns_or_stays():
    chance = random.Random(7)
    names = "messages dialog mapping prompt chosen system contents turns history choices role content replies 1 human"

    def make(depth=0):
        kind = chance.random() + depth / 5
        if kind < 0.35:
            return {chance.choice(names.split()): make(depth + 1) for _ in range(chance.randrange(4))}
        if kind < 0.6:
            return [make(depth + 1) for _ in range(chance.randrange(4))]
        return chance.choice(
            ["hi?", "user", "[{'role': 'user', 'content': 'x'}]", None, 1, 0.5, True, "<image>", ""]
        )

    for _ in range(500):
        values = [{name: make() for name in chance.sample(names.split(), 3)} for _ in range(2)]
        for row in values:
            assert all(found for found in recast(row) or [row])
        step = find_talks(list(values[0]), values)
        made = list(step.apply([Row(1, row) for row in values])) if step else []
        assert not step or len(made) >= 1


def test_people_who_speak_in_turn_are_a_talk_whatever_the_column_is_called():
    rows = [
        {"content": [{"message": f"{i} how are you today?", "agent": "agent_1", "mood": "happy"},
                     {"message": "I am very well.", "agent": "agent_2", "mood": "calm"},
                     {"message": "Glad to hear that.", "agent": "agent_1", "mood": "happy"}]}
        for i in range(9)
    ]  # fmt: skip
    assert find_talks(["content"], rows).where == "content"
    named = [{"name": "color", "value": "a deep red"}, {"name": "size", "value": "rather large"},
             {"name": "fit", "value": "quite close"}]  # fmt: skip
    assert find_talks(["content"], [{"content": named}] * 9) is None


def test_segments_say_themselves_what_is_learned():
    segments = [
        {"label": False, "text": "<s>Q: Why?\n"},
        {"label": False, "text": "A: "},
        {"label": True, "text": "So.</s>"},
    ]
    assert show({"segments": segments}) == [("user", "Q: Why?\nA: "), ("assistant", "So.")]


def test_texts_alternate_where_the_person_said_so():
    rows = [{"id": str(i), "data": ["Tell me.", f"Gladly {i}.", "More.", "No."]} for i in range(9)]
    assert find_talks(["id", "data"], rows) is None
    assert find_talks(["id", "data"], rows, sure=True).where == "data"


def test_who_speaks_may_be_told_by_the_key_of_the_name():
    turns = [
        {key: "Ina" if key == "client" else "Help", "at": "noon", "message": words}
        for key, words in zip(("client", "agent") * 2, (Q, A, Q2, A2), strict=True)
    ]
    assert show({"dialogContent": turns}) == FOUR


def test_words_may_stand_in_an_object_under_their_side():
    turns = [
        {"user_utterance": {"text": Q, "tokens": Q.split()}},
        {"agent_utterance": {"text": A, "tokens": []}, "user_utterance": {"text": Q2, "tokens": []}},
    ]
    found = show({"turns": turns})
    assert sorted(words for _, words in found) == sorted((Q, A, Q2))


def test_the_question_that_opens_a_talk_may_stand_apart_from_it():
    row = {
        "source": {"author": {"type": "user", "name": "Ina"}, "body": Q},
        "parts": {
            "parts": [
                {"author": {"type": "admin", "name": "Bo"}, "body": A},
                {"author": {"type": "user", "name": "Ina"}, "body": Q2},
                {"author": {"type": "admin", "name": "Bo"}, "body": A2},
            ]
        },
    }
    said = [(role.replace("admin", "assistant"), words) for role, words in show(row)]
    assert said == FOUR


@pytest.mark.parametrize(
    "turns",
    [
        [[{"sender": who, "text": words}] for who, words in FOUR],
        [{"roles": [who.upper()], "utterance": words} for who, words in FOUR],
        [{"speaker_id": who, "form": words, "id": "1.2"} for who, words in FOUR],
    ],
)
def test_turns_in_lists_with_roles_in_lists_and_words_under_any_name(turns):
    assert show({"utterances": turns}) == FOUR


def describe_talk(row):
    found = recast(row)
    assert found, row
    return next(cell for cell in found[0].values() if isinstance(cell, list) and isinstance(cell[0], dict))


def test_pairs_of_texts_are_a_talk_whatever_their_column_is_called(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"internal": [[Q, A], [Q2, A2]], "visible": [[Q, A], [Q2, A2]]}))
    report = describe(DatasetSpec(source=str(path)), rows=1)
    said = report["preview"][0]["messages"]
    assert report["rows_used"] == 1 and [(one["role"], one["content"]) for one in said] == FOUR


def test_sentences_in_scripts_without_spaces_are_a_talk_and_no_tokens():
    said = [
        "今天的船什么时候开？",
        "中午十二点准时出发。",
        "听起来很不错，谢谢你。",
        "不客气，欢迎随时再来。",
    ]
    found = describe_talk({"goal": [["起点", "船", "港"]], "conversation": said})
    assert [turn["content"] for turn in found] == said
    assert [turn["role"] for turn in found] == ["user", "assistant"] * 2


def test_texts_in_objects_that_name_nobody_are_said_in_turn():
    found = describe_talk(
        {"messages": [{"message": words, "attrs": []} for _, words in FOUR], "name": "pier"}
    )
    assert [(turn["role"], turn["content"]) for turn in found] == FOUR


def test_a_column_of_chinese_sentences_is_found_as_the_talk(tell):
    said = [
        "今天的船什么时候开？",
        "中午十二点准时出发。",
        "听起来很不错，谢谢你。",
        "不客气，欢迎随时再来。",
    ]
    report = tell([{"conversation": [f"{one}{n}" for one in said]} for n in range(6)])
    assert not report["needs_answer"] and len(report["preview"][0]["messages"]) == 4


def test_roles_may_stand_beside_the_names_of_who_speaks(tell):
    rows = [
        {
            "system": {"from": "system", "value": f"You keep quay {n} of Brenn."},
            "conversation": [
                {"from": "Ida", "role_type": "user", "value": f"Is berth {n} free?"},
                {"from": "Keeper", "role_type": "bot", "value": f"From day {n} on."},
            ],
        }
        for n in range(8)
    ]
    report = tell(rows)
    turns = [(turn["role"], turn["content"]) for turn in report["preview"][0]["messages"]]
    assert not report["needs_answer"] and [role for role, _ in turns] == ["system", "user", "assistant"]
    assert turns[0][1] == "You keep quay 0 of Brenn."


@pytest.mark.parametrize("who", ["usuario", "ohjaaja"])
def test_the_only_one_beside_a_helper_asks_whatever_language_names_them(tell, who):
    rows = [
        {"conversation": [{"role": who, "text": f"Is berth {n} free?"}, {"role": "agent", "text": "Yes."}]}
        for n in range(8)
    ]
    report = tell(rows)
    assert [turn["role"] for turn in report["preview"][0]["messages"]] == ["user", "assistant"]


def test_talks_that_end_with_a_better_and_a_worse_answer_are_a_preference(tell):
    talk = [{"role": "user", "content": "Is the berth free?"}]
    rows = [
        {f"{side}_conversations": [*talk, {"role": "assistant", "content": f"{word} for {n} days."}]
         for side, word in (("chosen", "Free"), ("rejected", "Taken"))}
        for n in range(8)
    ]  # fmt: skip
    report = tell(rows)
    assert report["format"] == "preference" and not report["needs_answer"]


def test_the_same_talk_in_another_spelling_is_left_out(tell):
    rows = [
        {
            "conversations": [
                {"from": "human", "value": f"Is berth {n} free?"},
                {"from": "gpt", "value": f"Berth {n} is free from noon on, says the keeper."},
            ],
            "chat_again": [
                {"role": "user", "content": f"Is berth {n} free?", "id": None},
                {
                    "role": "assistant",
                    "content": f"Berth {n} is free from noon on, says the keeper.",
                    "id": "x",
                },
            ],
        }
        for n in range(8)
    ]
    assert not tell(rows)["needs_answer"]


def version(*said):
    """An answer as a program keeps it that lets its person ask again; the last version was kept."""
    steps = [
        {"type": "contentBlock", "content": [{"type": "text", "text": one, "tokensCount": 3}]} for one in said
    ]
    thought = {
        "type": "contentBlock",
        "style": {"type": "thinking", "ended": True},
        "content": [{"text": "Far?"}],
    }
    note = {"type": "debugInfoBlock", "debugInfo": "named the chat"}
    return [{"type": "multiStep", "role": "assistant", "steps": [thought, one, note]} for one in steps]


def test_the_version_of_an_answer_that_was_kept_is_read():
    asked = {"versions": [{"type": "singleStep", "role": "user", "content": [{"type": "text", "text": Q}]}],
             "currentlySelected": 0}  # fmt: skip
    row = {"messages": [asked, {"versions": version("No idea.", A), "currentlySelected": 1}]}
    (found,) = recast(row)
    said = found["messages"]
    assert [turn["role"] for turn in said] == ["user", "assistant"]
    assert said[1]["content"] == [{"type": "thinking", "thinking": "Far?"}, {"type": "text", "text": A}]


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_a_file_of_versions_is_one_talk(tmp_path, suffix):
    asked = {"versions": [{"role": "user", "content": [{"type": "text", "text": Q}]}], "currentlySelected": 0}
    talk = {"name": "c", "messages": [asked, {"versions": version(A), "currentlySelected": 0}], "notes": []}
    path = tmp_path / f"talk.{suffix}"
    path.write_text(json.dumps(talk), encoding="utf-8")
    report = describe(DatasetSpec(source=str(path)), rows=1)
    assert report["rows_used"] == 1
    assert [turn["content"] for turn in report["preview"][0]["messages"]] == [Q, A]


def test_words_in_pieces_are_read():
    turns = [
        {"role": role, "fragments": [{"ft": "content", "part": {"pt": "text", "text": words}}]}
        for role, words in FOUR
    ]
    assert show({"messages": turns}) == FOUR


def test_a_program_that_speaks_first_has_no_question():
    assert show({"chat": [["<|BEGIN-CHAT|>", "Hello."], [Q, A], [Q2, A2]]}) == [
        ("assistant", "Hello."),
        *FOUR,
    ]


def test_who_is_silent_in_the_first_round_answers():
    rounds = [
        ("", "I would like a cheap room, please."),
        ("In the east or the west?", "In the west of the town."),
    ]
    talk = [
        {"system_transcript": one, "turn_idx": n, "transcript": two} for n, (one, two) in enumerate(rounds)
    ]
    assert show({"dialogue": talk}) == [
        ("user", rounds[0][1]),
        ("assistant", rounds[1][0]),
        ("user", rounds[1][1]),
    ]


def test_pairs_of_a_speaker_and_words():
    said = [["agent", "Hello there."], ["customer", Q], ["action", "looked it up"], ["agent", A]]
    assert show({"conversation": said}) == [(role, words) for role, words in said]


def test_what_somebody_did_between_the_turns_was_not_said():
    done = {"type": "action", "sender": "user", "action_id": "walk/choose_path", "metadata": {"path": [1]}}
    said = [{"type": "chat", "sender": role, "message": words} for role, words in FOUR]
    assert show({"messages": [said[0], done, *said[1:]]}) == FOUR


def test_who_offers_help_answers():
    talk = ["Hello, how may I help you?", Q, A, Q2]
    roles = [role for role, _ in show({"turns": talk})]
    assert roles == ["assistant", "user", "assistant", "user"]


def test_texts_of_one_side_are_no_talk():
    rows = [{"question_id": n, "turns": [f"Write of ship {n}.", "Now write it again."]} for n in range(6)]
    assert find_talks([*rows[0]], rows) is None
    answers = [{"answer_id": n, "choices": [{"index": 0, "turns": ["One.", "Two."]}]} for n in range(6)]
    assert find_talks([*answers[0]], answers) is None
    assert find_talks(["turns"], [{"turns": row["turns"]} for row in rows]) is not None


def test_a_row_that_is_the_first_message_of_a_tree():
    replies = [{"text": words, "role": "assistant", "replies": []} for words in (A, A2)]
    found = recast({"message_id": "m", "text": Q, "role": "prompter", "replies": replies})
    assert [[turn["content"] for turn in row["messages"]] for row in found] == [[Q, A], [Q, A2]]


def test_answers_of_models_beside_a_question_are_no_talk():
    assert recast({"prompt": Q, "answers": [{"response": A, "modelIdentifier": "m"}]}) is None


def test_functions_that_stand_beside_each_turn_are_the_tools_of_the_talk():
    tide = {"name": "tide", "parameters": {"type": "object", "properties": {}}}
    turns = [{"message": turn, "functions": [tide] if n < 2 else None} for n, turn in enumerate(PLAIN)]
    (found,) = recast({"conversationId": 1, "conversation": turns})
    assert found["tools"] == [tide]
    assert [turn["content"] for turn in found["conversation"]] == [words for _, words in FOUR]
