"""Predicts a run's peak memory part by part, before anything is loaded: plain arithmetic on shapes.

n: parameters   L: layers   H: hidden width   I: width inside the MLP   V: vocabulary   T: tokens of a micro-batch
"""

from __future__ import annotations

from studio.core.facts import BackendPlan, ModelFacts
from studio.core.recipe import Recipe

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
NF4_BYTES = 0.5 + 1 / 64 + 4 / 16384
"""4 bits a weight, a one-byte scale for 64 weights, a four-byte scale for 256 of those scales."""
OPTIMIZER_BYTES = {"adamw": 8, "adamw_8bit": 2, "paged_adamw_8bit": 2}
LOSS_CHUNK_BYTES = 256 * 2**20
"""fp32 logits of one chunk of the loss head (engine/loss.py)."""
CONTEXT_BYTES = {"cuda": 600 * 2**20, "cpu": 400 * 2**20}
"""What the driver, torch and its matrix libraries hold before any model: 0.4 to 0.7 GiB."""
ASSUMED_TIED_BELOW = 3_000_000_000
"""Small models usually share input and output embeddings; stored counts of shared ones count once."""


def predict(plan: BackendPlan, model: ModelFacts, recipe: Recipe) -> dict[str, int]:
    """Return peak bytes by part: weights, adapters, gradients, optimizer, activations, loss, context.

    All zero but the context for a model whose shape is not known yet. Attention is counted as fused (sdpa keeps no
    scores); `eager` adds the scores of one layer, or of all layers without recomputing.
    """
    full = recipe.adapter.method == "full"
    width = DTYPE_BYTES[plan.dtype.value]
    # Full fine-tuning keeps fp32 weights, and beside them the 16-bit copies that the arithmetic uses.
    kept = (4 + width if width < 4 else 4) if full else width
    linear = count_linear_parameters(model)
    trained = model.parameters if full else count_adapter_parameters(model, recipe.adapter.rank)
    tokens = recipe.optim.micro_batch * _longest(model, recipe)
    device = "cuda" if str(plan.device.value).startswith("cuda") else "cpu"
    return {
        "weights": _weight_bytes(plan, model, linear, kept),
        "adapters": 0 if full else 4 * trained,
        "gradients": 4 * trained,
        "optimizer": OPTIMIZER_BYTES[plan.optimizer.value] * trained,
        "activations": _activation_bytes(plan, model, recipe, tokens, width),
        "loss": _loss_bytes(model, tokens, width),
        "context": CONTEXT_BYTES[device],
    }


def count_linear_parameters(model: ModelFacts) -> int:
    """Return the parameters inside the layers: all but the embeddings."""
    copies = 1 if model.parameters < ASSUMED_TIED_BELOW else 2
    return max(0, model.parameters - copies * model.vocabulary * model.hidden_size)


def count_adapter_parameters(model: ModelFacts, rank: int) -> int:
    """Return the parameters of a low-rank adapter on every linear layer: rank x (inputs + outputs) of each.

    The key and value width, unknown here, is taken as H/4 (grouped-query attention).
    """
    hidden = model.hidden_size
    attention = 2 * (2 * hidden) + 2 * (hidden + hidden // 4)
    mlp = 3 * (hidden + _mlp_width(model))
    return model.layers * rank * (attention + mlp)


def checkpoint_bytes(plan: BackendPlan, model: ModelFacts, recipe: Recipe) -> int:
    """Return the size of one checkpoint on disk: what is trained and the optimizer's state."""
    parts = predict(plan, model, recipe)
    trained = 4 * model.parameters if recipe.adapter.method == "full" else parts["adapters"]
    return trained + parts["optimizer"]


def _weight_bytes(plan: BackendPlan, model: ModelFacts, linear: int, width: int) -> int:
    if model.quantization != "none":
        return model.weight_bytes
    rest = model.parameters - linear
    if plan.quantization.value == "nf4":
        return int(linear * NF4_BYTES) + rest * width
    if plan.quantization.value == "int8":
        return linear + rest * width
    return model.parameters * width


def _activation_bytes(plan: BackendPlan, model: ModelFacts, recipe: Recipe, tokens: int, width: int) -> int:
    """Bytes kept for the backward pass, to 10 % of what was measured on an H200 (benchmarks/results/train_h200.csv)."""
    hidden, inner = model.hidden_size, _mlp_width(model)
    # Norms' inputs and results, query, key, value and the attention's result; gate, up and their product.
    kept = 7 * hidden + 3 * inner
    if any(choice.value != "triton" for choice in plan.kernels.values()):
        kept += 2 * hidden + inner  # PyTorch's norm keeps an fp32 copy, its gate the activation's result
    if recipe.adapter.method == "full" and width < 4:
        kept += 6 * hidden  # fp32 norms, and a 16-bit copy of their result for each layer that reads it
    a_layer = tokens * width * kept
    if plan.attention.value == "eager":
        heads = max(1, hidden // 64)
        a_layer += recipe.optim.micro_batch * heads * _longest(model, recipe) ** 2 * (2 * width + 4)
    if plan.checkpointing.value:
        # Each layer's input, and one layer in full with its gradients: by then the loss has let go of its memory.
        again = max(0, 2 * a_layer - _loss_bytes(model, tokens, width))
        return model.layers * tokens * width * hidden + again
    return model.layers * a_layer


def _loss_bytes(model: ModelFacts, tokens: int, width: int) -> int:
    """A chunk's logits, their fp32 copy, and the gradients of both."""
    return min(4 * tokens * model.vocabulary, LOSS_CHUNK_BYTES) * (2 * width + 8) // 4


def _mlp_width(model: ModelFacts) -> int:
    """Solve the parameters of a layer, about 2.5 H^2 + 3 H I, for I."""
    if not model.layers or not model.hidden_size:
        return 0
    a_layer = count_linear_parameters(model) / model.layers
    return max(model.hidden_size, int((a_layer - 2.5 * model.hidden_size**2) / (3 * model.hidden_size)))


def _longest(model: ModelFacts, recipe: Recipe) -> int:
    return min(recipe.data.max_length, model.max_positions or recipe.data.max_length)
