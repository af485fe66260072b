"""Faults to plant into one layer of a decoder that is right: each is one that a decoder once had, or could have."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import replace

import torch
from studio_kernels.attention import Documents, choose_attention

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.alt_up import AltUp
from studio.models.decoder.blocks.attention import SelfAttention
from studio.models.decoder.blocks.gated_mlp import GatedMLP
from studio.models.decoder.blocks.latent_attention import LatentAttention
from studio.models.decoder.blocks.laurel import SHARE
from studio.models.decoder.decoder import Decoder
from studio.models.decoder.layer import Layer
from studio.models.decoder.rotary import NO_ROTARY
from studio.models.state_space import CHUNK

LEAST_EPS = 1e-2
"""Less is not felt by some trained models, whose activations have mean squares of hundreds."""


def override(part: Layer | SelfAttention | GatedMLP, **methods) -> None:
    """Give one layer, or one of its blocks, other methods."""
    part.__class__ = type("Faulty", (type(part),), methods)


def change_spec(layer: Layer, **values) -> None:
    """Let the blocks of one layer read another spec."""
    spec = replace(layer.spec, **values)
    for block in layer.blocks:
        block.spec = spec


def change_heads(decoder: Decoder, layer: Layer, **values: float) -> None:
    """Let one layer compute attention with other Heads, by a backend that can."""
    heads = dataclasses.asdict(layer.attention.kernel.heads) | values
    del heads["sunk"]  # each call says so, by its sinks
    dtype = layer.attention.qkv.weights.dtype
    layer.attention.kernel = choose_attention(device=decoder.device, dtype=dtype, **heads)


def change_rows(decoder: Decoder, change) -> None:
    make_rows = decoder.make_rows
    decoder.make_rows = lambda documents, seed=None: change(make_rows(documents, seed))


def drop_rotary(decoder: Decoder, layer: Layer) -> None:
    kind = layer.spec.rotary

    def still(rows: BatchLayout) -> BatchLayout:
        cos, sin = rows.tables[kind]
        return replace(rows, tables={**rows.tables, kind: (torch.ones_like(cos), torch.zeros_like(sin))})

    def without(method):
        return lambda self, *given: method(
            self, *(still(one) if isinstance(one, BatchLayout) else one for one in given)
        )

    override(layer, forward=without(Layer.forward), backward=without(Layer.backward))


def leave_scale_out(decoder: Decoder, layer: Layer) -> None:
    change_heads(decoder, layer, scale=1.0)


def ignore_norm_weight(decoder: Decoder, layer: Layer) -> None:
    norm = layer.spec.mlp_norm
    module = copy.deepcopy(norm.module)
    module.weight.data.fill_(1 - norm.offset)
    change_spec(layer, mlp_norm=replace(norm, module=module))


def move_norm(decoder: Decoder, layer: Layer) -> None:
    spec = layer.spec
    change_spec(layer, input_norm=spec.mlp_norm, mlp_norm=spec.input_norm)


def swap_heads(decoder: Decoder, layer: Layer) -> None:
    def views(self, qk, qkv):
        q, k, v = SelfAttention._views(self, qk, qkv)
        return q.flip(1), k, v

    override(layer.attention, _views=views)


def map_key_heads_wrongly(decoder: Decoder, layer: Layer) -> None:
    def views(self, qk, qkv):
        q, k, v = SelfAttention._views(self, qk, qkv)
        return q, k.flip(1), v.flip(1)

    override(layer.attention, _views=views)


def change_bias(decoder: Decoder, layer: Layer) -> None:
    """Forget the bias, or add one where there is none."""
    qkv = layer.attention.qkv
    weight = layer.spec.input_norm.module.weight
    qkv.bias = None if qkv.bias is not None else torch.full_like(weight[:1], 0.1).expand(qkv.outputs).clone()


def change_window(decoder: Decoder, layer: Layer) -> None:
    """Make the window one token narrower, or give one to a layer that has none."""
    window = layer.attention.kernel.heads.window
    change_heads(decoder, layer, window=window - 1 if window else 32)


def put_adapter_elsewhere(decoder: Decoder, layer: Layer) -> None:
    diagonal = layer.mlp.gate_up.diagonal
    (a, b, left, middle), (c, d, _, right) = diagonal.blocks
    layer.mlp.gate_up.diagonal = replace(diagonal, blocks=((a, b, middle, right), (c, d, left, middle)))


def keep_stale_adapter(decoder: Decoder, layer: Layer) -> None:
    layer.mlp.down.refresh = lambda kernels: None


def swap_gate_and_up(decoder: Decoder, layer: Layer) -> None:
    override(layer.mlp, _halves=lambda self, gate_up: GatedMLP._halves(self, gate_up)[::-1])


def change_eps(decoder: Decoder, layer: Layer) -> None:
    norm = layer.spec.mlp_norm
    change_spec(layer, mlp_norm=replace(norm, eps=max(100 * norm.eps, LEAST_EPS)))


def change_softcap(decoder: Decoder, layer: Layer) -> None:
    """Leave the scores' cap out, or cap them where none does."""
    change_heads(decoder, layer, softcap=0.0 if layer.attention.kernel.heads.softcap else 1.0)


