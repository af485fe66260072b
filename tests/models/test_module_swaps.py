"""Swapping kernels into real model classes: same numbers, stock restored exactly, wrong kernels kept out."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from studio_kernels.dispatch import OPS, Kernels, bind
from torch import nn

from studio.core.i18n import load_catalogue
from studio.models.module_swaps import Swap, fuse
from studio.models.optimize_model import SWAPPED
from studio.planning.backend_choice import NEEDS_DOTS, NEEDS_DOTS_WHERE_ASKED

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": transformers.LlamaConfig,
    "qwen3": transformers.Qwen3Config,
    "mistral": transformers.MistralConfig,
    "gemma3": transformers.Gemma3TextConfig,
    "phi3": transformers.Phi3Config,
}
# Two layers: norms before attention and MLP, one at the end; Qwen3 has query and key norms, Gemma3 those and two more.
NORMS = {"llama": 5, "qwen3": 9, "mistral": 5, "gemma3": 13, "phi3": 5}
MLPS = {"llama": 2, "qwen3": 2, "mistral": 2, "gemma3": 2, "phi3": 2}
PLAN = {"rms_norm": "triton", "glu": "triton"}


def make_model(family: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    config = CONFIGS[family](**SHAPE)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype)
    with torch.no_grad():  # fresh norms hold nothing but ones (Gemma: zeros), which hides offset and order
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def counted_twins() -> tuple[Kernels, dict[str, int]]:
    """The PyTorch twins under the plan's names, and how often each was called."""
    calls = {"rms_norm": 0, "glu": 0}
    twins = bind({})

    def count(name: str):
        def call(*arguments):
            calls[name] += 1
            return getattr(twins, name)(*arguments)

        return call

    return Kernels(ops={name: count(name) for name in calls}, implementations=PLAN), calls


def loss_and_gradients(model: nn.Module) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    tokens = torch.arange(2 * 11).reshape(2, 11) * 7 % 96
    torch.manual_seed(1)
    model.zero_grad()
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return output.logits.detach(), gradients


def state(model: nn.Module) -> tuple:
    """All that a swap could disturb: module objects, their attributes' names, keys, classes, modes."""
    modules = [
        (name, id(part), type(part), sorted(vars(part)), part.training)
        for name, part in model.named_modules()
    ]
    parameters = [(name, id(p), p.requires_grad) for name, p in model.named_parameters()]
    return modules, parameters, list(model.state_dict())


def assert_same_numbers(one, other, limit: float) -> None:
    (logits, gradients), (other_logits, other_gradients) = one, other
    torch.testing.assert_close(logits, other_logits, rtol=0, atol=limit)
    assert gradients.keys() == other_gradients.keys() and gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, other_gradients[name], rtol=0, atol=limit, msg=name)


@pytest.mark.parametrize("family", CONFIGS)
def test_fused_equals_stock_and_undo_restores_it(family):
    model = make_model(family)
    before = state(model)
    stock = loss_and_gradients(model)
    kernels, calls = counted_twins()

    fused = fuse(model, PLAN, kernels=kernels)

    swapped = [swap.op for swap in fused.swaps]
    assert (swapped.count("rms_norm"), swapped.count("glu")) == (NORMS[family], MLPS[family])
    assert fused.refused == ()
    assert list(model.state_dict()) == before[2]
    calls.update(rms_norm=0, glu=0)
    assert_same_numbers(loss_and_gradients(model), stock, 1e-6)
    assert calls == {"rms_norm": NORMS[family], "glu": MLPS[family]}

    fused.undo()
    fused.undo()
    model.zero_grad(set_to_none=True)
    assert state(model) == before
    calls.update(rms_norm=0, glu=0)
    assert_same_numbers(loss_and_gradients(model), stock, 0)
    assert calls == {"rms_norm": 0, "glu": 0}


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_offset_and_rounding_order_are_found_to_the_last_bit(family):
    model = make_model(family, torch.bfloat16)
    stock = loss_and_gradients(model)
    fused = fuse(model, {"rms_norm": "triton"}, kernels=bind({}))
    assert len(fused.swaps) == NORMS[family]
    assert_same_numbers(loss_and_gradients(model), stock, 0)


