"""Prompts whose answers are checked are learned by rewards; words that are known, and labels, are asked about."""

import pytest

PORTS = "Aland Brist Corfu Delft Emden Fowey Ghent Hythe Ipswich Jura Kiel Lorient".split()
TASKS = [f"Write one line that says when the ferry to {port} leaves the harbour." for port in PORTS]
SAID = [
    f"The ferry to {port} leaves at {n + 6} in the morning from the old pier." for n, port in enumerate(PORTS)
]


def asked(report):
    return {one["field"].removeprefix("data."): list(one["choices"]) for one in report["needs_answer"]}


@pytest.mark.parametrize(
    "columns",
    [
        {"verifier": [{"kind": "contains", "value": port} for port in PORTS]},
        {"grader": [{"regex": port, "weight": 2} for port in PORTS]},
        {"checks": [[{"type": "starts", "value": port}, {"type": "words", "max": 9}] for port in PORTS]},
        {"test_list": [[f"assert say('{port}')", "assert say('') == ''"] for port in PORTS]},
        {"test_cases": [{"inputs": [port], "outputs": [str(n)]} for n, port in enumerate(PORTS)]},
        {"test_cases": [f'{{"input": "{port}", "output": "{n}"}}' for n, port in enumerate(PORTS)]},
        {
            "rule_ids": [["length:words", "case:lower"]] * 12,
            "kwargs": [[{"at_most": n}, {}] for n in range(12)],
        },
        {"check": [{"pattern": port} for port in PORTS], "category": ["sea", "land", "air"] * 4},
    ],
    ids=lambda columns: " ".join(columns),
)
def test_a_prompt_beside_what_checks_its_answers_is_rewarded(tell, columns):
    report = tell(prompt=TASKS, **columns)
    assert (report["format"], asked(report)) == ("rl", {})
    assert report["mapping"] == {"prompt": "prompt"} and report["confidence"] == 0.9
    assert report["rows_used"] == 12 and "data.evidence.checked" in str(report["reason"])


def test_the_tests_of_a_task_are_no_rows(tell):
    tests = [[{"input": f"{port} {n}", "output": str(n)} for n in range(3)] for port in PORTS]
    report = tell(prompt=TASKS, tests=tests)
    assert (report["rows_read"], report["format"], asked(report)) == (12, "rl", {})
    # What is called no test holds the rows.
    report = tell(instruction=TASKS, instances=tests)
    assert report["rows_read"] == 36


@pytest.mark.parametrize(
    "columns",
    [
        {"evaluation": [{"type": "note", "text": f"{said} It was said to all of them."} for said in SAID]},
        {"details": [{"kind": "contains", "value": port} for port in PORTS]},
        {"plan": [[{"step": "load"}, {"step": "sail"}]] * 12, "names": [["one thing"]] * 12},
    ],
    ids=lambda columns: " ".join(columns),
)
def test_other_objects_check_nothing(tell, columns):
    report = tell(prompt=TASKS, **columns)
    assert asked(report) and "data.evidence.checked" not in str(report["reason"])


@pytest.mark.parametrize(
    ("asks", "columns", "first"),
    [
        ("Grade this essay", {"grading": {"points": 3, "type": "essay", "expected": "B"}}, "rl"),
        ("Judge this line", {"evaluation": {"score": 4, "method": "by ear"}}, "rl"),
        ("Extract the search constraints", {"constraints": {"type": "price", "max": 9}}, "prompt_completion"),
        ("Write a rubric", {"rubric": [{"name": "tone", "weight": 2}]}, "prompt_completion"),
        ("Write unit tests", {"tests": "assert f(2) == 3"}, "prompt_completion"),
        ("Say", {"criteria": {"tone": "polite", "min": 2}}, "rl"),
    ],
)
def test_what_may_be_the_answer_itself_is_asked_about(tell, asks, columns, first):
    ((name, cell),) = columns.items()
    prompts = {"prompt": [f"{asks}: {task}" for task in TASKS], name: [cell] * 12}
    other = ({"rl", "prompt_completion"} - {first}).pop()
    report = tell(**prompts)
    assert asked(report) == {"format": [first, other]}
    learned = tell(**prompts, format="prompt_completion")
    assert asked(learned) == {} and learned["mapping"] == {"prompt": "prompt", "completion": name}
    assert learned["rows_used"] == 12


def test_an_answer_beside_tests_is_no_reward_alone(tell):
    tests = [[f"assert say('{port}')"] for port in PORTS]
    report = tell(prompt=TASKS, response=SAID, test_list=tests)
    assert report["format"] == "prompt_completion"


