"""Opens a GGUF file as the 16-bit folder that transformers, peft and the studio load."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig


def open_gguf(file: Path, folder: Path) -> Path:
    """Write the model and tokenizer of `file` into `folder` in bfloat16 and return `folder`; needs the package gguf.

    SmolLM2-135M takes 20 s on two cores and 1.5 GB of memory: every number is opened as fp32.
    """
    opened = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    config = opened.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the file's, which the opened weights have no longer
    # A new model: what was read from a GGUF remembers it and cannot be saved.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(opened.state_dict())
    model.generation_config = GenerationConfig.from_model_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
