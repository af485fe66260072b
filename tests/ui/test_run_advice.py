"""What is said of a run's curves: each verdict on a curve that shows it, and on none that does not."""

from __future__ import annotations

import math
import random
import time

import pytest

from studio.core.events import EvalLogged, GpuSampled, Metric, PhaseStarted, RunFinished, StepLogged
from studio.core.i18n import load_catalogue
from studio.ui.run_state import LiveView, fold
from studio.ui.tabs.training.run_advice import judge

NOISE = 0.15


def curve(shape, count: int = 300, evals=None, every: int = 30, **changes) -> LiveView:
    """A run whose loss is shape(step) with noise; `evals` gives the validation loss, `changes` more of each step."""
    chance = random.Random(0)
    events = [PhaseStarted(seq=1, time_s=0.0, phase="train")]
    for i in range(1, count + 1):
        more = {name: value(i) if callable(value) else value for name, value in changes.items()}
        loss = shape(i) + chance.uniform(-NOISE, NOISE)
        events.append(
            StepLogged(
                seq=len(events) + 1,
                time_s=float(i),
                step=i,
                total_steps=count + 100,
                epoch=0.0,
                loss=loss,
                **({"lr": 2e-4, "grad_norm": 1.0 + chance.random(), "tokens_per_s": 100.0} | more),
            )  # fmt: skip
        )
        if evals and i % every == 0:
            events.append(EvalLogged(seq=len(events) + 1, time_s=float(i), step=i, loss=evals(i)))
    named = events[-1].metrics if isinstance(events[-1], StepLogged) else {}
    return fold(LiveView(metrics=tuple(Metric(name=name) for name in named)), events)


def falling(i: int) -> float:
    return 1.0 + 2.0 * math.exp(-i / 80)


def ids(view: LiveView, state: str = "running", now_s: float = 0.0, method: str = "lora") -> list[str]:
    return [one.id for one in judge(view, state, now_s or view.updated_s + 1, method)]


def test_a_loss_that_falls_is_all_there_is_to_say():
    verdict = judge(curve(falling), "running", 301.0)[0]
    assert (verdict.id, verdict.level) == ("falling", "good")
    assert ids(curve(falling, evals=lambda i: falling(i) + 0.1)) == ["falling"]


def test_how_far_the_loss_fell_is_told_as_the_curve_shows_it():
    """A curve that begins at 8.6 and falls at once: what is compared are two means, and the words say so."""
    steep = curve(lambda i: 0.5 + 8.1 * math.exp(-(i - 1) / 5), count=100)
    (verdict,) = judge(steep, "stopped", 101.0)
    losses = list(steep.points.column("step", "loss"))
    values = verdict.what.values
    assert values["begun"] == round(sum(losses[:20]) / 20, 3) < losses[0] / 2
    assert values["now"] == round(sum(losses[-20:]) / 20, 3)
    words = load_catalogue("en").say(verdict.what)
    assert f"{values['begun']:.4g} on average over the first 20 steps" in words
    assert f"{values['now']:.4g} over the last 20" in words


@pytest.mark.parametrize("count", [0, 1, 5, 19, 40, 59])
def test_little_is_said_of_a_run_that_has_just_begun(count):
    assert ids(curve(falling, count)) == []


def test_a_loss_that_stays_is_flat():
    assert ids(curve(lambda i: 2.5)) == ["flat"]
    assert ids(curve(lambda i: 2.5, count=6000)) == ["flat"]


def test_a_loss_that_rises_diverges():
    assert ids(curve(lambda i: falling(i) if i < 150 else falling(150) + (i - 150) / 40))[0] == "diverging"


def test_a_run_that_has_learned_what_there_is_is_not_flat():
    assert ids(curve(falling, count=5000)) == ["falling"]


def test_noise_alone_does_not_diverge():
    assert "diverging" not in ids(curve(lambda i: 0.3, count=500))


def test_a_validation_loss_that_rises_while_training_falls_is_learning_by_heart():
    verdicts = judge(curve(falling, evals=lambda i: 1.5 + abs(i - 90) / 200), "running", 301.0)
    assert verdicts[0].id == "overfitting" and verdicts[0].what.values["step"] == 90
    assert "falling" not in [one.id for one in verdicts]
    assert "overfitting" not in ids(curve(falling, evals=lambda i: 1.5 - i / 1000))
    one_bad = curve(falling, evals=lambda i: 1.6 if i == 300 else 1.5 - i / 1000)
    assert "overfitting" not in ids(one_bad), "one evaluation is no course"


def test_a_rate_that_is_far_too_small_is_named():
    assert ids(curve(lambda i: 2.5 - i / 10_000, lr=1e-6)) == ["rate_low"]
    assert ids(curve(lambda i: 2.5, lr=5e-6), method="full") == ["flat"]


def test_gradients_that_jump_are_a_rate_that_is_too_high():
    assert "rate_high" in ids(curve(falling, grad_norm=lambda i: 40.0 if i % 6 == 0 else 1.0))
    assert "rate_high" in ids(curve(lambda i: 2.0 + i / 20, count=25))


