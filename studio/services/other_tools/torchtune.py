"""torchtune: its YAML configs, whose components are named by `_component_`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.services.other_tools.sources import place_file
from studio.services.other_tools.trainer_settings import (
    Rule,
    starts_with,
    take_batch,
    take_optimizer,
)
from studio.services.other_tools.translation import ImportedRecipe, Translation, left, same, switched
from studio.services.other_tools.written import Setting, Unresolved, Written, number, truth, words

NAME = "torchtune"
DATASETS = {
    "alpaca_dataset": ("tatsu-lab/alpaca", "everything"),
    "alpaca_cleaned_dataset": ("yahma/alpaca-cleaned", "everything"),
    "grammar_dataset": ("liweili/c4_200m", "answers"),
    "samsum_dataset": ("Samsung/samsum", "answers"),
    "slimorca_dataset": ("Open-Orca/SlimOrca-Dedup", "answers"),
    "chat_dataset": ("", "answers"),
    "instruct_dataset": ("", "answers"),
    "text_completion_dataset": ("", "everything"),
    "cnn_dailymail_articles_dataset": ("ccdv/cnn_dailymail", "everything"),
    "wikitext_dataset": ("EleutherAI/wikitext_document_level", "everything"),
    "preference_dataset": ("", ""),
    "stack_exchange_paired_dataset": ("lvwerra/stack-exchange-paired", ""),
    "hh_rlhf_helpful_dataset": ("RLHFlow/HH-RLHF-Helpful-standard", ""),
}
"""Builder -> the hub's data set that it takes where nothing is said, and what of a row it learns."""
TEXTS = ("text_completion_dataset", "cnn_dailymail_articles_dataset", "wikitext_dataset")
NAMES = {"output_proj": "o_proj", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
DOWNLOAD = re.compile(r"tune download (\S+/\S+)(?:.*?--output-dir[ =](\S+))?")


def knows(written: Written) -> bool:
    """Return whether the settings are torchtune's."""
    named = [one for key, one in written.settings.items() if key.endswith("_component_")]
    return any("torchtune" in str(one.value) for one in named)


def translate(written: Written) -> ImportedRecipe:
    """Return the recipe. Raises RecipeError where there can be none."""
    t = Translation(NAME, written)
    _take_model(t)
    _take_objective(t)
    _take_data(t)
    take_batch(t, ("batch_size",), ("gradient_accumulation_steps",), usual=(1, 1))
    take_optimizer(t, "optimizer._component_")
    _take_rates(t)
    t.apply(OWN)
    starts_with(t, "profiler", "metric_logger", "log_", "wandb", reason="logs")
    starts_with(t, "checkpointer.", "ref_checkpointer.", reason="folder")
    starts_with(t, "tokenizer.", reason="tokenizer.model")
    return t.finish(OWN)


def _take_model(t: Translation) -> None:
    folder = t.find("checkpointer.checkpoint_dir")
    if folder is not None and isinstance(folder.value, Unresolved):
        t.differ(folder, "unresolved", words=words(folder.value))
    elif folder is not None:
        said = str(folder.value).rstrip("/")
        loaded = DOWNLOAD.search(t.written.comments)
        if loaded is not None and not t.written.is_file(said):
            t.change(folder, "model.source", loaded.group(1), "torchtune.download")
        else:
            t.take(folder, "model.source", place_file(t, said))
    kind = t.find("model._component_")
    name = str(kind.value).split(".")[-1] if kind is not None else ""
    if kind is None:
        return
    if "vision" in name or "llama4" in name and "vision" in name:
        t.reject(kind, "images.model")
    adapter = name.startswith(("lora_", "qlora_"))
    t.take(kind, "adapter.method", "lora" if adapter else "full", "torchtune.builder")
    bits = t.find("model.quantize_base")
    if name.startswith("qlora_"):
        t.default("model.quantization", "nf4", "torchtune.qlora")
    if bits is not None and truth(bits.value):
        t.take(bits, "model.quantization", "nf4")
    if not adapter:
        return
    listed = t.find("model.lora_attn_modules")
    named = [NAMES.get(str(one), str(one)) for one in (listed.value if listed is not None else ())]
    mlp, head = t.find("model.apply_lora_to_mlp"), t.find("model.apply_lora_to_output")
    if mlp is not None and truth(mlp.value):
        named += ["gate_proj", "up_proj", "down_proj"]
    if head is not None and truth(head.value):
        named.append("lm_head")
    for one in (listed, mlp, head):
        if one is not None:
            t.change(one, "adapter.target_modules", ",".join(named), "torchtune.targets")
    t.take(t.find("model.lora_rank"), "adapter.rank")
    t.take(t.find("model.lora_alpha"), "adapter.alpha")
    t.default("adapter.rank", 8)
    t.default("adapter.alpha", 16.0)


def _take_objective(t: Translation) -> None:
    loss, data = t.find("loss._component_"), t.find("dataset._component_")
    name = str(loss.value).split(".")[-1] if loss is not None else ""
    builder = str(data.value).split(".")[-1] if data is not None else ""
    if t.find("teacher_model._component_") is not None:
        t.reject(t.find("teacher_model._component_"), "stage.none")
    elif loss is not None and ("PPO" in name or "GRPO" in name or "KL" in name):
        t.reject(loss, "stage.none")
    elif t.find("quantizer._component_") is not None:
        t.differ(t.find("quantizer._component_"), "method")
    if "DPO" in name or "RSO" in name or "IPO" in name or "SimPO" in name:
        t.take(loss, "objective", "simpo" if "SimPO" in name else "dpo")
        if "RSO" in name or "IPO" in name:
            t.default("preference.loss", "hinge" if "RSO" in name else "ipo")
        t.take(t.find("loss.beta"), "preference.beta")
        t.default("preference.beta", 0.1)
        t.take(t.find("loss.gamma"), "preference.gamma")
        t.take(t.find("loss.label_smoothing"), "preference.label_smoothing")
    else:
        if loss is not None:
            t.leave(loss, "loss.usual")
        t.default("objective", "pretrain" if builder in TEXTS else "sft")


def _take_data(t: Translation) -> None:
    kind = t.find("dataset._component_")
    if kind is None:
        return
    builder = str(kind.value).split(".")[-1]
    source, files = t.find("dataset.source"), t.find("dataset.data_files")
    if "multimodal" in str(kind.value):
        t.reject(kind, "images.model")
        return
    usual, learned = DATASETS.get(builder, ("", "answers"))
    if files is not None:
        t.take(files, "data.source", place_file(t, str(files.value)))
        if source is not None:
            t.leave(source, "dataset.kind")
    elif source is not None:
        t.take(source, "data.source", place_file(t, str(source.value)))
    elif usual:
        t.change(kind, "data.source", usual, "torchtune.dataset")
    if kind.key not in t.seen:
        if builder in DATASETS:
            t.leave(kind, "rows.type")
        else:
            t.differ(kind, "torchtune.own_dataset")
    prompts = t.find("dataset.train_on_input")
    if prompts is not None:
        t.take(prompts, "data.train_on", "everything" if truth(prompts.value) else "answers")
    elif learned:
        t.default("data.train_on", learned)
    if t.find("dataset.split") is not None:
        from studio.services.other_tools.sources import take_split

        take_split(t, t.find("dataset.split"))
    limit = t.find("tokenizer.max_seq_len", "dataset.max_seq_len")
    if limit is not None:
        t.take(limit, "data.max_length")
    packed = t.find("dataset.packed")
    if packed is not None:
        t.take(packed, "data.fill")
    for key, setting in t.written.settings.items():
        if key.startswith("dataset.") and key not in t.seen:
            t.leave(setting, "dataset.columns")
    tested = t.find("dataset_val.source", "dataset_val.data_files")
    if tested is not None:
        t.take(tested, "data.validation", place_file(t, str(tested.value)))
    starts_with(t, "dataset_val", "batch_size_val", reason="eval_batch")
    t.default("data.validation_share", 0.0)


def _take_rates(t: Translation) -> None:
    t.take(t.find("optimizer.lr"), "optim.learning_rate")
    t.take(t.find("optimizer.weight_decay"), "optim.weight_decay")
    t.default("optim.weight_decay", 0.01, "torchtune.adamw")
    schedule = t.find("lr_scheduler._component_")
    if schedule is None:
        t.default("optim.schedule", "constant", "torchtune.constant")
        t.default("optim.warmup_share", 0.0)
    else:
        name = str(schedule.value).split(".")[-1]
        t.take(schedule, "optim.schedule", "cosine" if "cosine" in name else "linear")
        steps = t.find("lr_scheduler.num_warmup_steps")
        t.take(steps, "optim.warmup_steps")
        if steps is None or not number(steps.value):
            t.default("optim.warmup_share", 0.0)
    clip = t.find("clip_grad_norm")
    if clip is not None:
        t.take(clip, "optim.max_grad_norm")
    t.default("optim.max_grad_norm", 0.0, "torchtune.clip")
    epochs, most = t.find("epochs"), t.find("max_steps_per_epoch")
    count, limit = number(epochs.value) if epochs else 1.0, number(most.value) if most else None
    t.take(epochs, "optim.epochs")
    if most is not None and limit:
        t.change(
            most, "optim.max_steps", int(limit * (count or 1)), "torchtune.steps", epochs=int(count or 1)
        )
    betas = t.find("optimizer.betas")
    if betas is not None and isinstance(betas.value, list) and len(betas.value) == 2:
        t.take(betas, "optim.beta1", betas.value[0])
        t.take(betas, "optim.beta2", betas.value[1])
    t.take(t.find("optimizer.eps"), "optim.epsilon")


def _take_adapter(t: Translation, setting: Setting) -> None:
    t.differ(setting, "torchtune.adapter")


OWN: Mapping[str, Rule] = {
    "seed": same("seed"),
    "shuffle": left("order"),
    "model.lora_dropout": same("adapter.dropout"),
    "model.use_dora": same("adapter.dora"),
    "model.*": switched("method"),
    "optimizer.fused": left("hardware"),
    "optimizer_in_bwd": left("hardware"),
    "output_dir": left("folder"),
    "resume_from_checkpoint": switched("resume", "leave"),
    "save_adapter_weights_only": left("folder"),
    "save_every_n_steps": same("run.save_every"),
    "run_val_every_n_steps": same("run.eval_every"),
    "checkpointer.adapter_checkpoint": _take_adapter,
    "compile": left("hardware"),
    "device": left("hardware"),
    "dtype": left("hardware"),
    "enable_activation_checkpointing": left("hardware"),
    "enable_activation_offloading": left("hardware"),
    "memory_efficient_fsdp_wrap": left("hardware"),
    "fsdp_cpu_offload": left("hardware"),
    "custom_sharded_layers": left("hardware"),
    "tensor_parallel_dim": left("hardware"),
    "tensor_parallel_plan.*": left("hardware"),
    "num_output_chunks": left("hardware"),
    "cudnn_deterministic_mode": left("hardware"),
    "low_cpu_ram": left("hardware"),
    "collate_fn": left("columns"),
    "loss.*": left("loss.usual"),
    "max_seq_len": same("data.max_length"),
    "base_model_path": left("used_elsewhere"),
}
