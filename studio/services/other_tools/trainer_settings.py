"""Settings that transformers' TrainingArguments have, and with them TRL, LLaMA-Factory and ms-swift."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from studio.services.other_tools.sampling_settings import count_prompts
from studio.services.other_tools.translation import Translation, left, same, switched
from studio.services.other_tools.written import Setting, number, truth

Rule = Callable[[Translation, Setting], None]
SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "warmup_stable_decay": "wsd",
}
NEAR_SCHEDULES = {
    "cosine_with_min_lr": "cosine",
    "cosine_with_restarts": "cosine",
    "cosine_warmup_with_min_lr": "cosine",
    "polynomial": "linear",
    "inverse_sqrt": "cosine",
    "reduce_lr_on_plateau": "constant",
    "rex": "cosine",
    "one_cycle": "cosine",
}
ADAMW = ("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla")
EIGHT_BIT = ("adamw_8bit", "adamw_bnb_8bit", "adam8bit")
PAGED = ("paged_adamw_8bit", "pagedadamw8bit")


def take_batch(
    t: Translation,
    micro: tuple[str, ...],
    steps: tuple[str, ...],
    *,
    usual: tuple[int, int],
    total: int = 0,
) -> None:
    """Set the examples of a step: those at once, times the accumulated, times the cards that train side by side.

    usual: what the tool takes for the two where they are not written; total: the examples of a step that it aims at
    where the second is not.
    """
    at_once, accumulated = t.find(*micro), t.find(*steps)
    rows = number(at_once.value) if at_once is not None else float(usual[0])
    times = number(accumulated.value) if accumulated is not None else float(usual[1])
    if total and accumulated is None and rows:
        times = max(1.0, total // rows)
    cards = number(t.written.processes.value) if t.written.processes is not None else None
    written = at_once or accumulated
    for one in (at_once, accumulated):
        if one is not None and number(one.value) is None:
            t.differ(one, "unresolved", words=str(one.value))
    if not (rows and times and rows >= 1 and times >= 1):
        for one in (at_once, accumulated):
            if one is not None and number(one.value) is not None:
                t.differ(one, "batch.part")
        return
    whole = int(rows) * int(times) * int(cards or 1)
    if written is None:
        t.default("optim.batch_size", whole)
        return
    reason = "batch.cards" if cards and cards > 1 else "batch"
    numbers = {"rows": int(rows), "times": int(times), "cards": int(cards or 1)}
    for one in (at_once, accumulated):
        if one is not None and number(one.value) is not None:
            t.change(one, "optim.batch_size", whole, reason, **numbers)
    if t.get("objective") == "grpo":
        count_prompts(t, at_once, whole)


def take_schedule(t: Translation, *keys: str, usual: str = "linear") -> None:
    """Set the schedule of the learning rate; `usual` is the tool's own."""
    found = t.find(*keys)
    if found is None:
        t.default("optim.schedule", usual)
        return
    name = str(found.value).split(".")[-1].lower()
    if name in SCHEDULES:
        t.take(found, "optim.schedule", SCHEDULES[name])
    elif name in NEAR_SCHEDULES:
        t.change(found, "optim.schedule", NEAR_SCHEDULES[name], "schedule.near")
    else:
        t.differ(found, "schedule.none")


def take_warmup(t: Translation, *, share: tuple[str, ...] = ("warmup_ratio",), usual: float = 0.0) -> None:
    """Set the warm-up, by steps where both are written; `usual` is the tool's own share."""
    steps, ratio = t.find("warmup_steps", "num_warmup_steps"), t.find(*share)
    count = number(steps.value) if steps is not None else None
    if steps is not None and count is not None and 0 < count < 1:  # transformers 5: a share in the same key
        t.take(steps, "optim.warmup_share")
    elif steps is not None and (count or ratio is None):
        t.take(steps, "optim.warmup_steps")
        if not count:
            t.default("optim.warmup_share", 0.0, "default.warmup")
    elif steps is not None:
        t.leave(steps, "off")
    if ratio is not None:
        if count:
            t.leave(ratio, "warmup.steps")
        else:
            t.take(ratio, "optim.warmup_share")
    elif steps is None:
        t.default("optim.warmup_share", usual)


def take_optimizer(t: Translation, *keys: str) -> None:
    """Set the optimizer: AdamW in one of its forms, whatever else is written."""
    found = t.find(*keys)
    if found is None:
        t.default("optim.optimizer", "adamw")
        return
    name = str(found.value).split(".")[-1].lower()
    if name in ADAMW:
        t.take(found, "optim.optimizer", "adamw")
    elif name in EIGHT_BIT:
        t.take(found, "optim.optimizer", "adamw_8bit")
    elif name in PAGED:
        t.take(found, "optim.optimizer", "paged_adamw_8bit")
    elif name in ("paged_adamw_32bit", "paged_adamw", "pagedadamw"):
        t.change(found, "optim.optimizer", "adamw", "optimizer.paged")
    else:
        t.change(found, "optim.optimizer", "adamw", "optimizer.other")


def take_saving(t: Translation) -> None:
    """Set when checkpoints are written and evaluation is done: by steps; by epochs the studio's own way is kept."""
    for strategies, steps, path in (
        (("save_strategy",), "save_steps", "run.save_every"),
        (("eval_strategy", "evaluation_strategy"), "eval_steps", "run.eval_every"),
    ):
        strategy, every = t.find(*strategies), t.find(steps)
        said = str(strategy.value).split(".")[-1].lower() if strategy is not None else "steps"
        if strategy is not None:
            t.leave(
                strategy, f"saving.{said}" if said in ("epoch", "no", "steps", "best") else "saving.steps"
            )
        if every is None:
            continue
        count = number(every.value)
        if said != "steps":
            t.leave(every, "saving.unused")
        elif count is not None and 0 < count < 1:
            t.leave(every, "saving.share")
        else:
            t.take(every, path)


