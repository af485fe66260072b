"""What was being done when an error came up, by the package and the functions that its places name.

It is true of an error that nobody knows, too: a message of any kind from inside `_load_pretrained_model` came while a
model was loaded.
"""

from __future__ import annotations

import re

from studio.machine.failures.code_places import MODEL_CODE
from studio.machine.failures.error_text import Frame, Reading
from studio.machine.failures.package_names import KNOWN, LIBRARIES, pip_name

ACTIVITIES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        # The surest first: what has a word of its own in a file's or a function's name.
        ("merging", r"merge_and_unload|merge_lora|merge_adapter|unmerge|save_pretrained_merged"),
        ("converting", r"convert_(?:hf|lora)_to_gguf|[\\/]gguf[\\/]|save_pretrained_gguf|convert_to_gguf"),
        ("resuming", r"resume|_load_(?:from_checkpoint|optimizer|rng|scaler)|load_rng_state"),
        (
            "saving",
            r"(?:^|:_?)(?:save|write|export|push)_?|_save\b|save_(?:model|pretrained|checkpoint|state)",
        ),
        (
            "downloading",
            r"hf_hub_download|snapshot_download|file_download|http_get|hf_raise_for_status|_request_wrapper",
        ),
        (
            "quantizing",
            r"[\\/](?:quantiz|bitsandbytes|gptqmodel|auto_gptq|awq|hqq|torchao|quanto|llmcompressor)|quantiz",
        ),
        (
            "adapting",
            r"inject_adapter|get_peft_model|_create_and_replace|add_adapter|[\\/]peft[\\/]tuners|patch_peft",
        ),
        ("tokenizing", r"[\\/]tokeniz|tokenization|(?:^|:)_?tokenize|sentencepiece|batch_encode|encode_plus"),
        ("templating", r"apply_chat_template|chat_template|[\\/]jinja2[\\/]|[\\/]templates?[\\/.]"),
        ("collating", r"collat|[\\/]_utils[\\/]fetch|torch_call|data_collator"),
        (
            "reading_rows",
            r"[\\/]datasets[\\/](?:load|builder|packaged_modules|arrow_reader|table)|load_dataset|read_json",
        ),
        ("preparing_rows", r"_map_single|:map$|preprocess|_prepare_dataset|formatting_func|prepare_packed"),
        (
            "compiling",
            r"[\\/]triton[\\/]|[\\/]_inductor[\\/]|[\\/]_dynamo[\\/]|cpp_extension|[\\/]ninja|jit_compile",
        ),
        (
            "sharing",
            r"[\\/]deepspeed[\\/]|[\\/]fsdp|[\\/]distributed[\\/]|all_?reduce|all_?gather|init_process_group",
        ),
        ("optimizing", r"[\\/]optim(?:izers?)?[\\/]|optimizer|add_param_group|lr_scheduler|clip_grad"),
        ("differentiating", r"backward|[\\/]autograd[\\/]"),
        ("losing", r"compute_loss|loss_function|[\\/]loss|cross_entropy|_loss\b"),
        ("sampling", r"generat|[\\/]vllm[\\/]|rollout|sampl|llm_engine"),
        (
            "loading",
            r"from_pretrained|load_(?:model|state_dict|weights|checkpoint)|modeling_utils|model_loader|"
            r"_load_pretrained_model|checkpoint|safetensors|[\\/]serialization",
        ),
        ("configuring", r"config|hparams|pars(?:e|er|ing)|argument|(?<!_)validat|schema"),
        ("evaluating", r"evaluat|compute_metrics|prediction_step"),
        ("forwarding", r":forward$|_call_impl|modeling_|attention|_forward"),
        ("training", r"inner_training_loop|training_step|:train$|:fit$"),
        ("importing", r":<module>$|importlib|import_utils"),
    )
)
"""Each with what the end of a path and the function's name say, as "path:function"."""
LOGGED = (
    ("loading", re.compile(r"Loading (?:safetensors )?checkpoint shards|Loading weights|Fetching \d+ files")),
    (
        "preparing_rows",
        re.compile(r"(?:Map|Tokenizing|Running tokenizer|Converting format|Packing)\b[^\n]{0,60}:? +\d+%"),
    ),
    ("training", re.compile(r"\{'(?:loss|eval_loss)': |\d+/\d+ \[\d+:\d+")),
)
"""What a log shows before its end, where no place in the code is told."""
INNERMOST = 6
"""So many places are looked at: what is further outside only asked for the rest."""
EVERYWHERE = frozenset(("", "python", "numpy", MODEL_CODE))


def read_activity(reading: Reading) -> tuple[str, str]:
    """Return (the package that it was raised in, what it did then: failure.doing.NAME); "" for what is not told."""
    raised = reading.last
    if raised is None or not raised.frames:
        return "", _logged_activity(reading)
    package = next((name for name in raised.packages if name not in EVERYWHERE), "")
    known = package if package in LIBRARIES or package in KNOWN else ""
    for frame in list(reversed(raised.frames))[:INNERMOST]:
        told = _place(frame)
        for name, pattern in ACTIVITIES:
            # A program's own file is run, not imported.
            if pattern.search(told) and not (name == "importing" and frame.package in EVERYWHERE):
                return pip_name(known) if known else "", name
    return pip_name(known) if known else "", ""


def _place(frame: Frame) -> str:
    """Return the end of the path, from the package's own name on, and the function."""
    parts = re.split(r"[\\/]", frame.path)
    start = parts.index(frame.package) if frame.package in parts else max(0, len(parts) - 2)
    return "/" + "/".join(parts[start:]) + ":" + frame.function.rpartition(".")[2]


def _logged_activity(reading: Reading) -> str:
    before = reading.words[: reading.last.start] if reading.last is not None else reading.words
    last = [(found.start(), name) for name, pattern in LOGGED for found in pattern.finditer(before)]
    return max(last)[1] if last else ""