def test_memory_that_keeps_growing_is_told_and_a_plateau_is_not():
    gigabyte = 2**30
    grows = curve(falling, vram_bytes=lambda i: int((4 + i / 60) * gigabyte))
    assert "memory_growing" in ids(grows)
    assert "memory_growing" not in ids(curve(falling, vram_bytes=lambda i: (4 + min(i, 20) // 10) * gigabyte))
    assert "memory_growing" not in ids(curve(falling))


def test_steps_without_numbers_are_counted():
    assert ids(curve(falling, skipped=lambda i: i % 40 == 0))[0] == "not_finite"
    assert "not_finite" not in ids(curve(falling, skipped=lambda i: i == 3)), "fp16 finds its range"


def test_a_run_that_stands_still_for_many_steps_is_told():
    view = curve(falling)
    assert "still" in ids(view, now_s=view.updated_s + 60)
    assert "still" not in ids(view, now_s=view.updated_s + 5)
    assert "still" not in ids(view, "finished", now_s=view.updated_s + 600)
    alive = fold(view, [GpuSampled(seq=999, time_s=view.updated_s + 59, utilisation=0.0, memory_bytes=1,
                 temperature_c=1.0, power_w=1.0)])  # fmt: skip
    assert "still" in ids(alive, now_s=view.updated_s + 60), "a report of the card is no step"


def test_a_run_that_ended_early_says_so():
    view = curve(falling)
    done = fold(view, [RunFinished(seq=view.seq + 1, time_s=400.0, step=300, loss=1.0, artifact="adapter")])
    assert "early" in ids(done, "finished")


def test_every_verdict_has_words_in_both_languages():
    views = [
        curve(falling), curve(lambda i: 2.5), curve(lambda i: 1.0 + i / 50), curve(lambda i: 2.5, lr=1e-6),
        curve(falling), curve(falling, evals=lambda i: 1.5 + abs(i - 90) / 200),
    ]  # fmt: skip
    found = [one for view in views for one in judge(view, "running", view.updated_s + 99)]
    assert len({one.id for one in found}) >= 5
    for language in ("en", "zh-CN"):
        catalogue = load_catalogue(language)
        for one in found:
            for words in (catalogue.say(one.what), catalogue.say(one.advice)):
                assert words and "{" not in words and "verdict." not in words


def test_judging_twenty_thousand_steps_is_quick():
    view = curve(falling, count=20_000, evals=falling)
    started_s = time.perf_counter()
    judge(view, "running", view.updated_s)
    assert time.perf_counter() - started_s < 0.25


# Objectives that compare answers -------------------------------------------------------------------------------------


def compare(likely, margin=lambda i: i / 50, count: int = 100, lr: float = 5e-6) -> LiveView:
    """A run over pairs: `likely` gives the log-probability of the better answers at a step."""
    chance = random.Random(1)
    return curve(
        lambda i: 0.7 * math.exp(-i / 60),
        count=count,
        lr=lr,
        metrics=lambda i: {
            "rewards/margins": margin(i),
            "rewards/chosen": 0.1,
            "logps/chosen": likely(i) + chance.uniform(-2, 2),
        },
    )


def test_better_answers_that_become_less_likely_are_told_while_the_margin_grows():
    falls = compare(lambda i: -40 - i / 3)
    (verdict,) = [one for one in judge(falls, "running", falls.updated_s) if one.id == "chosen_falling"]
    assert verdict.level == "warn" and verdict.field == "preference.nll_weight"
    for language in ("en", "zh-CN"):
        said = load_catalogue(language).say(verdict.what)
        assert str(verdict.what.values["begun"]) in said and "{" not in said
    assert "chosen_falling" in ids(compare(lambda i: -40 - i, count=40))
    assert "chosen_falling" not in ids(compare(lambda i: -40 - i / 50)), "a little of it is usual"
    assert "chosen_falling" not in ids(compare(lambda i: -40 + i / 5))
    assert "chosen_falling" not in ids(compare(lambda i: -40 - i / 3, margin=lambda i: -i / 50))
    assert "chosen_falling" not in ids(compare(lambda i: -40 - i, count=12)), "too early to say"


def test_the_small_rates_of_comparisons_are_not_called_small():
    flat = compare(lambda i: -40.0, lr=5e-7)
    assert "rate_low" not in ids(flat) and "rate_low" in ids(curve(lambda i: 2.0, lr=5e-7))


def test_the_loss_of_drawn_answers_is_not_judged():
    """It begins at 0, where no answer was scored otherwise than another, and a good run's rises from there."""

    def loss(i: int) -> float:
        return 0.0 if i < 6 else 0.004 * i

    drawn = curve(loss, count=30, metrics=lambda i: {"reward": i / 30, "completions/mean_length": 40.0})
    assert "rate_high" in ids(curve(loss, count=30))
    assert ids(drawn) == []
