"""The loss head: one pass over a frozen vocabulary gives what the plain loss gives, and no full logits."""

import pytest
import torch
from transformers import CONFIG_MAPPING, PaliGemmaForConditionalGeneration

from benchmarks.tiny_models import list_families, make_tiny
from studio.engine import loss_head as loss_file
from studio.engine.batches import Batch
from studio.engine.loss_head import LossHead, mark_answers
from tests.models.decoder.models import make_model


def make_batch(vocabulary: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, vocabulary, (2, 24), generator=generator)
    return Batch(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        position_ids=torch.arange(24).expand(2, -1),
        picks=torch.arange(5, 40, 3),
        targets=torch.randint(3, vocabulary, (12,), generator=generator),
    )


def gradients(model: torch.nn.Module, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    total = LossHead(model).token_losses(batch).sum()
    total.backward()
    return total.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_head_in_portions_gives_the_plain_loss_and_gradients(family, trained, monkeypatch):
    model = make_model(family)
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    model.get_output_embeddings().weight.requires_grad_(trained)
    batch = make_batch(model.config.vocab_size)
    plain, expected = gradients(model, batch)
    monkeypatch.setattr(loss_file, "CHUNK_BYTES", 4 * model.config.vocab_size * 2)  # two rows at a time
    passes = []
    real = loss_file.LINEAR_CROSS_ENTROPY.reference.apply
    monkeypatch.setattr(
        loss_file, "LINEAR_CROSS_ENTROPY", Spy(lambda *a, **k: passes.append(1) or real(*a, **k))
    )
    total, found = gradients(model, batch)
    assert bool(passes) is not trained
    assert total == pytest.approx(plain, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


def test_a_prefix_language_model_does_not_see_the_words_that_it_is_to_learn():
    """PaliGemma's attention is open to both sides but where token types say that an answer has begun."""
    text = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
    }
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = CONFIG_MAPPING["paligemma"](
        text_config=text | {"model_type": "gemma", "num_key_value_heads": 2, "intermediate_size": 64},
        vision_config=vision | {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14},
        projection_dim=32,
    )
    torch.manual_seed(0)
    head, batch = LossHead(PaliGemmaForConditionalGeneration(config)), make_batch(64)
    assert head.note is None
    assert mark_answers(batch).sum(1).tolist() == [
        24 - 1 - 5,
        24 - 1 - 2,
    ]  # the first that count: 5, and 26 - 24
    before = head.token_losses(batch)
    batch.input_ids[1, -8:] += 1  # behind all that count but one: at 38 is the last
    assert torch.equal(head.token_losses(batch), before)
    batch.input_ids[1, 2] += 1  # the prompt
    assert not torch.equal(head.token_losses(batch), before)


class Spy:
    """An op whose reference notes that it was called."""

    def __init__(self, reference) -> None:
        self.reference = reference


@pytest.mark.parametrize("name", ["kosmos-2.5", "nemotron_h_omni"])
def test_a_model_is_asked_as_it_counts_and_by_the_head_that_it_has(name):
    """Kosmos-2.5 counts positions from its padding token; Nemotron-H Omni's head is that of the model inside it."""
    torch.manual_seed(0)
    model = make_tiny(next(one for one in list_families() if one.name == name)).float().eval()
    batch = make_batch(200)
    with torch.no_grad():
        logits = model(input_ids=batch.input_ids, use_cache=False).logits.flatten(0, 1)[batch.picks].float()
    wanted = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="none")
    head = LossHead(model)
    torch.testing.assert_close(head.token_losses(batch).detach(), wanted, rtol=1e-4, atol=1e-5)
    assert head.first_position == (2 if name == "kosmos-2.5" else 0)
