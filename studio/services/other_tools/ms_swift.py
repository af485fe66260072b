"""ms-swift: `swift sft`, `pt` and `rlhf` with their options, in the names of versions 2, 3 and 4; args.json."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.services.other_tools.sampling_settings import OBJECTIVES as SAMPLED
from studio.services.other_tools.sampling_settings import take_sampling
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
from studio.services.other_tools.translation import (
    COMPARED,
    ImportedRecipe,
    Translation,
    left,
    same,
    switched,
)
from studio.services.other_tools.written import Setting, Unresolved, Written, number, truth, words

NAME = "ms-swift"
OBJECTIVES = {"dpo": "dpo", "orpo": "orpo", "simpo": "simpo", "kto": "kto", "cpo": "cpo", "rm": "reward"}
OLD = {
    "sft_type": "tuner_type",
    "train_type": "tuner_type",
    "model_id_or_path": "model",
    "template_type": "template",
    "custom_train_dataset_path": "dataset",
    "custom_val_dataset_path": "val_dataset",
    "batch_size": "per_device_train_batch_size",
    "lora_target_modules": "target_modules",
    "lora_dropout_p": "lora_dropout",
    "dataset_test_ratio": "split_dataset_ratio",
    "quantization_bit": "quant_bits",
    "truncation": "truncation_strategy",
    "resume_from_adapter": "adapters",
    "eval_batch_size": "per_device_eval_batch_size",
    "use_flash_attn": "attn_impl",
}
"""Names of earlier versions -> today's."""
NAMED = re.compile(r"(?:(?:hf|HF|ms|MS)::)?([^:#]+?)(?::([^#]+))?(?:#(\d+))?")


def knows(written: Written) -> bool:
    """Return whether the settings are ms-swift's: its command, or what its args.json has."""
    own = (
        "tuner_type",
        "train_type",
        "sft_type",
        "rlhf_type",
        "split_dataset_ratio",
        "target_modules",
        "torch_dtype",
    )
    named = "model" in written.settings or "model_id_or_path" in written.settings
    return named and sum(key in written.settings for key in own) >= 2


def translate(written: Written) -> ImportedRecipe:
    """Return the recipe. Raises RecipeError where there can be none."""
    settings = {OLD.get(key, key): one for key, one in written.settings.items()}
    # A setting keeps the name under which it is written; two of one meaning are not both kept.
    renamed = {key: Setting(key, one.value, one.place) for key, one in settings.items()}
    written = Written(
        settings=renamed, folder=written.folder, command=written.command, processes=written.processes
    )
    t = Translation(NAME, written)
    _take_method(t)
    _take_objective(t)
    _take_data(t)
    take_batch(t, ("per_device_train_batch_size",), ("gradient_accumulation_steps",), usual=(1, 16), total=16)
    take_schedule(t, "lr_scheduler_type", usual="cosine")
    take_warmup(t, usual=0.05)
    take_optimizer(t, "optim")
    take_saving(t)
    t.apply(OWN)
    full = t.get("adapter.method") == "full"
    take_common(t, rate=1e-5 if full else 1e-4, decay=0.1)
    t.default("optim.beta2", 0.95)
    starts_with(
        t, "logging_", "wandb", "swanlab", "dataset_num", "ddp_", "dataloader", "hub_", "vllm", "sglang",
        reason="logs",
    )  # fmt: skip
    starts_with(t, "freeze_", "vit_", "aligner_", reason="images")
    return t.finish((*OWN, *OLD))


def _take_method(t: Translation) -> None:
    take_model(t, "model")
    kind = t.find("tuner_type")
    said = str(kind.value) if kind is not None else "lora"
    if kind is None:
        t.default("adapter.method", "lora")
    elif said in ("lora", "qlora", "longlora"):
        t.take(kind, "adapter.method", "lora")
    elif said == "full":
        t.take(kind, "adapter.method", "full")
    else:
        t.reject(kind, "method.none")
    bits = t.find("quant_bits")
    if bits is not None and number(bits.value) in (4, 8):
        t.take(bits, "model.quantization", "nf4" if number(bits.value) == 4 else "int8")
    elif bits is not None and number(bits.value):
        t.differ(bits, "bits")
    elif said == "qlora":
        t.default("model.quantization", "nf4")
    if said == "full":
        return
    t.take(t.find("lora_rank"), "adapter.rank")
    t.take(t.find("lora_alpha"), "adapter.alpha")
    t.take(t.find("lora_dropout"), "adapter.dropout")
    t.default("adapter.rank", 8)
    t.default("adapter.alpha", 32.0)
    t.default("adapter.dropout", 0.05)
    if t.find("target_modules") is not None:
        take_targets(t, t.find("target_modules"))


def _take_objective(t: Translation) -> None:
    kind = t.find("rlhf_type")
    place = kind or Setting("swift", t.written.command)
    if kind is not None or t.written.command == "rlhf":
        said = str(kind.value) if kind is not None else "dpo"
        if said in SAMPLED:
            take_sampling(t, said)
            if kind is not None:
                t.take(kind, "objective", "grpo")
            return
        if said not in OBJECTIVES:
            t.reject(place, "stage.none")
            return
        t.take(kind, "objective", OBJECTIVES[said])
        t.default("objective", OBJECTIVES[said])
    elif t.find("task_type") is not None and str(t.find("task_type").value) != "causal_lm":
        t.reject(t.find("task_type"), "stage.none")
    else:
        t.default("objective", "pretrain" if t.written.command == "pt" else "sft")
    objective, loss = t.get("objective"), t.find("loss_type")
    if objective in OBJECTIVES.values():
        t.take(t.find("beta"), "preference.beta")
        t.default("preference.beta", 2.0 if objective == "simpo" else 0.1)
        if loss is not None and str(loss.value) in COMPARED:
            t.take(loss, "preference.loss")
        elif loss is not None:
            t.differ(loss, "loss.none")


