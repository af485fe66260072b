"""Training scripts and notebooks on TRL, transformers or Unsloth, read by their calls and never run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from studio.core.errors import Problem, RecipeError
from studio.core.i18n import text
from studio.services.other_tools.script_calls import Script
from studio.services.other_tools.script_values import Call, Dotted
from studio.services.other_tools.sources import (
    place_file,
    take_share,
    take_split,
    take_targets,
    take_template,
)
from studio.services.other_tools.translation import ImportedRecipe, Translation
from studio.services.other_tools.trl import OWN, RATES, finish_trainer, take_objective
from studio.services.other_tools.written import Setting, TextPlace, Unresolved, Written, truth, words

TRAINERS = {
    "SFTTrainer": "sft",
    "UnslothTrainer": "sft",
    "DPOTrainer": "dpo",
    "KTOTrainer": "kto",
    "ORPOTrainer": "orpo",
    "CPOTrainer": "cpo",
    "RewardTrainer": "reward",
    "GRPOTrainer": "grpo",
    "RLOOTrainer": "rloo",
    "PPOTrainer": "ppo",
    "OnlineDPOTrainer": "online_dpo",
    "GKDTrainer": "gkd",
    "BCOTrainer": "bco",
    "PRMTrainer": "prm",
    "Trainer": "sft",
    "Seq2SeqTrainer": "",
}
CONFIGS = (
    "SFTConfig",
    "DPOConfig",
    "KTOConfig",
    "ORPOConfig",
    "CPOConfig",
    "RewardConfig",
    "GRPOConfig",
    "TrainingArguments",
    "UnslothTrainingArguments",
    "Seq2SeqTrainingArguments",
)
LOADERS = ("from_pretrained",)
OTHER_MODELS = (
    "Seq2Seq", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "Vision",
    "ImageTextToText", "SpeechSeq2Seq", "Embedding", "SentenceTransformer",
)  # fmt: skip
"""Parts of the names of classes that are no causal language models."""
READERS = {
    "read_csv": "csv",
    "read_json": "json",
    "read_parquet": "parquet",
    "read_excel": "xlsx",
    "read_table": "csv",
    "from_json": "json",
    "from_csv": "csv",
    "from_parquet": "parquet",
    "from_text": "text",
    "load_from_disk": "folder",
}
"""Calls that open a file of rows."""
NOT_SETTINGS = {
    "model", "tokenizer", "processing_class", "train_dataset", "eval_dataset", "args", "peft_config", "data_collator",
    "callbacks", "compute_metrics", "preprocess_logits_for_metrics", "formatting_func", "optimizers", "ref_model",
    "reward_funcs", "dataset_num_proc", "model_init", "reward_processing_classes",
}  # fmt: skip


def translate_script(script: Script, written: Written) -> ImportedRecipe:
    """Return the recipe of a script. Raises RecipeError, with the line, where there can be none."""
    tool = "Unsloth" if script.imports("unsloth") else "TRL"
    trainer = script.find(*TRAINERS)
    if trainer is None or not TRAINERS[trainer.name]:
        raise _refuse(trainer.place if trainer else TextPlace(), trainer.name if trainer else "", tool)
    config = _find_config(script, trainer)
    settings = dict(_list_settings(trainer, config))
    t = Translation(tool, replace(written, settings=settings))
    objective = TRAINERS[trainer.name]
    place = Setting(trainer.name, trainer.name, trainer.place)
    if trainer.name == "Trainer" and not script.find("DataCollatorForLanguageModeling"):
        t.differ(place, "script.own_labels")
    take_objective(t, objective, place)
    _take_model(t, script, trainer)
    _take_adapter(t, script, trainer)
    _take_data(t, script, trainer, objective)
    if not t.get("model.source") and not t.get("data.source"):
        t.reject(place, "script.empty")
    _take_words(t, script)
    if "reward_funcs" in trainer.arguments:
        own = Setting(
            "reward_funcs", words(trainer.arguments["reward_funcs"]), trainer.places["reward_funcs"]
        )
        t.differ(own, "sampling.rewards", value=own.value)
    rate = 5e-5 if config is None or "TrainingArguments" in config.name else RATES.get(objective)
    finish_trainer(t, objective, rate)
    others = [call for call in script.calls if call.name in TRAINERS and call is not trainer]
    for call in {other.name: other for other in others if other.name != trainer.name}.values():
        t.differ(Setting(call.name, call.name, call.place), "script.second")
    return t.finish(OWN)


def _refuse(place: TextPlace, name: str, tool: str) -> RecipeError:
    known = ", ".join(one for one, objective in TRAINERS.items() if objective)
    why = text("imported.script.no_trainer", known=known)
    message = text("imported.refused", place=str(place), key=name or tool, value=name or "-", why=why)
    return RecipeError((Problem(field=name, message=message, fix=text("imported.refused.fix")),))


def _find_config(script: Script, trainer: Call) -> Call | None:
    given = trainer.arguments.get(
        "args", next((one for one in trainer.positional[1:3] if isinstance(one, Call)), None)
    )
    if isinstance(given, Call) and given.name in CONFIGS:
        return given
    return script.find(*CONFIGS)


def _list_settings(trainer: Call, config: Call | None) -> Iterator[tuple[str, Setting]]:
    for call in (config, trainer):
        for name, value in call.arguments.items() if call is not None else ():
            if (
                call is trainer
                and name in NOT_SETTINGS
                or isinstance(value, Call)
                and name not in ("report_to",)
            ):
                if call is config:
                    yield name, Setting(name, Unresolved(str(value)), call.places.get(name, call.place))
                continue
            if isinstance(value, dict):
                for inner, part in value.items():
                    key = f"{name}.{inner}"
                    yield key, Setting(key, _plain(part), call.places.get(name, call.place))
            else:
                yield name, Setting(name, _plain(value), call.places.get(name, call.place))


def _plain(value: Any) -> Any:
    if isinstance(value, Dotted):  # torch.bfloat16, IntervalStrategy.STEPS
        root, _, last = value.name.rpartition(".")
        named = root == "torch" or root.endswith(("Strategy", "Type", "Names"))
        return last if named else Unresolved(value.name)
    return Unresolved(str(value)) if isinstance(value, (Call, range)) else value


# Model and adapter ---------------------------------------------------------------------------------------------------


def _follow(value: Any, depth: int = 0) -> Iterator[Call]:
    """Yield the calls that made a value: itself, what it is called on, and its first argument."""
    if not isinstance(value, Call) or depth > 20:
        return
    yield value
    for inner in (
        value.receiver,
        *value.positional[:1],
        value.arguments.get("model"),
        value.arguments.get("dataset"),
    ):
        yield from _follow(inner, depth + 1)


def _find_loader(script: Script, trainer: Call) -> Call | None:
    given = trainer.arguments.get("model", trainer.positional[0] if trainer.positional else None)
    for call in _follow(given):
        if call.name in LOADERS and "Tokenizer" not in call.path and "Processor" not in call.path:
            return call
    loaders = [
        call
        for call in script.calls
        if call.name in LOADERS
        and any(word in call.path for word in ("Model", "ForCausalLM", "Llama", "Mistral"))
        and not any(word in call.path for word in ("Peft", "Tokenizer"))
    ]
    return loaders[0] if loaders else None


def _take_model(t: Translation, script: Script, trainer: Call) -> None:
    given = trainer.arguments.get("model", trainer.positional[0] if trainer.positional else None)
    if isinstance(given, str):
        t.take(
            Setting("model", given, trainer.places.get("model", trainer.place)),
            "model.source",
            place_file(t, given),
        )
        return
    loader = _find_loader(script, trainer)
    if loader is None:
        t.differ(Setting("model", Unresolved(words(given)), trainer.place), "unresolved", words=words(given))
        return
    if any(word in loader.path for word in OTHER_MODELS):
        t.reject(Setting(loader.path, loader.path, loader.place), "model.other")
        return
    name = loader.arguments.get("model_name", loader.arguments.get("pretrained_model_name_or_path"))
    name = loader.positional[0] if name is None and loader.positional else name
    key = "model_name" if "model_name" in loader.arguments else loader.path
    where = loader.places.get("model_name", loader.place)
    if isinstance(name, str):
        t.take(Setting(key, name, where), "model.source", place_file(t, name))
    else:
        t.differ(Setting(key, Unresolved(words(name)), where), "unresolved", words=words(name))
    _take_loading(t, loader)


def _take_loading(t: Translation, loader: Call) -> None:
    """Take how the model is loaded: bits, revision, and a length that only Unsloth's loader has."""
    bits = loader.arguments.get("quantization_config")
    given = dict(loader.arguments)
    places = dict(loader.places)
    if isinstance(bits, Call):
        inner = {f"quantization_config.{name}": value for name, value in bits.arguments.items()}
        places |= {
            f"quantization_config.{name}": bits.places.get(name, bits.place) for name in bits.arguments
        }
        given = {**given, **inner, "quantization_config": None}
    unsloth = loader.path.startswith("Fast")
    for name, value in given.items():
        setting = Setting(name, _plain(value), places.get(name, loader.place))
        last = name.split(".")[-1]
        if name in ("model_name", "pretrained_model_name_or_path") or value is None:
            continue
        if last in ("load_in_4bit", "load_in_8bit"):
            on = truth(setting.value)
            if on and t.get("model.quantization") is None:
                t.take(setting, "model.quantization", "nf4" if last == "load_in_4bit" else "int8")
            elif on is None:
                t.differ(setting, "unresolved", words=words(setting.value))
            else:
                t.leave(setting, "off")
        elif last == "revision":
            t.take(setting, "model.revision")
        elif last == "max_seq_length":
            if t.find("max_length", "max_seq_length") is None:
                t.take(setting, "data.max_length")
            else:
                t.leave(setting, "length.loader")
        elif last == "full_finetuning":
            t.take(setting, "adapter.method", "full") if truth(setting.value) else t.leave(setting, "off")
        elif last == "trust_remote_code":
            t.leave(setting, "remote_code" if truth(setting.value) else "off")
        elif last == "rope_scaling":
            t.differ(setting, "rope")
        else:
            t.leave(setting, "bits.form" if "." in name else "hardware")
    if unsloth and "load_in_4bit" not in given:
        t.default("model.quantization", "nf4", "unsloth.four_bits")


