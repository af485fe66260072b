"""Machines and models as plain facts, for the tests of what is decided from them."""

from studio.core.facts import DataFacts, Gpu, MachineFacts, ModelFacts, Verdict
from studio.core.i18n import literal
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe

PACKAGES = {"torch": "2.13.0", "bitsandbytes": "0.50.2", "triton": "3.7.1"}


def make_machine(*gpus: Gpu, **values) -> MachineFacts:
    defaults = {
        "system": "Linux",
        "wsl": False,
        "python": "3.12.4",
        "cores": 8,
        "ram_bytes": 32 * 2**30,
        "packages": PACKAGES,
        "gpus": gpus,
        "driver_cuda": (13, 0) if gpus else (0, 0),
        "torch_cuda": "13.0" if gpus else "",
        "triton_level": "right" if gpus else "installed",
    }
    return MachineFacts(**(defaults | values))


def make_gpu(gigabytes: float = 24, capability: tuple[int, int] = (8, 9), name: str = "RTX 4090") -> Gpu:
    return Gpu(name=name, vram_bytes=int(gigabytes * 2**30), capability=capability)


def make_model(**values) -> ModelFacts:
    """Llama 3.1 8B, unless told otherwise."""
    defaults = {
        "source": "meta/Llama-3.1-8B",
        "name": "meta/Llama-3.1-8B",
        "folder": "/models/llama",
        "architecture": "LlamaForCausalLM",
        "family": "llama",
        "parameters": 8_030_261_248,
        "weight_bytes": 16_060_522_496,
        "dtype": "bf16",
        "quantization": "none",
        "hidden_size": 4096,
        "layers": 32,
        "vocabulary": 128_256,
        "max_positions": 131_072,
        "has_chat_template": True,
        "trainable": Verdict(ok=True),
    }
    return ModelFacts(**(defaults | values))


def make_decoder(layers: int = 32, **values) -> ModelFacts:
    """Llama 3.1 8B with the shapes of its layers, of which there may be more or fewer."""
    linears = {
        "self_attn.q_proj": (4096, 4096),
        "self_attn.k_proj": (1024, 4096),
        "self_attn.v_proj": (1024, 4096),
        "self_attn.o_proj": (4096, 4096),
        "mlp.gate_proj": (14336, 4096),
        "mlp.up_proj": (14336, 4096),
        "mlp.down_proj": (4096, 14336),
    }
    linear_parameters = layers * sum(outputs * inputs for outputs, inputs in linears.values())
    shape = {
        "layers": layers,
        "parameters": linear_parameters + 2 * 128_256 * 4096 + (2 * layers + 1) * 4096,
        "mlp_width": 14336,
        "query_heads": 32,
        "key_heads": 8,
        "head_dim": 128,
        "tied_embeddings": False,
        "linear_parameters": linear_parameters,
        "linears": linears,
        "norms": {"input_layernorm": 4096, "post_attention_layernorm": 4096},
    }
    return make_model(**(shape | values))


def make_small(**values) -> ModelFacts:
    """A 5 million parameter model."""
    shape = {
        "parameters": 5_000_000,
        "hidden_size": 256,
        "layers": 6,
        "vocabulary": 2048,
        "max_positions": 512,
    }
    return make_model(**(shape | {"weight_bytes": 10_000_000} | values))


def make_data(**values) -> DataFacts:
    defaults = {
        "source": "chats.jsonl",
        "format": "messages",
        "reason": literal("column messages"),
        "mapping": {},
        "columns": ("messages",),
        "rows_read": 400,
        "rows_used": 400,
        "rows_refused": 0,
        "content_hash": "0",
    }
    return DataFacts(**(defaults | values))


def make_recipe(changes: dict | None = None) -> Recipe:
    recipe = Recipe(model=ModelChoice(source="demo"), data=DatasetSpec(source="demo", validation_share=0.0))
    return change_recipe(recipe, changes or {})
