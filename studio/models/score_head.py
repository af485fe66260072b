"""The head of a reward model, a number for each place, as transformers' classes for sequence classification have it.

It is trained beside an adapter and saved with it as peft saves modules: `score`. The adapter is then one for sequence
classification, and a merged model is of the family's class for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from studio.models.architectures import SCORING_TASK
from studio.models.language_model import find_language_model, text_inputs

SCORE = "score"


def add_score(model: nn.Module) -> None:
    """Give `model` a score, (1, H) fp32 drawn as transformers draws it, where it has none."""
    if hasattr(model, SCORE):
        return
    config, embedding = model.config.get_text_config(), model.get_input_embeddings()
    head = nn.Linear(config.hidden_size, 1, bias=False, device=embedding.weight.device, dtype=torch.float32)
    nn.init.normal_(head.weight, std=getattr(config, "initializer_range", 0.02))
    model.add_module(SCORE, head)


def free_score(adapted: Any) -> None:
    """Train the score beside an adapter, which becomes one for sequence classification."""
    adapted.get_base_model().get_submodule(SCORE).weight.requires_grad_(True)
    config = adapted.peft_config[adapted.active_adapter]
    config.task_type = SCORING_TASK
    config.modules_to_save = [*dict.fromkeys([*(config.modules_to_save or ()), SCORE])]


class ScoreHead:
    """Computes scores from the hidden states of one causal language model with a score, without adapter wrapper."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.decoder = model, find_language_model(model)

    def token_losses(self, batch: Any) -> Tensor:
        """Return minus the score at each place before a token of `batch` (engine/batches.py) that counts, (N,) fp32."""
        more = text_inputs(self.model, batch.input_ids.shape, batch.input_ids.device)
        hidden = self.decoder(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
            **more,
        ).last_hidden_state
        rows = hidden.reshape(-1, hidden.shape[-1]).index_select(0, batch.picks)
        weight = self.model.get_submodule(SCORE).weight
        with torch.autocast(rows.device.type, enabled=False):
            return -(rows.float() @ weight[0].float())


def make_classifier(model: nn.Module) -> nn.Module:
    """Return a merged `model` with a score as the family's class for sequence classification, which shares its weights.

    Raises ValueError where transformers has none for the family.
    """
    from transformers import AutoModelForSequenceClassification

    config = model.config
    config.num_labels, config.problem_type = 1, None
    if config.get_text_config().pad_token_id is None:
        config.get_text_config().pad_token_id = config.get_text_config().eos_token_id
    with torch.device("meta"):
        classifier = AutoModelForSequenceClassification.from_config(config)
    found = classifier.load_state_dict(model.state_dict(), assign=True, strict=False)
    if found.missing_keys:
        raise ValueError(f"no place for {', '.join(found.missing_keys[:3])}")
    for name, buffer in model.named_buffers():  # such as the rotary frequencies, which no state holds
        place, _, leaf = name.rpartition(".")
        if name in dict(classifier.named_buffers()):
            setattr(classifier.get_submodule(place), leaf, buffer)
    return classifier.eval()


def load_classifier(folder: Path) -> nn.Module:
    """Return the model in `folder`, of a class for sequence classification, in fp32 on the processor."""
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False, local_files_only=True
    ).eval()
