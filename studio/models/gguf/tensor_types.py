"""Which form each tensor of a GGUF file has: the mixes that llama.cpp names Q8_0, Q6_K, Q5_K_M, Q4_K_M, and 16 bits.

The rules are those of llama.cpp (src/llama-quant.cpp, MIT licence): what the output and attention's values lose is felt
most, so they have more bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from studio.models.gguf.block_types import BLOCK_TYPES, BlockType
from studio.models.gguf.file_tensors import FileTensor

BY_NAME = {block_type.name: block_type for block_type in BLOCK_TYPES.values()}
EXACT = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "exp_probs_b.bias", "shortconv.conv.weight",
         "ssm_conv1d.weight", "ssm_a", "ssm_dt.bias", "attn_sinks.weight", "ffn_gate_inp.scale",
         "layer_output_scale.weight")  # fmt: skip
"""Small, and everything hangs on them: fp32. Whatever has one dimension is so, too."""
SMALLER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Where rows are no whole blocks of 256: the form with blocks of 32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TypeMix:
    """One way to store a model."""

    name: str
    usual: str
    """The form of most matrices."""
    careful: str = ""
    """That of the output, and of attention's values and the MLP's last matrix in some layers; "": the usual."""
    number: int
    """llama.cpp's, which programs show."""


MIXES = (
    TypeMix(name="F16", usual="F16", number=1),
    TypeMix(name="BF16", usual="BF16", number=32),
    TypeMix(name="Q8_0", usual="Q8_0", number=7),
    TypeMix(name="Q6_K", usual="Q6_K", number=18),
    TypeMix(name="Q5_K_M", usual="Q5_K", careful="Q6_K", number=17),
    TypeMix(name="Q4_K_M", usual="Q4_K", careful="Q6_K", number=15),
)
"""From the largest to the smallest."""


def get_mix(name: str) -> TypeMix | None:
    """Return the mix of a name, in any case; None where there is none."""
    return {mix.name: mix for mix in MIXES}.get(name.upper())


def choose_types(mix: TypeMix, tensors: Sequence[FileTensor], *, tied: bool) -> Mapping[str, BlockType]:
    """Return the form of each tensor by its name. `tied`: whether the embedding is the output, too."""
    layers = 1 + max((int(found[1]) for one in tensors if (found := _find_layer(one))), default=0)
    return {one.name: _choose_type(mix, one, layers, tied) for one in tensors}


def _choose_type(mix: TypeMix, tensor: FileTensor, layers: int, tied: bool) -> BlockType:
    plain = mix.usual in ("F16", "BF16")
    if len(tensor.shape) == 1 or tensor.inner in EXACT or tensor.inner.endswith(("norm.weight", ".bias")):
        return BY_NAME["F32"]
    if plain:
        return BY_NAME[mix.usual]
    name = mix.usual
    if mix.careful and _is_careful(tensor, layers, tied):
        name = mix.careful
    elif mix.careful and tensor.inner == "attn_qkv.weight":
        name = "Q6_K" if mix.usual == "Q5_K" else "Q5_K"
    columns = tensor.shape[-1]
    if columns % BY_NAME[name].values:
        name = SMALLER.get(name, name)
    return BY_NAME[name if columns % BY_NAME[name].values == 0 else "F16"]


def _is_careful(tensor: FileTensor, layers: int, tied: bool) -> bool:
    if tensor.name == "output.weight" or (tied and tensor.name == "token_embd.weight"):
        return True
    found = _find_layer(tensor)
    if found is None or tensor.inner not in ("attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight"):
        return False
    layer, eighth = int(found[1]), layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _find_layer(tensor: FileTensor) -> re.Match[str] | None:
    return re.match(r"blk\.(\d+)\.", tensor.name)
