"""axolotl: its YAML configs."""

from __future__ import annotations

from collections.abc import Mapping

from studio.services.other_tools.sampling_settings import OBJECTIVES as SAMPLED
from studio.services.other_tools.sampling_settings import take_sampling
from studio.services.other_tools.sources import (
    take_model,
    take_quantization,
    take_share,
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
from studio.services.other_tools.translation import ImportedRecipe, Translation, left, same, switched
from studio.services.other_tools.written import Setting, Written, number, truth

NAME = "axolotl"
OBJECTIVES = {"dpo": "dpo", "ipo": "dpo", "orpo": "orpo", "kto": "kto", "simpo": "simpo"}
ADAPTERS = {"lora": False, "qlora": True}
"""`adapter` -> whether its base is in 4 bits."""
ROWS = ("completion", "pretrain")
"""Types of rows that are plain text."""


def knows(written: Written) -> bool:
    """Return whether the settings are axolotl's."""
    own = ("sequence_len", "micro_batch_size", "num_epochs", "datasets.0.path", "val_set_size", "adapter")
    own = (*own, "pretraining_dataset", "dataset_prepared_path")
    return "base_model" in written.settings and sum(key in written.settings for key in own) >= 2


def translate(written: Written) -> ImportedRecipe:
    """Return the recipe. Raises RecipeError where there can be none."""
    t = Translation(NAME, written)
    take_model(t, "base_model")
    _take_method(t)
    _take_objective(t)
    _take_data(t)
    take_batch(t, ("micro_batch_size", "batch_size"), ("gradient_accumulation_steps",), usual=(1, 1))
    take_schedule(t, "lr_scheduler", usual="cosine")
    take_warmup(t, usual=0.03)
    take_optimizer(t, "optimizer")
    _take_counts(t)
    take_saving(t)
    t.apply(OWN)
    if t.get("adapter.method") == "full":
        starts_with(t, "lora_", "peft_", reason="adapter.unused")
    take_common(t, rate=None, epochs=1.0)
    starts_with(
        t, "wandb", "logging", "hub", "dataloader", "ddp", "trackio", "swanlab", "mlflow", "comet", "otel",
        reason="logs",
    )  # fmt: skip
    starts_with(
        t, "liger", "flash", "xformers", "sdp", "fsdp", "deepspeed", "accelerator", "tensor_parallel", "ray",
        "context_parallel", "expert_parallel", "dp_", "fp8", "gradient_checkpointing", "lora_qkv", "lora_mlp",
        "lora_o_", "use_kernels", "use_scattermoe", "use_sonicmoe", "unsloth", "experts_implementation",
        reason="hardware",
    )  # fmt: skip
    return t.finish(OWN)


def _take_method(t: Translation) -> None:
    kind = t.find("adapter")
    said = str(kind.value).lower() if kind is not None else ""
    if kind is None:
        t.default("adapter.method", "full", "axolotl.full")
    elif said in ADAPTERS:
        t.take(kind, "adapter.method", "lora")
    else:
        t.reject(kind, "method.none")
    if said == "qlora" and t.find("load_in_4bit") is None:
        t.default("model.quantization", "nf4", "axolotl.qlora")
    take_quantization(t, "load_in_4bit", "load_in_8bit")
    if said not in ADAPTERS:
        return
    t.take(t.find("lora_r"), "adapter.rank")
    t.take(t.find("lora_alpha"), "adapter.alpha")
    linear, listed = t.find("lora_target_linear"), t.find("lora_target_modules")
    if linear is not None and truth(linear.value):
        t.take(linear, "adapter.target_modules", "all-linear")
        if listed is not None:
            t.leave(listed, "targets.linear")
    elif listed is not None:
        take_targets(t, listed)
    t.default("adapter.rank", 8)
    t.default("adapter.alpha", 16.0)


def _take_objective(t: Translation) -> None:
    kind = t.find("rl")
    if t.says("reward_model"):
        t.take(t.find("reward_model"), "objective", "reward")
    elif t.says("process_reward_model"):
        t.reject(t.find("process_reward_model"), "stage.none")
    elif kind is not None and str(kind.value) in SAMPLED:
        t.take(kind, "objective", "grpo")
        take_sampling(t, str(kind.value), "trl.")
        return
    elif kind is not None and str(kind.value) in OBJECTIVES:
        t.take(kind, "objective", OBJECTIVES[str(kind.value)])
        if str(kind.value) == "ipo":
            t.default("preference.loss", "ipo")
    elif kind is not None:
        t.reject(kind, "stage.none")
    else:
        rows = [one for one in _list_types(t) if one in ROWS]
        whole = t.find("pretraining_dataset", "pretraining_dataset.0.path") is not None
        alone = whole or bool(rows) and len(rows) == len(_list_types(t))
        t.default("objective", "pretrain" if alone else "sft", "default.text" if alone else "default")
    objective = t.get("objective")
    if objective in ("dpo", "kto", "orpo", "simpo"):
        t.take(t.find("rl_beta", "dpo_beta", "orpo_alpha", "trl.beta"), "preference.beta")
        t.default("preference.beta", 0.1)


def _list_types(t: Translation) -> list[str]:
    types = []
    for i in range(100):
        kind = t.find(f"datasets.{i}.type")
        if t.find(f"datasets.{i}.path") is None:
            break
        types.append(str(kind.value) if kind is not None else "")
    return types


def _take_data(t: Translation) -> None:
    own = "pretraining_dataset" if t.find("pretraining_dataset", "pretraining_dataset.0.path") else "datasets"
    whole = t.find("pretraining_dataset")
    listed = [(whole, str(whole.value), 1.0)] if whole is not None else []
    for i in range(100):
        path, files = t.find(f"{own}.{i}.path"), t.find(f"{own}.{i}.data_files", f"{own}.{i}.data_files.0")
        if path is None:
            break
        named = path
        if str(path.value) in ("json", "csv", "parquet", "text", "arrow") and files is not None:
            t.leave(path, "dataset.kind")
            named = files
        name = named.value[0] if isinstance(named.value, list) and named.value else named.value
        listed.append((named, str(name), 1.0))
    take_sources(t, listed)
    if own == "pretraining_dataset":
        t.default("data.format", "text", "default.text")
    first = f"{own}.0."
    t.take(t.find(first + "name"), "data.config")
    if t.find(first + "split") is not None:
        take_split(t, t.find(first + "split"))
    masked = t.find("train_on_inputs")
    if masked is not None:
        t.take(masked, "data.train_on", "everything" if truth(masked.value) else "answers")
    last = t.find(first + "roles_to_train", first + "train_on_eos", first + "train_on_eot")
    if last is not None:
        t.leave(last, "answers")
    for key, setting in t.written.settings.items():
        if key.startswith(f"{own}.") and key not in t.seen:
            part = key.split(".")[2] if key.count(".") > 1 else ""
            types = {"type": "rows.type", "ds_type": "dataset.kind", "split": "mix.part", "name": "mix.part"}
            if part == "shards":
                t.differ(setting, "split.share")
            else:
                t.leave(setting, types.get(part, "dataset.columns"))
    tested = t.find("test_datasets.0.path")
    if tested is not None:
        t.take(tested, "data.validation")
    for key, setting in t.written.settings.items():
        if key.startswith("test_datasets.") and key not in t.seen:
            t.leave(setting, "dataset.columns")
    share = t.find("val_set_size")
    if share is not None:
        take_share(t, share)
    take_length(t, "sequence_len", usual=512)
    packing = t.find("sample_packing")
    if packing is not None:
        t.take(packing, "data.fill")


def _take_counts(t: Translation) -> None:
    """Leave how often an epoch is saved or evaluated: the studio counts steps."""
    for key in ("saves_per_epoch", "evals_per_epoch"):
        setting = t.find(key)
        if setting is not None:
            t.leave(setting, "saving.epoch")


def _take_tokens(t: Translation, setting: Setting) -> None:
    listed = setting.value if isinstance(setting.value, list) else [setting.value]
    t.take(setting, "adapter.tokens", tuple(map(str, listed)))


def _take_patience(t: Translation, setting: Setting) -> None:
    if number(setting.value):
        t.take(setting, "run.early_stopping")
    else:
        t.leave(setting, "off")


OWN: Mapping[str, Rule] = dict(RULES) | {
    "chat_template": take_template,
    "chat_template_jinja": lambda t, setting: t.differ(setting, "template.words"),
    "default_system_message": same("data.system_prompt"),
    "num_epochs": same("optim.epochs"),
    "lora_dropout": same("adapter.dropout"),
    "lora_modules_to_save": lambda t, setting: t.take(setting, "adapter.modules_to_save"),
    "lora_model_dir": same("model.adapter"),
    "peft_use_dora": same("adapter.dora"),
    "peft_use_rslora": same("adapter.rslora"),
    "lora_fan_in_fan_out": left("layout"),
    "tokens": _take_tokens,
    "tokens.*": left("special_tokens"),
    "special_tokens.*": left("special_tokens"),
    "eot_tokens": left("special_tokens"),
    "revision_of_model": same("model.revision"),
    "model_revision": same("model.revision"),
    "shuffle_merged_datasets": same("data.shuffle"),
    "dataset_exact_deduplication": lambda t, s: (
        t.take(s, "data.duplicates", "exact") if truth(s.value) else t.leave(s, "off")
    ),
    "early_stopping_patience": _take_patience,
    "kto_desirable_weight": same("preference.good_weight"),
    "kto_undesirable_weight": same("preference.bad_weight"),
    "cpo_alpha": same("preference.nll_weight"),
    "rpo_alpha": same("preference.nll_weight"),
    "simpo_gamma": same("preference.gamma"),
    "center_rewards_coefficient": same("preference.center"),
    "adam_eps": same("optim.epsilon"),
    "excess_length_strategy": lambda t, s: (
        t.take(s, "data.too_long", "drop" if str(s.value) == "drop" else "cut")
        if str(s.value) in ("drop", "truncate")
        else t.differ(s, "method")
    ),
    "cosine_min_lr_ratio": switched("schedule.details"),
    "cosine_constant_lr_ratio": switched("schedule.details"),
    "eta_min": switched("schedule.details"),
    "lr_quadratic_warmup": switched("schedule.details"),
    "embedding_lr": switched("method"),
    "noisy_embedding_alpha": switched("neftune"),
    "model_type": left("model.kind"),
    "tokenizer_type": left("model.kind"),
    "tokenizer_config": switched("tokenizer"),
    "processor_type": left("images"),
    "is_llama_derived_model": left("model.kind"),
    "is_mistral_derived_model": left("model.kind"),
    "is_falcon_derived_model": left("model.kind"),
    "strict": left("phases"),
    "debug": left("phases"),
    "resume_from_checkpoint": switched("resume", "leave"),
    "auto_resume_from_checkpoints": switched("resume", "leave"),
    "dataset_prepared_path": left("speed"),
    "dataset_processes": left("speed"),
    "skip_prepare_dataset": left("speed"),
    "eval_batch_size": left("eval_batch"),
    "eval_sample_packing": left("eval_batch"),
    "eval_table_size": left("logs"),
    "eval_max_new_tokens": left("logs"),
    "pad_to_sequence_len": left("padding"),
    "max_packed_sequence_len": left("padding"),
    "min_sample_len": left("padding"),
    "sample_packing_eff_est": left("padding"),
    "total_num_tokens": left("padding"),
    "bf16": left("hardware"),
    "fp16": left("hardware"),
    "tf32": left("hardware"),
    "bfloat16": left("hardware"),
    "float16": left("hardware"),
    "gptq": left("bits.form"),
    "gptq_groupsize": left("bits.form"),
    "gptq_model_v1": left("bits.form"),
    "bnb_config_kwargs.*": left("bits.form"),
    "plugins": left("plugins"),
    "cut_cross_entropy": left("kernels"),
    "loss_watchdog_threshold": left("watchdog"),
    "loss_watchdog_patience": left("watchdog"),
    "save_strategy": left("saving.steps"),
    "push_dataset_to_hub": left("hub"),
    "hf_use_auth_token": left("hub"),
    "torchdistx_path": left("hardware"),
    "use_tensorboard": left("trackers"),
    "use_wandb": left("trackers"),
    "remove_unused_columns": left("columns"),
    "trl.*": switched("method"),
    **dict.fromkeys(
        (
            "relora", "relora_steps", "relora_prune_ratio", "relora_cpu_offload", "lisa_step_interval",
            "lisa_n_layers", "lisa_layers_attribute", "loraplus_lr_ratio", "unfrozen_parameters", "qat.*",
            "diffusion.*", "use_eaft", "use_dft_loss", "mixture_of_depths", "lora_target_parameters",
            "jagged_restart_steps", "jagged_restart_warmup_steps", "jagged_restart_anneal_steps",
            "peft.*", "ebft.*", "quantize_moe_experts", "overrides_of_model_config.*", "model_config.*",
            "rope_scaling.*", "reinit_weights", "num_labels",
        ),
        switched("method"),
    ),
}  # fmt: skip