@pytest.mark.parametrize("known", ["ground_truth", "reference"])
def test_what_a_prompt_is_known_to_be_answered_by_in_words_is_asked_about(tell, known):
    report = tell(prompt=TASKS, **{known: SAID})
    assert asked(report) == {"format": ["prompt_completion", "rl"]}
    brief = tell(prompt=TASKS, **{known: [f"{port} pier" for port in PORTS]})
    assert asked(brief) == {"format": ["rl", "prompt_completion"]}
    number = tell(prompt=TASKS, **{known: [str(n) for n in range(12)]})
    assert (number["format"], asked(number)) == ("rl", {})
    learned = tell(prompt=TASKS, **{known: SAID}, format="prompt_completion")
    assert asked(learned) == {} and learned["mapping"]["completion"] == known


@pytest.mark.parametrize("known", ["answer", "solution", "ground_truth"])
@pytest.mark.parametrize("talk", ["messages", "prompt"])
def test_what_turns_are_known_to_be_answered_by_in_words_is_asked_about(tell, talk, known):
    rules = {"role": "system", "content": "Be brief."}
    turns = [[rules, {"role": "user", "content": task}] for task in TASKS]
    assert asked(tell(**{talk: turns, known: SAID})) == {"format": ["prompt_completion", "rl"]}
    learned = tell(**{talk: turns, known: SAID}, format="prompt_completion")
    assert asked(learned) == {} and learned["mapping"] == {"prompt": talk, "completion": known}
    assert [turn["role"] for turn in learned["preview"][0]["messages"]] == ["system", "user", "assistant"]
    bare = [turn[1:] for turn in turns]
    assert asked(tell(**{talk: bare, known: SAID}, format="prompt_completion")) == {}
    number = tell(**{talk: turns, known: [str(n) for n in range(12)]})
    assert (number["format"], asked(number)) == ("rl", {})


def test_labels_that_sort_prompts_are_asked_about_with_rewards_first(tell):
    report = tell(prompt=TASKS, topic=["sea", "land", "air"] * 4)
    assert asked(report) == {"format": ["rl", "prompt_completion"]}
    labelled = tell(prompt=TASKS, topic=["sea", "land", "air"] * 4, format="prompt_completion")
    assert asked(labelled) == {"mapping.completion": ["topic"]}
    # What was found out about a text is an answer to it.
    assert asked(tell(prompt=TASKS, intent=["go", "ask", "pay"] * 4)) != asked(report)


def test_lists_beside_a_named_prompt_may_be_its_answer(tell):
    ideas = [[f"{port.lower()}.port", f"go{n}.boat"] for n, port in enumerate(PORTS)]
    report = tell(harbour_story=TASKS, suggested_sites=ideas, answers={"prompt": "harbour_story"})
    assert asked(report) == {"mapping.completion": ["suggested_sites"]}


def test_what_an_answer_is_to_name_is_not_learned_unasked(tell):
    report = tell(question=TASKS, terms=[[port, "old pier", "boat"] for port in PORTS])
    assert "mapping.completion" in asked(report)


def test_tags_that_many_prompts_lack_sort_them(tell):
    tags = [f"{port} boats" if n % 2 else "" for n, port in enumerate(PORTS)]
    report = tell(prompt_text=TASKS, setting=["sea", "land", "air"] * 4, remark_tag=tags)
    assert asked(report) == {"format": ["rl", "prompt_completion"]}


def test_a_result_beside_the_rule_that_checks_it_is_rewarded(tell):
    rules = [{"style": "rule", "ground_truth": {"target": n}} for n in range(12)]
    turns = [[{"role": "user", "content": task}] for task in TASKS]
    report = tell(target=[str(n) for n in range(12)], prompt=turns, reward_model=rules)
    assert (report["format"], asked(report), report["confidence"]) == ("rl", {}, 0.9)


def test_how_one_is_to_behave_is_no_answer(tell):
    report = tell(
        question=TASKS, expected_behavior=[f"Names the pier of {port} and the hour." for port in PORTS]
    )
    assert "mapping.completion" in asked(report)
    report = tell(question=TASKS, expected_reply=SAID)
    assert asked(report) == {} and report["mapping"]["completion"] == "expected_reply"


def test_whether_code_was_given_is_no_code(tell):
    report = tell(
        question=TASKS, code_given=[0, 1] * 6, pasted=[f"def go():\n    return {n}" for n in range(12)]
    )
    assert report["mapping"].get("completion") != "code_given" and asked(report)


@pytest.mark.parametrize("right", ["correct", "correct_option", "верный_ответ", "richtig"])
def test_the_right_one_beside_wrong_ones_is_learned(tell, right):
    quiz = {
        "question": [f"Which call says {port.lower()}?" for port in PORTS],
        right: [f"say('{n}')" for n in range(12)],
    }
    quiz |= {f"wrong{k}": [f"cry{k}('{n}')" for n in range(12)] for k in (1, 2)}
    told = [f"The call say('{n}') says it, and no other call does." for n in range(12)]
    report = tell(**quiz, hint=told)
    assert asked(report) == {} and report["mapping"] == {"prompt": "question", "completion": right}
    # A hint that does not say it may be read.
    assert tell(**quiz, hint=SAID)["mapping"].get("material") in ("hint", None)


