"""TRL: its YAML configs and `trl sft` and the like; the settings that its scripts have are translated here, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from studio.services.other_tools.sampling_settings import OBJECTIVES as SAMPLED
from studio.services.other_tools.sampling_settings import take_sampling
from studio.services.other_tools.sources import (
    place_file,
    take_model,
    take_quantization,
    take_sources,
    take_split,
    take_targets,
    take_template,
)
from studio.services.other_tools.trainer_settings import (
    RULES,
    Rule,
    starts_with,
    take_batch,
    take_common,
    take_length,
    take_optimizer,
    take_saving,
    take_schedule,
    take_warmup,
)
from studio.services.other_tools.translation import (
    COMPARED,
    ImportedRecipe,
    Translation,
    left,
    same,
    switched,
)
from studio.services.other_tools.written import Setting, Written, number, truth, words

NAME = "TRL"
RATES = dict.fromkeys(("grpo", "rloo", "dpo", "kto", "orpo", "cpo", "simpo"), 1e-6) | {
    "sft": 2e-5,
    "reward": 1e-4,
}
"""TRL's own learning rates where nothing is written."""
COMMANDS = ("sft", "dpo", "kto", "orpo", "cpo", "reward", "grpo", "rloo")


def knows(written: Written) -> bool:
    """Return whether the settings are those of TRL's command line or of a script that reads them from YAML."""
    model = "model_name_or_path" in written.settings
    usual = ("model_name", "learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps")
    if all(key in written.settings for key in usual):
        return True
    own = (
        "use_peft", "dataset_name", "lora_r", "lora_target_modules", "max_length", "max_seq_length", "beta",
        "dataset_mixer.*", "dataset_mixture.*", "loss_type", "max_prompt_length", "attn_implementation",
    )  # fmt: skip
    heads = {key.split(".")[0] + ".*" for key in written.settings}
    return model and sum(key in written.settings or key in heads for key in own) >= 2


def translate(written: Written) -> ImportedRecipe:
    """Return the recipe of a config or a command. Raises RecipeError where there can be none."""
    t = Translation(NAME, written)
    named = written.command in COMMANDS
    objective = written.command if named else _guess_objective(t)
    take_model(t, "model_name_or_path", "model_name")
    peft = t.find("use_peft")
    adapter = truth(peft.value) if peft is not None else t.find("lora_r", "lora_target_modules") is not None
    if peft is not None:
        t.take(peft, "adapter.method", "lora" if adapter else "full")
    else:
        t.default("adapter.method", "lora" if adapter else "full", "trl.peft" if adapter else "trl.full")
    if adapter:
        t.take(t.find("lora_r"), "adapter.rank")
        t.take(t.find("lora_alpha"), "adapter.alpha")
        t.default("adapter.rank", 16)
        t.default("adapter.alpha", 32.0)
        if t.find("lora_dropout") is None:
            t.default("adapter.dropout", 0.05)
    take_quantization(t, "load_in_4bit", "load_in_8bit")
    if not named and objective in RATES:
        t.default("objective", objective, "guessed", objective=objective)
    take_objective(t, objective, t.find("num_generations", "loss_type") or Setting("trl", objective))
    _take_dataset(t)
    finish_trainer(t, objective)
    return t.finish(OWN)


def _guess_objective(t: Translation) -> str:
    """Return what a config without a command trains: by its own names, else by what only one of TRL's trainers has."""
    for key in ("output_dir", "hub_model_id", "run_name"):
        said = re.split(r"[-_/.\s]", words(t.find(key).value).lower()) if t.find(key) else []
        named = [one for one in RATES if one in said]
        if len(named) == 1:
            return named[0]
    if t.find("num_generations", "reward_funcs"):
        return "grpo"
    if t.find("desirable_weight", "undesirable_weight"):
        return "kto"
    if t.find("cpo_alpha", "simpo_gamma"):
        return "cpo"
    if t.find("center_rewards_coefficient"):
        return "reward"
    mixed = [str(one.value) for key, one in t.written.settings.items() if key.startswith("dataset")]
    paired = any(
        word in said.lower() for said in mixed for word in ("pref", "dpo", "binarized", "chosen", "rejected")
    )
    if t.find("beta", "max_prompt_length", "loss_type") or paired:
        return "dpo"
    return "sft"


