"""All weights trained by the decoder: every gradient against autograd through the model's own code, and its proof."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.attention import Documents
from studio_kernels.dispatch import bind
from torch import nn
from torch.nn import functional

from studio.core.i18n import Text
from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.parity_check import find_difference
from tests.each_time import some, some_of_several
from tests.models.decoder.models import FAMILIES, make_whole_model

OWN = ("gemma4_e2b", "gemma3n")
"""What is trained whole by its own code: our blocks make the inputs of its layers without a gradient."""
WHOLE = [family for family in FAMILIES if family not in OWN]
LENGTHS = (11, 1, 20, 9, 14, 3, 8, 17)
"""Of the documents of a step; the second has nothing to learn."""


def take(model: nn.Module, dtype: torch.dtype, policy: MemoryPolicy | None = None) -> Decoder:
    decoder = take_over(model, bind({}), dtype=dtype, policy=policy)
    assert isinstance(decoder, Decoder), decoder
    return decoder


def make_documents() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (ids, places whose next token is learned) of each; among the ids the padding token and repeated ones."""
    draw = torch.Generator().manual_seed(3)
    found = []
    for length in LENGTHS:
        ids = torch.randint(0, 40, (length,), generator=draw)
        found.append((ids, torch.arange(length // 3, length - 1)))
    return found


def stock(model: nn.Module, scale: float) -> dict[str, torch.Tensor]:
    """Return the gradients of `scale` times the summed loss by autograd, document by document."""
    model.zero_grad()
    for ids, picks in make_documents():
        if len(picks):
            logits = model(input_ids=ids[None]).logits[0, picks]
            (functional.cross_entropy(logits, ids[picks + 1], reduction="sum") * scale).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return gradients


def ours(model: nn.Module, decoder: Decoder, scale: float, cuts: int = 1) -> dict[str, torch.Tensor]:
    """Return the same by the decoder, the documents cut into so many micro-steps."""
    decoder.store.clear_gradients()
    decoder.note_change()
    documents = make_documents()
    size = len(documents) // cuts
    for part in (documents[start : start + size] for start in range(0, len(documents), size)):
        ids = torch.cat([one for one, _ in part])
        starts = torch.tensor([0, *(len(one) for one, _ in part)]).cumsum(0)
        picks = torch.cat([picks + start for (_, picks), start in zip(part, starts, strict=False)])
        if len(picks):
            rows = decoder.make_rows(Documents.of([len(one) for one, _ in part], "cpu"))
            decoder.add_gradients(ids, rows, picks, ids[picks + 1], scale)
    return {name: decoder.store.gradient(p).clone() for name, p in model.named_parameters()}


def worst(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Return the largest difference as a share of a gradient's largest value."""
    assert mine.keys() == theirs.keys()
    return max(((mine[n] - g).abs().max() / g.abs().max()).item() for n, g in theirs.items())


@pytest.mark.parametrize("family", OWN)
def test_what_has_inputs_of_its_layers_is_not_taken_over_whole(family):
    reason = take_over(make_whole_model(family), bind({}), dtype=torch.float32)
    assert isinstance(reason, Text) and reason.values["part"] == "per_layer_model_projection.weight"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", some(WHOLE, "llama", "qwen2", "gemma3", "granite", "olmo2", "glm4"))
def test_every_gradient_is_that_of_the_models_own_code(family, tied):
    """In float64, but for the norms, which compute in fp32 in transformers."""
    model = make_whole_model(family, dtype=torch.float64, tie_word_embeddings=tied)
    theirs = stock(model, 0.37)
    assert worst(ours(model, take(model, torch.float64), 0.37), theirs) < 1e-5


@pytest.mark.parametrize("family", some(["llama", "qwen2", "gemma3"], "llama"))
def test_a_step_cut_into_micro_steps_adds_up_to_the_same(family):
    model = make_whole_model(family, dtype=torch.float64)
    decoder = take(model, torch.float64)
    whole = ours(model, decoder, 1.0)
    for cuts in (2, 4, 8):
        assert worst(ours(model, decoder, 1.0, cuts), whole) < 1e-12
    model = make_whole_model(family)
    decoder = take(model, torch.bfloat16)
    whole, cut = (torch.cat([g.flatten() for g in ours(model, decoder, 1.0, n).values()]) for n in (1, 8))
    assert functional.cosine_similarity(whole, cut, dim=0) > 0.9999


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_what_is_kept_does_not_change_the_gradients(family):
    model = make_whole_model(family, dtype=torch.float64)
    decoder = take(model, torch.float64)
    whole = ours(model, decoder, 1.0)
    for keeps, chunk, head in ((("input",) * 3, 8, 7), (("attention", "qkv", "input"), 0, 0)):
        layers = tuple(LayerPolicy(keep=keep, offload=True) for keep in keeps)
        decoder.follow(MemoryPolicy(layers=layers, mlp_chunk_tokens=chunk, head_rows=head, head_columns=40))
        assert worst(ours(model, decoder, 1.0), whole) < 1e-12


def test_weights_are_kept_in_fp32_and_multiply_in_16_bits():
    model = make_whole_model("qwen2")
    decoder = take(model, torch.bfloat16)
    store = decoder.store
    assert store.weights.dtype == store.gradients.dtype == torch.float32
    assert all(p.dtype == torch.float32 and p.ndim >= 2 for p in store.parameters[: 3 * 7 + 1])
    before = ours(model, decoder, 1.0)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.add_(0.3)
        model.model.layers[1].self_attn.q_proj.bias.add_(0.3)
    after = ours(model, decoder, 1.0)
    assert worst(after, before) > 0.01, "a change of the weights reaches what multiplies"
    assert torch.equal(store.rounded, store.weights.bfloat16())
    matrices = sum(p.numel() for p in model.parameters() if p.ndim >= 2)
    assert matrices <= store.decayed_count < matrices + 128 * len(store.parameters)
    assert all(p.ndim >= 2 or store._places[id(p)] >= store.decayed_count for p in store.parameters)


def test_release_gives_every_weight_memory_of_its_own():
    model = make_whole_model("llama", tie_word_embeddings=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    take(model, torch.bfloat16).release()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
    assert model.lm_head.weight is model.model.embed_tokens.weight


FP32, BF16 = (torch.float32, None), (torch.bfloat16, torch.bfloat16)
ALL_DTYPES = [FP32, BF16, (torch.float16, torch.float16)]


@pytest.mark.parametrize(("dtype", "autocast"), some_of_several(ALL_DTYPES, BF16), ids=str)
@pytest.mark.parametrize("family", some(WHOLE, "llama", "gemma3", "glm4"))
def test_the_probe_finds_no_difference_and_leaves_all_as_it_was(family, dtype, autocast):
    model = make_whole_model(family)
    decoder = take(model, dtype)
    decoder.store.gradients.fill_(0.5)
    weights, random = decoder.store.weights.clone(), torch.get_rng_state()
    assert find_difference(model, decoder, autocast) is None
    assert torch.equal(decoder.store.weights, weights) and torch.equal(torch.get_rng_state(), random)
    assert decoder.store.gradients.eq(0.5).all()
    assert all(p.dtype == torch.float32 for p in model.parameters())


def forget_product(decoder: Decoder, monkeypatch) -> None:
    decoder.layers[1].mlp.down.dw = None


def add_other_group(decoder: Decoder, monkeypatch) -> None:
    """Query and output have the same shape: each other's place would take the sum."""
    group = decoder.layers[0].attention.output
    group.dw = decoder.layers[1].attention.output.dw


def keep_last_only(decoder: Decoder, monkeypatch) -> None:
    """Each portion of an MLP writes over what the ones before it have added."""
    real = LinearGroup.gradient_w

    def write(self, dy, x, *given):
        if self is decoder.layers[2].mlp.gate_up and self.dw is not None:
            dy, x = dy[: len(dy) // 2], x[: len(x) // 2]
        real(self, dy, x, *given)

    monkeypatch.setattr(LinearGroup, "gradient_w", write)


def forget_bias(decoder: Decoder, monkeypatch) -> None:
    decoder.layers[2].attention.qkv.dbias = None


def forget_norm(decoder: Decoder, monkeypatch) -> None:
    decoder.layers[0].norm_gradients["mlp_norm"] = None


def swap_head_norms(decoder: Decoder, monkeypatch) -> None:
    norms = decoder.layers[1].norm_gradients
    norms["query_norm"], norms["key_norm"] = norms["key_norm"], norms["query_norm"]


def forget_scale(decoder: Decoder, monkeypatch) -> None:
    decoder.embedding.scale = 1.0


def count_tied_once(decoder: Decoder, monkeypatch) -> None:
    monkeypatch.setattr(type(decoder.embedding), "backward", lambda self, ids, dx: None)


def stop_before_the_embedding(decoder: Decoder, monkeypatch) -> None:
    real = Decoder._go_back

    def go(self, upstream, kept, rows, ids):
        gradient, self.embedding.gradient = self.embedding.gradient, None
        real(self, upstream, kept, rows, ids)
        self.embedding.gradient = gradient

    monkeypatch.setattr(Decoder, "_go_back", go)


def forget_head(decoder: Decoder, monkeypatch) -> None:
    real = Decoder._losses

    def lose(self, *arguments):
        before = self.store.gradient(self.spec.head.weight).clone()
        found = real(self, *arguments)
        self.store.gradient(self.spec.head.weight).copy_(before)
        return found

    monkeypatch.setattr(Decoder, "_losses", lose)


FAULTS = [
    ("llama", forget_product), ("llama", add_other_group), ("llama", keep_last_only), ("qwen2", forget_bias),
    ("llama", forget_norm), ("qwen3", swap_head_norms), ("gemma3", forget_scale), ("gemma3", count_tied_once),
    ("gemma3", stop_before_the_embedding), ("llama", stop_before_the_embedding), ("gemma3", forget_head),
    ("llama", forget_head),
]  # fmt: skip
EACH_TIME = [
    ("llama", forget_product), ("qwen2", forget_bias), ("llama", forget_norm), ("gemma3", forget_scale),
    ("gemma3", count_tied_once), ("llama", forget_head),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "autocast"), some_of_several([FP32, BF16], FP32), ids=str)
@pytest.mark.parametrize(("family", "plant"), some_of_several(FAULTS, *EACH_TIME))
def test_the_probe_refuses_a_wrong_gradient(family, plant, dtype, autocast, monkeypatch):
    model = make_whole_model(family)
    decoder = take(model, dtype)
    plant(decoder, monkeypatch)
    said = find_difference(model, decoder, autocast)
    assert isinstance(said, Text) and said.id == "model.decoder.mismatch"


def test_what_is_partly_trained_or_strange_is_refused():
    model = make_whole_model("llama")
    model.model.norm.weight.requires_grad_(False)
    assert take_over(model, bind({}), dtype=torch.float32).id == "model.decoder.trained"
    model = make_whole_model("llama")
    model.model.embed_tokens.scale_grad_by_freq = True
    assert take_over(model, bind({}), dtype=torch.float32).values["part"] == "embed_tokens"
    model = make_whole_model("llama", dtype=torch.bfloat16)
    assert "bfloat16" in take_over(model, bind({}), dtype=torch.bfloat16).values["part"]
