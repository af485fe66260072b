"""What is predicted of a layer's memory is what the decoder holds and allocates, byte for byte where it can be."""

import dataclasses

import pytest
import torch
from studio_kernels import dispatch
from studio_kernels.attention import Documents
from torch.profiler import ProfilerActivity, profile

from studio.core.memory_policy import KEEP_LEVELS, LayerPolicy, MemoryPolicy
from studio.models.adapt import adapt
from studio.models.catalog import inspect_model
from studio.models.decoder.decoder import take_over
from studio.planning.decoder_shape import read_decoder
from studio.planning.layer_memory import kept_bytes, moved_bytes, peak_of_layers, phase_bytes
from studio.planning.run_plan import plan
from tests.conftest import make_model, make_tokenizer
from tests.each_time import some
from tests.machine.facts import make_machine, make_recipe
from tests.models.decoder import models

TOKENS = 512
WIDE = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}
"""Wide enough for tensors of T rows to outweigh all else."""
SIZES = {
    "gemma4": {"layer_types": ["full_attention"] * 2},  # on a processor windows are composed, and keep no log-sums
    # With an MLP that outweighs attention, which takes its gradients twice on a processor.
    "latent": {"qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 48, "q_lora_rank": 48,
               "intermediate_size": 768},
}  # fmt: skip
"""Of families whose heads are of several widths."""


@pytest.fixture(
    scope="module",
    params=some(
        ["llama", "qwen3", "gemma3", "phi3", "granite", "olmo2", "glm4", "hunyuan", "gemma4", "latent"],
        "llama",
        "gemma3",
        "olmo2",
        "gemma4",
        "latent",
    ),
)
def run(request, tmp_path_factory):
    """A model in fp32 with adapters, and the shape that is read from its folder."""
    import transformers

    folder = make_model(
        tmp_path_factory.mktemp("wide") / request.param,
        request.param,
        **WIDE | SIZES.get(request.param, {}),
    )
    facts = inspect_model(str(folder))
    recipe = make_recipe({"data.max_length": TOKENS, "optim.micro_batch": 1})
    shape = read_decoder(plan(make_machine(), recipe, facts), facts, recipe)
    model = adapt(transformers.AutoModelForCausalLM.from_pretrained(folder), recipe.adapter)
    return model, shape


def take(run, policy):
    kernels = dispatch.bind({op.name: "reference" for op in dispatch.OPS})
    return take_over(run[0], kernels, dtype=torch.float32, policy=policy)


