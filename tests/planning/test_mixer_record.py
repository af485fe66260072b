"""What a model's own mixer holds: as measured on a card, and on average where layers have two kinds."""

from __future__ import annotations

import pytest

from studio.planning.mixer_record import GATED_DELTA, MixerRecord, count_record, name_mixer

DELTA = {
    "linear_attn.in_proj_qkv": (8192, 4096),
    "linear_attn.in_proj_z": (4096, 4096),
    "linear_attn.in_proj_b": (32, 4096),
    "linear_attn.in_proj_a": (32, 4096),
    "linear_attn.out_proj": (4096, 4096),
}


def attention(hidden: int, **widths: int) -> dict[str, tuple[int, int]]:
    """Linears of an attention; `o`: what its output projection reads."""
    out = widths.pop("o")
    found = {f"self_attn.{name}_proj": (width, hidden) for name, width in widths.items()}
    return found | {"self_attn.o_proj": (hidden, out)}


GATED = attention(4096, q=8192, k=1024, v=1024, o=4096)
LATENT = {
    "self_attn.q_a_proj": (1536, 7168),
    "self_attn.q_b_proj": (6144, 1536),
    "self_attn.kv_a_proj_with_mqa": (576, 7168),
    "self_attn.kv_b_proj": (8192, 512),
    "self_attn.o_proj": (7168, 4096),
}
CONVOLUTION = {"conv.in_proj": (6144, 2048), "conv.out_proj": (2048, 2048)}
MAMBA = {"mamba.in_proj": (6448, 1536), "mamba.out_proj": (1536, 3072)}
NANO = {"mixer.in_proj": (10304, 2688), "mixer.out_proj": (2688, 4096)}
MEASURED = {
    # One H200, bf16, 2 x 2,048 tokens, torch 2.11, transformers 5.17: held, and the most beside it while it runs back.
    "Qwen3.5 9B, delta": ("linear_attn", DELTA, True, 437_788, 49_184),
    "Qwen3.5 9B, attention": ("self_attn", GATED, True, 98_817, 36_960),
    "Gemma 4 26B, window": (
        "self_attn",
        attention(2816, q=4096, k=2048, v=2048, o=4096),
        True,
        100_985,
        41_046,
    ),
    "Gemma 4 26B, all": ("self_attn", attention(2816, q=8192, k=1024, o=8192), True, 140_299, 94_342),
    "DeepSeek-V3, 32 heads": ("self_attn", LATENT, False, 113_375, 57_528),
    "Granite 4-H, attention": (
        "self_attn",
        attention(1536, q=1536, k=512, v=512, o=1536),
        False,
        23_808,
        17_448,
    ),
    "LFM2 1.2B": ("conv", CONVOLUTION, False, 32_932, 12_284),
}


def count(mixers: dict, **changes: object) -> MixerRecord:
    given = {"layers": 1, "weights": 0, "head_norms": True, "element_bytes": 2, "score_bytes": 0}
    return count_record(mixers, **given | changes)


@pytest.mark.parametrize("case", MEASURED.values(), ids=MEASURED)
def test_it_is_what_was_measured(case):
    name, linears, head_norms, held, backward = case
    found = count({name: linears}, head_norms=head_norms)
    assert 0.97 < found.held_bytes / held < 1.08
    assert 0.97 < found.backward_bytes / backward < 1.15
    assert found.mean_bytes == found.held_bytes


def test_our_kernels_keep_less_of_a_delta_rule():
    fused = count({"linear_attn": DELTA}, fused=True)
    assert 111_720 < fused.held_bytes < 128_104, "what autograd saves with transformers 5.23 and 5.17"
    assert fused.backward_bytes > 32 * (4 * 128 * 128 // 64 + 2 * 4 * 128), "states and unscaled gradients"
    assert count({"self_attn": GATED}, fused=True) == count({"self_attn": GATED})


@pytest.mark.parametrize(
    "linears, held", [(MAMBA, 41_740), (NANO, 67_228)], ids=["Granite 4-H Tiny", "Nemotron 3"]
)
def test_our_code_keeps_less_of_a_state_space(linears, held):
    """Bytes a token, autograd's saved tensors of 512 tokens in 5.23; 283,413 and 328,462 by transformers' own code."""
    name = next(iter(linears)).partition(".")[0]
    found = count({name: linears})
    assert 0.97 < found.held_bytes / held < 1.08
    composed = count({name: linears | {f"{name}.x_proj": (64, 64)}})
    assert composed.held_bytes > 4 * found.held_bytes, "a Mamba of another kind"


def test_blocks_are_counted_by_their_layers():
    one, other = (count({name: linears}) for name, linears in (("mixer", NANO), ("self_attn", GATED)))
    both = count({"mixer": NANO, "self_attn": GATED}, layers=10, counts={"mixer": 4, "self_attn": 1})
    assert both.held_bytes == max(one.held_bytes, other.held_bytes)
    assert both.mean_bytes == pytest.approx((4 * one.held_bytes + other.held_bytes) / 10, abs=1)
    assert name_mixer(NANO) == "mixer"
    assert (
        name_mixer({name.replace("self_attn", "mixer"): shape for name, shape in GATED.items()})
        == "self_attn"
    )


def test_layers_of_two_kinds_are_counted_by_their_weights():
    sizes = [sum(o * i for o, i in linears.values()) for linears in (DELTA, GATED)]
    mixers = {"linear_attn": DELTA, "self_attn": GATED}
    alone = [count({name: linears}).held_bytes for name, linears in mixers.items()]
    both = count(mixers, layers=8, weights=6 * sizes[0] + 2 * sizes[1])
    assert both.held_bytes == max(alone)
    assert both.mean_bytes == pytest.approx((6 * alone[0] + 2 * alone[1]) / 8, abs=1)
    unclear = count(mixers, layers=8, weights=6 * sizes[0] + 2 * sizes[1] + 1)
    assert unclear.mean_bytes == max(alone)


def test_wider_numbers_and_scores_are_counted():
    assert (
        count({"linear_attn": DELTA}, element_bytes=4).held_bytes
        == 2 * count({"linear_attn": DELTA}).held_bytes
    )
    scored = count({"linear_attn": DELTA, "self_attn": GATED}, score_bytes=10**9)
    assert scored.held_bytes == count({"self_attn": GATED}).held_bytes + 10**9
    assert GATED_DELTA.backward < 1
