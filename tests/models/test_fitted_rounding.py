"""Matrices rounded to NF4 for the rows that they meet: what is stored, and what their products lose."""

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from bitsandbytes.nn import Params4bit
from studio_kernels.nf4 import Nf4

from studio.models.fitted_rounding import PART_COLUMNS, Moments, pack, round_fitted, spread_scales


def quantize(weight, nested=True):
    return quantize_4bit(weight, compress_statistics=nested, quant_type="nf4")


def fit(weight, rows, nested=True):
    """Return the weight fitted to rows, opened by bitsandbytes."""
    held, state = quantize(weight, nested)
    moments = Moments(weight.shape[1], weight.device)
    moments.add(rows)
    packed = pack(round_fitted(weight, spread_scales(Nf4.of(state, held)), state.code, moments))
    return dequantize_4bit(packed.reshape(-1, 1), state)


def draw_rows(count, columns):
    """Return rows whose columns move together and are large in some places, as activations are."""
    rows = torch.randn(count, columns // 4) @ torch.randn(columns // 4, columns) + 0.3 * torch.randn(
        count, columns
    )
    return rows * torch.linspace(0.1, 3.0, columns)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("shape", [(48, 128), (40, 192), (3, 64)])
def test_scales_are_opened_as_bitsandbytes_opens_them(shape, nested):
    torch.manual_seed(0)
    packed, state = quantize(torch.randn(shape), nested)
    indices = torch.stack((packed.view(-1) >> 4, packed.view(-1) & 15), dim=1).view(-1)[: state.shape.numel()]
    ours = state.code[indices.long()].reshape(shape) * spread_scales(Nf4.of(state, packed))
    assert torch.equal(ours, dequantize_4bit(packed, state))


def test_without_rows_every_weight_is_the_nearest():
    torch.manual_seed(0)
    weight = torch.randn(64, 128)
    held, state = quantize(weight)
    moments = Moments(128, weight.device)
    ours = pack(round_fitted(weight, spread_scales(Nf4.of(state, held)), state.code, moments))
    # bitsandbytes rounds by the scales before they are packed themselves, which some weights between two places feel.
    assert (ours == held.view(-1)).float().mean() > 0.97
    assert (dequantize_4bit(ours.view(-1, 1), state) - weight).norm() <= (
        dequantize_4bit(held, state) - weight
    ).norm()


@pytest.mark.parametrize("columns", [128, 192])
def test_products_lose_less_than_half(columns):
    torch.manual_seed(0)
    weight, rows = torch.randn(64, columns), draw_rows(2000, columns)
    others = draw_rows(500, columns)
    nearest = dequantize_4bit(*quantize(weight))
    errors = [((rows @ (one - weight).T) ** 2).mean() for one in (fit(weight, rows), nearest)]
    assert errors[0] < 0.5 * errors[1]
    assert torch.isfinite(others @ fit(weight, rows).T).all()


def test_columns_that_meet_only_zeros_and_few_rows_do_no_harm():
    torch.manual_seed(0)
    weight, rows = torch.randn(64, 128), draw_rows(5, 128)
    rows[:, 64:] = 0
    found = fit(weight, rows)
    nearest = dequantize_4bit(*quantize(weight))
    assert torch.isfinite(found).all()
    assert (found[:, 64:] - weight[:, 64:]).abs().max() <= 1.02 * (
        nearest[:, 64:] - weight[:, 64:]
    ).abs().max()
    errors = [((rows @ (one - weight).T) ** 2).mean() for one in (found, nearest)]
    assert errors[0] < errors[1]


def test_wide_rows_are_fitted_in_parts():
    moments = Moments(2 * PART_COLUMNS + 64, torch.device("cpu"))
    assert [len(part) for part in moments.parts] == [PART_COLUMNS, PART_COLUMNS, 64]


def test_what_is_packed_is_a_weight_of_bitsandbytes():
    torch.manual_seed(0)
    weight = torch.randn(64, 128)
    held = Params4bit(weight.clone(), requires_grad=False, quant_type="nf4").to("cpu")
    moments = Moments(128, weight.device)
    moments.add(draw_rows(500, 128))
    packed = pack(
        round_fitted(
            weight, spread_scales(Nf4.of(held.quant_state, held.data)), held.quant_state.code, moments
        )
    )
    assert packed.dtype == torch.uint8 and packed.numel() == held.data.numel()