def sum_storages(kept) -> int:
    """Return the bytes of all tensors that a SavedLayer holds, a shared storage once."""
    held = [
        getattr(block, field.name)
        for block in (getattr(kept, field.name) for field in dataclasses.fields(kept))
        for field in dataclasses.fields(block)
    ]
    tensors = [one for value in held for one in (value if isinstance(value, tuple) else (value,))]
    storages = [one.untyped_storage() for one in tensors if one is not None]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def measure_peak(act) -> int:
    """Return the most bytes that `act` holds at a time beyond what was there before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        act()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("keep", KEEP_LEVELS)
def test_a_layer_keeps_what_is_predicted_and_its_mlp_needs_that(run, keep):
    _, shape = run
    decoder = take(run, MemoryPolicy(layers=(LayerPolicy(keep=keep),) * 2))
    rows = decoder.make_rows(Documents.of([TOKENS - 96, 96], "cpu"))
    layer = decoder.layers[1]
    with torch.no_grad():
        kept = layer.forward(torch.randn(TOKENS, 64), rows, decoder.kernels, keep)[1]
    assert sum_storages(kept) == TOKENS * kept_bytes(shape, keep)
    moved = kept.move_out()
    assert sum(tensor.nbytes for tensor in moved.values()) == TOKENS * moved_bytes(shape, keep)
    kept.move_in(moved)
    del moved
    dy = layer.outer.widen_gradient(TOKENS).zero_()
    with torch.no_grad():
        peak = dy.nbytes + measure_peak(lambda: layer.backward(kept, [dy], rows, decoder.kernels))
    decoder.release()
    assert peak == pytest.approx(phase_bytes(shape, keep, TOKENS)["mlp"], rel=0.04)


@pytest.mark.parametrize(
    "policy",
    [
        MemoryPolicy(layers=(LayerPolicy(),) * 2),
        MemoryPolicy(layers=(LayerPolicy(keep="input"), LayerPolicy(keep="all"))),
        MemoryPolicy(layers=(LayerPolicy(keep="input"),) * 2, head_rows=128, head_columns=128),
    ],
    ids=["all", "mixed", "input"],
)
def test_a_micro_step_needs_what_is_predicted(run, policy):
    _, shape = run
    decoder = take(run, policy)
    rows = decoder.make_rows(Documents.of([TOKENS], "cpu"))
    picks = torch.arange(TOKENS - 1)
    ids = torch.randint(0, 512, (TOKENS,), generator=torch.Generator().manual_seed(0))

    def step():
        decoder.add_gradients(ids, rows, picks, ids[1:], 1.0)

    step()
    peak = measure_peak(step)
    decoder.release()
    assert peak == pytest.approx(sum(peak_of_layers(shape, TOKENS, policy)), rel=0.08)


@pytest.mark.parametrize("keep", ["all", "input"])
def test_inputs_of_layers_and_keys_that_others_borrow_are_counted(keep, tmp_path):
    """Beside what each layer keeps; the MLPs of those that borrow are twice as wide."""
    import transformers

    kind, extra = models.FAMILIES["gemma4_e2b"]
    settings = WIDE | extra | {"layer_types": ["full_attention"] * 6, "vocab_size_per_layer_input": 512}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "global_head_dim": 16, "pad_token_id": 0}
    transformers.AutoModelForCausalLM.from_config(kind(**settings)).save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    facts = inspect_model(str(tmp_path))
    recipe = make_recipe({"data.max_length": TOKENS, "optim.micro_batch": 1})
    shape = read_decoder(plan(make_machine(), recipe, facts), facts, recipe)
    assert (shape.input_width, shape.lent, shape.widest_mlp) == (8, 2 * 32, 2 * 192)
    run = adapt(transformers.AutoModelForCausalLM.from_pretrained(tmp_path), recipe.adapter), shape
    test_a_micro_step_needs_what_is_predicted(run, MemoryPolicy(layers=(LayerPolicy(keep=keep),) * 6))


@pytest.mark.parametrize("keep", KEEP_LEVELS)
def test_several_streams_are_counted(keep, tmp_path):
    """What a layer keeps to the byte, and a micro-step within 8 %: gates are cut, streams made and brought together."""
    import transformers

    kind, extra = models.FAMILIES["gemma3n"]
    settings = WIDE | extra | {"layer_types": ["full_attention"] * 6, "vocab_size_per_layer_input": 512}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    transformers.AutoModelForCausalLM.from_config(kind(**settings)).save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    facts = inspect_model(str(tmp_path))
    recipe = make_recipe({"data.max_length": TOKENS, "optim.micro_batch": 1})
    shape = read_decoder(plan(make_machine(), recipe, facts), facts, recipe)
    assert (shape.streams, shape.input_width, shape.lent) == (4, 8, 2 * 32)
    run = adapt(transformers.AutoModelForCausalLM.from_pretrained(tmp_path), recipe.adapter), shape
    policy = MemoryPolicy(layers=(LayerPolicy(keep=keep),) * 6)
    decoder = take(run, policy)
    rows = decoder.make_rows(Documents.of([TOKENS - 96, 96], "cpu"))
    rows.shared.start(torch.randn(TOKENS, 6, 8))
    x = torch.randn(TOKENS, 4 * 64)
    with torch.no_grad():
        kept = [layer.forward(x, rows, decoder.kernels, keep)[1] for layer in decoder.layers]
    # Half of the layers borrow their keys: what is predicted is the mean layer.
    assert sum(map(sum_storages, kept)) == 6 * TOKENS * kept_bytes(shape, keep)
    moved = sum(tensor.nbytes for one in kept for tensor in one.move_out().values())
    assert moved == 6 * TOKENS * moved_bytes(shape, keep)
    decoder.release()
    test_a_micro_step_needs_what_is_predicted(run, policy)