def count_positions_wrongly(decoder: Decoder, layer: Layer) -> None:
    change_rows(decoder, lambda rows: replace(rows, positions=rows.positions + 1))


def leak_between_documents(decoder: Decoder, layer: Layer) -> None:
    change_rows(
        decoder, lambda rows: replace(rows, documents=Documents.of((rows.documents.tokens,), decoder.device))
    )


def change_activation(decoder: Decoder, layer: Layer) -> None:
    other = "silu" if layer.spec.activation != "silu" else "gelu_tanh"
    change_spec(layer, activation=other)


def drop_residual(decoder: Decoder, layer: Layer) -> None:
    def join(self, x, attended, rows, kernels):
        return SelfAttention._join(self, torch.zeros_like(x), attended, rows, kernels)

    override(layer.attention, _join=join)


def forget_adapter_scale(decoder: Decoder, layer: Layer) -> None:
    diagonal = layer.attention.output.diagonal
    layer.attention.output.diagonal = replace(diagonal, scales=(1.0,))


def lose_a_gradient(decoder: Decoder, layer: Layer) -> None:
    diagonal = layer.attention.qkv.diagonal
    lost = torch.zeros_like(diagonal.gradients[1])
    layer.attention.qkv.diagonal = replace(
        diagonal, gradients=(diagonal.gradients[0], lost, *diagonal.gradients[2:])
    )


def transpose_square(decoder: Decoder, layer: Layer) -> None:
    """Transpose the largest square corner of the output projection."""
    weights = layer.attention.output.weights
    real, width = weights.matrix, min(weights.inputs, weights.outputs)

    def matrix(kernels):
        found = real(kernels).clone()
        found[:width, :width] = found[:width, :width].T.clone()
        return found

    weights.matrix = matrix


def interleave_rotary(decoder: Decoder, layer: Layer) -> None:
    """Rotate neighbours instead of halves, before or after the norms of the heads."""
    d, heads = layer.spec.head_dim, layer.spec.query_heads + layer.spec.key_heads

    def interleave(qkv):
        part = qkv[:, : heads * d].unflatten(1, (heads, d // 2, 2))
        qkv[:, : heads * d] = part.transpose(2, 3).reshape(len(qkv), -1).clone()
        return qkv

    def rotate(self, qkv, rows, kernels):
        return SelfAttention._rotate(self, interleave(qkv), rows, kernels)

    def take_heads(self, qkv, rows, kernels):
        return SelfAttention._heads(self, interleave(qkv.clone()), rows, kernels)

    override(
        layer.attention, **({"_rotate": rotate} if layer.spec.query_norm is None else {"_heads": take_heads})
    )


def take_wrong_table(decoder: Decoder, layer: Layer) -> None:
    """Take another kind of layer's table, or, of a single one, the angles of half the position."""
    others = {one.spec.rotary for one in decoder.layers} - {layer.spec.rotary, NO_ROTARY}
    if others:
        change_spec(layer, rotary=min(others))
    else:
        change_rows(decoder, lambda rows: replace(rows, tables=_stretch(rows.tables)))


def turn_a_still_layer(decoder: Decoder, layer: Layer) -> None:
    """Rotate a layer that has no rotary."""
    change_spec(layer, rotary="")


def ignore_residual_scale(decoder: Decoder, layer: Layer) -> None:
    change_spec(layer, residual_scale=1.0)


def ignore_query_scale(decoder: Decoder, layer: Layer) -> None:
    change_spec(layer, query_scale=None)


def normalise_before_the_mlp(decoder: Decoder, layer: Layer) -> None:
    """Put a branch's norm where most families have theirs."""
    change_spec(layer, mlp_norm=layer.spec.output_norm, output_norm=None)


def normalise_each_head(decoder: Decoder, layer: Layer) -> None:
    """Take a norm over all heads for one of each, with its first columns as weight."""
    d, changed = layer.spec.head_dim, {}
    for name in ("query_norm", "key_norm"):
        norm = getattr(layer.spec, name)
        module = copy.deepcopy(norm.module)
        module.weight = torch.nn.Parameter(module.weight.data[:d].clone(), requires_grad=False)
        changed[name] = replace(norm, module=module)
    change_spec(layer, **changed)


def normalise_before_turning(decoder: Decoder, layer: Layer) -> None:
    change_spec(layer, turning=replace(layer.spec.turning, norm_last=False))


def turn_halves(decoder: Decoder, layer: Layer) -> None:
    """Turn halves of a head where neighbours are to be."""
    change_spec(layer, turning=replace(layer.spec.turning, interleaved=False))


def let_state_leak(decoder: Decoder, layer: Layer) -> None:
    """Let the model's own modules read all documents as one."""
    leak_between_documents(decoder, layer)


def change_inputs(layer: Layer, change) -> None:
    """Let the model's own module of one layer be given something else."""
    inputs = layer.spec.mixer.inputs

    class Changed:
        def ask(self, *given):
            return [(block, [change(one) for one in found]) for block, found in inputs.ask(*given)]

    change_spec(layer, mixer=replace(layer.spec.mixer, inputs=Changed()))


def drop_the_mixers_rotary(decoder: Decoder, layer: Layer) -> None:
    def still(given):
        cos, sin = given["position_embeddings"]
        return given | {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))}

    change_inputs(layer, still)


