"""Tuned tile sizes: who gets which, what a file must be to count, and that every candidate compiles and is right."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from studio_kernels import tuned_configs
from studio_kernels.dispatch import op_named

from studio.machine.workspace import Workspace, child_environment
from tests.each_time import some
from tests.kernels.launches import check, half

ROOT = Path(__file__).resolve().parents[2]
CARD = torch.device("cuda", 0)
HERE = {"gpu": "A card", "triton": "3.6.0", "kernels": "0123456789ab"}
ENTRIES = {"rms_norm": {4096: {"ROWS": 2, "num_warps": 8}}, "nf4": {16384: {"num_warps": 8}}}
RULE = {"ROWS": 1, "COLUMNS": 4096, "TAIL": 0, "num_warps": 8}
BUCKETS = {
    "rms_norm": (128, 1024, 4096, 8192), "glu": (4096, 16384), "rope": (128,), "dropout": (512,),
    "nf4": (4096,), "adamw": (4096,), "linear_cross_entropy": (32768, 131072),
}  # fmt: skip
WIDTHS = {"rms_norm": (128, 2304, 4096, 5120), "glu": (100, 4096, 14336)}
CHILD = """
import importlib, sys, torch
from studio_kernels import tuned_configs
from tests.kernels import oracle
from studio_kernels.dispatch import op_named
torch.set_num_threads(1)
for op, bucket, options in (
    ("rms_norm", 2304, {"ROWS": 4, "num_warps": 16}), ("rms_norm", 100, {"ROWS": 32, "num_warps": 4}),
    ("glu", 1100, {"COLUMNS": 2048, "num_warps": 8}), ("glu", 1100, {"COLUMNS": 512, "num_warps": 2}),
):
    assert options in tuned_configs.candidates(op, tuned_configs.bucket_of(bucket)), (op, options)
    module = importlib.import_module(f"studio_kernels.{op}")
    used = []
    module.choose = lambda op, width, rule, device: used.append(rule | options) or used[-1]
    for dtype in ("float32", "bfloat16"):
        case = {"rows": 9, "width": bucket, "dtype": dtype}
        for found in oracle.measure(op_named(op), case, "cpu", truncated=True):
            assert found.ok, (op, options, found)
    assert used
print("right")
"""


@pytest.fixture
def card(monkeypatch, tmp_path):
    """A card on which nothing was tuned: a function that puts a file there and lets it be read."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(tuned_configs, "describe", lambda device: HERE)
    monkeypatch.delenv(tuned_configs.VARIABLE, raising=False)
    tuned_configs.forget()

    def put(content: str) -> Path:
        path = tmp_path / "tuned.json"
        path.write_text(content, encoding="utf-8")
        monkeypatch.setenv(tuned_configs.VARIABLE, str(path))
        tuned_configs.forget()
        return path

    yield put
    tuned_configs.forget()


@pytest.mark.parametrize(
    ("capability", "known"),
    [((7, 5), 75), ((8, 0), 80), ((8, 7), 86), ((8, 9), 89), ((10, 0), 90), ((12, 1), 120), ((7, 0), None),
     (None, None)],
)  # fmt: skip
def test_a_card_takes_the_nearest_class_that_is_not_above_it(monkeypatch, capability, known):
    shipped = {number: {"glu": {number: {}}} for number in tuned_configs.SHIPPED}
    monkeypatch.setattr(tuned_configs, "SHIPPED", shipped)
    assert tuned_configs.shipped_for(capability) == (shipped[known] if known else {})


def test_classes_are_those_that_the_kernels_are_written_for():
    assert set(tuned_configs.SHIPPED) == {75, 80, 86, 89, 90, 120}
    for entries in tuned_configs.SHIPPED.values():
        for op, buckets in entries.items():
            assert all(options in tuned_configs.candidates(op, bucket) for bucket, options in buckets.items())


def test_widths_share_the_bucket_above_them():
    assert [tuned_configs.bucket_of(width) for width in (1, 128, 129, 2304, 4096, 14336)] == [
        1, 128, 256, 4096, 4096, 16384,
    ]  # fmt: skip


