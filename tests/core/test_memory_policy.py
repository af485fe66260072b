"""A policy is plain data: it goes into a run's plan and comes back, and reads short."""

import json

from studio.core.codec import from_json, to_json
from studio.core.facts import BackendPlan, Choice
from studio.core.i18n import literal
from studio.core.memory_policy import KEEP_LEVELS, LayerPolicy, LayerRun, MemoryPolicy, list_runs


def test_equal_neighbours_are_listed_together():
    away, there, whole = LayerPolicy(keep="input", offload=True), LayerPolicy(keep="input"), LayerPolicy()
    policy = MemoryPolicy(layers=(away, away, there, whole, whole, whole))
    assert list_runs(policy) == (
        LayerRun(first=1, last=2, policy=away),
        LayerRun(first=3, last=3, policy=there),
        LayerRun(first=4, last=6, policy=whole),
    )
    assert list_runs(MemoryPolicy(layers=())) == ()


def test_levels_go_from_little_to_much():
    assert KEEP_LEVELS == ("input", "attention", "qkv", "all")
    assert LayerPolicy().keep == "all" and not LayerPolicy().offload


def test_a_plan_with_a_policy_comes_back_and_one_of_an_older_studio_still_loads():
    choice = Choice(value=False, reason=literal("so"))
    names = ("device", "dtype", "attention", "quantization", "optimizer", "checkpointing")
    plan = BackendPlan(**dict.fromkeys(names, choice), kernels={})
    old = to_json(plan)
    del old["memory"]
    assert from_json(BackendPlan, old) == plan and plan.memory is None
    layers = (LayerPolicy(keep="input", offload=True), LayerPolicy(keep="qkv"))
    policy = MemoryPolicy(layers=layers, mlp_chunk_tokens=2048, cached_layers=1)
    plan = BackendPlan(**dict.fromkeys(names, choice), kernels={}, memory=policy)
    assert from_json(BackendPlan, json.loads(json.dumps(to_json(plan)))) == plan