def lose_a_mixers_gradient(decoder: Decoder, layer: Layer) -> None:
    layer.attention.trained = layer.attention.trained[1:]


def ignore_output_scale(decoder: Decoder, layer: Layer) -> None:
    change_spec(layer, output_scale=1.0)


def forget_the_value_norm(decoder: Decoder, layer: Layer) -> None:
    change_spec(layer, value_norm=None)


def take_turned_keys_for_values(decoder: Decoder, layer: Layer) -> None:
    """Of values that are keys: as these are after their norm and rotation."""

    def views(self, qk, qkv):
        q, k, _ = SelfAttention._views(self, qk, qkv)
        return q, k, k

    override(layer.attention, _views=views)


def lose_the_values_gradient(decoder: Decoder, layer: Layer) -> None:
    """Of values that are keys."""

    def heads_backward(self, dq, dk, dv, *given):
        SelfAttention._heads_backward(self, dq, dk, torch.zeros_like(dv), *given)

    override(layer.attention, _heads_backward=heads_backward)


def turn_the_first_columns(decoder: Decoder, layer: Layer) -> None:
    """Of each query, whose last ones are to be turned."""
    d = layer.spec.latent.rotary_dim

    def turn(self, q, r, rows, kernels, *, back=False):
        heads = q.unflatten(1, (layer.spec.query_heads, -1))
        shifted = heads.roll(d, 2).flatten(1)
        LatentAttention._turn(self, shifted, r, rows, kernels, back=back)
        q.copy_(shifted.unflatten(1, (layer.spec.query_heads, -1)).roll(-d, 2).flatten(1))

    override(layer.attention, _turn=turn)


def turn_queries_alone(decoder: Decoder, layer: Layer) -> None:
    """And leave the part of the keys that all heads share as it is."""

    def turn(self, q, r, rows, kernels, *, back=False):
        LatentAttention._turn(self, q, r.clone(), rows, kernels, back=back)

    override(layer.attention, _turn=turn)


def forget_the_narrow_norm(decoder: Decoder, layer: Layer) -> None:
    """Take the weight of the narrow rows' norm for 1."""
    norm = layer.spec.key_norm
    module = copy.deepcopy(norm.module)
    module.weight.data.fill_(1 - norm.offset)
    change_spec(layer, key_norm=replace(norm, module=module))


def swap_keys_and_values(decoder: Decoder, layer: Layer) -> None:
    """Read the value of each head first, where its key stands."""
    plain = layer.spec.head_dim - layer.spec.latent.rotary_dim

    def heads(self, qkv, rows, kernels):
        *_, e = self._columns
        moved = qkv.clone()
        moved[:, e] = qkv[:, e].unflatten(1, (layer.spec.key_heads, -1)).roll(plain, 2).flatten(1)
        return LatentAttention._heads(self, moved, rows, kernels)

    override(layer.attention, _heads=heads)


def hear_the_first_head_alone(decoder: Decoder, layer: Layer) -> None:
    """Of what comes back through the part of the keys that all heads share."""
    plain = layer.spec.head_dim - layer.spec.latent.rotary_dim

    def heads_gradient(self, gradients, *given):
        gradients[1][:, 1:, plain:] = 0
        return LatentAttention._heads_gradient(self, gradients, *given)

    override(layer.attention, _heads_gradient=heads_gradient)


