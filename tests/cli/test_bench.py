"""`launch.py bench` tells what was measured in words and numbers, and says so when nothing could be."""

from __future__ import annotations

import argparse
import json
import sys

import pytest

from studio.cli import bench as program
from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue
from studio.machine.workspace import open_workspace
from tests.launched import launch

KERNEL = {
    "op": "glu", "direction": "silu", "shape": "2048x14336", "unit": "GB/s", "rate": 3955.0, "share": 0.88,
    "twin_rate": 1200.0, "times_faster": 3.3,
}  # fmt: skip
RESULT = {
    "machine": {"gpu": "A card", "driver": "1", "torch": "2.11.0", "date": "2026-11-21"},
    "rates": {"copy_gb_per_s": 4321.0, "matrix_tflop_per_s": 0.0654, "dtype": "bf16"},
    "kernels_left_out": "",
    "kernels": [KERNEL],
    "training": {
        "shape": "llama-3b-slice", "bits": 4, "dtype": "bf16", "batch": 2, "tokens": 1024,
        "ways": [
            {"stack": "hf", "state": "measured", "error": "", "tokens_per_s": 20_000, "peak_bytes": 3 * 2**30},
            {"stack": "ours", "state": "measured", "error": "", "tokens_per_s": 50_000, "peak_bytes": 2**31},
        ],
    },
}  # fmt: skip


def say(result, language="en") -> list[str]:
    return list(program.describe(result, load_catalogue(language).say))


def test_a_result_is_told_in_words_and_numbers():
    told = "\n".join(say(RESULT))
    assert "copies 4,321 GB/s" in told and "0.0654 TFLOP/s" in told
    assert "3.3 x" in told and "3,955 GB/s" in told and "88%" in told and "glu, silu (2048x14336)" in told
    assert "50,000 tokens/s    2.00 GiB  Finetune Studio" in told
    assert "2.50 times as fast" in told
    assert len(say(RESULT, "zh-CN")) == len(say(RESULT))


@pytest.mark.parametrize("why", ["triton", "old", "processor"])
def test_what_is_not_measured_is_said_in_one_sentence(why):
    machine = RESULT["machine"] | {"gpu": "" if why == "processor" else "A card"}
    told = say(RESULT | {"machine": machine, "kernels": [], "kernels_left_out": why})
    said = [line for line in told if "kernels" in line]
    assert len(said) == 1 and not any(" x " in line and "GB/s" in line for line in told)
    assert ("no graphics card" in said[0]) == (why == "processor")


