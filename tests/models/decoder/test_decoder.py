"""The decoder against the model's own forward and autograd: losses, every gradient, every level of keeping."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from peft import PeftModel
from studio_kernels.attention import Documents
from studio_kernels.dispatch import bind
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models.adapt import unwrap
from studio.models.decoder import activation_offload as offload
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.frozen_weights import ResidentWeights
from studio.models.decoder.parity_check import find_difference
from tests.each_time import some
from tests.models.decoder.double import in_double
from tests.models.decoder.models import FAMILIES, FOREIGN, make_model

LENGTHS = (11, 1, 20)
EACH_TIME = ("llama", "llama3", "qwen2", "gemma3", "phi4", "granite", "olmo2", "glm4", "gemma4",
             "gemma4_e2b", "latent", "latent_v2", "qwen3_5", "lfm2")  # fmt: skip


def make_batch(vocabulary: int = 97) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return token ids of all documents, the rows whose next token is trained, and those tokens."""
    ids = torch.arange(sum(LENGTHS)) * 31 % (vocabulary - 3) + 2
    trained, start = [], 0
    for length in LENGTHS:
        trained += list(range(start + length // 3, start + length - 1))
        start += length
    picks = torch.tensor(trained)
    return ids, picks, ids[picks + 1]


def stock(model: PeftModel, scale: float) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the summed loss and the gradients of the adapters by the model's own code, document by document."""
    ids, picks, targets = make_batch()
    model.zero_grad()
    logits = torch.cat([model(input_ids=part[None]).logits[0] for part in ids.split(LENGTHS)])
    loss = functional.cross_entropy(logits[picks].float(), targets, reduction="sum")
    (loss * scale).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    return loss.item(), gradients


def ours(model: PeftModel, decoder: Decoder, scale: float) -> tuple[float, dict[str, torch.Tensor]]:
    ids, picks, targets = make_batch()
    decoder.store.clear_gradients()
    rows = decoder.make_rows(Documents.of(LENGTHS, "cpu"))
    loss = decoder.add_gradients(ids, rows, picks, targets, scale).sum() / scale
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return loss.item(), {name: decoder.store.gradient(p).clone() for name, p in trained.items()}


def take(model: PeftModel, policy: MemoryPolicy | None = None) -> Decoder:
    decoder = take_over(unwrap(model), bind({}), dtype=torch.float32, policy=policy)
    assert isinstance(decoder, Decoder), decoder
    return decoder


def assert_equal(mine: tuple, theirs: tuple) -> None:
    assert mine[0] == pytest.approx(theirs[0], rel=1e-5)
    assert mine[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        worst = (mine[1][name] - gradient).abs().max() / gradient.abs().max()
        assert worst < 2e-4, (name, worst.item())


@pytest.mark.parametrize("family", some(FAMILIES | FOREIGN, *EACH_TIME))
def test_every_family_gives_the_stock_models_loss_and_gradients(family):
    model = make_model(family)
    theirs = stock(model, 0.37)
    assert_equal(ours(model, take(model), 0.37), theirs)


@pytest.mark.parametrize("family", some(FAMILIES | FOREIGN, *EACH_TIME))
def test_in_float64_loss_and_gradients_are_the_stock_models_to_the_last_digits(family):
    """At most 5e-15 apart, where 1e-9 is asked for: no term of any gradient is missing, however small."""
    model = make_model(family, dtype=torch.float64).double()
    with in_double():
        theirs = stock(model, 0.37)
        decoder = take_over(unwrap(model), bind({}), dtype=torch.float64)
        assert isinstance(decoder, Decoder), decoder
        mine = ours(model, decoder, 0.37)
    assert mine[0] == pytest.approx(theirs[0], rel=1e-12)
    for name, gradient in theirs[1].items():
        assert (mine[1][name] - gradient).norm() < 1e-9 * gradient.norm(), name


@pytest.mark.parametrize(
    "family",
    some(
        [
            "llama",
            "gemma3",
            "granite",
            "olmo2",
            "hunyuan",
            "gemma4",
            "gemma4_e2b",
            "latent",
            "latent_v2",
            *FOREIGN,
        ],
        "llama",
        "gemma3",
        "gemma4",
        "gemma4_e2b",
        "latent",
        "lfm2",
    ),  # fmt: skip
)
@pytest.mark.parametrize("chunk", [0, 8])
def test_what_is_kept_does_not_change_the_numbers(family, chunk):
    model = make_model(family)
    decoder = take(model)
    results = []
    for keeps in (("all",) * 3, ("input",) * 3, ("attention", "qkv", "input")):
        if chunk and "all" in keeps:
            continue
        layers = tuple(LayerPolicy(keep=keep, offload=keep != "all") for keep in keeps)
        layers *= len(decoder.layers) // len(layers)
        decoder.follow(MemoryPolicy(layers=layers, mlp_chunk_tokens=chunk, head_rows=7, head_columns=40))
        results.append(ours(model, decoder, 1.0))
    theirs = stock(model, 1.0)
    for result in results:
        assert_equal(result, theirs)


def test_adapters_on_some_linears_only():
    model = make_model("qwen2", targets=["q_proj", "v_proj", "down_proj"])
    theirs = stock(model, 1.0)
    assert_equal(ours(model, take(model), 1.0), theirs)


def test_evaluation_gives_the_same_loss():
    model = make_model("qwen3")
    loss, _ = stock(model, 1.0)
    decoder = take(model)
    ids, picks, targets = make_batch()
    rows = decoder.make_rows(Documents.of(LENGTHS, "cpu"))
    assert decoder.token_losses(ids, rows, picks, targets).sum().item() == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("family", some(FAMILIES | FOREIGN, "llama", "qwen3", "gemma4_e2b", "lfm2"))
def test_the_probe_finds_no_difference_and_leaves_all_as_it_was(family):
    model = make_model(family)
    decoder = take(model)
    weights, random = decoder.store.weights.clone(), torch.get_rng_state()
    assert find_difference(unwrap(model), decoder, None) is None
    assert torch.equal(decoder.store.weights, weights) and torch.equal(torch.get_rng_state(), random)
    assert_equal(ours(model, decoder, 1.0), stock(model, 1.0))


def test_the_probe_is_content_with_every_policy():
    """Among them one that offloads and takes the MLP in portions, which cannot keep all."""
    model = make_model("llama")
    away = LayerPolicy(keep="attention", offload=True)
    for layers in ((away,) * 3, (LayerPolicy(keep="input"), LayerPolicy(keep="qkv"), LayerPolicy())):
        decoder = take(model, MemoryPolicy(layers=layers, mlp_chunk_tokens=64))
        assert find_difference(unwrap(model), decoder, None) is None
        decoder.release()


@pytest.mark.parametrize("change", ["scale", "head_dim_scale", "eps", "order"])
def test_the_probe_finds_a_wrong_layer(change):
    model = make_model("gemma3")
    decoder = take(model)
    spec = decoder.layers[0].spec
    module = spec.module
    if change == "scale":
        module.mlp.down_proj.scaling["default"] *= 1.3
    elif change == "head_dim_scale":
        module.self_attn.scaling *= 1.3
    elif change == "eps":
        module.input_layernorm.eps = 0.5
    else:
        module.mlp.act_fn = torch.nn.SiLU()
    assert find_difference(unwrap(model), decoder, None) is not None


def test_release_gives_the_stock_model_back():
    model = make_model("llama")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    identity = {name: id(p) for name, p in model.named_parameters()}
    decoder = take(model)
    ours(model, decoder, 1.0)
    decoder.release()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) and id(parameter) == identity[name]
        assert parameter.is_contiguous() and parameter.untyped_storage().nbytes() == parameter.nbytes
    # The decoder may live on (a run's does), its matrices may not: an 8B model's layers take 14 GB in 16 bits.
    for weights in (group.weights for layer in decoder.layers for group in layer.groups):
        assert weights.matrix(decoder.kernels).untyped_storage().nbytes() == 0


def test_without_room_for_opened_weights_none_stay_open(monkeypatch):
    def keep_open(self, wanted, kernels):
        if wanted:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ResidentWeights, "keep_open", keep_open)
    policy = MemoryPolicy(layers=(LayerPolicy(keep="qkv"),) * 3, cached_layers=2)
    decoder = take(make_model("llama"), policy)
    assert decoder.policy == MemoryPolicy(layers=policy.layers)


def test_nothing_holds_a_matrix_after_release():
    """Its parts are kept from one product to the next, and would hold the weights a second time."""
    model = make_model("llama")
    decoder = take(model)
    ours(model, decoder, 1.0)
    kernels = decoder.kernels
    matrices = [
        StorageWeakRef(group.weights.matrix(kernels).untyped_storage())
        for layer in decoder.layers
        for group in layer.groups
    ]
    assert len(matrices) == 12 and not any(one.expired() for one in matrices)
    decoder.release()
    assert all(one.expired() for one in matrices)


def test_nothing_holds_an_opened_matrix_that_is_let_go_of(monkeypatch):
    model, asked = make_model("llama"), []
    decoder = take(model)
    group = decoder.layers[0].groups[0]
    ours(model, decoder, 1.0)
    assert group._places is not None
    monkeypatch.setattr(group.weights, "keep_open", lambda wanted, kernels: asked.append(wanted))
    group.keep_open(False, decoder.kernels)
    assert group._places is None and asked == [False]


def test_linears_without_adapters_get_memory_of_their_own_again_too():
    model = make_model("llama", targets=["q_proj", "v_proj"])
    take(model).release()
    for parameter in model.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes


@pytest.mark.parametrize("chunk", some([0, 8], 0))
def test_dropout_gives_the_gradient_of_what_it_computes(chunk):
    model = make_model("llama", dropout=0.5)
    layers = (LayerPolicy(keep="input"),) * 3
    decoder = take(model, MemoryPolicy(layers=layers, mlp_chunk_tokens=chunk))
    ids, picks, targets = make_batch()
    torch.manual_seed(1)
    direction = torch.randn_like(decoder.store.weights)

    def loss(seed: int, step: float) -> float:
        decoder.store.clear_gradients()
        decoder.store.weights.add_(direction, alpha=step)
        decoder.note_change()
        rows = decoder.make_rows(Documents.of(LENGTHS, "cpu"), torch.tensor(seed))
        found = decoder.add_gradients(ids, rows, picks, targets, 1.0).sum()
        decoder.store.weights.add_(direction, alpha=-step)
        return found.item()

    middle = loss(3, 0.0)
    slope = (decoder.store.gradients.double() @ direction.double()).item()
    step = 5e-4
    numeric = (loss(3, step) - loss(3, -step)) / (2 * step)
    assert numeric == pytest.approx(slope, rel=2e-2)
    assert loss(3, 0.0) == pytest.approx(middle, rel=1e-6) and loss(4, 0.0) != pytest.approx(middle, rel=1e-4)


def test_memory_that_the_system_does_not_pin_is_used_as_it_is(monkeypatch):
    """As under Windows' limits: the block stays, is told nothing of, and is not given back as if it had been pinned."""
    calls = []
    runtime = SimpleNamespace(
        cudaHostRegister=lambda *arguments: calls.append("register") or 801,
        cudaHostUnregister=lambda *arguments: calls.append("unregister"),
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(offload.torch, "zeros", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("801")))
    block = torch.empty(64, dtype=torch.uint8)
    assert offload._register(block) is False
    blocks = {0: offload._Block(block, False)}
    offload._give_back(blocks, SimpleNamespace(synchronize=lambda: None))
    assert calls == ["register"] and not blocks
