"""Binding ops, refusing what does not exist or cannot run, and living without Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from studio_kernels import rms_norm, swiglu
from studio_kernels.dispatch import OPS, bind

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
GPU = {"device_type": "cuda", "capability": (8, 6), "dtype": torch.bfloat16, "width": 4096}
BROKEN_LIBTRITON = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "triton._C.libtriton" or name == "triton":
            raise ImportError("DLL load failed while importing libtriton: The specified module could not be found.")

sys.meta_path.insert(0, Finder())
"""


def run_python(code: str) -> str:
    """What a fresh interpreter prints; the test fails with its stderr when it does."""
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(KERNELS)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


def test_bind_gives_what_was_chosen_and_the_reference_for_the_rest():
    kernels = bind({"swiglu": "triton"})
    assert kernels.swiglu is swiglu.fused
    assert kernels.rms_norm is rms_norm.reference
    assert kernels.implementations == {"rms_norm": "reference", "swiglu": "triton"}


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"rms_morn": "triton"}, "no op 'rms_morn'; there are rms_norm, swiglu"),
        ({"swiglu": "cuda"}, "no implementation 'cuda'; it has reference and triton"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(choices, reason):
    with pytest.raises(ValueError, match=reason):
        bind(choices)


def test_kernels_cannot_be_changed_after_binding():
    with pytest.raises(AttributeError):
        bind({}).swiglu = print


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device_type": "cpu", "capability": None}, "not a device of type cpu"),
        ({"device_type": "mps", "capability": None}, "not a device of type mps"),
        ({"capability": (6, 1)}, "7.0 or higher"),
        ({"capability": None}, "7.0 or higher"),
        ({"dtype": torch.float64}, "not written for torch.float64"),
        ({"dtype": torch.float8_e4m3fn}, "not written for"),
        ({"width": 0}, "not 0"),
        ({"width": 2**27}, "not 134217728"),
    ],
)
def test_supports_refuses_with_a_reason(op, change, reason):
    support = op.supports(**GPU | change)
    assert not support.ok
    assert reason in support.reason


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_supports_every_dtype_and_the_oldest_card(op):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert op.supports(**GPU | {"dtype": dtype, "capability": (7, 0)}).ok


def test_halves_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="up is torch.float32"):
        swiglu.fused(torch.ones(2, 3), torch.ones(2, 4))


USE_WITHOUT_TRITON = """
import torch
from studio_kernels.dispatch import bind, importable
from studio_kernels import rms_norm, swiglu

x = torch.ones(2, 4, requires_grad=True)
kernels = bind({})
kernels.swiglu(kernels.rms_norm(x, torch.ones(4), 1e-6), x).sum().backward()
assert not importable().ok
assert not swiglu.supports(device_type="cuda", capability=(9, 0), dtype=torch.float16, width=64).ok
try:
    bind({"swiglu": "triton"})
except ValueError as error:
    print(error)
try:
    swiglu.fused(x, x)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("breakage", "error"),
    [
        ("import sys; sys.modules['triton'] = None", "import of triton halted"),
        (BROKEN_LIBTRITON, "DLL load failed while importing libtriton"),
    ],
    ids=["blocked", "broken"],
)
def test_everything_but_the_kernels_works_without_triton(breakage, error):
    refusal, launch = run_python(breakage + USE_WITHOUT_TRITON).splitlines()
    assert "swiglu cannot use Triton" in refusal and error in refusal
    assert "needs Triton" in launch and error in launch


def test_importing_the_package_loads_neither_torch_nor_triton():
    code = "import sys, studio_kernels; print(sorted({'torch', 'triton'} & set(sys.modules)))"
    assert run_python(code) == "[]"