def take_objective(t: Translation, objective: str, place: Setting) -> None:
    """Set the objective of a trainer's name and how it compares."""
    loss, beta = t.find("loss_type"), t.find("beta")
    said = [
        words(one)
        for one in (loss.value if loss and isinstance(loss.value, list) else [loss.value] if loss else [])
    ]
    if objective in SAMPLED:
        take_sampling(t, objective)
        return
    if objective in ("ppo", "online_dpo", "gkd", "nash_md", "xpo", "prm", "bco"):
        t.reject(
            place if place.key != "loss_type" else replace(place, key="trl", value=objective), "stage.none"
        )
        return
    if objective == "cpo" and said == ["simpo"]:
        objective = "simpo"
        t.take(loss, "objective", "simpo")
    elif (
        objective == "dpo"
        and said
        and said[0] in ("nca_pair", "bco_pair", "exo_pair", "sppo_hard", "aot", "discopop")
    ):
        t.reject(loss, "loss.none")
        return
    elif loss is not None and len(said) == 1 and said[0] in COMPARED:
        t.take(loss, "preference.loss", said[0])
    elif loss is not None and len(said) > 1 and "sigmoid" in said and "sft" in said:
        t.change(loss, "preference.loss", "sigmoid", "loss.first")
        t.default("preference.nll_weight", 1.0, "loss.sft")
    elif loss is not None and said != ["nll"] and said != ["kto"]:
        t.differ(loss, "loss.none")
    elif loss is not None:
        t.leave(loss, "loss.usual")
    t.default("objective", objective, "trainer")
    if objective in ("dpo", "kto", "orpo", "cpo", "simpo"):
        t.take(beta, "preference.beta")
        t.default("preference.beta", 0.1)


def finish_trainer(t: Translation, objective: str, usual_rate: float | None = None, rows: int = 8) -> None:
    """Take all settings that a trainer of TRL has; `usual_rate` is what its own config class takes."""
    take_batch(t, ("per_device_train_batch_size",), ("gradient_accumulation_steps",), usual=(rows, 1))
    take_schedule(t, "lr_scheduler_type")
    take_warmup(t)
    take_optimizer(t, "optim")
    take_saving(t)
    take_length(t, "max_length", "max_seq_length", usual=1024)
    pairs = objective not in ("sft", "pretrain", "reward")
    for key in ("max_prompt_length", "max_completion_length", "max_target_length"):
        setting = t.find(key)
        if setting is not None and pairs and key not in t.seen:
            t.leave(setting, "length.parts")
    _take_learned(t, objective)
    t.apply(OWN)
    take_common(t, rate=usual_rate if usual_rate is not None else RATES.get(objective, 5e-5))
    starts_with(
        t, "logging_", "wandb", "trackio", "hub_", "log_", "ddp_", "dataloader_", "include_", "tpu_", "fsdp_",
        "vllm_", "use_vllm",
        reason="logs",
    )  # fmt: skip


def _take_learned(t: Translation, objective: str) -> None:
    """Set what of a row is learned: TRL learns all of a chat unless it is told otherwise."""
    if objective != "sft" or t.get("data.train_on"):
        return
    answers, completion = t.find("assistant_only_loss"), t.find("completion_only_loss")
    for setting in (answers, completion):
        if setting is not None and truth(setting.value) is not None:
            t.take(setting, "data.train_on", "answers" if truth(setting.value) else "everything")
    t.default("data.train_on", "everything", "trl.everything")


def _take_dataset(t: Translation) -> None:
    name, config = (
        t.find("dataset_name", "dataset_id_or_path"),
        t.find("dataset_config", "dataset_config_name"),
    )
    if name is not None:
        t.take(name, "data.source", place_file(t, str(name.value)))
    t.take(config, "data.config")
    split = t.find("dataset_train_split", "dataset_split")
    if split is not None:
        take_split(t, split)
    tested = t.find("dataset_test_split")
    if tested is not None:
        t.leave(tested, "split.test")
    mixer = {
        key: one
        for key, one in t.written.settings.items()
        if key.startswith(("dataset_mixer.", "train_dataset_mixer."))
    }
    listed = [
        (one, key.partition(".")[2], number(one.value) or 1.0)
        for key, one in mixer.items()
        if number(one.value) is not None and "/" in key
    ]
    for i in range(100):
        path = t.find(f"dataset_mixture.datasets.{i}.id", f"train_dataset_mixer.{i}.path")
        if path is None:
            break
        weight = t.find(f"dataset_mixture.datasets.{i}.weight", f"train_dataset_mixer.{i}.frac")
        share = number(weight.value) if weight is not None else 1.0
        listed.append((path, str(path.value), share or 1.0))
        if weight is not None:
            t.leave(weight, "mix")
        if i == 0:
            t.take(t.find(f"dataset_mixture.datasets.{i}.config"), "data.config")
            part = t.find(f"dataset_mixture.datasets.{i}.split", f"train_dataset_mixer.{i}.split")
            if part is not None:
                take_split(t, part)
    if name is None:
        take_sources(t, listed)
    splits = t.find("dataset_splits")
    if splits is not None:
        first = splits.value[0] if isinstance(splits.value, list) and splits.value else splits.value
        t.take(splits, "data.split", str(first))
    text_field = t.find("dataset_text_field")
    if text_field is not None:
        t.leave(text_field, "dataset.columns")
    share = t.find("dataset_mixture.test_split_size")
    if share is not None and (number(share.value) or 0) < 1:
        t.take(share, "data.validation_share")
    for key, setting in t.written.settings.items():
        if key.startswith(("dataset_mix", "train_dataset_mix", "eval_dataset_mix")) and key not in t.seen:
            parts = {"columns": "dataset.columns", "seed": "order", "split": "mix.part", "config": "mix.part"}
            t.leave(setting, parts.get(next((one for one in key.split(".") if one in parts), ""), "mix"))


