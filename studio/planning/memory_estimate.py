"""Predicts a run's peak memory part by part, before anything is loaded: plain arithmetic on shapes.

n: parameters   L: layers   H: hidden width   I: width inside the MLP   V: vocabulary   T: tokens of a micro-batch
"""

from __future__ import annotations

from collections.abc import Mapping

from studio.core.atomic_files import add_spare
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.memory_policy import Calibration, MemoryPolicy
from studio.core.recipe import FOUR_BITS, AdapterSpec, Recipe, change_recipe
from studio.planning.decoder_shape import (
    DTYPE_BYTES,
    DecoderShape,
    count_sequences,
    longest,
    longest_document,
    read_decoder,
)
from studio.planning.layer_kinds import count_adapters
from studio.planning.layer_memory import LIBRARY_BYTES, peak_of_layers
from studio.planning.trained_beside import beside_bytes, count_beside, is_tied

NF4_BYTES = 0.5 + 1 / 64 + 4 / 16384
"""4 bits a weight, a one-byte scale for 64 weights, a four-byte scale for 256 of those scales."""
OWN_EXPERTS = ("dbrx", "llama4", "llama4_text", "step3p7")
"""Families whose code multiplies with its experts itself, not through transformers' experts interface."""
OPTIMIZER_BYTES = {"adamw": 8, "adamw_8bit": 2, "paged_adamw_8bit": 2}
LOSS_CHUNK_BYTES = 256 * 2**20
"""fp32 logits of one chunk of the loss head (engine/loss_head.py)."""
NOT_ALLOCATED = ("context", "fragmentation")
"""Parts that torch.cuda.max_memory_allocated does not count."""


CALIBRATIONS = {"cuda": Calibration(), "cpu": Calibration(context_bytes=400 * 2**20, fragmentation=1.0)}
"""By kind of device, where none was measured."""
CARD_CONTEXT_BYTES, CONTEXT_SHARE = 400 * 2**20, 0.003
"""The context of a small card, and what it grows by with the card's memory, as multiprocessors do: 839 to 849 MiB were
measured in training on an H200 of 140 GiB."""
FRAGMENTATION_RANGE = (1.0, 1.25)
CONTEXT_RANGE = (200 * 2**20, 1536 * 2**20)
"""What a driver counts beyond it is other programs' memory, which comes and goes."""
LEAST_SPAN_BYTES = 256 * 2**20
"""Two measured steps that differ by less say nothing of fragmentation: blocks are handed out in up to 20 MiB."""
GRAPH_OPERATIONS = 40e12
"""Micro-steps of fewer operations are recorded as graphs: they take a card 80 ms and more, and as long to launch."""
FAST_CARDS, FAST_SHARE = (9, 10), 2.5
"""Compute capabilities (major) of Hopper and Blackwell in data centres, and how many times as many operations they do
while a step is launched: 32 layers of 4,096 took an H200's host 120 ms, in which the card does 2,100 tokens of them."""
FAST_TOKENS = 8192
"""Of no more than these: a recording holds its activations beside those of steps that are launched, which for 157,000
tokens of SmolLM2-135M are 53 GiB each, reckoned."""


def estimate_calibration(vram_bytes: int) -> Calibration:
    """Return the Calibration of a GPU with that much memory, on which nothing was measured yet."""
    return Calibration(context_bytes=CARD_CONTEXT_BYTES + int(CONTEXT_SHARE * vram_bytes))


def predict(
    plan: BackendPlan,
    model: ModelFacts,
    recipe: Recipe,
    policy: MemoryPolicy | None = None,
    *,
    calibration: Calibration | None = None,
) -> dict[str, int]:
    """Return peak bytes by part, whose sum is the peak.

    With a `policy` (or one in `plan`) the studio's own decoder trains: weights (trained ones in fp32 and rounded),
    adapters (likewise), gradients, optimizer, activations (kept for the backward pass), workspace (the largest of what
    attention, MLP and loss need while they are computed), dequantization (room for opened 4-bit weights),
    fragmentation, context.
    Without, or for a run that the decoder cannot do, the model's own forward trains: weights, adapters, gradients,
    optimizer, activations, loss, context. All zero but the context for a model whose shape is not known yet.
    """
    recipe = settle_rows(plan, recipe)
    policy = policy or plan.memory
    shape = read_decoder(plan, model, recipe) if policy is not None else None
    calibration = calibration or CALIBRATIONS[_device(plan)]
    if policy is None or shape is None:
        return _predict_stock(plan, model, recipe) | {"context": calibration.context_bytes}
    return predict_decoder(plan, model, recipe, policy, shape, calibration)


