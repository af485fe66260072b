"""A folder's tensors as the model's weights: those without dimensions, too."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from studio.models.converted_weights import ConvertedWeights


def test_a_weight_without_dimensions_is_read_and_stored(tiny_models, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_models("llama"), dtype=torch.float32)
    model.model.scale = torch.nn.Parameter(torch.tensor(0.75))
    model.save_pretrained(tmp_path)
    converted = ConvertedWeights(model, tmp_path)
    assert converted.read("model.scale").item() == 0.75
    (group,) = (one for one in converted.groups if "model.scale" in one.names)
    assert group.shapes == {"model.scale": ()}
    assert converted.store({"model.scale": torch.tensor(0.5)}) == {"model.scale": torch.tensor(0.5)}
