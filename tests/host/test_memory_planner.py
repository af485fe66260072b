"""The planner takes the fastest policy that fits; a larger card never trains slower; a step down always ends."""

import dataclasses
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studio.core.policy import KEEP_LEVELS, LayerPolicy, MemoryPolicy, list_runs
from studio.core.text import load_catalogue
from studio.host.layer_memory import read_decoder
from studio.host.memory import Calibration, predict
from studio.host.memory_planner import (
    choose_policy,
    list_policies,
    longest_context,
    repeated_share,
    step_down,
)
from studio.host.plan import memory_budget, plan, plan_memory
from tests.host.facts import make_decoder, make_gpu, make_machine, make_recipe

MACHINE = make_machine(make_gpu(24))
GIB = 2**30
RAM = 64 * GIB
QLORA = {"model.quantization": "nf4", "data.max_length": 2048}


def make_run(changes=None, layers=32, **values):
    """A plan, a model and a recipe, as the planner takes them."""
    model, recipe = make_decoder(layers, **values), make_recipe(QLORA | (changes or {}))
    return plan(MACHINE, recipe, model), model, recipe


def choose(gigabytes, changes=None, ram=RAM, **values):
    run = make_run(changes, **values)
    choice = choose_policy(*run, int(gigabytes * GIB), ram)
    assert choice.parts == predict(*run, choice.policy)
    for language in ("en", "zh-CN"):
        said = load_catalogue(language)
        assert said.has(choice.reason.id) and "{" not in said.say(choice.reason)
    return choice


def slowness(policy, run):
    """What makes a step slower, the worst first: a tuple that sorts."""
    shape = read_decoder(*run)
    return (
        -min(policy.head_rows or 10**9, 10**9),
        -(policy.mlp_chunk_tokens or 10**9),
        sum(layer.offload for layer in policy.layers),
        repeated_share(shape, policy, 2048),
        -policy.cached_layers,
    )


