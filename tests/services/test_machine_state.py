"""What the desk knows of this machine: what earlier runs learned, repairs that wait for a restart, the mirror."""

import importlib
import importlib.util
import sys

import pytest

from studio.core.errors import StudioError
from studio.hub.access_token import NO_MIRROR, Mirror
from studio.machine.repairs import read_applied
from studio.machine.settings import change_settings
from studio.services import machine_state as health
from studio.services.machine_state import MachineState
from tests.machine.facts import make_gpu, make_machine, make_recipe

OLD, NEW = make_gpu(8, (7, 5), "RTX 2080"), make_gpu(24, (8, 9), "RTX 4090")
MACHINE = make_machine(NEW, OLD)


@pytest.fixture
def desk_health(workspace, monkeypatch):
    """The MachineState of a new workspace whose machine is MACHINE."""
    monkeypatch.setattr(health, "detect", lambda **_: MACHINE)
    made = MachineState(workspace)
    yield made
    made.close()


def fail(workspace, gpu) -> None:
    remembered = health.Remembered(workspace.remembered)
    remembered.note_kernel("rms_norm", MACHINE, gpu.name, shape="1x64", reason="PTXASError: x")


def test_the_report_tells_of_kernels_that_failed_on_any_card(desk_health, workspace):
    assert not desk_health.examine()["facts"].broken_kernels
    fail(workspace, OLD)
    for report in (desk_health.examine(), desk_health.examine(fresh=True)):
        assert report["facts"].broken_kernels == {"rms_norm": "PTXASError: x"}
        assert ("kernel", "warn") in {(check["id"], check["verdict"]) for check in report["checks"]}


def test_a_run_minds_only_what_failed_on_its_own_card(desk_health, workspace):
    recipe = make_recipe()
    fail(workspace, OLD)
    assert not desk_health.add_experience(MACHINE, recipe).broken_kernels
    fail(workspace, NEW)
    assert list(desk_health.add_experience(MACHINE, recipe).broken_kernels) == ["rms_norm"]


def test_a_repair_that_was_switched_waits_for_a_restart(desk_health, workspace, monkeypatch, tmp_path):
    environment = health.prepare_environment(workspace, {"CC": str(tmp_path / "gone")})
    assert list(read_applied(environment)) == ["drop_compiler"]
    monkeypatch.setattr(health.os, "environ", environment)
    assert not desk_health.restart_waits()
    desk_health.switch_repair("drop_compiler", on=False)
    assert desk_health.restart_waits()
    desk_health.switch_repair("drop_compiler", on=True)
    assert not desk_health.restart_waits()


@pytest.mark.parametrize("first", ["auto", "off"])
def test_a_choice_that_waits_for_a_restart_is_not_reported_yet(workspace, monkeypatch, first):
    change_settings(workspace, kernels=first)
    environment = health.prepare_environment(workspace, {"PATH": "/bin"})
    monkeypatch.setattr(health.os, "environ", environment)
    asked = []
    monkeypatch.setattr(health, "detect", lambda environment, **_: asked.append(environment) or MACHINE)
    change_settings(workspace, kernels={"auto": "off", "off": "auto"}[first], memory_share=0.5)
    made = MachineState(workspace)
    made.examine()
    made.examine(fresh=True)
    made.close()
    assert asked == [environment] * 2


def test_a_mirror_is_kept_and_a_wrong_address_refused(desk_health, workspace):
    assert desk_health.mirror() == NO_MIRROR
    desk_health.set_mirror(" https://hf-mirror.com/ ")
    assert MachineState(workspace).mirror() == Mirror("https://hf-mirror.com")
    for wrong in ("hf-mirror.com", "ftp://mirror", "https://a b"):
        with pytest.raises(StudioError):
            desk_health.set_mirror(wrong)
    with pytest.raises(StudioError) as refusal:
        desk_health.set_mirror("https://me:secret@mirror.example/hub")
    assert refusal.value.what.id == "desk.mirror.secret"
    assert "secret" not in workspace.settings.read_text(encoding="utf-8")
    assert desk_health.mirror() == Mirror("https://hf-mirror.com")
    desk_health.set_mirror("")
    assert desk_health.mirror() == NO_MIRROR


def test_a_mirror_is_allowed_the_token_until_another_one_is_set(desk_health):
    for address in ("", "http://mirror.example"):
        desk_health.set_mirror(address)
        with pytest.raises(StudioError):
            desk_health.allow_token(True)
    desk_health.set_mirror("https://hf-mirror.com")
    assert not desk_health.mirror().token
    desk_health.allow_token(True)
    desk_health.set_mirror("https://hf-mirror.com/")
    assert desk_health.mirror() == Mirror("https://hf-mirror.com", token=True)
    desk_health.set_mirror("https://other.example")
    assert desk_health.mirror() == Mirror("https://other.example")
    desk_health.set_mirror("https://hf-mirror.com")
    desk_health.allow_token(True)
    desk_health.allow_token(False)
    assert not desk_health.mirror().token


def test_a_triton_that_cannot_be_loaded_is_hidden_and_another_is_not(monkeypatch):
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    broken = make_machine(NEW, triton_level="installed", triton_error="ImportError: DLL load failed\nmore")
    for other in (MACHINE, make_machine(triton_level="importable", triton_error="PTXASError")):
        assert health.hide_broken_triton(other) is None and "triton" not in sys.modules
    said = health.hide_broken_triton(broken)
    assert said is not None and said.values["reason"].values["words"] == "ImportError: DLL load failed"
    assert importlib.util.find_spec("triton") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("triton")


def test_after_a_stall_every_op_takes_its_twin_in_that_run_alone(desk_health, monkeypatch):
    monkeypatch.setenv("FINETUNE_STUDIO_SAFER", "pytorch_kernels")
    monkeypatch.setenv("FINETUNE_STUDIO_RESUME", "run-1")
    assert set(desk_health.add_experience(MACHINE, make_recipe(), "run-1").broken_kernels) == set(health.OPS)
    assert not desk_health.add_experience(MACHINE, make_recipe(), "run-2").broken_kernels


def test_repairs_are_told_with_the_variables_that_they_changed(desk_health, workspace, monkeypatch, tmp_path):
    environment = health.prepare_environment(workspace, {"CC": str(tmp_path / "gone")})
    monkeypatch.setattr(health.os, "environ", environment)
    (told,) = desk_health.repairs()
    assert told.repair == "drop_compiler" and told.message.values["names"] == "CC"