def take_length(t: Translation, *keys: str, usual: int) -> None:
    """Set the longest example; `usual` is what the tool takes where nothing is written."""
    found = next((t.written.settings[key] for key in keys if key in t.written.settings), None)
    if found is None:
        t.default("data.max_length", usual)
    elif found.value is None:
        t.leave(found, "length.none")
    else:
        t.take(found, "data.max_length")


def take_best(t: Translation, setting: Setting) -> None:
    """Keep the best weights by the loss, where the tool would load them at the end."""
    metric = t.find("metric_for_best_model")
    if not truth(setting.value):
        t.leave(setting, "off")
    elif metric is None or str(metric.value) in ("loss", "eval_loss"):
        t.take(setting, "run.best_checkpoint", "loss")
    else:
        t.differ(setting, "best.metric", metric=str(metric.value))


def take_steps(t: Translation, setting: Setting) -> None:
    """Set the number of steps; a number below 1 means by epochs."""
    count = number(setting.value)
    if count is not None and count <= 0:
        t.leave(setting, "off")
    else:
        t.take(setting, "optim.max_steps")


def _hardware(*keys: str) -> dict[str, Rule]:
    return dict.fromkeys(keys, left("hardware"))


RULES: Mapping[str, Rule] = {
    "learning_rate": same("optim.learning_rate"),
    "num_train_epochs": same("optim.epochs"),
    "max_steps": take_steps,
    "weight_decay": same("optim.weight_decay"),
    "max_grad_norm": same("optim.max_grad_norm"),
    "adam_beta1": same("optim.beta1"),
    "adam_beta2": same("optim.beta2"),
    "adam_epsilon": same("optim.epsilon"),
    "seed": same("seed"),
    "data_seed": left("seed.data"),
    "run_name": same("name"),
    "save_total_limit": same("run.keep_checkpoints"),
    "load_best_model_at_end": take_best,
    "metric_for_best_model": left("best.with"),
    "greater_is_better": left("best.with"),
    "early_stopping_patience": same("run.early_stopping"),
    "lr_scheduler_kwargs.*": switched("schedule.details"),
    "optim_args": switched("method"),
    "neftune_noise_alpha": switched("neftune"),
    "label_smoothing_factor": switched("label_smoothing"),
    "use_liger_kernel": left("kernels"),
    "group_by_length": left("speed"),
    "length_column_name": left("speed"),
    "resume_from_checkpoint": switched("resume", "leave"),
    "overwrite_output_dir": left("folder"),
    "output_dir": left("folder"),
    "logging_dir": left("folder"),
    "save_only_model": left("folder"),
    "save_safetensors": left("folder"),
    "push_to_hub": left("hub"),
    "report_to": left("trackers"),
    "trust_remote_code": switched("remote_code", "leave"),
    "do_train": left("phases"),
    "do_eval": left("phases"),
    "do_predict": left("phases"),
    "per_device_eval_batch_size": left("eval_batch"),
    "prediction_loss_only": left("eval_batch"),
    "include_num_input_tokens_seen": left("logs"),
    "average_tokens_across_devices": left("mean"),
    "disable_tqdm": left("logs"),
    "log_level": left("logs"),
    "plot_loss": left("logs"),
    "remove_unused_columns": left("columns"),
    "label_names": left("columns"),
    "dataset_num_proc": left("speed"),
    "preprocessing_num_workers": left("speed"),
    "overwrite_cache": left("speed"),
    "auto_find_batch_size": left("hardware"),
    **{f"{word}.*": left("logs") for word in ("logging", "wandb", "swanlab", "trackio", "mlflow")},
    **_hardware(
        "bf16",
        "fp16",
        "tf32",
        "torch_dtype",
        "dtype",
        "bf16_full_eval",
        "fp16_full_eval",
        "pure_bf16",
        "fp16_opt_level",
        "half_precision_backend",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs.*",
        "activation_offloading",
        "torch_compile",
        "torch_compile_mode",
        "torch_compile_backend",
        "torch_empty_cache_steps",
        "deepspeed",
        "fsdp",
        "fsdp_config",
        "fsdp_config.*",
        "local_rank",
        "ddp_timeout",
        "ddp_find_unused_parameters",
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "dataloader_drop_last",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "eval_accumulation_steps",
        "attn_implementation",
        "flash_attn",
        "attn_impl",
        "device_map",
        "low_cpu_mem_usage",
        "use_cache",
        "use_cpu",
        "no_cuda",
    ),
}


def take_common(t: Translation, *, rate: float | None, epochs: float = 3.0, decay: float = 0.0) -> None:
    """Set what a run by TrainingArguments has where nothing is written, beside schedule, warm-up and batch."""
    if rate is not None:
        t.default("optim.learning_rate", rate)
    t.default("optim.epochs", epochs)
    t.default("optim.weight_decay", decay)
    t.default("optim.max_grad_norm", 1.0)
    t.default("data.validation_share", 0.0)


def starts_with(t: Translation, *prefixes: str, reason: str) -> None:
    """Leave all settings of which nobody spoke and whose names begin so, such as `logging_steps`."""
    for key, setting in t.written.settings.items():
        if key not in t.seen and key.startswith(prefixes):
            t.leave(setting, reason)