@pytest.mark.parametrize("device", [CARD, torch.device("cpu")], ids=str)
def test_without_a_file_every_op_keeps_its_own_rule(card, device):
    for op, widths in WIDTHS.items():
        for width in widths:
            rule = importlib.import_module(f"studio_kernels.{op}").block_shape(width)
            assert tuned_configs.choose(op, width, dict(rule), device) == rule


def test_the_rules_are_those_that_were_measured():
    """What a card gets that nobody tuned: a change of these numbers is a change of every run's last bits."""
    modules = {op: importlib.import_module(f"studio_kernels.{op}") for op in BUCKETS}
    assert modules["rms_norm"].block_shape(4096) == RULE
    assert modules["rms_norm"].block_shape(5120) == {"ROWS": 1, "COLUMNS": 4096, "TAIL": 1024, "num_warps": 8}
    assert modules["rms_norm"].block_shape(128) == {"ROWS": 16, "COLUMNS": 128, "TAIL": 0, "num_warps": 4}
    assert modules["glu"].block_shape(14336) == {"COLUMNS": 1024, "num_warps": 4}
    assert modules["dropout"].block_shape() == {"ROWS": 8, "num_warps": 2}
    assert modules["nf4"].block_shape(4096) == {"ROWS": 1, "WORDS": 512, "num_warps": 4}
    assert modules["rope"].block_shape(40, 128, 128)["num_warps"] == 2
    assert modules["linear_cross_entropy"].block_shape(128256) == {"COLUMNS": 2048, "num_warps": 8}
    assert modules["adamw"].ELEMENTS == 1024


def test_a_file_overrules_the_rule_where_it_has_an_entry(card):
    card(tuned_configs.spell(ENTRIES, HERE))
    for width in (4096, 2304):
        assert tuned_configs.choose("rms_norm", width, dict(RULE), CARD) == RULE | {"ROWS": 2}
    assert tuned_configs.choose("rms_norm", 5120, dict(RULE), CARD) == RULE
    assert tuned_configs.choose("layer_norm", 4096, dict(RULE), CARD) == RULE
    assert tuned_configs.choose("rms_norm", 4096, dict(RULE), torch.device("cpu")) == RULE


def test_a_file_comes_before_what_is_shipped(card, monkeypatch):
    shipped = {"glu": {4096: {"COLUMNS": 512, "num_warps": 2}, 8192: {"COLUMNS": 512, "num_warps": 2}}}
    monkeypatch.setattr(tuned_configs, "SHIPPED", {90: shipped})
    card(json.dumps({**HERE, "entries": {"glu": {"4096": {"COLUMNS": 2048, "num_warps": 8}}}}))
    rule = {"COLUMNS": 1024, "num_warps": 4}
    assert tuned_configs.choose("glu", 4096, rule, CARD) == {"COLUMNS": 2048, "num_warps": 8}
    assert tuned_configs.choose("glu", 8192, rule, CARD) == {"COLUMNS": 512, "num_warps": 2}


def entries(op="rms_norm", bucket="4096", **options):
    return {op: {bucket: {"ROWS": 2, "num_warps": 8} | options}}


