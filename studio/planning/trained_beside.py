"""What a recipe trains beside an adapter: rows of tokens, whole embeddings and heads, norms; in parameters and bytes.

V: vocabulary   H: hidden width   L: layers   K: tokens of the recipe
"""

from __future__ import annotations

from dataclasses import dataclass

from studio.core.facts import ModelFacts
from studio.core.i18n import Text, text
from studio.core.recipe import AdapterSpec
from studio.models.token_list import count_tokens, split_modules

EMBEDDINGS = ("embed", "wte")
HEADS = ("head", "embed_out")
"""Parts of the names of embeddings and heads, of which `embed_out` (GPT-NeoX) is a head."""
ASSUMED_TIED_BELOW = 3_000_000_000
"""Small models usually share input and output embeddings; stored counts of shared ones count once."""
WIDE_BYTES = 4
"""Of a trained weight: fp32, as its gradient."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """Parameters that are trained beside an adapter."""

    rows: int = 0
    """K H, of the embedding and of a head of its own."""
    tables: int = 0
    """V H, likewise, where they are trained whole."""
    head: int = 0
    """Those of `tables` that multiply the last layer's result: a 16-bit copy of them does so."""
    others: int = 0
    """Of norms."""

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.rows + self.tables + self.others

    @property
    def trains_head(self) -> bool:
        """Whether the loss head adds the gradient of a whole table."""
        return self.head > 0


def count_beside(model: ModelFacts, spec: AdapterSpec) -> Beside:
    """Return what `spec` trains of `model` beside its adapter; nothing where all weights are trained anyway."""
    if spec.method == "full" or not model.hidden_size:
        return Beside()
    names = split_modules(spec.modules_to_save)
    tied = is_tied(model)
    added = count_tokens(spec)
    table = (model.vocabulary + added) * model.hidden_size
    head = any(is_head(name) for name in names)
    embedding = any(is_embedding(name) for name in names)
    whole = (table if embedding or (tied and head) else 0, table if head and not tied else 0)
    left = (1 if tied else 2) - sum(map(bool, whole))
    return Beside(
        rows=added * model.hidden_size * left,
        tables=sum(whole),
        head=table if head or (tied and embedding) else 0,
        others=sum(map(is_norm, names)) * (2 * model.layers + 1) * model.hidden_size,
    )


def list_others(spec: AdapterSpec) -> list[str]:
    """Return the names of modules trained in full that are neither embedding, head nor norm."""
    if spec.method == "full":
        return []
    names = split_modules(spec.modules_to_save)
    return [name for name in names if not (is_head(name) or is_embedding(name) or is_norm(name))]


def is_norm(name: str) -> bool:
    """Return whether a module of this name is a norm."""
    return "norm" in name or name.rpartition(".")[2].startswith("ln_")


def describe_beside(model: ModelFacts, spec: AdapterSpec, optimizer_bytes: int, width: int) -> Text | None:
    """Return in words what is trained beside an adapter and what it takes, None for nothing.

    `optimizer_bytes`: of one weight's state; `width`: bytes of a weight of the model.
    """
    beside = count_beside(model, spec)
    if not beside.parameters:
        return None
    needed = beside_bytes(beside, width) + (WIDE_BYTES + optimizer_bytes) * beside.parameters
    values = {"millions": f"{beside.parameters / 1e6:,.2f}", "gigabytes": f"{needed / 2**30:.2f}"}
    return text("plan.beside", **values)


def is_tied(model: ModelFacts) -> bool:
    """Return whether embedding and head are the same weights, as far as it is known."""
    known = model.tied_embeddings
    return model.parameters < ASSUMED_TIED_BELOW if known is None else known


def is_head(name: str) -> bool:
    """Return whether a module of this name is a model's head."""
    return any(part in name.rpartition(".")[2] for part in HEADS)


def is_embedding(name: str) -> bool:
    """Return whether a module of this name looks tokens up."""
    return not is_head(name) and any(part in name.rpartition(".")[2] for part in EMBEDDINGS)


def beside_bytes(beside: Beside, width: int) -> int:
    """Return what these weights take beside the model's own, of `width` bytes each.

    Whole tables lie in fp32 in the place of the model's own, and a head once more as it multiplies; rows beside them.
    """
    copies = width * beside.head if width < WIDE_BYTES else 0
    return WIDE_BYTES * beside.parameters - width * (beside.tables + beside.others) + copies