def lose_a_narrow_gradient(decoder: Decoder, layer: Layer) -> None:
    """Of the adapter that widens keys and values."""
    layer.attention.value_up.da = torch.zeros_like(layer.attention.value_up.da)


def mix_late(decoder: Decoder, layer: Layer) -> None:
    """Let a Mamba's result be one token late: the first layer's, as the second's is our attention."""
    mixer = decoder.layers[0].attention

    def late(self, starts, rows, kernels):
        return tuple(y.roll(1, 1) for y in type(mixer).__mro__[1]._run(self, starts, rows, kernels))

    override(mixer, _run=late)


def leave_the_square_out(decoder: Decoder, layer: Layer) -> None:
    """Of an MLP without a gate, which is the third layer's only block; likewise below."""

    def activate(self, gate_up, kernels, out) -> None:
        out.copy_(gate_up[:, : self.down.inputs].relu())

    override(decoder.layers[2].mlp, _activate=activate)


def halve_the_squares_slope(decoder: Decoder, layer: Layer) -> None:
    mlp = decoder.layers[2].mlp

    def activate_backward(self, h, gate_up, dgate_up, kernels) -> None:
        type(mlp).__mro__[1]._activate_backward(self, h, gate_up, dgate_up, kernels)
        dgate_up[:, : self.down.inputs].mul_(0.5)

    override(mlp, _activate_backward=activate_backward)


def forget_the_only_norm(decoder: Decoder, layer: Layer) -> None:
    """Of the first layer, a state space: take its weight for 1."""
    first = decoder.layers[0]
    module = copy.deepcopy(first.spec.input_norm.module)
    module.weight.data.fill_(1 - first.spec.input_norm.offset)
    change_spec(first, input_norm=replace(first.spec.input_norm, module=module))


def let_a_state_space_leak(decoder: Decoder, layer: Layer) -> None:
    leak_between_documents(decoder, layer)


def lose_a_state_spaces_gradient(decoder: Decoder, layer: Layer) -> None:
    lose_a_mixers_gradient(decoder, decoder.layers[0])


def forget_the_state_of_earlier_chunks(decoder: Decoder, layer: Layer) -> None:
    block = decoder.layers[0].attention
    real = block.scan

    def scan(module, hidden_states, **options):
        return torch.cat([real(module, part, **options) for part in hidden_states.split(CHUNK, 1)], 1)

    block.scan = scan


OF_ONE_BLOCK = (
    leave_the_square_out, halve_the_squares_slope, forget_the_only_norm, let_a_state_space_leak,
    lose_a_state_spaces_gradient, forget_the_state_of_earlier_chunks,
)  # fmt: skip
"""Faults of layers that are one block each."""


def shift_the_mixers_norm(decoder: Decoder, layer: Layer) -> None:
    spec = layer.spec
    change_spec(layer, attention_norm=spec.mlp_norm, mlp_norm=spec.attention_norm)


def forget_the_prediction(decoder: Decoder, layer: Layer) -> None:
    override(layer.alt_up, predict=lambda self, x, kernels: x.clone())


def mix_streams_the_other_way(decoder: Decoder, layer: Layer) -> None:
    override(layer.alt_up, _mix=lambda self, m: AltUp._mix(self, m).transpose(1, 2))


def correct_by_the_measure_alone(decoder: Decoder, layer: Layer) -> None:
    override(layer.alt_up, _correction=lambda self, m: AltUp._correction(self, m) - 1.0)


def lose_the_streams_slope(decoder: Decoder, layer: Layer) -> None:
    """What comes back by the numbers that weigh the streams, and none of what they weigh."""

    def still(self, dm, m, v, r, dv, kernels, out) -> None:
        out.copy_(dv)

    override(layer.alt_up, _measure_backward=still)


def forget_the_narrow_map(decoder: Decoder, layer: Layer) -> None:
    override(layer.laurel, forward=lambda self, x, y, rows, kernels: y.mul(SHARE))


def forget_the_narrow_maps_norm(decoder: Decoder, layer: Layer) -> None:
    change_spec(layer, laurel_norm=None)


def let_the_whole_gate_pass(decoder: Decoder, layer: Layer) -> None:
    change_spec(layer, gate_cut=None)


def cut_more_of_the_gate(decoder: Decoder, layer: Layer) -> None:
    change_spec(layer, gate_cut=layer.spec.gate_cut + 0.1)


def meet_the_input_unscaled(decoder: Decoder, layer: Layer) -> None:
    change_spec(layer, alt_up=replace(layer.spec.alt_up, scale=None))