def _take_adapter(t: Translation, script: Script, trainer: Call) -> None:
    given = trainer.arguments.get("peft_config")
    config = given if isinstance(given, Call) and given.name == "LoraConfig" else script.find("LoraConfig")
    unsloth = next(
        (one for one in script.calls if one.name == "get_peft_model" and one.path.startswith("Fast")), None
    )
    call = unsloth or config
    if call is None:
        continued = script.find("from_pretrained") if script.imports("peft") else None
        peft = next((one for one in script.calls if one.path.startswith("PeftModel.")), None)
        if continued is not None and peft is not None and len(peft.positional) > 1:
            t.take(Setting(peft.path, _plain(peft.positional[1]), peft.place), "model.adapter")
        t.default(
            "adapter.method", "lora" if peft is not None else "full", "trl.peft" if peft else "trl.full"
        )
        return
    if t.get("adapter.method") is None:
        t.take(Setting(call.path, call.name, call.place), "adapter.method", "lora")
    rules = {"r": "adapter.rank", "lora_alpha": "adapter.alpha", "lora_dropout": "adapter.dropout"}
    rules |= {
        "use_rslora": "adapter.rslora",
        "use_dora": "adapter.dora",
        "modules_to_save": "adapter.modules_to_save",
    }
    for name, value in call.arguments.items():
        key = f"lora.{name}" if name not in ("use_rslora", "use_dora") else name
        setting = Setting(key, _plain(value), call.places.get(name, call.place))
        if name in rules and value is not None:
            t.take(setting, rules[name])
        elif name == "target_modules" and value is not None:
            take_targets(t, setting)
        elif name == "bias" and words(value) != "none":
            t.differ(setting, "method")
        elif name in ("random_state",):
            t.leave(setting, "seed.adapter")
        elif name in ("use_gradient_checkpointing", "max_seq_length", "model"):
            t.leave(setting, "hardware")
        elif name in ("task_type", "inference_mode", "bias", "fan_in_fan_out", "finetune_vision_layers"):
            t.leave(setting, "model.kind")
        elif name in (
            "init_lora_weights",
            "loftq_config",
            "layers_to_transform",
            "layers_pattern",
            "rank_pattern",
        ):
            if value not in (None, True, {}):
                t.differ(setting, "method")
            else:
                t.leave(setting, "off")
        else:
            t.leave(setting, "off") if value in (None, False, True) else t.differ(setting, "method")
    t.default("adapter.rank", 16 if unsloth else 8)
    t.default("adapter.alpha", 16.0 if unsloth else 8.0)
    if "target_modules" not in call.arguments:
        t.default("adapter.target_modules", "all-linear", "targets.usual")