def _take_data(t: Translation) -> None:
    for key, path in (("dataset", "data.source"), ("val_dataset", "data.validation")):
        setting = t.find(key)
        if setting is None:
            continue
        listed = setting.value if isinstance(setting.value, list) else str(setting.value).split(",")
        found = []
        for one in listed:
            if isinstance(one, Unresolved) or isinstance(setting.value, Unresolved):
                t.differ(setting, "unresolved", words=words(one))
                continue
            part = NAMED.fullmatch(str(one).strip())
            name = part.group(1) if part is not None else str(one)
            found.append((setting, name, 1.0))
            if part is None:
                continue
            if part.group(3) and len(listed) == 1 and path == "data.source":
                t.take(Setting(f"{key} #", part.group(3), setting.place), "data.max_rows")
            elif part.group(3):
                t.differ(Setting(f"{key} #", part.group(3), setting.place), "mix.rows")
            if part.group(2) and path == "data.source":
                t.take(Setting(f"{key} :", part.group(2), setting.place), "data.config")
        if path == "data.source":
            take_sources(t, found)
        elif found:
            t.take(setting, path, place_file(t, found[0][1]))
            for _, name, _ in found[1:]:
                t.differ(Setting(f"{key} ({name})", name, setting.place), "validation.one")
    share = t.find("split_dataset_ratio")
    if share is not None:
        take_share(t, share)
    take_length(t, "max_length", usual=2048)
    scale = t.find("loss_scale")
    said = str(scale.value) if scale is not None else ""
    if scale is not None and said in ("default", "all", "last_round"):
        learned = {"default": "answers", "all": "everything", "last_round": "last_answer"}[said]
        t.take(scale, "data.train_on", learned)
    elif scale is not None:
        t.differ(scale, "method")
    cut = t.find("truncation_strategy")
    if cut is not None and str(cut.value) in ("delete", "split"):
        t.take(cut, "data.too_long", "drop" if str(cut.value) == "delete" else "split")
    elif cut is not None:
        t.take(cut, "data.too_long", "cut")


OWN: Mapping[str, Rule] = dict(RULES) | {
    "template": take_template,
    "model_type": left("model.kind"),
    "model_revision": same("model.revision"),
    "adapters": lambda t, setting: t.take(setting, "model.adapter", place_file(t, str(setting.value))),
    "system": same("data.system_prompt"),
    "packing": same("data.fill"),
    "padding_free": left("padding"),
    "use_rslora": same("adapter.rslora"),
    "use_dora": same("adapter.dora"),
    "modules_to_save": lambda t, setting: t.take(setting, "adapter.modules_to_save"),
    "new_special_tokens": lambda t, s: t.take(
        s, "adapter.tokens", tuple(s.value) if isinstance(s.value, list) else (str(s.value),)
    ),
    "simpo_gamma": same("preference.gamma"),
    "cpo_alpha": same("preference.nll_weight"),
    "rpo_alpha": same("preference.nll_weight"),
    "desirable_weight": same("preference.good_weight"),
    "undesirable_weight": same("preference.bad_weight"),
    "center_rewards_coefficient": same("preference.center"),
    "label_smoothing": same("preference.label_smoothing"),
    "columns": left("dataset.columns"),
    "use_chat_template": lambda t, s: t.leave(s, "off") if truth(s.value) else t.differ(s, "template.none"),
    "model_author": left("identity"),
    "model_name": left("identity"),
    "load_from_cache_file": left("speed"),
    "load_data_args": left("speed"),
    "cached_dataset": left("speed"),
    "cached_val_dataset": left("speed"),
    "lazy_tokenize": left("speed"),
    "streaming": switched("streaming", "leave"),
    "shuffle_buffer_size": left("speed"),
    "dataset_shuffle": left("order"),
    "train_dataloader_shuffle": left("order"),
    "quant_method": left("bits.form"),
    "bnb_4bit_compute_dtype": left("bits.form"),
    "bnb_4bit_quant_type": left("bits.form"),
    "bnb_4bit_use_double_quant": left("bits.form"),
    "bnb_4bit_quant_storage": left("bits.form"),
    "init_weights": switched("method"),
    "gradient_checkpointing": left("hardware"),
    "tuner_backend": left("kernels"),
    "merge_lora": left("export"),
    "add_version": left("folder"),
    "create_checkpoint_symlink": left("folder"),
    "acc_strategy": left("logs"),
    "predict_with_generate": left("logs"),
    "enable_thinking": left("thinking"),
    "agent_template": left("template.own"),
    "response_prefix": switched("template.words"),
    "use_hf": left("hub.which"),
    "self_cognition_sample": switched("identity.rows"),
    "sequence_parallel_size": left("hardware"),
    "rope_scaling": switched("rope"),
    "ref_model": switched("reference"),
    "sft_alpha": switched("method"),
    "temperature": left("logs"),
    "max_new_tokens": left("logs"),
    "top_p": left("logs"),
    "top_k": left("logs"),
    "infer_backend": left("logs"),
    **dict.fromkeys(
        (
            "use_galore", "lisa_activated_layers", "lorap_lr_ratio", "llamapro_num_new_blocks",
            "enable_dft_loss", "reft_intervention_type", "router_aux_loss_coef",
        ),
        switched("method"),
    ),
}  # fmt: skip
