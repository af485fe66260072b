"""How much an error in each column of a matrix counts: the mean square of what it is multiplied with, over some texts.

    x W^T:  a rounding dW of W costs  E |x dW^T|^2 = sum over columns of E[x^2] dW^2, inputs taken as uncorrelated

as in llama.cpp's importance matrix (tools/imatrix, MIT licence). Experts, whose inputs differ, have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from studio.models.gguf.file_tensors import FileTensor, name_plainly

if TYPE_CHECKING:
    import torch
    from torch import nn

WEIGHT = ".weight"
ROWS = 32
"""Of the run's own data, that are read: what a file will be asked is like them."""
TOKENS, ALL_TOKENS = 512, 4096
"""Longest text that is read, and all of them: 8 of so many tell the columns of a layer apart as well as 800. Those of
an 8B model take 11 minutes of a processor."""


def cut_texts(rows: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Return what is read of `rows` of token ids: the first ones, as far as there is room for them."""
    texts: list[Sequence[int]] = []
    for row in rows:
        if (room := ALL_TOKENS - sum(map(len, texts))) > 0:
            texts.append(row[: min(TOKENS, room)])
    return texts


def measure_importance(
    model: nn.Module, tensors: Sequence[FileTensor], rows: Sequence[Sequence[int]], unchanged: frozenset[str]
) -> dict[str, torch.Tensor]:
    """Return (columns,) fp32 above 0 by a tensor's name, for the linears that `rows` of token ids pass.

    `unchanged`: names inside a layer whose columns a file keeps in their order. Tensors without a linear of their own
    are left out.
    """
    from torch import nn

    linears = {name_plainly(name): name for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    wanted = {}
    for tensor in tensors:
        source = name_plainly(tensor.sources[0]) or ""
        linear = linears.get(source.removesuffix(WEIGHT))
        whole = len(tensor.sources) == 1 and tensor.inner in unchanged and source.endswith(WEIGHT)
        if linear is not None and whole:
            wanted[tensor.name] = linear
    return measure_inputs(model, wanted, rows)


def measure_inputs(
    model: nn.Module, linears: Mapping[str, str], rows: Sequence[Sequence[int]]
) -> dict[str, torch.Tensor]:
    """Return (columns,) fp32 above 0 by what each linear is called (keys of `linears`; values: its name in `model`)."""
    from studio.models.row_turns import compute_rows

    texts = cut_texts(rows)
    sums: dict[str, torch.Tensor] = {}
    hooks = []

    def watch(name: str, linear: nn.Module) -> None:
        def add(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            squares = given[0].detach().float().reshape(-1, given[0].shape[-1]).square().sum(0)
            sums[name] = sums[name] + squares if name in sums else squares

        hooks.append(linear.register_forward_pre_hook(add))

    for name, place in linears.items():
        watch(name, model.get_submodule(place))
    try:
        compute_rows(model, texts, lambda output: None)
    finally:
        for hook in hooks:
            hook.remove()
    count = max(1, sum(map(len, texts)))
    return {
        name: one.cpu() / count + 1e-8 * float(one.mean()) / count for name, one in sums.items() if one.any()
    }
