"""The cases cover the table, can be made, follow what their budgets hang on, and are chosen by the time there is."""

from __future__ import annotations

import json
from dataclasses import replace

from benchmarks.cases import (
    CASES,
    MAKE_S,
    OTHER_PROGRAMS,
    START_S,
    choose,
    expect_s,
    from_json,
    group,
    to_json,
)

BY_NAME = {case.name: case for case in CASES}


def test_every_row_is_measured_here_or_elsewhere():
    rows = {row for case in CASES for row in case.rows}
    assert rows - {0} | set(OTHER_PROGRAMS) == set(range(1, 18)) and not rows & set(OTHER_PROGRAMS)
    for row in rows:
        stacks = {case.stack for case in CASES if row in case.rows}
        assert "ours" in stacks, row
    assert len(BY_NAME) == len(CASES)
    assert all(case.stack in START_S and case.shape in MAKE_S for case in CASES)


def test_a_budget_is_the_peak_of_an_earlier_case_on_the_same_tokens():
    order = list(BY_NAME)
    budgets = [case for case in CASES if case.budget_of]
    assert len(budgets) >= 4
    for case in budgets:
        assert order.index(case.budget_of) < order.index(case.name)
        peak = BY_NAME[case.budget_of]  # Unsloth calls an expert's linears otherwise
        assert replace(peak, targets=case.targets).setting == case.setting


def test_whole_rows_are_chosen_in_order_while_they_fit():
    alone = choose([13], 1e6, made=["qwen3-0.6b"])
    assert {case.rows for case in alone.cases} == {(13,)} and not alone.left_out
    assert alone.expected_s == sum(expect_s(case, 1) for case in alone.cases)
    none = choose([13], alone.expected_s - 1, made=["qwen3-0.6b"])
    assert not none.cases and none.left_out == ((13, alone.expected_s),)
    # What comes first stays; the small row after it does not wait for the large one.
    enough = choose([1, 9], 1e6, made=["llama-8b"]).expected_s
    some = choose([2, 1, 9], enough, made=["llama-8b"])
    assert [row for row, _ in some.left_out] == [2]
    assert {row for case in some.cases for row in case.rows} >= {1, 9}


def test_shared_cases_and_models_are_paid_once():
    both, first, second = (choose(rows, 1e6).expected_s for rows in ([1, 2], [1], [2]))
    assert both < first + second - MAKE_S["llama-8b"] - 50


def test_loading_side_by_side_saves_time_but_not_steps():
    names = ["qlora.hf", "qlora.unsloth", "qlora.unsloth.none"]
    alone, together = (
        choose([2], 1e6, names=names, made=["llama-8b"], together=together).expected_s
        for together in (False, True)
    )
    assert max(START_S.values()) < together < alone - 50


def test_a_budget_brings_its_case_along_unless_it_is_known():
    only = {"stacks": ["ours"], "seconds": 1e6}
    assert {case.name for case in choose([1], **only).cases} == {"qlora.ours.budget", "qlora.unsloth"}
    known = choose([1], **only, measured=["qlora.unsloth"])
    assert [case.name for case in known.cases] == ["qlora.ours.budget"]


def test_cases_of_a_setting_stand_together_and_shapes_follow_each_other():
    groups = group(CASES)
    assert sorted(case.name for cases in groups for case in cases) == sorted(BY_NAME)
    assert all(len({case.setting for case in cases}) == 1 for cases in groups)
    shapes = [cases[0].shape for cases in groups]
    assert len(set(shapes)) == 1 + sum(a != b for a, b in zip(shapes, shapes[1:], strict=False))


def test_a_case_survives_its_way_to_the_other_process():
    assert all(from_json(json.loads(json.dumps(to_json(case)))) == case for case in CASES)
