"""Reads what a KeyError lacks: a column of the data, a model type, a variable, or what another package hands over."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.causes.gguf_conversion import in_converter
from studio.machine.failures.code_places import MODEL_CODE
from studio.machine.failures.error_text import Raised, Reading
from studio.machine.failures.package_names import LIBRARIES, pip_name
from studio.machine.failures.traceback_calls import in_studio, read_config, read_import, values_of

Values = Mapping[str, str] | None
KEY = re.compile(r"^'?(?P<key>[^'\n]{1,80}?)(?:'?$|'[.,;!?] )")
MADE_KEY = re.compile(
    r"(?:prompt|chosen|rejected|completion|decoder|concatenated)_(?:input_ids|attention_mask|labels|pixel_values)"
)
"""What a trainer makes of a row, never a column that a person has."""
MODEL_TYPES = re.compile(
    r"(?:llama|qwen|mi[sx]tral|gemma|phi|deepseek|falcon|bloom|gpt|glm|chatglm|internlm|baichuan|yi|"
    r"olmo|granite|cohere|"
    r"starcoder|stablelm|mamba|minicpm|smollm|command|exaone|ernie|kimi|hunyuan|nemotron|mllama|llava|pixtral|opt)"
    r"[\w.-]*"
)
COLUMNS = re.compile(
    r"text|instructions?|inputs?|outputs?|messages|conversations?|prompts?|completions?|chosen|"
    r"rejected|labels?|input_ids|"
    r"attention_mask|from|value|role|content|questions?|answers?|responses?|quer(?:y|ies)|images?|"
    r"system|history|train|test|"
    r"validation|none"
)
TENSOR = re.compile(
    r"[\w-]+(?:\.[\w-]+){1,12}\.(?:weight|bias|alpha|lora_(?:A|B|down|up)(?:\.\w+)?)(?:\.\w+)?"
)
"""The name of a model's tensor."""
FROM_ROW = re.compile(r"\b(?:inputs|batch|features?|rows?|examples?|samples?|items?|records?)\[")
"""A line of code that takes a key out of a row or a batch."""
SETTINGS = re.compile(
    r"\b(?:llm|text|vision|audio|tokenizer|model|generation|hf|quantization|rope|adapter|processor|preprocessor|read)"
    r"_config(?:_dict)?\["
)
"""A line of code that takes a value out of one of a model's own files of settings."""
TABLE = re.compile(
    r"\b(?P<table>\w*(?:params|config|cfg|conf|args|settings|options|opts|hparams|specs?)|"
    r"\w+_(?:table|map|mapping|dict|registry|presets?|lookup)|(?:available|known|registered|all)_\w+)\[(?:f?['\"](?P<literal>[\w.-]+)['\"]|[\w.]+)\]",
    re.IGNORECASE,
)
"""A line of code that takes a value out of a program's own settings or out of one of its tables."""
FROM_FILE = re.compile(
    r"\b(?:torch\.load|load_file|safe_load|np\.load)\(.{0,120}\)\[|"
    r"\b\w*(?:ckpt|checkpoint|state_dict|model_sd|saved|pretrained_dict|weights)\w*\[['\"]"
)
"""A line of code that takes a part out of a file of weights."""
STEPS = re.compile(r"(?<![\d/])[1-9]\d*/\d+ \[\d+:[^\]\n]{1,60}\]\s{0,4}Traceback")
"""A bar of progress that is past its first step, just where the error comes."""
DATA_CODE = re.compile(
    r"_map_single|\bmap|collat|preprocess|tokeni[sz]e|format|convert|prompt|example|dataset|align|transform_row"
)


def _key(reading: Reading) -> tuple[Raised, str] | None:
    raised = reading.last
    if raised is None or raised.type != "KeyError":
        return None
    found = KEY.match(raised.message.partition("\n")[0].strip())
    return (raised, found["key"]) if found else None


def _raised_key(reading: Reading) -> tuple[Raised, str] | None:
    """Return the exception and its key, a number's too."""
    raised = reading.last
    number = (
        re.fullmatch(r"-?\d{1,12}", raised.message.strip()) if raised and raised.type == "KeyError" else None
    )
    return (raised, number[0]) if raised is not None and number else _key(reading)


def read_model_key(reading: Reading) -> Values:
    """A model type that the installed transformers has no entry for."""
    found = _key(reading)
    if found is None:
        return None
    raised, key = found
    told = any(
        re.search(r"configuration_auto|auto_factory|modeling_auto|model_type", frame.path)
        for frame in raised.frames
    )
    bare = not raised.frames and MODEL_TYPES.fullmatch(key.lower())
    return {"name": key} if told or bare else None


