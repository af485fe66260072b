"""The loss head: one pass over a frozen vocabulary gives what the plain loss gives, and no full logits."""

import pytest
import torch

from studio.engine import loss as loss_file
from studio.engine.batches import Batch
from studio.engine.loss import LossHead
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


class Spy:
    """An op whose reference notes that it was called."""

    def __init__(self, reference) -> None:
        self.reference = reference