# Data ----------------------------------------------------------------------------------------------------------------


def _take_data(t: Translation, script: Script, trainer: Call, objective: str) -> None:
    given = trainer.arguments.get("train_dataset")
    chain = list(_follow(given))
    opened = next((one for one in chain if one.name == "load_dataset" or one.name in READERS), None)
    if opened is None:
        listed = [one for one in script.calls if one.name == "load_dataset" or one.name in READERS]
        opened = listed[0] if listed else None
        for other in listed[1:]:
            t.differ(
                Setting(f"{other.path} ({other.place})", words(_name(other)), other.place), "script.more_data"
            )
    if opened is None:
        t.differ(Setting("train_dataset", Unresolved(words(given)), trainer.place), "script.no_data")
    else:
        _take_opened(t, opened)
    steps = chain or script.calls
    for call in steps:
        name = f"dataset.{call.name}"
        if call.name == "map" and name not in t.seen:
            t.differ(
                Setting(name, words(call.positional[0] if call.positional else "…"), call.place),
                "script.mapped",
            )
        elif call.name == "filter" and name not in t.seen:
            t.differ(Setting(name, "…", call.place), "script.filtered")
        elif call.name == "select" and call.positional and isinstance(call.positional[0], range):
            t.take(Setting(name, words(len(call.positional[0])), call.place), "data.max_rows")
        elif call.name == "shuffle" and name not in t.seen:
            t.take(Setting(name, True, call.place), "data.shuffle")
        elif call.name == "train_test_split" and "test_size" in call.arguments:
            take_share(t, Setting("test_size", call.arguments["test_size"], call.place))
        elif (
            call.name == "[]"
            and isinstance(call.positional[0], str)
            and call.positional[0] not in ("train", "test")
        ):
            t.take(Setting("dataset[…]", call.positional[0], call.place), "data.split")
    if isinstance(trainer.arguments.get("formatting_func"), (Dotted, Unresolved, Call)):
        t.differ(
            Setting("formatting_func", words(trainer.arguments["formatting_func"]), trainer.place),
            "script.mapped",
        )
    collator = script.find("DataCollatorForCompletionOnlyLM", "train_on_responses_only")
    if collator is not None and objective == "sft":
        t.take(Setting(collator.name, collator.name, collator.place), "data.train_on", "answers")


