"""How a run's death is written into its folder."""

from __future__ import annotations

import json
import time

import pytest

from studio.core.codec import to_json
from studio.core.events import RunFailed, StepLogged
from studio.engine.crash_records import Death, describe_code, fail_run, read_deaths, record_death
from studio.engine.run_folder import create_run


@pytest.fixture
def folder(tmp_path, recipe):
    """A run that logged seven steps."""
    made = create_run(tmp_path / "runs", recipe)
    lines = [
        StepLogged(seq=n, time_s=n, step=n, total_steps=9, epoch=0, loss=1, lr=1, grad_norm=1, tokens_per_s=1)
        for n in range(1, 8)
    ]
    words = "".join(json.dumps(to_json(line)) + "\n" for line in lines)
    made.events.write_text(words, encoding="utf-8")
    return made


@pytest.mark.parametrize(("phase", "step", "told"), [("load", 0, 7), ("train", 8, 8)])
def test_a_death_while_loading_does_not_forget_the_steps_that_were_done(folder, phase, step, told):
    death = Death(
        time_s=time.time(), code=-6, run=folder.run, folder=str(folder.path), phase=phase, step=step
    )
    record_death(death)
    assert [one.phase for one in read_deaths(folder)] == [phase]
    event = fail_run(folder, death)
    assert isinstance(event, RunFailed) and event.step == told and event.seq == 8
    record = folder.read_record()
    assert (record.state, record.steps) == ("failed", told) and record.diagnosis.id == "engine_died"
    assert json.loads(folder.events.read_text(encoding="utf-8").splitlines()[-1])["step"] == told


@pytest.mark.parametrize(
    ("code", "name"), [(-6, "SIGABRT"), (139, "SIGSEGV"), (0xC0000005, "0xC0000005"), (70, "exit code 70")]
)
def test_an_end_has_a_name_that_can_be_searched_for(code, name):
    assert describe_code(code) == name