def predict_decoder(
    plan: BackendPlan,
    model: ModelFacts,
    recipe: Recipe,
    policy: MemoryPolicy,
    shape: DecoderShape,
    calibration: Calibration,
) -> dict[str, int]:
    """Return what predict() does for a run of the decoder of this `shape`."""
    tokens = count_tokens(model, recipe)
    kept, needed = peak_of_layers(shape, tokens, policy)
    width, groups, trained = shape.element_bytes, shape.groups.values(), shape.trained_parameters
    quantized = plan.quantization.value in FOUR_BITS
    apart = quantized or shape.magnitudes
    # Rounded adapters lie beside the weights: as rows and columns of their own for opened ones, else inside the matrix.
    rounded = sum(group.tail * (group.inputs + group.outputs) for group in groups)
    corners = 0 if apart else sum(group.tail**2 for group in groups)
    opened = lengths = 0
    if shape.magnitudes:  # of each output: c and |W|^2 in fp32; and a sum for each number of the widest B
        lengths = 8 * shape.layers * sum(group.outputs for group in groups)
        lengths += 4 * sum(group.tail * group.outputs for group in groups)
    if apart:
        opened = sum(rows * columns for rows, columns in {group.shape for group in groups})
        opened += policy.cached_layers * sum(rows * columns for rows, columns in (g.shape for g in groups))
    routed = shape.routed
    decoded = routed.decoded_bytes(width) if quantized and routed else 0
    copies_of_experts = width * routed.adapter_parameters if routed else 0
    library = LIBRARY_BYTES if _device(plan) == "cuda" else 0
    linear = count_linear_parameters(model)
    copies = 2 * linear if plan.fp8.value else 0  # each weight in 8 bits twice, for both directions
    weights = _weight_bytes(plan, model, linear, _trained_width(width) if shape.whole else width)
    beside = shape.beside
    adapters = (
        4 * (trained - beside.parameters) + width * shape.layers * (rounded + corners) + copies_of_experts
    )
    adapters += beside_bytes(beside, width) + lengths
    parts = {
        "weights": weights + copies,
        "adapters": 0 if shape.whole else adapters,
        "gradients": 4 * trained,
        "optimizer": OPTIMIZER_BYTES[plan.optimizer.value] * trained,
        "activations": kept,
        "workspace": needed + library,
        "dequantization": width * opened + decoded,
    }
    lost = int((calibration.fragmentation - 1) * sum(parts.values()))
    return parts | {"fragmentation": lost, "context": calibration.context_bytes}


def is_small(operations_a_token: float, tokens: int, capability: tuple[int, int] = (0, 0)) -> bool:
    """Return whether a micro-step of so many tokens is short enough to gain by being recorded as a graph."""
    fast = capability[0] in FAST_CARDS and tokens <= FAST_TOKENS
    most = GRAPH_OPERATIONS * (FAST_SHARE if fast else 1)
    return operations_a_token * tokens <= most


def is_recorded(
    shape: DecoderShape, tokens: int, policy: MemoryPolicy, capability: tuple[int, int] = (0, 0)
) -> bool:
    """Return whether micro-steps of so many tokens are recorded as graphs by a card of this compute capability."""
    small = is_small(6 * shape.weights_a_token, tokens, capability)
    away = any(layer.offload for layer in policy.layers)
    return small and not away and shape.recordable


def count_allocated(parts: Mapping[str, int]) -> int:
    """Return what torch.cuda.max_memory_allocated will say of a run with these predicted parts, in bytes."""
    return sum(size for part, size in parts.items() if part not in NOT_ALLOCATED)


