"""A mixer that runs as the model's own module: what it is given, what is refused, and what is held meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from studio_kernels import glu, rms_norm
from studio_kernels.attention import Documents
from studio_kernels.dispatch import Kernels, bind
from torch import nn

from studio.core.i18n import Text
from studio.core.memory_policy import KEEP_LEVELS, LayerPolicy, MemoryPolicy
from studio.models.adapt import unwrap
from studio.models.decoder.blocks.foreign_mixer import ForeignMixer, Record
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.own_inputs import ask_layers
from studio.models.decoder.padded_rows import LEAST_FILLED, cut_blocks
from studio.models.decoder.parity_check import find_difference
from studio.planning.mixer_record import SCORE_BYTES, count_record
from tests.each_time import some
from tests.models.decoder.models import FOREIGN, SHAPE, make_model, make_whole_model, twins_as_kernels
from tests.models.decoder.planted import change_spec


def take(model: nn.Module) -> Decoder | Text:
    return take_over(unwrap(model), bind({}), dtype=torch.float32)


def leave_attention(model: nn.Module) -> nn.Module:
    """Give attention a part that the decoder does not know, which does nothing; returns `model`."""
    for layer in unwrap(model).get_decoder().layers:
        layer.self_attn.add_module("unknown", nn.Identity())
    return model


@pytest.mark.parametrize("lengths", [(5,), (4, 4, 4), (11, 1, 20), (3, 64, 33, 31, 2, 1)], ids=str)
def test_rows_of_a_batch_are_the_documents_and_come_back(lengths):
    documents = Documents.of(lengths, "cpu")
    stream = torch.randn(sum(lengths), 3)
    back, gradient = torch.full_like(stream, torch.nan), torch.full_like(stream, torch.nan)
    for block in cut_blocks(documents):
        rows, zeros = block.spread(stream), block.spread_gradient(stream)
        assert rows.shape == zeros.shape == (block.documents, block.length, 3)
        positions = block.positions(documents.positions + 7)
        assert torch.equal(positions, torch.arange(7, 7 + block.length).expand(block.documents, -1))
        for row, padded, first in zip(rows, zeros, block.first.tolist(), strict=True):
            count = lengths[documents.starts.tolist().index(first)]
            assert count >= LEAST_FILLED * block.length
            assert torch.equal(row[:count], stream[first : first + count])
            assert torch.equal(row[count:], row[count - 1].expand(block.length - count, 3))
            assert not padded[count:].any()
        block.cut(rows, back)
        block.cut(zeros, gradient)
    assert torch.equal(back, stream) and torch.equal(gradient, stream)


def test_the_model_is_asked_and_left_as_it_is():
    model = unwrap(make_model("qwen3_5"))
    before = [(name, id(part)) for name, part in model.named_modules()]
    decoder = model.get_decoder()
    given = ask_layers(decoder, torch.zeros(2, 6, 64))
    assert len(given) == len(decoder.layers)
    assert [tuple(one["position_embeddings"][0].shape[:2]) for one in given] == [(2, 6)] * 3
    assert [(name, id(part)) for name, part in model.named_modules()] == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_layers_of_both_kinds_stand_in_one_model():
    found = take(make_model("lfm2"))
    assert [isinstance(layer.attention, ForeignMixer) for layer in found.layers] == [True, False, True]
    assert [mixer.name for mixer in found.spec.mixers] == ["conv", "conv"]
    assert not found.recordable, "the rows of a batch hang on the documents' lengths"


@pytest.mark.parametrize("window", some([8, 70, 200], 70))
def test_a_windows_mask_is_handed_on_where_few_tokens_need_none(window):
    """PyTorch's fused attention gets no mask for texts that a window does not cut."""
    wide = {"sliding_window": window, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
    model = leave_attention(make_model("gemma4", attention="sdpa", **wide))
    decoder = take(model)
    assert [layer.spec.seen for layer in decoder.layers] == [window, window, 0]
    assert all("attention_mask" in mixer.wiring.passed for mixer in decoder.spec.mixers)
    ids, probe = torch.arange(300) % 90 + 3, unwrap(model)
    with torch.no_grad():
        found = decoder.logits(decoder.hidden(ids, decoder.make_rows(Documents.of((300,), "cpu"))))
        torch.testing.assert_close(found, probe(input_ids=ids[None]).logits[0], rtol=1e-3, atol=1e-3)
    assert find_difference(probe, decoder, None) is None
    mixer = decoder.layers[0].spec.mixer
    fixed = replace(mixer.wiring, passed={**mixer.wiring.passed, "position_ids": "position_ids"})
    blind = replace(fixed, fixed={**fixed.fixed, "attention_mask": None})
    del blind.passed["attention_mask"]
    change_spec(decoder.layers[0], mixer=replace(mixer, wiring=blind))
    assert find_difference(probe, decoder, None).values["layer"] == 0


@pytest.mark.parametrize("family", FOREIGN)
def test_all_weights_are_left_to_the_models_own_code(family):
    reason = take(make_whole_model(family))
    assert isinstance(reason, Text) and reason.id == "model.decoder.unlike"


def test_dropout_inside_is_refused():
    """A layer is computed again in the backward pass, and would draw other numbers there."""
    reason = take(make_model("qwen3_5", dropout=0.1))
    assert isinstance(reason, Text) and "linear_attn" in reason.values["part"]
    assert isinstance(take(make_model("latent", attention_dropout=0.1)), Text)


def test_what_a_mixer_leaves_for_another_layer_is_refused():
    """Gemma 4 E2B, were its attention not known: later layers read what earlier ones put into a shared container."""
    reason = take(leave_attention(make_model("gemma4", num_kv_shared_layers=1)))
    assert isinstance(reason, Text) and reason.id == "model.decoder.unlike"


def test_what_a_mixer_leaves_and_nobody_reads_is_no_reason(monkeypatch):
    """transformers 5.17 lets the last layer of each kind of Gemma 4 leave its keys, also where no layer shares them."""
    model = leave_attention(make_model("gemma4"))
    attention = type(unwrap(model).get_decoder().layers[0].self_attn)
    real, left = attention.forward, []

    def leave(self, hidden_states, *arguments, **options):
        left.append(options["shared_kv_states"])
        left[-1][f"layer {self.layer_idx}"] = hidden_states
        return real(self, hidden_states, *arguments, **options)

    monkeypatch.setattr(attention, "forward", leave)
    decoder = take(model)
    assert isinstance(decoder, Decoder), decoder
    assert find_difference(unwrap(model), decoder, torch.float32) is None
    assert left


def test_a_layer_that_makes_its_mixers_arguments_itself_is_refused(monkeypatch):
    model = leave_attention(make_model("latent"))
    kind = type(unwrap(model).get_decoder().layers[0])
    forward = kind.forward

    class Making(kind):
        def forward(self, hidden_states, position_embeddings=None, **rest):
            made = tuple(table * 1.0 for table in position_embeddings)
            return forward(self, hidden_states, position_embeddings=made, **rest)

    for layer in unwrap(model).get_decoder().layers:
        layer.__class__ = Making
    assert isinstance(take(model), Text)


@pytest.mark.parametrize("family", FOREIGN)
def test_what_is_kept_is_what_the_policy_says(family):
    decoder = take(make_model(family))
    rows = decoder.make_rows(Documents.of((6, 3), "cpu"))
    ids = torch.arange(9)
    for keep in KEEP_LEVELS:
        decoder.follow(MemoryPolicy(layers=(LayerPolicy(keep=keep),) * 3))
        _, kept = decoder.forward_layers(ids, rows)
        for layer, one in zip(decoder.layers, kept, strict=True):
            if isinstance(layer.attention, ForeignMixer):
                assert (one.attention.record is not None) == (keep == "all")
                assert one.attention.x is not None
                if layer.mlp is not None:
                    assert (one.mlp.x is not None or one.attention.branch is not None) == (keep != "input")


WIDE = SHAPE | {
    "hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "num_hidden_layers": 1,
}  # fmt: skip
LAYERS = {
    "delta": transformers.Qwen3_5TextConfig(
        **WIDE, layer_types=["linear_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=64, linear_value_head_dim=64,
    ),
    "fused delta": transformers.Qwen3_5TextConfig(
        **WIDE, layer_types=["linear_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=64, linear_value_head_dim=64,
    ),
    "gated attention": transformers.Qwen3_5TextConfig(**WIDE, layer_types=["full_attention"]),
    "convolution": transformers.Lfm2Config(**WIDE, layer_types=["conv"], block_auto_adjust_ff_dim=False),
    "mamba": transformers.GraniteMoeHybridConfig(
        **WIDE, layer_types=["mamba"], num_local_experts=0, shared_intermediate_size=64, mamba_n_heads=8,
        mamba_d_head=64, mamba_d_state=64, mamba_chunk_size=64,
    ),
    "latent": transformers.DeepseekV3Config(
        **WIDE | {"head_dim": 32, "num_key_value_heads": 4}, first_k_dense_replace=1, q_lora_rank=128,
        kv_lora_rank=64, qk_rope_head_dim=32, qk_nope_head_dim=64, v_head_dim=64,
    ),
    "gemma 4": transformers.Gemma4TextConfig(
        **WIDE, layer_types=["full_attention"], hidden_size_per_layer_input=0, num_kv_shared_layers=0,
        attention_k_eq_v=True, num_global_key_value_heads=1, global_head_dim=128,
    ),
}  # fmt: skip


class Norm(torch.autograd.Function):
    """Keeps what the kernel of a norm keeps."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        y, _, r = rms_norm.reference_forward(x, weight, eps)
        ctx.save_for_backward(x, weight, r)
        return y


class Gate(torch.autograd.Function):
    """Keeps what the kernel of a gate keeps."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return glu.reference_forward(gate, up)


def keep_as_kernels() -> Kernels:
    """Ops that keep what our kernels keep, for what stands beside a delta rule, too."""
    kernels = twins_as_kernels()
    applied = {"rms_norm": Norm.apply, "glu": Gate.apply}
    ops = {name: replace(kernels.ops[name], apply=apply) for name, apply in applied.items()}
    named = dict.fromkeys(applied, "triton")
    return replace(kernels, ops=kernels.ops | ops, implementations=kernels.implementations | named)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", LAYERS)
def test_autograd_holds_of_a_mixer_what_is_planned(kind, attention):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(LAYERS[kind], attn_implementation=attention)
    passed = ["out_proj"] if kind == "mamba" else None  # as by the studio's own "all-linear"
    config = LoraConfig(r=4, target_modules="all-linear", exclude_modules=passed, task_type="CAUSAL_LM")
    model = get_peft_model(model.bfloat16(), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if kind in ("latent", "gemma 4"):
        leave_attention(model)
    decoder, fused = take_over(unwrap(model), bind({}), dtype=torch.bfloat16), kind == "fused delta"
    assert isinstance(decoder, Decoder), decoder
    (mixer,), (layer,), tokens = decoder.spec.mixers, decoder.layers, 256
    assert isinstance(layer.attention, ForeignMixer)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = decoder.make_rows(Documents.of((tokens,), "cpu"))
    x = torch.randn(tokens, 256).bfloat16()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        record = layer.attention._record(x, rows, keep_as_kernels() if fused else bind({}))
    assert isinstance(record, Record)
    linears = {
        f"{mixer.name}.{name}": (part.out_features, part.in_features)
        for name, part in mixer.module.named_modules()
        if hasattr(part, "in_features") and "lora_" not in name and not name.endswith("base_layer")
    }
    planned = count_record(
        {mixer.name: linears},
        layers=1,
        weights=0,
        head_norms=hasattr(mixer.module, "q_norm"),
        element_bytes=2,
        score_bytes=4 * tokens * (SCORE_BYTES + 2) if attention == "eager" else 0,
        fused=fused,
    )
    # Here keys that are wider than values go through composed attention, which holds the scores.
    most = 1.7 if kind == "latent" else 1.1
    assert 0.4 < sum(held.values()) / (planned.held_bytes * tokens) <= most
