"""LLaMA-Factory: YAML and JSON configs, `llamafactory-cli train` and `src/train.py`, with its dataset_info.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.json_file import read_json
from studio.services.other_tools.sources import (
    place_file,
    take_model,
    take_share,
    take_sources,
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
from studio.services.other_tools.written import Setting, Unresolved, Written, number, truth, words

NAME = "LLaMA-Factory"
STAGES = {"sft": "sft", "pt": "pretrain", "dpo": "dpo", "kto": "kto", "rm": "reward", "orpo": "orpo"}
LOSSES = {
    "sigmoid": ("dpo", "sigmoid"),
    "hinge": ("dpo", "hinge"),
    "ipo": ("dpo", "ipo"),
    "kto_pair": ("", ""),
    "orpo": ("orpo", ""),
    "simpo": ("simpo", ""),
}
"""`pref_loss` -> objective and its comparison; none where there is no counterpart."""


def knows(written: Written) -> bool:
    """Return whether the settings are LLaMA-Factory's."""
    own = (
        "finetuning_type",
        "stage",
        "cutoff_len",
        "lora_target",
        "dataset_dir",
        "quantization_bit",
        "pref_beta",
    )
    return "model_name_or_path" in written.settings and sum(key in written.settings for key in own) >= 2


def translate(written: Written) -> ImportedRecipe:
    """Return the recipe. Raises RecipeError where there can be none."""
    t = Translation(NAME, written)
    if not written.find("do_train") and written.find("do_predict", "export_dir", "infer_backend"):
        t.reject(written.find("do_predict", "export_dir", "infer_backend"), "no_training")
    _take_method(t)
    _take_objective(t)
    _take_data(t)
    rate = 5e-5
    take_batch(t, ("per_device_train_batch_size",), ("gradient_accumulation_steps",), usual=(8, 1))
    take_schedule(t, "lr_scheduler_type")
    take_warmup(t)
    take_optimizer(t, "optim")
    take_saving(t)
    t.apply(OWN)
    take_common(t, rate=rate)
    starts_with(
        t,
        "logging_", "export_", "ray_", "infer_", "vllm_", "sglang_", "hub_", "hf_hub", "ddp_", "dataloader_",
        "swanlab", "predict_", "eval_",
        reason="logs",
    )  # fmt: skip
    return t.finish(OWN)


def _take_method(t: Translation) -> None:
    take_model(t, "model_name_or_path")
    kind = t.find("finetuning_type")
    said = str(kind.value) if kind is not None else "lora"
    if kind is not None and said in ("lora", "full"):
        t.take(kind, "adapter.method")
    elif kind is not None:
        t.reject(kind, "method.none")
    else:
        t.default("adapter.method", "lora")
    bits = t.find("quantization_bit")
    if bits is not None and number(bits.value) in (4, 8):
        t.take(bits, "model.quantization", "nf4" if number(bits.value) == 4 else "int8")
    elif bits is not None:
        t.differ(bits, "bits")
    if said != "lora":
        return
    rank, alpha = t.find("lora_rank"), t.find("lora_alpha")
    t.take(rank, "adapter.rank")
    t.take(alpha, "adapter.alpha")
    t.default("adapter.rank", 8)
    t.default("adapter.alpha", 2.0 * (t.get("adapter.rank") or 8), "default.alpha")
    target = t.find("lora_target")
    if target is not None:
        take_targets(t, target)
    else:
        t.default("adapter.target_modules", "all-linear")


def _take_objective(t: Translation) -> None:
    stage, loss = t.find("stage"), t.find("pref_loss", "dpo_loss")
    said = str(stage.value) if stage is not None else "sft"
    if said not in STAGES:
        t.reject(stage or Setting("stage", said), "stage.none")
        return
    objective = STAGES[said]
    if said == "dpo" and loss is not None:
        objective, comparison = LOSSES.get(str(loss.value), ("", ""))
        if not objective:
            t.reject(loss, "loss.none")
            return
        if comparison:
            t.take(loss, "preference.loss", comparison)
        else:
            t.take(loss, "objective", objective)
    elif loss is not None:
        t.leave(loss, "not_this_objective")
    if stage is not None:
        t.take(stage, "objective", objective)
    else:
        t.default("objective", objective)
    if objective in ("dpo", "kto", "orpo", "simpo"):
        t.take(t.find("pref_beta", "dpo_beta", "kto_beta", "orpo_beta"), "preference.beta")
        t.default("preference.beta", 0.1)
    if objective == "dpo":
        t.take(t.find("pref_ftx", "dpo_ftx", "kto_ftx"), "preference.nll_weight")
    if objective == "pretrain":
        t.default("data.format", "text", "default.text")


def _take_data(t: Translation) -> None:
    prompts, history = t.find("train_on_prompt"), t.find("mask_history")
    if prompts is not None:
        if truth(prompts.value):
            t.take(prompts, "data.train_on", "everything")
        else:
            t.take(prompts, "data.train_on", "answers")
    if history is not None:
        if truth(history.value):
            t.take(history, "data.train_on", "last_answer")
        else:
            t.leave(history, "off")
    packing = t.find("packing", "neat_packing")
    if packing is not None:
        t.take(packing, "data.fill")
    if t.find("neat_packing") is not None and packing is not t.find("neat_packing"):
        t.take(t.find("neat_packing"), "data.fill")
    take_length(t, "cutoff_len", usual=2048)
    listed = t.find("dataset")
    if listed is None:
        return
    if isinstance(listed.value, Unresolved):
        t.differ(listed, "unresolved", words=words(listed.value))
        return
    names = listed.value if isinstance(listed.value, list) else str(listed.value).split(",")
    known, folder = _read_registry(t)
    found = []
    for name in (str(one).strip() for one in names if str(one).strip()):
        source = _find_source(known.get(name), folder)
        found.append((Setting(listed.key, source or name, listed.place), source or name, 1.0))
        if source is None and not t.written.is_file(name):
            t.differ(Setting(f"{listed.key}: {name}", name, listed.place), "dataset.registry")
    take_sources(t, found)
    if len(found) == 1:
        _take_columns(t, known.get(str(names[0]).strip()), listed)