def _take_lora_list(t: Translation, setting: Setting) -> None:
    take_targets(t, setting)


OWN: Mapping[str, Rule] = dict(RULES) | {
    "use_flash_attention_2": left("hardware"),
    "config_file": left("hardware"),
    "chat_template": take_template,
    "chat_template_path": take_template,
    "system_prompt": same("data.system_prompt"),
    "model_revision": same("model.revision"),
    "packing": same("data.fill"),
    "packing_strategy": left("padding"),
    "eval_packing": left("eval_batch"),
    "padding_free": left("padding"),
    "pad_to_multiple_of": left("padding"),
    "pad_token": left("special_tokens"),
    "eos_token": left("special_tokens"),
    "lora_dropout": same("adapter.dropout"),
    "lora_target_modules": _take_lora_list,
    "lora_modules_to_save": lambda t, setting: t.take(setting, "adapter.modules_to_save"),
    "lora_task_type": left("model.kind"),
    "use_rslora": same("adapter.rslora"),
    "use_dora": same("adapter.dora"),
    "bnb_4bit_quant_type": left("bits.form"),
    "use_bnb_nested_quant": left("bits.form"),
    "bnb_4bit_quant_storage": left("bits.form"),
    "tokenizer_name_or_path": switched("tokenizer"),
    "dataset_text_field": left("dataset.columns"),
    "dataset_kwargs.*": left("dataset.columns"),
    "dataset_batch_size": left("speed"),
    "num_of_sequences": left("padding"),
    "chars_per_token": left("padding"),
    "eval_delay": left("eval_batch"),
    "eval_on_start": left("eval_batch"),
    "gradient_checkpointing": left("hardware"),
    "label_smoothing": same("preference.label_smoothing"),
    "rpo_alpha": same("preference.nll_weight"),
    "cpo_alpha": same("preference.nll_weight"),
    "simpo_gamma": same("preference.gamma"),
    "gamma": same("preference.gamma"),
    "desirable_weight": same("preference.good_weight"),
    "undesirable_weight": same("preference.bad_weight"),
    "center_rewards_coefficient": same("preference.center"),
    "precompute_ref_log_probs": left("reference.before"),
    "precompute_ref_batch_size": left("reference.before"),
    "ref_model": switched("reference"),
    "model_init_kwargs.*": left("hardware"),
    "ref_model_init_kwargs.*": left("hardware"),
    "model_adapter_name": left("reference.before"),
    "ref_adapter_name": left("reference.before"),
    "force_use_ref_model": left("reference.before"),
    "disable_dropout": left("reference.before"),
    "is_encoder_decoder": left("model.kind"),
    "generate_during_eval": left("logs"),
    "truncation_mode": left("length.parts"),
    "truncation_side": left("length.parts"),
    "label_pad_token_id": left("mean"),
    "padding_value": left("mean"),
    "use_logits_to_keep": left("hardware"),
    "lr_scheduler_kwargs.*": switched("schedule.details"),
    "embedding_learning_rate": switched("method"),
    "ignore_bias_buffers": left("hardware"),
    "config": left("used_elsewhere"),
    "block_size": same("data.max_length"),
    "train_sampling_strategy": left("order"),
    **dict.fromkeys(
        (
            "f_divergence_type", "use_weighting", "reference_free", "sync_ref_model", "ld_alpha",
            "discopop_tau", "ref_model_mixup_alpha", "ref_model_sync_steps", "f_alpha_divergence_coef",
        ),
        switched("method"),
    ),
}  # fmt: skip