def _name(call: Call) -> Any:
    return (
        call.positional[0]
        if call.positional
        else call.arguments.get("path", call.arguments.get("data_files"))
    )


def _take_opened(t: Translation, call: Call) -> None:
    """Take where the rows come from."""
    name, files = _name(call), call.arguments.get("data_files")
    files = (
        files.get("train", next(iter(files.values()), None)) if isinstance(files, dict) and files else files
    )
    files = files[0] if isinstance(files, list) and files else files
    file = isinstance(name, str) and name in ("json", "csv", "parquet", "text", "arrow")
    wanted = files if file and files is not None else name
    place = call.places.get("data_files" if file else "path", call.place)
    if isinstance(wanted, str):
        t.take(Setting(call.path, wanted, place), "data.source", place_file(t, wanted))
    else:
        t.differ(Setting(call.path, Unresolved(words(wanted)), place), "unresolved", words=words(wanted))
    config = call.arguments.get("name", call.positional[1] if len(call.positional) > 1 else None)
    if isinstance(config, str) and call.name == "load_dataset":
        t.take(Setting("name", config, call.places.get("name", call.place)), "data.config")
    split = call.arguments.get("split")
    if split is not None and not file:
        take_split(t, Setting("split", _plain(split), call.places.get("split", call.place)))


def _take_words(t: Translation, script: Script) -> None:
    """Take the chat template that is set by name, and tokens that are added."""
    chosen = script.find("get_chat_template")
    if chosen is not None:
        said = chosen.arguments.get(
            "chat_template", chosen.positional[1] if len(chosen.positional) > 1 else None
        )
        setting = Setting("chat_template", _plain(said), chosen.place)
        if isinstance(said, str):
            take_template(t, setting)
        elif said is not None:
            t.differ(setting, "template.words")
    added = script.find("add_tokens", "add_special_tokens", "resize_token_embeddings")
    if (
        added is not None
        and added.name == "add_tokens"
        and added.positional
        and isinstance(added.positional[0], list)
    ):
        tokens = tuple(one for one in added.positional[0] if isinstance(one, str))
        t.take(Setting("add_tokens", list(tokens), added.place), "adapter.tokens", tokens)
    elif added is not None:
        t.differ(Setting(added.name, str(added), added.place), "special_tokens")
