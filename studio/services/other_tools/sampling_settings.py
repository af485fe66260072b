"""Settings of GRPO and its kin in TRL's names, which ms-swift and axolotl share."""

from __future__ import annotations

from dataclasses import replace

from studio.services.other_tools.translation import KNOBS, Translation
from studio.services.other_tools.written import Setting, number, truth, words

OBJECTIVES = {"grpo": "", "rloo": "rloo", "gspo": "gspo", "dapo": "dapo"}
"""Their names -> the loss that goes with them, "" where another setting says it."""
LOSSES = KNOBS["sampling.loss"].choices
SAME = {
    "num_generations": "sampling.group_size",
    "max_completion_length": "sampling.answer_tokens",
    "temperature": "sampling.temperature",
    "beta": "sampling.beta",
    "epsilon": "sampling.epsilon_low",
    "epsilon_high": "sampling.epsilon_high",
    "delta": "sampling.delta",
    "num_iterations": "sampling.updates",
    "vllm_importance_sampling_cap": "sampling.importance_cap",
}
ENGINE = (
    "use_vllm",
    "vllm_",
    "sleep_level",
    "offload_",
    "move_model_batches",
    "async_generate",
    "ds3_gather",
)
"""How answers are computed there; here the studio's own decoder draws them."""
NO_COUNTERPART = (
    "top_p", "top_k", "min_p", "repetition_penalty", "sync_ref_model", "top_entropy_quantile", "use_liger_loss",
    "steps_per_generation", "generation_batch_size", "dynamic_sample", "multi_turn_scheduler", "reward_model",
)  # fmt: skip


def take_sampling(t: Translation, said: str, prefix: str = "") -> None:
    """Set the objective and what it draws; `prefix` stands in front of the names, as in axolotl's `trl.beta`."""
    t.default("objective", "grpo", "trainer")
    if OBJECTIVES[said]:
        t.default("sampling.loss", OBJECTIVES[said], "trainer")
    loss, level = t.find(prefix + "loss_type"), t.find(prefix + "importance_sampling_level")
    if level is not None and str(level.value).startswith("sequence"):
        t.take(level, "sampling.loss", "gspo")
        if loss is not None:
            t.leave(loss, "loss.usual")
    elif loss is not None and str(loss.value) in LOSSES:
        t.take(loss, "sampling.loss")
    elif loss is not None:
        t.differ(loss, "loss.none")
    for key, path in SAME.items():
        t.take(t.find(prefix + key), path)
    if t.find(prefix + "num_generations") is None:
        t.default("sampling.group_size", 8)
    cut, scale = (
        t.find(prefix + "mask_truncated_completions", "overlong_filter"),
        t.find(prefix + "scale_rewards"),
    )
    if cut is not None:
        t.take(cut, "sampling.cut_answers", "leave_out" if truth(cut.value) else "learn")
    if scale is not None and str(scale.value) in ("group", "batch", "none"):
        t.take(scale, "sampling.scale_rewards")
    elif scale is not None:
        t.take(scale, "sampling.scale_rewards", "group" if truth(scale.value) else "none")
    rewards = [
        prefix + key
        for key in ("reward_funcs", "reward_weights", "external_plugins", "reward_processing_classes")
    ]
    for key in rewards:
        setting = t.find(key)
        if setting is not None:
            t.differ(setting, "sampling.rewards", value=words(setting.value))
    for key, setting in t.written.settings.items():
        bare = key.removeprefix(prefix)
        if key in t.seen or not key.startswith(prefix):
            continue
        if bare.startswith(ENGINE):
            t.leave(setting, "sampling.engine")
        elif bare in NO_COUNTERPART:
            t.differ(setting, "method")
        elif bare in ("max_prompt_length", "log_completions", "num_completions_to_print"):
            t.leave(setting, "length.parts" if bare == "max_prompt_length" else "logs")


def count_prompts(t: Translation, at_once: Setting | None, whole: int) -> None:
    """Turn the answers of a step into prompts: there each answer counts, here each prompt with its whole group."""
    group = int(number(t.get("sampling.group_size")) or 1)
    prompts = max(1, whole // group)
    setting = at_once or Setting("per_device_train_batch_size", whole)
    t.change(
        replace(setting, key=f"{setting.key} / {group}"),
        "optim.batch_size",
        prompts,
        "sampling.prompts",
        group=group,
    )
