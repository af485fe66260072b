"""What llama.cpp's converter (MIT licence) does to a tensor on its way into a GGUF file, undone, and done again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Change = Callable[["torch.Tensor", Mapping[str, Any]], "torch.Tensor"]
"""Undoes it for one tensor, given the config."""
Join = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Puts the two parts of a weight together."""
Shape = tuple[int, ...]


def _turn_back(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Put rows that llama.cpp turns as neighbours back to halves, head by head: (rows, ...) of `heads` heads."""
    half = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, half, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _turn_queries(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    return _turn_back(tensor, config["num_attention_heads"])


def _turn_keys(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    return _turn_back(tensor, config["num_key_value_heads"])


def _subtract_one(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    return tensor - 1


def add_row(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Return a vector as the one row of a matrix; some files have it as one."""
    return tensor.reshape(1, -1)


def add_axis(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Return the kernel of a convolution per channel, (channels, 1, width), from (channels, width)."""
    return tensor.unsqueeze(1)


def swap_last(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Return experts whose rows are inputs, (experts, inputs, outputs), from (experts, outputs, inputs)."""
    return tensor.transpose(-1, -2)


def log_negative(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Return log(-x), value heads grouped: a delta net's decay is stored as -exp of its weight."""
    return group_heads((-tensor).log(), config)


def group_heads(tensor: torch.Tensor, config: Mapping[str, Any], head_dim: int = 1) -> torch.Tensor:
    """Put value heads that llama.cpp repeats over all key heads in turn back beside their key head: (rows, ...)."""
    key_heads = config["linear_num_key_heads"]
    each = config["linear_num_value_heads"] // key_heads
    shape = tensor.shape
    return tensor.reshape(each, key_heads, head_dim, *shape[1:]).swapaxes(0, 1).reshape(shape)


def group_values(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Group rows that are values, some a head."""
    return group_heads(tensor, config, config["linear_value_head_dim"])


def group_values_behind(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Group rows that are values behind those that are queries and keys."""
    import torch

    before = 2 * config["linear_key_head_dim"] * config["linear_num_key_heads"]
    return torch.cat((tensor[:before], group_values(tensor[before:], config)))


def group_kernels(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Group the convolution's channels likewise."""
    return group_values_behind(tensor, config).unsqueeze(1)


def group_inputs(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Group columns that are values."""
    return group_values(tensor.T, config).T


def interleave(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return columns taken in turn of two tensors of one shape."""
    import torch

    return torch.stack((first, second), dim=-1).reshape(*first.shape[:-1], -1)


def join_latent(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the matrix that opens latent keys and values, (heads * (key + value), latent).

    `keys`: (heads, latent, key), `values`: (heads, value, latent): head by head the keys' rows, then the values'.
    """
    import torch

    whole = torch.cat((keys.transpose(1, 2), values), dim=1)
    return whole.reshape(-1, whole.shape[-1])


def _turn(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Put rows that are turned as halves, head by head, where llama.cpp wants them: as neighbours."""
    half = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, 2, half, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _repeat_heads(tensor: torch.Tensor, config: Mapping[str, Any], head_dim: int = 1) -> torch.Tensor:
    key_heads = config["linear_num_key_heads"]
    each = config["linear_num_value_heads"] // key_heads
    shape = tensor.shape
    return tensor.reshape(key_heads, each, head_dim, *shape[1:]).swapaxes(0, 1).reshape(shape)


def _repeat_values(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    return _repeat_heads(tensor, config, config["linear_value_head_dim"])


def _repeat_values_behind(tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    import torch

    before = 2 * config["linear_key_head_dim"] * config["linear_num_key_heads"]
    return torch.cat((tensor[:before], _repeat_values(tensor[before:], config)))


TURNED = {
    "attn_q.weight": _turn_queries,
    "attn_q.bias": _turn_queries,
    "attn_k.weight": _turn_keys,
    "attn_k.bias": _turn_keys,
}
SHIFTED = {
    f"{name}.weight": _subtract_one
    for name in (
        "output_norm",
        "attn_norm",
        "ffn_norm",
        "attn_q_norm",
        "attn_k_norm",
        "post_attention_norm",
        "post_ffw_norm",
    )
}
GROUPED = {
    "attn_qkv.weight": group_values_behind,
    "attn_gate.weight": group_values,
    "ssm_alpha.weight": group_heads,
    "ssm_beta.weight": group_heads,
    "ssm_a": log_negative,
    "ssm_dt.bias": group_heads,
    "ssm_conv1d.weight": group_kernels,
    "ssm_out.weight": group_inputs,
}
RESHAPED: Mapping[Change, Callable[[Shape], Shape]] = {
    add_row: lambda shape: (1, shape[-1]),
    add_axis: lambda shape: (shape[0], 1, *shape[1:]),
    group_kernels: lambda shape: (shape[0], 1, *shape[1:]),
    swap_last: lambda shape: (*shape[:-2], shape[-1], shape[-2]),
}
"""What the shape of a tensor becomes by a change, where it becomes another."""
DONE: Mapping[Change, Change] = {
    _turn_queries: lambda tensor, config: _turn(tensor, config["num_attention_heads"]),
    _turn_keys: lambda tensor, config: _turn(tensor, config["num_key_value_heads"]),
    _subtract_one: lambda tensor, config: tensor + 1,
    add_row: lambda tensor, config: tensor.reshape(-1),
    add_axis: lambda tensor, config: tensor.squeeze(1),
    swap_last: swap_last,
    log_negative: lambda tensor, config: -_repeat_heads(tensor, config).exp(),
    group_heads: _repeat_heads,
    group_values: _repeat_values,
    group_values_behind: _repeat_values_behind,
    group_kernels: lambda tensor, config: _repeat_values_behind(tensor.squeeze(1), config),
    group_inputs: lambda tensor, config: _repeat_values(tensor.T, config).T,
}
"""What the converter does, by what undoes it."""
JOINED: Mapping[Join, Callable[[Shape, Shape], Shape]] = {
    interleave: lambda first, second: (*first[:-1], first[-1] + second[-1]),
    join_latent: lambda keys, values: (keys[0] * (keys[2] + values[1]), keys[1]),
}
"""The shape of two parts put together."""


def _part_latent(whole: torch.Tensor, config: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    key = config["qk_nope_head_dim"]
    heads = whole.reshape(config["num_attention_heads"], key + config["v_head_dim"], -1)
    return heads[:, :key].transpose(1, 2), heads[:, key:]


PARTED: Mapping[Join, Callable[[torch.Tensor, Mapping[str, Any]], tuple[torch.Tensor, torch.Tensor]]] = {
    interleave: lambda whole, config: (whole[..., ::2], whole[..., 1::2]),
    join_latent: _part_latent,
}
"""The two parts of a whole, by what puts them together."""