def add_the_input_to_all_streams(decoder: Decoder, layer: Layer) -> None:
    override(layer, _others=lambda self, streams, hidden: streams.unflatten(1, (-1, hidden)))


OF_STREAMS = (
    forget_the_prediction, mix_streams_the_other_way, correct_by_the_measure_alone, lose_the_streams_slope,
    forget_the_narrow_map, forget_the_narrow_maps_norm, let_the_whole_gate_pass, cut_more_of_the_gate,
    meet_the_input_unscaled, add_the_input_to_all_streams,
)  # fmt: skip
"""Faults of layers with several residual streams."""


def _stretch(tables: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> dict[str, tuple[torch.Tensor, ...]]:
    return {
        kind: tuple(table[torch.arange(len(table), device=table.device) // 2] for table in pair)
        for kind, pair in tables.items()
    }


FAULTS = {
    drop_rotary: "llama", leave_scale_out: "llama", ignore_norm_weight: "gemma2", move_norm: "llama",
    swap_heads: "qwen2", map_key_heads_wrongly: "llama", change_bias: "qwen2", change_window: "mistral",
    put_adapter_elsewhere: "llama", keep_stale_adapter: "llama", swap_gate_and_up: "qwen2",
    change_eps: "llama", change_softcap: "gemma2", count_positions_wrongly: "llama",
    leak_between_documents: "llama", change_activation: "gemma2", drop_residual: "llama",
    forget_adapter_scale: "llama", lose_a_gradient: "qwen2", transpose_square: "llama",
    interleave_rotary: "llama", take_wrong_table: "gemma3", turn_a_still_layer: "smollm3",
    ignore_residual_scale: "granite", ignore_query_scale: "ministral3", normalise_before_the_mlp: "olmo2",
    normalise_each_head: "olmo3", normalise_before_turning: "hunyuan", turn_halves: "glm4",
    let_state_leak: "qwen3_5", drop_the_mixers_rotary: "qwen3_5", lose_a_mixers_gradient: "qwen3_5",
    ignore_output_scale: "gemma4", mix_late: "granite_hybrid", shift_the_mixers_norm: "gemma4",
    forget_the_value_norm: "gemma4", take_turned_keys_for_values: "gemma4",
    lose_the_values_gradient: "gemma4", turn_the_first_columns: "latent", turn_queries_alone: "latent_v2",
    forget_the_narrow_norm: "latent", swap_keys_and_values: "latent", hear_the_first_head_alone: "latent",
    lose_a_narrow_gradient: "latent", **dict.fromkeys(OF_STREAMS, "gemma3n"),
    **dict.fromkeys(OF_ONE_BLOCK, "nemotron_h"),
}  # fmt: skip
"""And a family of models.py in which each shows most."""


OF_LATENT = (
    turn_the_first_columns, turn_queries_alone, forget_the_narrow_norm, swap_keys_and_values,
    hear_the_first_head_alone, lose_a_narrow_gradient,
)  # fmt: skip
"""Faults of attention whose keys and values come from narrow rows."""


def is_felt(fault: Callable[[Decoder, Layer], None], layer: Layer) -> bool:
    """Whether `fault` changes what `layer` computes: a single key head has no other to be mistaken for."""
    spec = layer.spec
    has = {
        map_key_heads_wrongly: spec.key_heads > 1,
        turn_a_still_layer: spec.rotary == NO_ROTARY,
        ignore_residual_scale: spec.residual_scale != 1.0,
        ignore_query_scale: spec.query_scale is not None,
        normalise_before_the_mlp: spec.mlp_norm is None,
        normalise_each_head: spec.query_norm is not None and spec.query_norm.weight.numel() != spec.head_dim,
        normalise_before_turning: spec.mixer is None and spec.turning.norm_last,
        turn_halves: spec.mixer is None and spec.turning.interleaved,
        let_state_leak: spec.mixer is not None,
        drop_the_mixers_rotary: spec.mixer is not None,
        forget_the_value_norm: spec.value_norm is not None,
        take_turned_keys_for_values: spec.values_are_keys,
        lose_the_values_gradient: spec.values_are_keys,
        **dict.fromkeys(OF_LATENT, spec.latent is not None),
        **dict.fromkeys(OF_STREAMS, spec.alt_up is not None),
        lose_a_mixers_gradient: spec.mixer is not None,
        **dict.fromkeys((mix_late, *OF_ONE_BLOCK), False),  # of one layer of one family
        ignore_output_scale: spec.output_scale != 1.0,
        shift_the_mixers_norm: spec.attention_norm is not None and spec.mlp_norm is not None,
    }
    return has.get(fault, True)