def test_places_without_a_word_are_asked_about(tmp_path):
    from studio.core.recipe import DatasetSpec
    from studio.data.dataset_report import describe

    path = tmp_path / "places.txt"
    path.write_text("".join(f"[{n}, {n + 4}] ; [{n * 3}, 91]\n" for n in range(40)), encoding="utf-8")
    assert describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")["needs_answer"]


def test_turns_that_nothing_answers_are_prompts(tell):
    turns = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task}] for task in TASKS
    ]
    report = tell(messages=turns, meta=[{"port": port} for port in PORTS])
    assert (report["format"], asked(report), report["rows_used"]) == ("rl", {}, 12)
    assert report["mapping"] == {"prompt": "messages"} and report["confidence"] == 0.9
    # Where one talk is answered, the others lack their answers, and are told as such.
    some = [
        [*turn, {"role": "assistant", "content": SAID[n]}] if n < 8 else turn for n, turn in enumerate(turns)
    ]
    report = tell(messages=some)
    assert report["format"] == "messages" and report["rows_used"] == 8


def test_facts_that_were_taken_out_of_a_text_are_its_answer(tell):
    facts = [{"port": port, "vehicle": "ferry", "boats": ""} for port in PORTS]
    report = tell(prompt=TASKS, filters=facts)
    assert asked(report) == {} and report["mapping"] == {"prompt": "prompt", "completion": "filters"}
    other = [{"colour": "blue", "weight": str(n + 800)} for n in range(12)]
    assert asked(tell(prompt=TASKS, filters=other))


def test_what_a_model_said_to_an_answered_talk_is_left_out(tell):
    talks = [
        [{"role": "user", "content": task}, {"role": "assistant", "content": said}]
        for task, said in zip(TASKS, SAID, strict=True)
    ]
    report = tell(
        messages=talks, model_output=[f"Nobody knows when it goes to {port}, I think." for port in PORTS]
    )
    assert (report["format"], asked(report)) == ("messages", {}) and "model_output" in str(report["reason"])


def test_how_an_answer_is_judged_is_no_part_of_its_question(tell):
    marks = [f"Names the pier, the port of {port} and the hour." for port in PORTS]
    report = tell(question=TASKS, expected_answer=SAID, evaluation_criteria=marks)
    assert asked(report) == {} and "evaluation_criteria" not in report["mapping"].values()


def test_a_key_beside_what_pupils_answered_is_offered(tell):
    tries = [[f"I think that it goes to {port} at night.", "Nobody knows."] for port in PORTS]
    report = tell(Question=TASKS, Key=SAID, Response=tries, Average=[n % 5 for n in range(12)])
    assert "Key" in asked(report)["mapping.completion"]


def test_two_kinds_of_answers_are_asked_about(tell):
    brief = [
        f"It goes at {n + 6}, from the pier that the people of {port} know." for n, port in enumerate(PORTS)
    ]
    report = tell(query=TASKS, raw_answer=SAID, pruned_answer=brief)
    assert {*asked(report)["mapping.completion"]} == {"raw_answer", "pruned_answer"}
    # So they are where half of them say the same.
    half = [said if n % 2 else other for n, (said, other) in enumerate(zip(SAID, brief, strict=True))]
    report = tell(query=TASKS, raw_answer=SAID, pruned_answer=half)
    assert {*asked(report)["mapping.completion"]} == {"raw_answer", "pruned_answer"}
    slip = [*SAID[:-1], brief[-1]]
    assert asked(tell(query=TASKS, raw_answer=SAID, pruned_answer=slip)) == {}


def test_rows_for_several_trainers_are_asked_about(tell):
    worse = [f"It goes to {port} some time." for port in PORTS]
    pairs = {"prompt": TASKS, "chosen": SAID, "rejected": worse}
    votes = {"completion": SAID, "label": [True, False] * 6}
    plain = {"instruction": TASKS, "output": [said.upper() for said in SAID]}
    assert asked(tell(**pairs)) == {}
    assert asked(tell(**plain, **pairs, **votes)) == {"format": ["preference", "kto", "alpaca"]}
    assert asked(tell(**pairs, **votes)) == {"format": ["preference", "kto"]}
    assert asked(tell(**pairs, **votes, format="preference")).get("format") is None
    assert tell(**pairs, **votes, format="kto")["mapping"]["completion"] == "completion"