def test_a_way_that_failed_is_told_and_nothing_is_compared():
    hf = {"stack": "hf", "state": "out of memory", "error": "CUDA out of memory.", "tokens_per_s": None}
    told = "\n".join(
        say(RESULT | {"training": RESULT["training"] | {"ways": [hf, RESULT["training"]["ways"][1]]}})
    )
    assert (
        "not measured (out of memory) CUDA out of memory." in told and "as fast as transformers" not in told
    )


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command with a program of these lines in place of the real one."""

    def start(lines: str) -> int:
        path = tmp_path / "program.py"
        path.write_text(f"import os, sys\n{lines}\n", encoding="utf-8")
        monkeypatch.setattr(program, "PROGRAM", path)
        console = Console(load_catalogue("en"), as_json=True)
        return program.bench(
            argparse.Namespace(tiny=True, tune=""), open_workspace(str(tmp_path / "w")), console
        )

    return start


def test_the_answer_is_one_object_and_other_lines_are_passed_over(run, capsys):
    lines = f"print('noise'); print('{{\"doing\": \"rates\"}}'); print({json.dumps({'result': RESULT})!r})"
    assert run(lines) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == RESULT and "Measuring how fast" in told.err


def test_a_failed_way_of_training_is_a_failed_measurement(run, capsys):
    ways = [way | {"state": "failed"} for way in RESULT["training"]["ways"]]
    result = RESULT | {"training": RESULT["training"] | {"ways": ways}}
    assert run(f"print({json.dumps({'result': result})!r})") == 1


@pytest.mark.parametrize(
    ("lines", "why"),
    [("sys.stderr.write('RuntimeError: the driver is gone')", "the driver is gone"), ("os._exit(7)", "7")],
)
def test_a_process_that_ends_without_a_result_is_a_refusal(run, lines, why):
    with pytest.raises(StudioError) as caught:
        run(lines)
    assert caught.value.exit_code == 1
    told = load_catalogue("en").say(caught.value.why)
    assert why in told


TUNED = {
    "refused": "", "machine": {"gpu": "A card", "triton": "3.6.0"}, "seconds": 91.0, "left_out": ["nf4 4096"],
    "ops": [
        {"op": "glu", "bucket": 8192, "shape": "2048x8192", "before_ms": 0.5, "after_ms": 0.4, "gain": 0.25,
         "options": {"COLUMNS": 2048, "num_warps": 8}},
        {"op": "rope", "bucket": 128, "shape": "4096x(32+8)x128", "before_ms": 0.1, "after_ms": 0.1, "gain": 0.0,
         "options": {}},
    ],
}  # fmt: skip


def test_tuning_is_told_as_a_table(tmp_path):
    for language in ("en", "zh-CN"):
        told = list(program.describe_tuning(TUNED, tmp_path / "tuned.json", load_catalogue(language).say))
        assert len(told) == 5 and "A card" in told[0] and "nf4 4096" in told[3] and "tuned.json" in told[4]
        assert "0.5000 ms ->    0.4000 ms  +25.0%  glu 8192 (2048x8192): COLUMNS=2048 num_warps=8" in told[1]
    none = TUNED | {"ops": TUNED["ops"][1:], "left_out": []}
    *_, last = program.describe_tuning(none, tmp_path, load_catalogue("en").say)
    assert "nothing changes" in last


def tune(tmp_path, word: str) -> int:
    console = Console(load_catalogue("en"), as_json=True)
    return program.bench(
        argparse.Namespace(tiny=False, tune=word), open_workspace(str(tmp_path / "w")), console
    )


def test_tuning_is_undone_by_off(tmp_path, capsys):
    path = open_workspace(str(tmp_path / "w")).tuned
    path.write_text("{}", encoding="utf-8")
    assert tune(tmp_path, "off") == 0 and not path.exists()
    assert tune(tmp_path, "off") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"removed": True}, {"removed": False},
    ]  # fmt: skip


def test_the_tuning_program_is_told_where_to_write(tmp_path, monkeypatch, capsys):
    path = tmp_path / "program.py"
    line = f'print(\'{{"doing": "tune", "op": "glu"}}\'); print({json.dumps({"result": TUNED})!r})'
    path.write_text(f"import sys; open(sys.argv[2], 'w').write(sys.argv[1]); {line}", encoding="utf-8")
    monkeypatch.setattr(program, "TUNE_PROGRAM", path)
    assert tune(tmp_path, "on") == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == TUNED and "Trying tile sizes: glu" in told.err
    assert open_workspace(str(tmp_path / "w")).tuned.read_text(encoding="utf-8") == "--out"


@pytest.mark.computing
def test_without_a_graphics_card_tuning_is_refused(tmp_path):
    done = launch(tmp_path / "w", "bench", "--tune", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and "no graphics card" in done.stderr and "Traceback" not in done.stderr
    assert not open_workspace(str(tmp_path / "w")).tuned.exists()


@pytest.mark.computing
def test_this_machine_is_measured(tmp_path):
    done = launch(tmp_path / "w", "bench", "--tiny", "--json", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    ways = {way["stack"]: way for way in result["training"]["ways"]}
    assert ways.keys() == {"hf", "ours"} and all(way["tokens_per_s"] > 0 for way in ways.values())
    assert ways["ours"]["first_loss"] == pytest.approx(ways["hf"]["first_loss"], rel=0.01)
    assert result["rates"]["copy_gb_per_s"] > 0 and result["rates"]["matrix_tflop_per_s"] > 0
    assert result["machine"]["torch"] and result["kernels_left_out"] == "processor"
    assert sys.executable not in done.stdout