def test_norm_kept_in_float32_over_bfloat16_activations():
    model = make_model("llama", torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data = parameter.data.float()
    norm = model.model.norm
    x = torch.randn(3, 32).bfloat16()
    stock = norm(x)
    assert "model.norm" in [swap.path for swap in fuse(model, PLAN, kernels=bind({})).swaps]
    assert norm(x).dtype == torch.float32 and torch.equal(norm(x), stock)


def test_random_state_gradients_and_modes_are_left_alone():
    model = make_model("llama")
    model.eval()
    model.model.layers[0].train()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = state(model)
    fused = fuse(model, PLAN, kernels=bind({}))
    assert torch.equal(torch.rand(3), expected)
    assert all(parameter.grad is None for parameter in model.parameters())
    fused.undo()
    assert state(model) == before


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_lora_inside_the_mlp_keeps_training_and_saving(family, tmp_path):
    targets = ["gate_proj", "up_proj", "down_proj"] if family == "llama" else ["gate_up_proj", "down_proj"]
    torch.manual_seed(2)
    settings = LoraConfig(r=4, target_modules=targets, lora_dropout=0.3, init_lora_weights=False)
    model = get_peft_model(make_model(family), settings)
    model.train()
    before = state(model)
    stock = loss_and_gradients(model)
    assert any("lora_A" in name for name in stock[1])

    fused = fuse(model, PLAN, kernels=bind({}))

    assert [swap.op for swap in fused.swaps].count("glu") == 2
    assert_same_numbers(loss_and_gradients(model), stock, 1e-6)
    model.save_pretrained(tmp_path)
    fused.undo()
    model.zero_grad(set_to_none=True)
    assert state(model) == before
    reloaded = PeftModel.from_pretrained(make_model(family), tmp_path)
    torch.testing.assert_close(
        reloaded.eval()(torch.tensor([[1, 2]])).logits, model.eval()(torch.tensor([[1, 2]])).logits
    )


def test_fused_model_saves_and_copies_like_a_stock_one(tmp_path):
    model = make_model("llama").eval()
    tokens = torch.tensor([[1, 2, 3]])
    stock = model(tokens).logits
    fuse(model, PLAN, kernels=bind({}))
    model.save_pretrained(tmp_path)
    reloaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert torch.equal(reloaded(tokens).logits, stock)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.model.norm.weight.zero_()
    assert torch.equal(twin(tokens).logits, stock), "a copy computes with its own weights"
    assert model(tokens).logits.abs().max() == 0


def wrong(**changes) -> Kernels:
    return Kernels(ops=bind({}).ops | changes, implementations=PLAN)


def failing(*arguments):
    raise RuntimeError("Failed to find C compiler")


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, dh):
        return dh * 1.01