budgets = st.floats(4, 90)
runs = st.fixed_dictionaries(
    {
        "data.max_length": st.sampled_from([64, 512, 2048, 4096, 16384, 65536]),
        "optim.micro_batch": st.integers(1, 4),
        "adapter.rank": st.sampled_from([1, 8, 16, 64, 200]),
        "adapter.targets": st.sampled_from(["all-linear", "q_proj, v_proj", "down_proj"]),
        "adapter.dropout": st.sampled_from([0.0, 0.1]),
        "model.quantization": st.sampled_from(["none", "nf4"]),
        "limits.kernels": st.sampled_from(["auto", "pytorch"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(runs, budgets, budgets, st.floats(0, 300), st.sampled_from([1, 4, 32]))
def test_more_memory_is_never_slower_and_what_fits_fits(changes, low, high, ram, layers):
    run = make_run(changes, layers)
    low, high = sorted((low, high))
    small, large = (choose_policy(*run, int(size * GIB), int(ram * GIB)) for size in (low, high))
    for budget, choice in ((low, small), (high, large)):
        assert choice.fits == (sum(choice.parts.values()) <= budget * GIB)
        assert choice.parts == predict(*run, choice.policy)
        away = sum(layer.offload for layer in choice.policy.layers)
        tokens = run[2].optim.micro_batch * run[2].data.max_length
        assert away * tokens * 2 * 4096 <= ram * GIB / 2
        assert len(choice.policy.layers) == layers
    assert slowness(large.policy, run) <= slowness(small.policy, run)
    assert large.fits or not small.fits
    assert choose_policy(*run, int(low * GIB), int(ram * GIB)) == small


@settings(max_examples=20, deadline=None)
@given(runs, st.booleans(), st.booleans(), st.booleans())
def test_each_policy_needs_at_least_what_the_one_before_needs(changes, head_norms, branch_norms, windowed):
    norms = {"input_layernorm": 4096, "post_attention_layernorm": 4096}
    norms |= dict.fromkeys(("self_attn.q_norm", "self_attn.k_norm"), 128) if head_norms else {}
    norms |= (
        dict.fromkeys(("pre_feedforward_layernorm", "post_feedforward_layernorm"), 4096)
        if branch_norms
        else {}
    )
    windows = {"sliding_window": 1024, "windowed_layers": (True, False) * 3} if windowed else {}
    run = make_run(changes, 6, norms=norms, **windows)
    shape = read_decoder(*run)
    policies = list(list_policies(shape, *run, RAM))
    totals = [sum(predict(*run, policy).values()) for policy in policies]
    assert totals == sorted(totals)
    speeds = [slowness(policy, run) for policy in policies]
    assert speeds == sorted(speeds, reverse=True)
    assert len(set(policies)) == len(policies)


def test_what_each_budget_of_an_8b_model_buys():
    assert not choose(7).fits
    assert choose(7).policy.head_rows == 512 and choose(7).policy.mlp_chunk_tokens == 1024
    assert choose(7).reason.id == "plan.memory.too_large"
    portions = choose(8).policy
    assert portions.mlp_chunk_tokens and all(layer.offload for layer in portions.layers)
    some_away = choose(8.5)
    runs = list_runs(some_away.policy)
    assert [(run.policy.offload, run.policy.keep) for run in runs] == [(True, "input"), (False, "input")]
    assert some_away.reason.id == "plan.memory.offload"
    mixed = choose(12)
    levels = [layer.keep for layer in mixed.policy.layers]
    assert levels[0] == "input" and levels[-1] == "all" and mixed.reason.id == "plan.memory.some"
    assert levels == sorted(levels, key=KEEP_LEVELS.index)  # the last layers keep most
    whole = choose(20)
    assert {layer.keep for layer in whole.policy.layers} == {"all"} and not whole.policy.cached_layers
    assert whole.reason.id == "plan.memory.all"
    assert 0 < choose(25).policy.cached_layers < 32 == choose(60).policy.cached_layers
    assert not choose(60, {"model.quantization": "none"}).policy.cached_layers


def test_without_memory_of_the_machine_nothing_waits_there():
    policy = choose(8, ram=0).policy
    assert not any(layer.offload for layer in policy.layers)
    # A layer's input takes 32 MiB here, and half of the free memory may be used.
    assert sum(layer.offload for layer in choose(8.2, ram=GIB // 2).policy.layers) == 8


def test_attention_comes_first_in_long_documents_only():
    def levels(length, **values):
        run = make_run({"data.max_length": length, "optim.micro_batch": 1}, **values)
        everything, inputs = (
            sum(predict(*run, MemoryPolicy(layers=(LayerPolicy(keep=keep),) * 32)).values())
            for keep in ("all", "input")
        )
        choice = choose_policy(*run, (everything + 3 * inputs) // 4, 0)
        return [layer.keep for layer in choice.policy.layers]

    assert levels(16384).count("attention") >= 16 and "input" not in levels(16384)
    assert levels(512).count("all") >= 7 and levels(512).count("input") >= 16
    # Layers that see a window have little attention to compute again: those that see all come first.
    far = (False,) * 4 + (True,) * 28
    some = levels(16384, sliding_window=512, windowed_layers=far)
    assert all(level != "input" for level in some[:4]) and "input" in some[4:]


def test_a_recipe_that_decides_on_recomputing_is_obeyed():
    on = choose(60, {"limits.activation_checkpointing": "on"})
    assert {layer.keep for layer in on.policy.layers} == {"input"}
    off = choose(10, {"limits.activation_checkpointing": "off"})
    assert {layer.keep for layer in off.policy.layers} == {"all"} and not off.fits


def test_it_says_what_to_change():
    advice = {
        "check.memory.micro_batch": {},
        "check.memory.max_length": {"optim.micro_batch": 1},
        "check.memory.nf4": {"optim.micro_batch": 1, "model.quantization": "none"},
        "check.memory.smaller_model": {"optim.micro_batch": 1, "data.max_length": 256},
    }
    for id, changes in advice.items():
        assert choose(3, changes).reason.values["advice"].id == id


def test_the_decision_takes_less_than_20_ms_for_80_layers():
    run = make_run(layers=80)
    took = []
    for size in (20, 45, 60, 120):
        start = time.perf_counter()
        choose_policy(*run, size * GIB, RAM)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.02


def test_a_run_without_the_decoder_has_no_policy():
    with pytest.raises(ValueError, match="no policy"):
        choose_policy(*make_run({"adapter.method": "full", "model.quantization": "none"}), GIB, GIB)


def test_the_longest_context_just_fits():
    planned, model, recipe = make_run({"optim.optimizer": "adamw_8bit"})
    bare = dataclasses.replace(planned, memory=None)
    lean = dataclasses.replace(bare, memory=MemoryPolicy(layers=(LayerPolicy(),) * 32))
    for with_policy in (True, False):
        run_plan = lean if with_policy else bare
        found = longest_context(run_plan, model, recipe, 24 * GIB, 2**40)
        assert found % 64 == 0

        def fits(tokens, with_policy=with_policy, run_plan=run_plan):
            one = make_recipe(
                QLORA
                | {"optim.optimizer": "adamw_8bit", "data.max_length": tokens, "optim.micro_batch": 1}
                | {"limits.activation_checkpointing": "auto" if with_policy else "on"}
            )
            free = dataclasses.replace(model, max_positions=0)
            if with_policy:
                return choose_policy(run_plan, free, one, 24 * GIB, 2**40).fits
            stock = dataclasses.replace(plan(MACHINE, one, free), memory=None)
            return sum(predict(stock, free, one).values()) <= 24 * GIB

        assert fits(found) and not fits(found + 64)
    # The case: an 8B model in 4 bits on 24 GB, beyond 100,000 tokens.
    assert longest_context(lean, model, recipe, 24 * GIB, 2**40) > 100_000
    assert longest_context(lean, model, recipe, 24 * GIB, 0) < longest_context(
        lean, model, recipe, 24 * GIB, 2**40
    )
    assert longest_context(lean, model, recipe, GIB, 2**40) == 0
    generous = Calibration(context_bytes=0, fragmentation=1.0)
    assert longest_context(lean, model, recipe, 24 * GIB, RAM, calibration=generous) > longest_context(
        lean, model, recipe, 24 * GIB, RAM
    )


def test_stepping_down_frees_memory_at_each_step_and_ends():
    run = make_run()
    policy = MemoryPolicy(layers=(LayerPolicy(),) * 32, cached_layers=4)
    totals, policies = [], []
    while policy is not None:
        policies.append(policy)
        parts = predict(*run, policy)
        totals.append(sum(parts.values()))
        policy = step_down(policy, tokens=4096)
    assert len(policies) < 25
    assert totals == sorted(totals, reverse=True)
    # A tenth of what is kept at least, as long as something is.
    kept = [predict(*run, one)["activations"] for one in policies[1:] if not one.layers[0].offload]
    assert all(after <= 0.9 * before for before, after in zip(kept, kept[1:], strict=False))
    orders = [one.cached_layers for one in policies[:2]]
    assert orders == [4, 0]
    away = next(i for i, one in enumerate(policies) if one.layers[0].offload)
    assert all(layer.keep == "input" for layer in policies[away].layers)
    assert not any(one.mlp_chunk_tokens for one in policies[: away + 1])
    assert [one.mlp_chunk_tokens for one in policies[away + 1 : away + 3]] == [2048, 1024]
    assert policies[-1].head_rows == 512


@given(
    st.lists(st.sampled_from(KEEP_LEVELS), min_size=1, max_size=40),
    st.integers(0, 40),
    st.integers(0, 100_000),
)
def test_every_policy_steps_down_to_none_without_going_back(levels, most_offloaded, tokens):
    policy = MemoryPolicy(layers=tuple(LayerPolicy(keep=level) for level in levels))
    ranks = [KEEP_LEVELS.index(level) for level in levels]
    for _ in range(200):
        lower = step_down(policy, tokens, most_offloaded)
        if lower is None:
            break
        assert lower != policy
        now = [KEEP_LEVELS.index(layer.keep) for layer in lower.layers]
        assert all(after <= before for before, after in zip(ranks, now, strict=True))
        assert sum(layer.offload for layer in lower.layers) <= most_offloaded
        assert not lower.mlp_chunk_tokens or max(now) == 0  # gate and up of a portion alone cannot be kept
        policy, ranks = lower, now
    assert step_down(policy, tokens, most_offloaded) is None


def test_the_plan_takes_the_policy_in_and_leaves_other_runs_as_they_are():
    draft, model, recipe = make_run()
    gpu = MACHINE.gpus[0]
    made = plan_memory(draft, MACHINE, recipe, model, gpu)
    budget, ram = memory_budget(MACHINE, gpu)
    choice = choose_policy(draft, model, recipe, budget, ram)
    assert made.memory == choice.policy and made.checkpointing.reason == choice.reason
    assert made.checkpointing.value == any(layer.keep != "all" for layer in choice.policy.layers)
    assert (budget, ram) == (int(0.9 * 24 * GIB), MACHINE.ram_bytes)
    wanted = make_run({"limits.activation_checkpointing": "on"})
    made = plan_memory(wanted[0], MACHINE, wanted[2], wanted[1], gpu)
    assert made.checkpointing.value is True and made.checkpointing.reason.id == "plan.wanted"
    full = make_run({"adapter.method": "full", "model.quantization": "none"})
    made = plan_memory(full[0], MACHINE, full[2], full[1], gpu)
    assert made.memory is None and made.checkpointing.value == full[0].checkpointing.value


def test_memory_of_the_machine_counts_as_it_is_free():
    machine = dataclasses.replace(MACHINE, ram_available_bytes=10 * GIB, ram_limit_bytes=6 * GIB)
    assert memory_budget(machine, machine.gpus[0])[1] == 6 * GIB
    assert memory_budget(machine, None) == (int(0.9 * 6 * GIB), 0)
