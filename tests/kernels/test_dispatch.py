"""Binding ops, refusing what does not exist or cannot run, and living without Triton."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from studio_kernels import glu, rms_norm
from studio_kernels.dispatch import OPS, bind, op_named

from tests.each_time import rarely

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
GPU = {"device_type": "cuda", "capability": (8, 6), "dtype": torch.bfloat16, "width": 4096}
ROW_OPS = [op_named(name) for name in ("rms_norm", "glu", "layer_norm")]
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
    kernels = bind({"glu": "triton"})
    assert kernels.glu is glu.GLU.triton and kernels.glu.backward is glu.fused_backward
    assert kernels.rms_norm is rms_norm.RMS_NORM.reference
    assert kernels.implementations == {op.name: "reference" for op in OPS} | {"glu": "triton"}


def test_a_bound_op_is_called_in_its_differentiable_form():
    x = torch.ones(2, 4, requires_grad=True)
    y = bind({}).glu(x, x)
    assert torch.equal(y, glu.compose(x, x)) and y.requires_grad


def test_an_op_that_does_not_exist_is_missing_as_an_attribute_is():
    with pytest.raises(AttributeError, match="no op 'rms_morn'; there are rms_norm"):
        _ = bind({}).rms_morn
    assert copy.copy(bind({})).glu is glu.GLU.reference


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"rms_morn": "triton"}, "no op 'rms_morn'; there are rms_norm, "),
        ({"glu": "cuda"}, "no implementation 'cuda'; it has reference and triton"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(choices, reason):
    with pytest.raises(ValueError, match=reason):
        bind(choices)


def test_kernels_cannot_be_changed_after_binding():
    with pytest.raises(AttributeError):
        bind({}).implementations = {}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device_type": "cpu", "capability": None}, "not a device of type cpu"),
        ({"device_type": "mps", "capability": None}, "not a device of type mps"),
        ({"capability": (6, 1)}, "7.0 or higher"),
        ({"capability": None}, "7.0 or higher"),
        ({"dtype": torch.complex64}, "not written for torch.complex64"),
    ],
)
def test_supports_refuses_with_a_reason(op, change, reason):
    support = op.supports(**GPU | change)
    assert not support.ok
    assert reason in support.reason


@pytest.mark.parametrize("op", ROW_OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("width", [0, 2**27])
def test_supports_refuses_rows_of_a_length_that_no_program_takes(op, width):
    support = op.supports(**GPU | {"width": width})
    assert not support.ok and support.reason.endswith(f"not {width}.")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_supports_the_oldest_card_that_the_op_is_for(op):
    assert op.supports(**GPU).ok
    assert op.supports(**GPU | {"dtype": torch.float16, "capability": (7, 0)}).ok != op.needs_dots


@pytest.mark.parametrize("op", ROW_OPS, ids=lambda op: op.name)
def test_supports_every_dtype(op):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert op.supports(**GPU | {"dtype": dtype, "capability": (7, 0)}).ok


def test_halves_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="up is torch.float32"):
        glu.fused(torch.ones(2, 3), torch.ones(2, 4))


USE_WITHOUT_TRITON = """
import torch
from studio_kernels.dispatch import bind, importable
from studio_kernels import glu, rms_norm

x = torch.ones(2, 4, requires_grad=True)
kernels = bind({})
kernels.glu(kernels.rms_norm(x, torch.ones(4), 1e-6), x).sum().backward()
assert not importable().ok
assert not glu.supports(device_type="cuda", capability=(9, 0), dtype=torch.float16, width=64).ok
try:
    bind({"glu": "triton"})
except ValueError as error:
    print(error)
try:
    glu.fused(x, x)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("breakage", "error"),
    [
        ("import sys; sys.modules['triton'] = None", "import of triton halted"),
        rarely(BROKEN_LIBTRITON, "DLL load failed while importing libtriton"),
    ],
    ids=["blocked", "broken"],
)
def test_everything_but_the_kernels_works_without_triton(breakage, error):
    refusal, launch = run_python(breakage + USE_WITHOUT_TRITON).splitlines()
    assert "glu cannot use Triton" in refusal and error in refusal
    assert "needs Triton" in launch and error in launch


def test_importing_the_package_loads_neither_torch_nor_triton():
    code = "import sys, studio_kernels; print(sorted({'torch', 'triton'} & set(sys.modules)))"
    assert run_python(code) == "[]"
