"""What the desk knows of this machine: what earlier runs learned, and repairs that wait for a restart."""

import pytest

from studio.core.facts import MachineFacts
from studio.desk import health
from studio.desk.health import Health
from studio.host.repairs import read_applied

MACHINE = MachineFacts(
    system="Linux", wsl=False, python="3.12.0", cores=2, ram_bytes=2**34, packages={"torch": "2.13.0"}
)


@pytest.fixture
def desk_health(workspace, monkeypatch):
    """The Health of a new workspace whose machine is MACHINE."""
    monkeypatch.setattr(health, "detect", lambda **_: MACHINE)
    made = Health(workspace)
    yield made
    made.close()


def test_the_report_tells_of_kernels_that_failed_in_earlier_runs(desk_health, monkeypatch):
    broken = {"rms_norm": "PTXASError: x"}
    monkeypatch.setattr(health.Remembered, "broken_kernels", lambda self, machine: broken)
    for report in (desk_health.examine(), desk_health.examine(fresh=True)):
        assert report["facts"].broken_kernels == broken
        assert "kernel" in {check["id"] for check in report["checks"]}


def test_a_repair_that_was_switched_waits_for_a_restart(desk_health, workspace, monkeypatch, tmp_path):
    environment = health.prepare_environment(workspace, {"CC": str(tmp_path / "gone")})
    assert list(read_applied(environment)) == ["drop_compiler"]
    monkeypatch.setattr(health.os, "environ", environment)
    assert not desk_health.restart_waits()
    desk_health.switch_repair("drop_compiler", on=False)
    assert desk_health.restart_waits()
    desk_health.switch_repair("drop_compiler", on=True)
    assert not desk_health.restart_waits()
