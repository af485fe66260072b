"""The doctor's answer for machines of each kind."""

from __future__ import annotations

import dataclasses

import pytest

from studio.core.facts import Gpu, MachineFacts
from studio.core.text import load_catalogue
from studio.host.verdict import judge

PACKAGES = {"torch": "2.13.0", "transformers": "5.23.0", "peft": "0.21.2", "datasets": "5.2.0"}
CARD = Gpu(name="RTX 3060", vram_bytes=12 * 2**30, capability=(8, 6))
PROCESSOR = MachineFacts(
    system="Linux", wsl=False, python="3.12.0", cores=8, ram_bytes=2**34, packages=PACKAGES
)
GOOD = dataclasses.replace(PROCESSOR, gpus=(CARD,), torch_cuda="13.0", triton_level="right")

CASES = {
    "ready": (GOOD, "ready", "triton", []),
    "processor": (PROCESSOR, "degraded", "cpu", []),
    "torch of another build": (
        dataclasses.replace(GOOD, torch_cuda=""),
        "degraded",
        "cpu",
        ["torch_cpu_build"],
    ),
    "triton imports only": (
        dataclasses.replace(GOOD, triton_level="importable", triton_error="no compiler"),
        "degraded",
        "pytorch",
        ["triton"],
    ),
    "no bitsandbytes": (
        dataclasses.replace(GOOD, bitsandbytes_error="no library"),
        "degraded",
        "triton",
        ["bitsandbytes"],
    ),
    "kernels installed": (
        dataclasses.replace(GOOD, packages=PACKAGES | {"kernels": "0.11.1"}),
        "degraded",
        "triton",
        ["kernels_package"],
    ),
    "no torch": (
        dataclasses.replace(
            PROCESSOR, packages={"peft": "0.21.2", "transformers": "5.23.0", "datasets": "5.2.0"}
        ),
        "blocked",
        "cpu",
        ["package_missing"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict(case):
    machine, verdict, backend, problems = CASES[case]
    report = judge(machine)
    assert (report["verdict"], report["backend"]) == (verdict, backend)
    assert [problem["id"] for problem in report["problems"]] == problems
    for language in ("en", "zh-CN"):
        words = load_catalogue(language)
        texts = [*report["reasons"], *(p[part] for p in report["problems"] for part in ("title", "fix"))]
        assert all(words.has(one.id) and "{" not in words.say(one) for one in texts)
