"""Every kernel as the ops launch it, compiled for every GPU generation on a machine that has none of them."""

from __future__ import annotations

import pytest
import torch
import triton
from studio_kernels._triton import hash_triton
from studio_kernels.dispatch import OPS, op_named

from tests.kernels.launches import SHIPPED, TARGETS, Launch, check, half, pairs, share
from tests.kernels.oracle import options_of

LENGTHS = (1, 2, 15, 16, 63, 64, 65, 1000, 2048)
"""Rows of a batch: one, odd, multiples of 16 or not, as the last batch and the evaluation bring them."""


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_op_launches_every_kernel_that_it_ships(launches, op):
    made = {launch.name for kind in ("COMPILE", "EDGES") for launch in launches(op, kind, torch.bfloat16)}
    own = f"{op.triton.forward.__module__}."  # a grouped product also decodes by the kernel of another op
    shipped = {name for name in SHIPPED if name.startswith(own)}
    assert shipped and shipped == {name for name in made if name.startswith(own)}


@pytest.mark.parametrize(("op", "target"), pairs(fast=True))
def test_compiles_where_shared_memory_is_least(launches, op, target):
    check(launches(op, "COMPILE", half(target)), target)


@pytest.mark.patient
@pytest.mark.parametrize(("op", "target"), pairs(fast=False))
def test_compiles_for_every_generation(launches, op, target):
    check(launches(op, share(options_of(op.name, "COMPILE"), op, target), half(target)), target)


@pytest.mark.patient
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_another_length_needs_no_new_kernel(launches, op):
    """A batch of 65 rows after one of 64 must not compile in mid-training: that is where runs were seen to stand."""
    keys = {
        rows: {
            launch.key(TARGETS[target])
            for launch in launches(op, "COMPILE", torch.bfloat16, rows)
            for target in ("sm_90", "gfx942")
        }
        for rows in LENGTHS
    }
    different = {rows: found - keys[64] for rows, found in keys.items() if found != keys[64]}
    assert not different


def test_a_specialised_length_would_be_noticed(launches):
    launch = launches(op_named("rms_norm"), "COMPILE", torch.bfloat16)[0]
    kernel = triton.jit(launch.kernel.fn)  # without do_not_specialize
    target = TARGETS["sm_80"]
    at = kernel.arg_names.index("rows")

    def key(rows: int) -> tuple:
        arguments = (*launch.arguments[:at], rows, *launch.arguments[at + 1 :])
        return Launch(launch.name, kernel, arguments, launch.options).key(target)

    assert key(64) != key(65)


def test_what_triton_hashes_of_itself_is_had_beforehand():
    """Else the probe at load waits for it: 0.38 of 1.98 s on an H200, Triton 3.6."""
    from triton.runtime.cache import triton_key

    triton_key.cache_clear()
    assert hash_triton()
    assert triton_key.cache_info().currsize == 1