FOREIGN = {
    "another card": {**HERE, "gpu": "Another", "entries": entries()},
    "another Triton": {**HERE, "triton": "3.7.0", "entries": entries()},
    "other kernels": {**HERE, "kernels": "f" * 12, "entries": entries()},
    "no card": {"entries": entries()},
    "no entries": HERE,
    "not a mapping": [1],
    "not mappings": {**HERE, "entries": [1]},
    "not options": {**HERE, "entries": {"rms_norm": {"4096": 7}}},
    "an unknown op": {**HERE, "entries": entries() | entries("fp8")},
    "a bucket in words": {**HERE, "entries": entries(bucket="wide")},
    "a bucket below zero": {**HERE, "entries": entries(bucket="-4096")},
    "not a power of two": {**HERE, "entries": entries(ROWS=3)},
    "out of bounds": {**HERE, "entries": entries(ROWS=1024)},
    "too much for a thread": {**HERE, "entries": entries(ROWS=32, num_warps=2)},
    "another option": {**HERE, "entries": entries(num_stages=9)},
    "a word for a number": {**HERE, "entries": entries(ROWS="2")},
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_wrong_or_foreign_file_does_nothing(card, content):
    card(json.dumps(content))
    assert tuned_configs.choose("rms_norm", 4096, dict(RULE), CARD) == RULE


@pytest.mark.parametrize("content", ["", "{", "null", "[" * 100_000, "\ufeff{}"], ids=range(5))
def test_a_damaged_file_does_nothing(card, content):
    card(content)
    assert tuned_configs.choose("rms_norm", 4096, dict(RULE), CARD) == RULE


def test_a_missing_file_or_a_folder_does_nothing(card, tmp_path):
    card("{}").unlink()
    assert tuned_configs.choose("rms_norm", 4096, dict(RULE), CARD) == RULE
    assert tuned_configs.read(str(tmp_path), HERE) == {} == tuned_configs.read("\0", HERE)


def test_numbers_reach_the_kernel_whole(card):
    card(json.dumps({**HERE, "entries": entries(ROWS=2.0)}))
    assert type(tuned_configs.choose("rms_norm", 4096, dict(RULE), CARD)["ROWS"]) is int


def test_runs_find_the_file_in_their_workspace():
    workspace = Workspace(ROOT)
    assert child_environment(workspace, {})[tuned_configs.VARIABLE] == str(workspace.tuned)


def test_an_op_has_a_handful_of_candidates_and_never_fewer_than_two():
    for op, buckets in BUCKETS.items():
        for bucket in buckets:
            found = tuned_configs.candidates(op, bucket)
            assert 2 <= len(found) <= 12, (op, bucket, found)
            assert all(size & (size - 1) == 0 for options in found for size in options.values())
    assert tuned_configs.candidates("fp8", 4096) == ()


@pytest.mark.patient
def test_candidates_are_right_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(
        [str(ROOT), str(ROOT / "kernels")])}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True)
    assert done.stdout == "right\n", done.stderr[-2000:]


@pytest.fixture
def compile_with(launches, monkeypatch):
    """A function that compiles what an op launches for rows of one bucket with these options; returns the launches."""

    def compile_(op: str, target: str, bucket: int, options: dict[str, int]) -> list:
        def choose(op, width, rule, device):
            return rule | options if tuned_configs.bucket_of(width) == bucket else rule

        monkeypatch.setattr(importlib.import_module(f"studio_kernels.{op}"), "choose", choose)
        made = launches(op_named(op), "COMPILE", half(target))
        tuned_ones = [launch for launch in made if launch.options.items() >= options.items()]
        check(tuned_ones, target)
        return tuned_ones

    return compile_


@pytest.mark.parametrize("target", some(["sm_75", "sm_80", "sm_90", "sm_120"], "sm_90"))
@pytest.mark.parametrize("op", some(["rms_norm", "glu"], "glu"))
def test_the_extreme_candidates_compile(compile_with, op, target):
    """The smallest tile and the largest, forward and backward."""
    found = tuned_configs.candidates(op, 4096)
    for options in (found[0], found[-1]):
        assert len({launch.name for launch in compile_with(op, target, 4096, options)}) == 2


def go_round(cases: Iterable, cards: tuple[str, str, str]) -> Iterator[tuple]:
    """Yield each case with one of the cards, so that neither neighbours nor each third one have the same."""
    for number, case in enumerate(cases):
        yield case, cards[(number + number // len(cards)) % len(cards)]


@pytest.mark.patient
@pytest.mark.parametrize("op", ["rms_norm", "glu", "rope", "dropout", "nf4", "adamw"])
def test_every_candidate_compiles(compile_with, op):
    """Each for one card: what a card's shared memory and its compiler make of the extreme ones is looked at above."""
    cases = [(bucket, each) for bucket in BUCKETS[op] for each in tuned_configs.candidates(op, bucket)]
    made = [
        compile_with(op, target, bucket, each)
        for (bucket, each), target in go_round(cases, ("sm_75", "sm_90", "sm_120"))
    ]
    assert sum(map(bool, made)) >= 2


@pytest.mark.patient
def test_every_candidate_for_the_loss_compiles(compile_with):
    """A sample of 4,112 words is given the tiles of large vocabularies."""
    found = tuned_configs.candidates("linear_cross_entropy", 131072)
    for options, target in go_round(found, ("sm_80", "sm_90", "sm_120")):
        assert compile_with("linear_cross_entropy", target, tuned_configs.bucket_of(4112), options)
