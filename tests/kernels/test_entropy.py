"""The entropies that the loss head gives beside its losses, against all logits in float64."""

import pytest
import torch
from studio_kernels.linear_cross_entropy import reference_forward

ROWS, WIDTH, WORDS = 37, 24, 211


def make_inputs(sharp=1.0):
    chance = torch.Generator().manual_seed(3)
    hidden = torch.randn(ROWS, WIDTH, generator=chance)
    weight = torch.randn(WORDS, WIDTH, generator=chance) * sharp
    targets = torch.randint(0, WORDS, (ROWS,), generator=chance)
    targets[::5] = -100
    return hidden, weight, targets


def expect(hidden, weight, *, softcap=0.0, logit_scale=1.0, bias=None):
    logits = (hidden.double() @ weight.double().T + (0 if bias is None else bias.double())) * logit_scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    shares = logits.softmax(1)
    return torch.special.entr(shares).sum(1).float()


@pytest.mark.parametrize("sharp", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("columns", [16, 64, 1024])
@pytest.mark.parametrize(
    "options",
    [{}, {"softcap": 5.0}, {"logit_scale": 1 / 0.7}, {"softcap": 3.0, "logit_scale": 1.6}, {"bias": True}],
)
def test_entropies_are_those_of_all_words(sharp, columns, options):
    hidden, weight, targets = make_inputs(sharp)
    options = dict(options)
    if options.pop("bias", False):
        options["bias"] = torch.linspace(-3, 60, WORDS)  # later tiles exceed earlier ones by far
    found = torch.empty(ROWS)
    given = {"reduction": "none", "rows": 16, "columns": columns, **options}
    losses, gradient = reference_forward(hidden, weight, targets, entropies=found, **given)
    # Logits of 200 are rounded to 2e-5.
    torch.testing.assert_close(found, expect(hidden, weight, **options), rtol=1e-5, atol=2e-6 * max(1, sharp))
    plain_losses, plain_gradient = reference_forward(hidden, weight, targets, **given)
    assert torch.equal(losses, plain_losses) and torch.equal(gradient, plain_gradient), "it only looks"


def test_words_that_are_ruled_out_count_nothing():
    hidden, weight, targets = make_inputs()
    bias = torch.zeros(WORDS)
    bias[40:] = -torch.inf
    found = torch.empty(ROWS)
    reference_forward(
        hidden,
        weight,
        targets.clamp(-100, 39),
        entropies=found,
        bias=bias,
        columns=16,
        gradient=False,
        reduction="none",
    )
    torch.testing.assert_close(found, expect(hidden, weight[:40]), rtol=1e-5, atol=2e-6)


def test_a_head_that_is_trained_gives_them_too():
    hidden, weight, targets = make_inputs()
    found, gradient = torch.empty(ROWS), torch.zeros(WORDS, WIDTH)
    reference_forward(hidden, weight, targets, entropies=found, weight_gradient=gradient, reduction="none")
    torch.testing.assert_close(found, expect(hidden, weight), rtol=1e-5, atol=2e-6)
    assert gradient.abs().sum() > 0