def _read_registry(t: Translation) -> tuple[Mapping[str, Any], Path]:
    """Return dataset_info.json of the config's own folder of data, where it lies there, and the folder."""
    setting = t.find("dataset_dir")
    name = str(setting.value) if setting is not None else "data"
    for base in (t.written.folder, *t.written.folder.parents[:3]):
        file = base / name / "dataset_info.json"
        if file.is_file():
            try:
                known = read_json(file)
            except StudioError:
                break
            if setting is not None:
                t.leave(setting, "dataset.read")
            return known if isinstance(known, dict) else {}, file.parent
    if setting is not None:
        t.leave(setting, "dataset.not_here")
    return {}, Path()


def _find_source(entry: Any, folder: Path) -> str | None:
    if not isinstance(entry, dict):
        return None
    if isinstance(entry.get("file_name"), str):
        return str((folder / entry["file_name"]).absolute())
    name = entry.get("hf_hub_url") or entry.get("ms_hub_url")
    return str(name) if name else None


def _take_columns(t: Translation, entry: Any, listed: Setting) -> None:
    """Set what dataset_info.json says of a data set's columns, in the studio's roles."""
    columns = entry.get("columns") if isinstance(entry, dict) else None
    if not isinstance(columns, dict):
        return
    roles = {"prompt": "instruction", "query": "input", "response": "output", "system": "system"}
    roles |= {"messages": "messages", "chosen": "chosen", "rejected": "rejected"}
    mapping = {roles[role]: str(column) for role, column in columns.items() if role in roles and column}
    if mapping:
        said = ", ".join(f"{role} = {column}" for role, column in mapping.items())
        t.leave(Setting(f"{listed.key}: columns", said, listed.place), "dataset.columns")


def _take_validation(t: Translation, setting: Setting) -> None:
    t.take(setting, "data.validation", place_file(t, str(setting.value)))


OWN: Mapping[str, Rule] = dict(RULES) | {
    "template": take_template,
    "val_size": take_share,
    "eval_dataset": _take_validation,
    "max_samples": same("data.max_rows"),
    "adapter_name_or_path": same("model.adapter"),
    "model_revision": same("model.revision"),
    "lora_dropout": same("adapter.dropout"),
    "use_rslora": same("adapter.rslora"),
    "use_dora": same("adapter.dora"),
    "additional_target": same("adapter.modules_to_save"),
    "default_system": same("data.system_prompt"),
    "simpo_gamma": same("preference.gamma"),
    "dpo_label_smoothing": same("preference.label_smoothing"),
    "kto_chosen_weight": same("preference.good_weight"),
    "kto_rejected_weight": same("preference.bad_weight"),
    "pref_bco_weight": switched("method"),
    "ref_model": switched("reference"),
    "rope_scaling": switched("rope"),
    "neat_packing": same("data.fill"),
    "efficient_eos": left("template.own"),
    "enable_thinking": left("thinking"),
    "mix_strategy": left("mix.order"),
    "interleave_probs": switched("mix.order"),
    "streaming": switched("streaming", "leave"),
    "quantization_method": left("bits.form"),
    "quantization_type": left("bits.form"),
    "double_quantization": left("bits.form"),
    "tokenized_path": left("speed"),
    "dataset_shards": left("speed"),
    "create_new_adapter": left("adapter.new"),
    "resume_lora_training": left("adapter.new"),
    "resize_vocab": switched("vocabulary"),
    "new_special_tokens": switched("vocabulary"),
    "add_tokens": switched("vocabulary"),
    "upcast_layernorm": left("hardware"),
    "upcast_lmhead_output": left("hardware"),
    "disable_gradient_checkpointing": left("hardware"),
    "use_unsloth": left("kernels"),
    "use_unsloth_gc": left("kernels"),
    "enable_liger_kernel": left("kernels"),
    "shift_attn": switched("method"),
    "split_special_tokens": switched("method"),
    "ignore_pad_token_for_loss": left("mean"),
    "compute_accuracy": left("logs"),
    "freeze_vision_tower": left("images"),
    "freeze_multi_modal_projector": left("images"),
    "freeze_language_model": switched("images.language"),
    "image_max_pixels": left("images"),
    "image_min_pixels": left("images"),
    "video_max_pixels": left("images"),
    "video_min_pixels": left("images"),
    **dict.fromkeys(
        (
            "loraplus_lr_ratio", "loraplus_lr_embedding", "pissa_init", "pissa_iter", "pissa_convert",
            "use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon", "use_llama_pro",
            "mixture_of_depths", "use_dft_loss", "use_asft_loss", "use_eaft_loss", "module_dropout",
            "freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules",
        ),
        switched("method"),
    ),
    **dict.fromkeys(
        (f"{one}.*" for one in ("galore", "apollo", "badam")), left("method.part")
    ),
}  # fmt: skip
