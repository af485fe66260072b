"""Quantises while transformers reads: what bitsandbytes takes, experts, and linears of a model's own class."""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.nn import Linear4bit
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import (
    AUTO_QUANTIZER_MAPPING,
    register_quantizer,
)
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name, should_convert_module
from transformers.utils.quantization_config import QuantizationMethod

from studio.models.nf4_experts import (
    IMPLEMENTATION,
    STACKS,
    Nf4Stack,
    is_experts,
    list_stacks,
    register_implementation,
)

METHOD = "studio_nf4"
"""What transformers calls Nf4Quantizer."""


class Nf4Config(BitsAndBytesConfig):
    """bitsandbytes' settings for NF4 with double quantisation, for Nf4Quantizer."""

    def __init__(self, compute_dtype: torch.dtype, kept: list[str] | None) -> None:
        super().__init__(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute_dtype,
            llm_int8_skip_modules=kept,
        )
        self.quant_method = METHOD


class Nf4Quantizer(Bnb4BitHfQuantizer):
    """bitsandbytes' quantizer, and an Nf4Stack in the place of each parameter that holds the matrices of experts."""

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        """Whether a parameter is to be held in 4 bits."""
        module, name = get_module_from_name(model, param_name)
        return _is_stack(module, name) or super().param_needs_quantization(model, param_name, **kwargs)

    def get_quantize_ops(self) -> ConversionOps:
        """Return the operation that transformers applies to each such parameter once it is read and merged."""
        return _Quantize(super().get_quantize_ops())

    def _process_model_before_weight_loading(self, model: Any, device_map: Any, **kwargs: Any) -> None:
        super()._process_model_before_weight_loading(model, device_map, **kwargs)
        settings = self.quantization_config
        for name, module in list(model.named_modules()):
            if not _is_plain_linear(module) or not should_convert_module(name, self.modules_to_not_convert):
                continue
            with torch.device("meta"):
                ours = Linear4bit(
                    module.in_features,
                    module.out_features,
                    module.bias is not None,
                    settings.bnb_4bit_compute_dtype,
                    compress_statistics=settings.bnb_4bit_use_double_quant,
                    quant_type=settings.bnb_4bit_quant_type,
                    quant_storage=settings.bnb_4bit_quant_storage,
                )
            ours.source_cls = nn.Linear  # whether its weight is to be turned
            ours.requires_grad_(False)
            model.set_submodule(name, ours)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        model = super()._process_model_after_weight_loading(model, **kwargs)
        # Linears are stored as bitsandbytes stores them, so that anyone can load what is saved.
        self.quantization_config.quant_method = QuantizationMethod.BITS_AND_BYTES
        model.quantization_method = QuantizationMethod.BITS_AND_BYTES
        found = [
            (module, name, parameter.stack)
            for module in model.modules()
            for name, parameter in list(module.named_parameters(recurse=False))
            if hasattr(parameter, "stack")
        ]
        for module, name, stack in found:
            delattr(module, name)
            module.add_module(name, stack)
        if found:
            register_implementation()
            for module, _, _ in found:
                module.config._experts_implementation = IMPLEMENTATION
        return model

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        stacks = list_stacks(model)
        for full_name, stack in stacks:
            module, name = get_module_from_name(model, full_name)
            delattr(module, name)
            weight = stack.open_all(dtype or stack.dtype)
            module.register_parameter(name, nn.Parameter(weight, requires_grad=False))
            module.config._experts_implementation = "eager"
        return super()._dequantize(model, dtype)


class _Quantize(ConversionOps):
    """Bnb4bitQuantize for linears; a stack for experts, carried by its packed weights until all are read."""

    def __init__(self, linears: ConversionOps) -> None:
        self.linears = linears

    def convert(
        self, input_dict: dict[str, Any], *, model: Any = None, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        result = {}
        for full_name, value in input_dict.items():
            module, name = get_module_from_name(model, full_name)
            if not _is_stack(module, name):
                result |= self.linears.convert({full_name: value}, model=model, **kwargs)
                continue
            stack = Nf4Stack(value[0] if isinstance(value, list) else value)
            carrier = nn.Parameter(stack.packed, requires_grad=False)
            carrier.stack = stack
            result[full_name] = carrier
        return result


def nf4_config(compute_dtype: torch.dtype, kept: list[str] | None = None) -> Nf4Config:
    """Return what from_pretrained takes as quantization_config, for products in `compute_dtype`.

    `kept`: names of modules that stay as they are; None: the output embeddings.
    """
    if METHOD not in AUTO_QUANTIZER_MAPPING:
        register_quantizer(METHOD)(Nf4Quantizer)
    return Nf4Config(compute_dtype, kept)


def _is_stack(module: nn.Module, name: str) -> bool:
    return name in STACKS and is_experts(module)


def _is_plain_linear(module: nn.Module) -> bool:
    """Whether `module` is of a subclass of nn.Linear that computes what nn.Linear does, tried on a small one.

    Falcon's is; the routers of Llama 4 return two tensors.
    """
    if not isinstance(module, nn.Linear) or isinstance(module, Linear4bit) or type(module) is nn.Linear:
        return False
    with torch.device("cpu"), torch.no_grad():
        small, rows = nn.Linear(4, 3), torch.linspace(-1, 1, 8).view(2, 4)
        try:
            found = type(module).forward(small, rows)
        except (AttributeError, TypeError, RuntimeError):  # it needs what nn.Linear has not
            return False
        return isinstance(found, torch.Tensor) and torch.equal(found, small(rows))
