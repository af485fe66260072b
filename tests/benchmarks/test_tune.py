"""Tuning keeps what is right and clearly faster, and nothing else; on a card or in this test's made-up one."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
import torch
from studio_kernels import tuned_configs
from studio_kernels.dispatch import op_named

from benchmarks import tune as program
from benchmarks.kernel_cases import Workload
from benchmarks.kernels import Clock

CPU = torch.device("cpu")
HERE = {"gpu": "A card", "triton": "3.6.0", "kernels": "0123456789ab"}


class Card:
    """An op whose time and numbers depend on its warps: 4 are the rule."""

    def __init__(
        self, milliseconds: dict[int, float], wrong: tuple[int, ...] = (), broken: tuple[int, ...] = ()
    ):
        self.milliseconds, self.wrong, self.broken = milliseconds, wrong, broken
        self.timed: list[int] = []

    def warps(self) -> int:
        found = tuned_configs.read(os.environ[tuned_configs.VARIABLE], HERE)
        return found.get("nf4", {}).get(4096, {}).get("num_warps", 4)

    def sample(self, **options):
        def run(implementation):
            warps = self.warps() if implementation == "triton" else 0
            if warps in self.broken:
                raise RuntimeError("out of resources: shared memory")
            return {"y": torch.full((4,), 2.0 if warps in self.wrong else 1.0)}

        return run

    def time_ms(self, call, prepare) -> float:
        self.timed.append(self.warps())
        return self.milliseconds[self.timed[-1]]


@pytest.fixture
def tune(monkeypatch, tmp_path):
    """A function that tunes the op of a Card; the variable is put back afterwards."""
    monkeypatch.setenv(tuned_configs.VARIABLE, "")
    monkeypatch.setattr(tuned_configs, "describe", lambda device: HERE)

    def start(card: Card, until_s: float = float("inf")):
        op = SimpleNamespace(sample=card.sample, reference="reference", triton="triton")
        monkeypatch.setattr(program, "op_named", lambda name: op)
        workload = Workload(op="nf4", direction="forward", shape="1x4096", calls={"triton": lambda: ()})
        clock = SimpleNamespace(device=CPU, time_ms=card.time_ms)
        trial = program.Trial(tmp_path, CPU)
        return program.tune(clock, trial, "nf4", 4096, lambda: iter([workload]), [{"width": 4096}], until_s)

    yield start
    tuned_configs.forget()


def test_the_fastest_that_is_right_is_kept(tune):
    line = tune(Card({2: 0.5, 4: 2.0, 8: 1.0, 16: 0.1}, wrong=(2,), broken=(16,)))
    assert line["options"] == {"num_warps": 8} and (line["before_ms"], line["after_ms"]) == (2.0, 1.0)
    assert line["gain"] == 1.0
    assert program.entries_of([line]) == {"nf4": {4096: {"num_warps": 8}}}


def test_what_is_wrong_or_does_not_launch_is_never_timed(tune):
    card = Card({4: 2.0, 8: 1.0}, wrong=(2,), broken=(16,))
    tune(card)
    assert set(card.timed) == {4, 8}


@pytest.mark.parametrize(("milliseconds", "kept"), [(0.98, False), (0.96, True)])
def test_less_than_three_per_cent_is_no_gain(tune, milliseconds, kept):
    line = tune(Card({2: 1.5, 4: 1.0, 8: milliseconds, 16: 1.5}))
    assert bool(line["options"]) == kept and (line["gain"] > 0) == kept
    assert bool(program.entries_of([line])) == kept


def test_a_gain_that_does_not_come_again_is_chance(tune):
    card = Card({2: 2.0, 4: 2.0, 8: 1.0, 16: 2.0})
    turns = 4 * (program.TURNS + program.WARMUPS)
    plain = card.time_ms
    card.time_ms = lambda call, prepare: 2.0 if len(card.timed) >= turns else plain(call, prepare)
    assert tune(card)["options"] == {}


def test_candidates_and_rule_take_turns(tune):
    card = Card({2: 2.0, 4: 2.0, 8: 2.0, 16: 2.0})
    tune(card)
    assert card.timed == [4, 2, 4, 8, 16] * (program.WARMUPS + program.TURNS)


def test_an_op_whose_rule_is_wrong_here_is_left_alone(tune):
    card = Card({4: 1.0}, wrong=(4,))
    assert tune(card) is None and card.timed == []


def test_no_candidate_is_begun_late(tune):
    card = Card({4: 1.0})
    assert tune(card, until_s=0.0)["candidates"] == 0 and set(card.timed) == {4}


def test_every_bucket_has_candidates_and_its_samples_and_workloads_lie_in_it():
    for op, bucket, _, shapes in program.BUCKETS:
        assert bucket == tuned_configs.bucket_of(bucket) and len(tuned_configs.candidates(op, bucket)) >= 2
        if op in ("rms_norm", "glu", "nf4"):
            assert {tuned_configs.bucket_of(shape["width"]) for shape in shapes} == {bucket}
        if op == "linear_cross_entropy":
            assert {tuned_configs.bucket_of(shape["vocabulary"]) for shape in shapes} == {bucket}
    assert {op for op, *_ in program.BUCKETS} == set(tuned_configs.SIZES)


def test_every_sample_can_be_drawn():
    for op, _, _, shapes in program.BUCKETS:
        shapes = [{**shape, **({"vocabulary": 300} if "vocabulary" in shape else {})} for shape in shapes]
        for shape in shapes:
            run = op_named(op).sample(rows=2, dtype=torch.bfloat16, device=CPU, **shape)
            assert run(op_named(op).reference)


def test_a_file_is_put_there_whole_and_goes_when_nothing_is_faster(monkeypatch, tmp_path):
    monkeypatch.setattr(tuned_configs, "describe", lambda device: HERE)
    path, entries = tmp_path / "tuned.json", {"nf4": {4096: {"num_warps": 8}}}
    program.write(path, entries, CPU)
    assert tuned_configs.read(str(path), HERE) == entries and list(tmp_path.iterdir()) == [path]
    program.write(path, {}, CPU)
    assert not path.exists()


def test_without_a_card_it_says_so_and_writes_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main(["--out", str(tmp_path / "tuned.json")]) == 0
    assert json.loads(capsys.readouterr().out) == {"result": {"refused": "processor"}}
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.slow
def test_this_card_is_tuned(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(tuned_configs.VARIABLE, "")
    assert program.main(["--out", str(tmp_path / "tuned.json")]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])["result"]
    assert result["seconds"] < 180 and not result["left_out"]
    assert {line["op"] for line in result["ops"]} == set(tuned_configs.SIZES)
    entries = program.entries_of(result["ops"])
    assert (
        tuned_configs.read(str(tmp_path / "tuned.json"), tuned_configs.describe(torch.device("cuda", 0)))
        == entries
    )
    assert all(line["gain"] >= 0.0 for line in result["ops"])
    assert Clock.of(torch.device("cuda")).time_ms(lambda: None) >= 0.0