WRONG = {
    "gelu for silu": ("glu", lambda gate, up, kind: nn.functional.gelu(gate) * up, "model.fuse.mismatch"),
    "gate and up exchanged": (
        "glu",
        lambda gate, up, kind: nn.functional.silu(up) * gate,
        "model.fuse.mismatch",
    ),
    "gradient off by a hundredth": (
        "glu",
        lambda gate, up, kind: _WrongGradient.apply(nn.functional.silu(gate) * up),
        "model.fuse.mismatch",
    ),
    "not a number": ("glu", lambda gate, up, kind: gate * float("nan"), "model.fuse.mismatch"),
    "eps forgotten": (
        "rms_norm",
        lambda x, weight, eps, offset, order: bind({}).rms_norm(x, weight, 0.5, offset, order),
        "model.fuse.mismatch",
    ),
    "weight without gradient": (
        "rms_norm",
        lambda x, weight, *rest: bind({}).rms_norm(x, weight.detach(), *rest),
        "model.fuse.mismatch",
    ),
    "another dtype": (
        "rms_norm",
        lambda x, weight, *rest: bind({}).rms_norm(x, weight, *rest).half(),
        "model.fuse.type",
    ),
    "compiler missing": ("glu", failing, "model.fuse.failed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_never_gets_in(name):
    op, function, reason = WRONG[name]
    model = make_model("llama")
    stock = loss_and_gradients(model)
    fused = fuse(model, PLAN, kernels=wrong(**{op: function}))
    assert {text.id for _, text in fused.refused} == {reason}
    assert len(fused.refused) == {"rms_norm": 5, "glu": 2}[op]
    assert op not in {swap.op for swap in fused.swaps} and fused.swaps
    assert_same_numbers(loss_and_gradients(model), stock, 1e-6)


@pytest.mark.parametrize(
    ("activation", "swapped"),
    [("silu", True), ("gelu", True), ("gelu_pytorch_tanh", True), ("gelu_new", True), ("relu", False)],
)
def test_activations_are_told_apart_by_their_values(activation, swapped):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE, hidden_act=activation)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    stock = loss_and_gradients(model)
    fused = fuse(model, {"glu": "triton"}, kernels=bind({}))
    assert len(fused.swaps) == 2 * swapped
    assert [text.id for _, text in fused.refused] == ["model.fuse.activation"] * 2 * (not swapped)
    assert_same_numbers(loss_and_gradients(model), stock, 1e-6)


class GatedNorm(nn.Module):
    """Looks like an RMS norm, but takes a second argument that a swap would lose."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x, gate=None):
        return x if gate is None else x * gate


class CenteredNorm(GatedNorm):
    """An RMS norm by structure, a layer norm by arithmetic."""

    def forward(self, x):
        return nn.functional.layer_norm(x, (8,), self.weight, None, self.eps)


def test_lookalikes_keep_their_code():
    model = nn.ModuleDict({"gated": GatedNorm(), "centered": CenteredNorm(), "layer": nn.LayerNorm(8)})
    fused = fuse(model, PLAN, kernels=bind({}))
    assert fused.swaps == ()
    assert [(path, text.id) for path, text in fused.refused] == [("centered", "model.fuse.mismatch")]


def test_reference_leaves_the_stock_code_and_says_so():
    model = make_model("llama")
    before = state(model)
    fused = fuse(model, {"rms_norm": "reference", "glu": "reference"})
    assert fused.swaps == () and state(model) == before
    assert [text.id for _, text in fused.refused] == ["model.fuse.reference"] * 7


def test_triton_on_a_cpu_is_refused_with_the_kernels_reason():
    model = make_model("llama")
    before = state(model)
    fused = fuse(model, PLAN)
    assert fused.swaps == () and state(model) == before
    for language in ("en", "zh-CN"):
        spoken = load_catalogue(language).say(fused.refused[0][1])
        assert "not a device of type cpu" in spoken and "model.fuse" not in spoken


def test_without_triton_the_stock_code_stays(monkeypatch):
    from studio_kernels import _triton

    monkeypatch.setattr(_triton, "IMPORT_ERROR", "ImportError: DLL load failed while importing libtriton")
    fused = fuse(make_model("llama"), PLAN)
    assert fused.swaps == ()
    assert "libtriton" in load_catalogue("en").say(fused.refused[0][1])


def test_only_what_the_plan_names_is_touched_and_unknown_names_are_refused():
    model = make_model("llama")
    fused = fuse(model, {"glu": "triton"}, kernels=bind({"glu": "reference"}))
    assert fused.swaps == tuple(
        Swap(path=f"model.layers.{i}.mlp", op="glu", implementation="reference") for i in (0, 1)
    )
    assert fused.refused == ()
    with pytest.raises(ValueError, match="no op 'swigloo'"):
        fuse(model, {"swigloo": "triton"})


def test_one_op_alone_can_be_undone():
    model = make_model("llama")
    fused = fuse(model, PLAN, kernels=bind({}))
    fused.undo("glu")
    assert "forward" not in vars(model.model.layers[0].mlp)
    assert "forward" in vars(model.model.norm)


def test_a_module_that_another_library_wrapped_is_left_to_it():
    model = make_model("llama")
    model.model.norm.forward = model.model.norm.forward
    fused = fuse(model, PLAN, kernels=bind({}))
    assert [(path, text.id) for path, text in fused.refused] == [("model.norm", "model.fuse.foreign")]
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda x: x
    with pytest.raises(RuntimeError, match="model.layers.0.mlp was wrapped"):
        fused.undo()


def test_weights_that_are_not_in_memory_are_left_alone():
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"](**SHAPE))
    fused = fuse(model, PLAN, kernels=bind({}))
    assert {text.id for _, text in fused.refused} == {"model.fuse.no_weights"}


def test_every_op_that_a_plan_decides_has_a_swapper():
    from studio.models.module_swaps import SWAPPERS

    assert [swapper.op for swapper in SWAPPERS] == [
        op for op in (*NEEDS_DOTS, *NEEDS_DOTS_WHERE_ASKED) if op in SWAPPED
    ]
    assert {swapper.op for swapper in SWAPPERS} <= {op.name for op in OPS}