def read_row_number(reading: Reading) -> Values:
    """A row that is asked for by its number, in a table that has other numbers or names."""
    found = _raised_key(reading)
    number = found is not None and re.fullmatch(r"\d{1,12}", found[1])
    asked = number and any(frame.function in ("__getitem__", "fetch") for frame in found[0].frames)
    return {"name": found[1]} if found and asked else None


def read_table(reading: Reading) -> Values:
    """A name that the program's own settings, or a table of its own, do not hold."""
    found = _raised_key(reading)
    if found is None or not found[0].frames or found[0].packages[0] != "" or in_studio(reading):
        return None
    raised, key = found
    told = TABLE.search(raised.source)
    if told is None or COLUMNS.fullmatch(key.lower()) or (told["literal"] or key) != key:
        return None
    return {"name": key, "kind": told["table"]}


def read_column(reading: Reading) -> Values:
    """A column, or a key in a row, that the data do not have."""
    found = _key(reading)
    if found is None:
        return None
    raised, key = found
    if (
        key in ("input_ids", "attention_mask")
        or in_studio(reading)
        or MADE_KEY.fullmatch(key)
        or TENSOR.fullmatch(key)
        or read_table(reading)
        or FROM_FILE.search(raised.source)
        or read_row_number(reading)
        or SETTINGS.search(raised.source)
        or in_converter(reading)
    ):
        return None
    at_work = (
        raised.packages[:1] == ("datasets",)
        or FROM_ROW.search(raised.source)
        or any(
            DATA_CODE.search(frame.function) or DATA_CODE.search(re.split(r"[\\/]", frame.path)[-1])
            for frame in raised.frames[-3:]
        )
    )
    return {"name": key} if at_work or COLUMNS.fullmatch(key.lower()) else None


def read_variable(reading: Reading) -> Values:
    """An environment variable that is not set."""
    found = _key(reading)
    if found is None:
        return None
    raised, key = found
    asked = any(
        "os" in frame.path.rpartition("/")[2] and frame.package == "python" for frame in raised.frames[-1:]
    )
    return {"name": key} if asked or re.fullmatch(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+", key) else None


def read_trainer_field(reading: Reading) -> Values:
    """A part of a batch that a trainer makes itself, which another version makes in another way."""
    found = _key(reading)
    if found is None or not MADE_KEY.fullmatch(found[1]):
        return None
    package = next((package for package in found[0].packages if package in LIBRARIES), "trl")
    return values_of(found[0], found[1], package)


def read_mismatch(reading: Reading) -> Values:
    """A name that one package expects of another one."""
    found = _key(reading)
    # What a package takes out of the arguments that another one handed over.
    if found and found[0].packages[:1] and found[0].packages[0] in LIBRARIES and "kwargs[" in found[0].source:
        return values_of(found[0], found[1], found[0].packages[0])
    return read_import(reading)


def read_settings(reading: Reading) -> Values:
    """A value that a model's settings lack, as an attribute or as a key of what was read from its file."""
    found = _key(reading)
    if found is None or in_studio(reading) or not SETTINGS.search(found[0].source) or read_model_key(reading):
        return read_config(reading)
    return values_of(found[0], found[1], "transformers")


def read_one_row(reading: Reading) -> Values:
    """Tokens that a later row lacks, where the rows before it had them."""
    found = _key(reading)
    tokens = found is not None and found[1] in ("input_ids", "attention_mask", "labels")
    return {"name": found[1]} if found and tokens and STEPS.search(reading.words) else None


def read_package_key(reading: Reading) -> Values:
    """A name that a package looks up in a table of its own."""
    raised = reading.last
    if raised is None or raised.type != "KeyError" or not raised.frames:
        return None
    inside, name = raised.packages[0], raised.message.partition("\n")[0].strip("'\"")
    if " " in name or inside in ("", "python", "torch", "datasets", MODEL_CODE):
        return None
    return {"name": name, "package": pip_name(inside)}


def read_bare_key(reading: Reading) -> Values:
    """A name that a row, a batch or a table lacks, without the place or in the program's own code."""
    raised = reading.last
    name = raised.message.partition("\n")[0].strip("'\" ") if raised is not None else ""
    if raised is None or raised.type != "KeyError" or raised.wraps or in_studio(reading):
        return None
    if raised.packages[:1] not in ((), ("",), ("python",)) or read_table(reading):
        return None
    return {"name": name} if re.fullmatch(r"[A-Za-z_(\d-][^\n]{0,60}", name) and name.count(" ") < 4 else None