def fit_calibration(points: tuple[tuple[int, int], tuple[int, int]]) -> Calibration:
    """Return the Calibration that explains two measured steps, of T tokens and of 2 T.

    Each point is (predicted bytes without context and fragmentation: count_allocated(), measured peak bytes as the
    driver counts them). What is measured is noisy, so the slope is held within FRAGMENTATION_RANGE, and is the usual
    one where the steps lie less than LEAST_SPAN_BYTES apart; the context follows from the larger point, where an error
    weighs least, within CONTEXT_RANGE. Raises ValueError for equal points.
    """
    (small, small_peak), (large, large_peak) = sorted(points)
    if small == large:
        raise ValueError("Two steps of different size are needed.")
    fragmentation = CALIBRATIONS["cuda"].fragmentation
    if large - small >= LEAST_SPAN_BYTES:
        low, high = FRAGMENTATION_RANGE
        fragmentation = min(high, max(low, (large_peak - small_peak) / (large - small)))
    least, most = CONTEXT_RANGE
    context = round(large_peak - fragmentation * large)
    return Calibration(context_bytes=min(most, max(least, context)), fragmentation=fragmentation)


def count_tokens(model: ModelFacts, recipe: Recipe) -> int:
    """Return T: the tokens of a micro-batch whose examples are as long as they may be."""
    return count_rows(recipe) * longest(model, recipe)


def count_rows(recipe: Recipe) -> int:
    """Return the most rows of a micro-batch that the recipe allows: all of a step where it sets no limit."""
    return min(recipe.optim.batch_size, recipe.optim.micro_batch or recipe.optim.batch_size)


def settle_rows(plan: BackendPlan, recipe: Recipe) -> Recipe:
    """Return `recipe` with as many rows at once as `plan` has decided on, where it has and the recipe allows them."""
    planned = plan.micro_batch.value
    return (
        change_recipe(recipe, {"optim.micro_batch": min(planned, count_rows(recipe))}) if planned else recipe
    )


def loaded_bytes(plan: BackendPlan, model: ModelFacts) -> int:
    """Return what the weights take once loaded as `plan` has them: on a processor mostly twice their files."""
    return _weight_bytes(plan, model, count_linear_parameters(model), DTYPE_BYTES[plan.dtype.value])


def count_left_out(plan: BackendPlan, model: ModelFacts) -> tuple[float, int]:
    """Return which share of the layers' weights the plan's quantisation reaches, and the bytes of what it leaves out.

    Experts are no linear layers: NF4 takes them where transformers' experts interface runs them (models/nf4_experts).
    """
    left = model.expert_parameters
    if plan.quantization.value == "none" or model.quantization != "none" or not left:
        return 1.0, 0
    reached = count_quantized(plan.quantization.value, model)
    left -= reached - count_linear_parameters(model)
    return reached / (reached + left), left * DTYPE_BYTES[plan.dtype.value]


def count_quantized(quantization: str, model: ModelFacts) -> int:
    """Return the parameters that loading with `quantization` (nf4, mixed, int8) holds in fewer bits."""
    experts = model.expert_parameters if quantization in FOUR_BITS and model.family not in OWN_EXPERTS else 0
    return count_linear_parameters(model) + experts


def count_linear_parameters(model: ModelFacts) -> int:
    """Return the parameters of the linears inside the layers; without their shapes, all but the embeddings."""
    if model.linear_parameters:
        return model.linear_parameters
    copies = 1 if is_tied(model) else 2
    return max(0, model.parameters - model.expert_parameters - copies * model.vocabulary * model.hidden_size)


