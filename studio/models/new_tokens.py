"""Tokens that a tokenizer did not have: added to it, given rows in the model's embedding and head, and found again.

A new row begins as the mean of the rows of the pieces that its token was cut into before, in the embedding and in the
head: Koto, Lau and Baldwin, 2021, "IndoBERTweet", arXiv:2109.04607, where it came out ahead of random numbers and of
other vectors. Without such a start a row has another length than its neighbours, and every softmax is spoilt (Hewitt,
2021, "Initializing New Word Embeddings for Pretrained Language Models").
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft.utils.other import TrainableTokensWrapper
from safetensors import safe_open
from torch import Tensor

from studio.core.errors import StudioError
from studio.core.facts import ModelFacts
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.core.recipe import AdapterSpec
from studio.models.token_list import list_tokens
from studio.models.tokenizer import add_tokens, load_tokenizer


def make_room(model: Any, facts: ModelFacts, spec: AdapterSpec) -> tuple[int, ...]:
    """Return the ids of the recipe's tokens, after `model` has got rows for those that are new; () without any.

    A token that the tokenizer has already keeps its row as it is. Raises StudioError.
    """
    tokens = list_tokens(spec)
    if not tokens:
        return ()
    before = load_tokenizer(facts)
    known = before.get_vocab()
    pieces = {token: before.encode(token, add_special_tokens=False) for token in tokens if token not in known}
    add_tokens(before, spec)
    ids = {token: int(before.convert_tokens_to_ids(token)) for token in tokens}
    enlarge(model, max(ids.values()) + 1, len(before))
    set_rows(model, {ids[token]: found for token, found in pieces.items()})
    return tuple(ids[token] for token in tokens)


def enlarge(model: Any, needed: int, size: int = 0) -> None:
    """Give `model`'s embedding and head `size` rows, at least `needed`, where they have fewer than `needed`.

    New rows are the mean of all others (Hewitt, 2021), until somebody knows better. Many models have rows to spare, of
    which nothing is taken away.
    """
    had = model.get_input_embeddings().weight.shape[0]
    if needed <= had:
        return
    model.resize_token_embeddings(max(needed, size), mean_resizing=False)
    with torch.no_grad():
        for table in list_tables(model):
            table[had:] = _mean(table[:had])


@torch.no_grad()
def set_rows(model: Any, pieces: dict[int, Sequence[int]]) -> None:
    """Let each row of `pieces` be the mean of the rows of its pieces, in the embedding and in a head of its own."""
    for table in list_tables(model):
        for row, found in pieces.items():
            if len(found):
                table[row] = table[list(found)].float().mean(0).to(table.dtype)


def list_tables(model: Any) -> list[Tensor]:
    """Return the weights of embedding and head, a shared one once."""
    ends = [
        unwrap_end(part) for part in (model.get_input_embeddings(), model.get_output_embeddings()) if part
    ]
    return list({id(part.weight): part.weight for part in ends}.values())


def unwrap_end(module: Any) -> Any:
    """Return what is inside peft's wrapper of a module of which some rows are trained, or the module itself."""
    return module.token_adapter.base_layer if isinstance(module, TrainableTokensWrapper) else module


def name_ends(model: Any) -> list[str]:
    """Return the names of the embedding and of a head with weights of its own, as peft is to find them."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    ends = [embedding] if head is None or head.weight is embedding.weight else [embedding, head]
    return [next(name for name, module in model.named_modules() if module is end) for end in ends]


def refuse_ends(model: Any) -> None:
    """Raise StudioError where peft's rows of a head are not what the head computes with: shared, or with a bias."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or not isinstance(embedding, TrainableTokensWrapper):
        return
    apart = not isinstance(head, TrainableTokensWrapper)  # peft did not see that both share a weight
    if (
        apart or getattr(unwrap_end(head), "bias", None) is not None
    ):  # 0.21 leaves it out of what the head computes
        raise StudioError(text("tokens.head"), text("tokens.head.why"), text("tokens.head.fix"))


def count_rows(folder: Path) -> int:
    """Return how many rows an embedding must have for the adapter in `folder`; 0 where it says nothing of tokens."""
    config = read_json(folder / "adapter_config.json")
    found = config.get("trainable_token_indices") or ()
    lists = found.values() if isinstance(found, dict) else [found]
    rows = max((max(ids) + 1 for ids in lists if ids), default=0)
    if config.get("modules_to_save"):
        rows = max(rows, _read_rows(folder / "adapter_model.safetensors"))
    return rows


def _read_rows(path: Path) -> int:
    """Return the rows of the largest table that an adapter's file holds whole."""
    if not path.is_file():
        return 0
    with safe_open(path, "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys() if "lora_" not in name]  # noqa: SIM118
    return max((shape[0] for shape in shapes if len(shape) == 2), default=0)


def _mean(table: Tensor) -> Tensor:
    """Return the mean row of `table` (V, H), added up in fp32, without a wide copy of it."""
    return (
        table.sum(0, dtype=torch.promote_types(table.dtype, torch.float32)).div_(len(table)).to(table.dtype)
    )