def count_adapter_parameters(model: ModelFacts, spec: AdapterSpec) -> int:
    """Return the parameters of a low-rank adapter on each target: rank x (inputs + outputs).

    For a model whose linears are not known, of one on every linear, with keys and values of H/4 (grouped queries).
    """
    if model.linears:
        return count_adapters(model, spec)
    hidden = model.hidden_size
    attention = 2 * (2 * hidden) + 2 * (hidden + hidden // 4)
    mlp = 3 * (hidden + _mlp_width(model))
    return model.layers * spec.rank * (attention + mlp)


def checkpoint_bytes(plan: BackendPlan, model: ModelFacts, recipe: Recipe) -> int:
    """Return the size of one checkpoint on disk: what is trained and the optimizer's state."""
    trained = _count_trained(model, recipe)
    return 4 * trained + OPTIMIZER_BYTES[plan.optimizer.value] * trained


def count_disk(plan: BackendPlan, model: ModelFacts, recipe: Recipe, keep: int | None = None) -> int:
    """Return the most bytes that a run's folder takes, with `keep` checkpoints in the place of the recipe's.

    One more than is kept: a new one is whole before the oldest goes. The result takes less than that one, which comes
    when the last checkpoint is written.
    """
    kept = recipe.run.keep_checkpoints if keep is None else keep
    return add_spare(checkpoint_bytes(plan, model, recipe) * (kept + 1) + count_base_file(plan, model))


def count_base_file(plan: BackendPlan, model: ModelFacts) -> int:
    """Return about what a run keeps of its base on disk: the matrices of a mixed one."""
    if plan.quantization.value != "mixed" or model.quantization != "none":
        return 0
    linear = count_linear_parameters(model)
    return linear // 2 + count_more_bits(plan, linear)


def _count_trained(model: ModelFacts, recipe: Recipe) -> int:
    spec = recipe.adapter
    if spec.method == "full":
        return model.parameters
    return count_adapter_parameters(model, spec) + count_beside(model, spec).parameters


def _device(plan: BackendPlan) -> str:
    return "cuda" if str(plan.device.value).startswith("cuda") else "cpu"


def _predict_stock(plan: BackendPlan, model: ModelFacts, recipe: Recipe) -> dict[str, int]:
    """Return the parts, without context, of a run in which the model's own forward trains under autograd.

    Attention is counted as fused (sdpa keeps no scores); `eager` adds the scores of one layer, or of all layers
    without recomputing.
    """
    full = recipe.adapter.method == "full"
    width = DTYPE_BYTES[plan.dtype.value]
    kept = _trained_width(width) if full else width
    beside = count_beside(model, recipe.adapter)
    trained, tokens = _count_trained(model, recipe), count_tokens(model, recipe)
    gradients, loss = 4 * trained, _loss_bytes(model, tokens, width)
    if beside.rows:  # peft computes with a copy of the table, and autograd with a gradient of it
        loss += 2 * width * model.vocabulary * model.hidden_size
    activations = _activation_bytes(plan, model, recipe, tokens, width)
    if count_rows(recipe) == recipe.optim.batch_size:
        # A step of one micro-batch starts without gradients, and they come as activations go: the larger counts.
        activations -= min(gradients, activations)
    return {
        "weights": _weight_bytes(plan, model, count_linear_parameters(model), kept),
        "adapters": 0 if full else 4 * (trained - beside.parameters) + beside_bytes(beside, width),
        "gradients": gradients,
        "optimizer": OPTIMIZER_BYTES[plan.optimizer.value] * trained,
        "activations": activations,
        "loss": loss,
    }


def _trained_width(width: int) -> int:
    """Return the bytes of a trained weight: fp32, and beside it the 16-bit copy that the arithmetic uses."""
    return 4 + width if width < 4 else 4


def _weight_bytes(plan: BackendPlan, model: ModelFacts, linear: int, width: int) -> int:
    if model.quantization != "none":
        return model.weight_bytes
    if plan.quantization.value in FOUR_BITS:
        packed = count_quantized("nf4", model)
        more = count_more_bits(plan, linear)
        return int(packed * NF4_BYTES) + more + (model.parameters - packed) * width
    rest = model.parameters - linear
    if plan.quantization.value == "int8":
        return linear + rest * width
    return model.parameters * width


def count_more_bits(plan: BackendPlan, linear: int) -> int:
    """Return what matrices of a mixed base that stay in 16 bits take at most beside their 4, of `linear` parameters."""
    return int(plan.more_bits * NF4_BYTES * linear) if plan.quantization.value == "mixed" else 0


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
        rows = count_rows(recipe) * count_sequences(recipe)
        a_layer += rows * heads * longest_document(model, recipe) ** 2 * (2 * width + 4)
    if plan.checkpointing.value:
        # Each layer's input, and one layer in full with its gradients: by then the loss has let go of its memory.
        again = max(0, 2 * a_layer - _loss_bytes(model, tokens, width))
        return model.layers * tokens * width * hidden + again
    return model.layers * a_layer


def _loss_bytes(model: ModelFacts, tokens: int, width: int) -> int:
    """A chunk's logits, their fp32 copy, and the gradients of both."""
    return min(4 * tokens * model.vocabulary, LOSS_CHUNK_BYTES) * (2 * width + 8) // 4


def _mlp_width(model: ModelFacts) -> int:
    """The width that is known, or the parameters of a layer, about 2.5 H^2 + 3 H I, solved for I."""
    if model.mlp_width:
        return model.mlp_width
    if not model.layers or not model.hidden_size:
        return 0
    a_layer = count_linear_parameters(model) / model.layers
    return max(model.hidden_size, int((a_layer - 2.5 * model.hidden_size**2) / (3 * model.hidden_size)))
