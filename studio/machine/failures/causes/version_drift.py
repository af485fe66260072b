"""Failures of packages whose names changed between versions, and of calls and names in the program itself."""

from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.key_errors import read_settings, read_trainer_field, read_variable
from studio.machine.failures.missing_names import read_own_module
from studio.machine.failures.package_frames import read_left_out, read_override, read_unsaved, read_versioned
from studio.machine.failures.remedies import REBUILD
from studio.machine.failures.traceback_calls import (
    read_adapter_argument,
    read_attribute,
    read_event,
    read_fork,
    read_model_code,
    read_own_argument,
    read_own_attribute,
    read_own_import,
    read_value_kind,
)
from studio.machine.failures.undefined_names import (
    read_bare_name,
    read_bare_owned,
    read_compiled_part,
    read_guarded,
    read_name,
    read_newer_package,
    read_own_name,
    read_unbound,
    read_unloaded,
)

NEW_NAME = Remedy("new_name", needs=("name", "new"))
UPGRADE_BOTH = Remedy("upgrade_both", needs=("package", "caller"))
UPGRADE = Remedy("upgrade_package", needs=("package",))
OLDER = Remedy("older_package", needs=("package",))

FAILURES = (
    Failure(
        # The package adapter-transformers installs itself over transformers.
        "adapter_fork",
        said(
            r"(?:cannot import name|No module named)[^\n]{0,80}'transformers\.adapters\b",
            r"adapter-transformers \d[\w.]* (?:requires|has)",
        ),
        (Remedy("remove_fork"),),
        code="V17",
        reader=read_fork,
    ),
    Failure(
        "adapter_newer",
        None,
        (Remedy("upgrade_peft"), Remedy("trim_adapter")),
        code="V5",
        reader=read_adapter_argument,
    ),
    Failure(
        "model_code",
        # Since 4.34 transformers asks a tokenizer for its vocabulary while it is being made.
        said(
            r"'(?:(?:Chat)?GLM\d?|Baichuan|QWen|InternLM\d?|Yi|Orion|MOSS|Aquila|XVERSE|Skywork|"
            r"Telechat\d?)Tokenizer' "
            r"object has no attribute '\w+'",
            r"can't set attribute '?(?:eos|pad|unk|bos|cls|sep|mask)_token|"
            r"property '(?:eos|pad|unk|bos|cls|sep|mask)_token' of '\w+' object has no setter",
        ),
        (Remedy("model_transformers"), Remedy("without_remote_code")),
        code="V6",
        reader=read_model_code,
    ),
    Failure(
        "override_older",
        None,
        (
            UPGRADE,
            Remedy("override_takes", needs=("call",)),
            Remedy("caller_of_then", needs=("caller",)),
        ),
        code="V56",
        reader=read_override,
    ),
    Failure(
        "argument_unsaved",
        None,
        (Remedy("pass_when_loading", needs=("name",)), Remedy("save_settings")),
        code="V60",
        reader=read_unsaved,
        doubt=Doubt("api_argument", "versions", asked=True),
    ),
    Failure(
        "argument_left_out",
        None,
        (Remedy("give_argument", needs=("name",)), UPGRADE),
        code="V57",
        reader=read_left_out,
        doubt=Doubt("api_argument", "versions"),
    ),
    Failure("api_argument", None, (NEW_NAME, UPGRADE_BOTH, UPGRADE, OLDER), code="V1", reader=read_versioned),
    Failure(
        # Newer optimizers have two modes, and one of the two packages asks every optimizer for them.
        "optimizer_modes",
        said(
            r"'(?:\w*Adam\w*|\w*Optimizer\w*|SGD\w{0,3}|Lion\w*|Adafactor)' object has no attribute '(?:train|eval)'"
        ),
        (Remedy("upgrade_transformers_accelerate"),),
        code="V39",
    ),
    Failure(
        "event_inputs", None, (Remedy("inputs_of_event"), Remedy("one_state")), code="V62", reader=read_event
    ),
    Failure(
        "own_argument",
        None,
        (Remedy("own_call"), NEW_NAME),
        code="V14",
        reader=read_own_argument,
        doubt=Doubt("api_argument", "versions"),
    ),
    Failure(
        "config_lacks",
        None,
        (Remedy("fetch_settings"), UPGRADE, OLDER),
        code="V40",
        reader=read_settings,
        doubt=Doubt("api_attribute", "versions"),
    ),
    Failure(
        "api_attribute", None, (NEW_NAME, UPGRADE_BOTH, UPGRADE, OLDER), code="V2", reader=read_attribute
    ),
    Failure(
        "tensor_wanted",
        said(
            r"argument '\w+' \(position \d+\) must be (?:a )?Tensor, not (?P<kind>[\w.]+)",
            r"expected Tensor as (?:element \d+ in )?argument \d+, but got (?P<kind>[\w.]+)",
        ),
        (Remedy("take_tensor"), UPGRADE),
        code="V37",
    ),
    Failure(
        "own_attribute",
        None,
        (Remedy("spell_attribute"), UPGRADE),
        code="V36",
        reader=read_own_attribute,
        doubt=Doubt("api_attribute", "versions"),
    ),
    Failure(
        "value_kind",
        None,
        (Remedy("look_at_value"), UPGRADE),
        code="V9",
        reader=read_value_kind,
        doubt=Doubt("api_attribute", "versions"),
    ),
    Failure(
        "unsloth_compiled",
        said(
            r"Failed to create dynamic compiled modules|[Dd]irect module loading failed for Unsloth|"
            r"Unsloth: Cannot import \S*unsloth_compiled_cache",
            r"unsloth\w*[\\/][^\n]*\n\s*exec\([^\n]*\n[\s\S]{0,400}?(?:SyntaxError|IndentationError|NameError)",
            r"File \"[^\"\n]*unsloth_compiled_cache[^\n]*\n(?:[^\n]*\n){0,2}?(?:NameError|IndentationError|"
            r"SyntaxError|TypeError)",
            r"^[^\s\"]*unsloth_compiled_cache[^\n]*\n(?:[^\n]*\n){0,2}?(?:NameError|TypeError|AttributeError)",
            # As a notebook shows it: the lines around the one that failed, and the error below them.
            r"unsloth_compiled_cache[^\n]*\n(?:[^\n]*\n){0,6}?ImportError: cannot import name '\w+' from "
            r"'(?:trl|transformers)\b",
            # Several processes write it at once.
            r"module 'Unsloth\w+Trainer' has no attribute",
            # What it writes anew of other packages' functions has no file.
            r"_fast_inner_training_loop[\s\S]{0,4000}?File \"<string>\", line \d+, in \w+ *\n"
            r"(?:[^\n]*\n)?\s*NameError",
        ),
        (Remedy("clear_compiled"),),
        code="V7",
    ),
    Failure(
        "input_missing",
        said(r"`(?P<name>\w+)` is required as a model input"),
        (Remedy("upgrade_trainer"), Remedy("input_by_collator", needs=("name",))),
        code="V20",
    ),
    Failure(
        "guarded_import",
        None,
        (Remedy("pip_install", needs=("module",)), UPGRADE),
        code="V19",
        reader=read_guarded,
    ),
    Failure(
        "package_unloaded",
        None,
        (Remedy("import_line", needs=("package",)), Remedy("pip_install", needs=("module",))),
        code="V33",
        reader=read_unloaded,
        doubt=Doubt("own_name", "last_frame"),
    ),
    Failure(
        "unbound_local",
        None,
        (Remedy("set_before"),),
        code="V34",
        reader=read_unbound,
        doubt=Doubt("api_name", "last_frame", asked=True),
    ),
    Failure(
        "compiled_part",
        None,
        (Remedy("part_reason", needs=("name",)), Remedy("part_again", needs=("package",))),
        code="V53",
        reader=read_compiled_part,
    ),
    Failure("api_name", None, (UPGRADE, Remedy("companions"), OLDER), code="V3", reader=read_name),
    Failure(
        "own_name",
        None,
        (Remedy("import_name", needs=("name", "package")), Remedy("own_program")),
        code="V8",
        reader=read_own_name,
    ),
    Failure(
        "bare_owned",
        None,
        (Remedy("import_name", needs=("name", "package")), Remedy("own_program")),
        code="V43",
        reader=read_bare_owned,
        doubt=Doubt("optional_absent", "last_frame"),
    ),
    Failure("optional_absent", None, (Remedy("pip_install", needs=("module",)), UPGRADE), code="V46"),
    Failure(
        "bare_name",
        None,
        (Remedy("import_name", needs=("name", "package")), Remedy("own_program")),
        code="V10",
        reader=read_bare_name,
        doubt=Doubt("api_name", "last_frame"),
    ),
    Failure(
        "version_required",
        said(
            r"(?P<need>[\w-]+(?:\[[\w,-]+\])?\s?[<>=!~]=?\s?[^\s:`]+) is required for a normal functioning",
            r"requires (?P<need>[A-Za-z][\w-]+ version (?:`[\w-]+` )?(?:>=|at least )? ?[\d.]+)",
            r"requires `?(?P<need>[A-Za-z][\w-]*(?:\[[\w,-]+\])?\s?[<>=!~]=\s?[\d.]+\w*)`?[^\n]{0,80}"
            r"(?:[Pp]lease|install|but|found)",
            r"(?:requires|needs?) (?:a )?(?P<need>(?:torch|PyTorch|transformers|peft|trl|accelerate|"
            r"bitsandbytes|datasets|vllm|"
            r"triton|numpy) (?:version )?(?:>=? ?|at least )?v?\d[\d.]+)(?![\d.]*,? (?:and|with|on) )",
            r"(?P<need>[A-Za-z][\w-]+ ?(?:>=|==|<=|<|>) ?[\d.]+\w*) (?:is required|must be installed)",
            r"Found an incompatible version of (?P<need>[\w-]+)",
            r"(?<!pip )(?<!pip3 )install `?(?P<need>[A-Za-z][\w-]*(?:\[[\w,-]+\])?(?:>=|==|<=|~=|<|>)[\d.]+\w*)",
            r"(?:[Pp]lease|[Tt]ry|[Rr]un|[Ff]ix:?|[Uu]se|with|via|by) (?:run(?:ning)? |install"
            r"(?:ing)? )*[`'\"]?(?:[!%]|python3? -m )?"
            r"pip3? install (?:-{1,2}[\w-]+ )*[`'\"]?(?P<need>[A-Za-z][\w-]*(?:\[[\w,-]+\])?(?:>=|==|"
            r"<=|~=|<|>)[\d.]+\w*)",
            r"VersionConflict: \([^\n]{1,200}?Requirement\.parse\('(?P<need>[^'\n]+)'",
            r"DistributionNotFound: The '(?P<need>[^'\n]+)' distribution was not found",
            r"(?P<need>[A-Za-z][\w-]+) (?:package )?version v?[\d.]+ or (?:higher|newer|later|above|greater)",
            r"version of (?P<need>[A-Za-z][\w-]+)[^\n]{0,40} you are using is not compatible",
            r"\b(?:[Tt]ry|[Pp]lease|[Cc]onsider|[Nn]eed to|[Mm]ust|[Hh]ave to|[Ss]hould) (?:try )?"
            r"(?:upgrad|updat|downgrad)(?:e|ing) (?:your |the |the installed )?[`'\"](?P<need>[A-Za-z][\w-]+)[`'\"]",
            r"[Pp]lease (?:upgrade|update|downgrade) (?:your )?`?(?P<need>(?:torch|transformers|peft|trl|"
            r"accelerate|bitsandbytes|"
            r"datasets|unsloth|unsloth_zoo|triton|vllm|tokenizers|numpy|huggingface[_-]hub|"
            r"gradio)`?(?: version)?(?: to)? ?[\d.]*)",
        ),
        (Remedy("install_needed", needs=("need",)), REBUILD),
        code="V4",
        unless=said(
            r"ERROR: (?:Package|Ignored)",
            r"depends on",
            r"but you have [^\n]{1,60} which is incompatible",
            r"none of the providers can be installed",
            r"No solution found when resolving",
        ),
    ),
    Failure(
        "option_unknown",
        said(
            r"\bremaining_argv: \[(?P<name>[^\]\n]+)",
            r"unrecognized arguments?: (?P<name>-[^\n]+)",
            r"Key '(?P<name>[\w.]+)' is not in struct",
            r"Could not override '(?P<name>[\w.]+)'",
            r"not used by the HfArgumentParser: \[?(?P<name>(?:'[\w-]+'(?:, )?){1,4}\]?)(?![^\]\n]*,)",
            r"[Nn]o such option: (?P<name>\S+)",
            r"error: argument (?:sub)?(?:command|cmd|action|mode)\w*: invalid choice: (?P<name>'[\w.-]+')",
            r"(?:unknown|unrecogni[sz]ed|invalid) (?:option|flag)s?:? ?[`'\"]?(?P<name>--?[\w-]+)",
        ),
        (Remedy("listed_options"), Remedy("newer_options")),
        code="V41",
        unless=said(
            r"nvcc fatal|\bcl : |clang: error|gcc: error|cc1plus|pip(?:3|\.exe)? (?:install|download)"
        ),
    ),
    Failure(
        "setting_field",
        said(
            r"validation errors? for (?P<call>\w*(?:Config|Args|Arguments|Settings|Params|Parameters|"
            r"Options|Input)\w*)\s*\n\s*(?P<name>[\w.\[\]-]+)\s*\n"
            r"(?:\s+|(?=Input |Value |Field |Extra ))(?P<says>[^\n\[]+)",
            r"validation errors? for (?P<call>\w+)\s*\n\s*(?P<name>[\w.]+)\s*\n"
            r"\s+(?P<says>[Ee]xtra (?:fields|inputs?) (?:are )?not permitted)",
        ),
        (Remedy("settings_named"), NEW_NAME),
        code="D122",
    ),
    Failure(
        "trainer_field",
        None,
        (UPGRADE_BOTH, UPGRADE, OLDER),
        code="V50",
        reader=read_trainer_field,
        doubt=Doubt("column_missing", "versions"),
    ),
    Failure(
        # Since 4.36 transformers keeps what was computed in a Cache of its own, no longer in pairs of tensors.
        "cache_changed",
        said(
            r"Cache only has \d+ layers, attempted to access layer",
            r"'tuple' object has no attribute 'get_(?:seq|usable|max)_\w+'|"
            r"'DynamicCache' object (?:has no attribute|is not subscriptable)",
        ),
        (Remedy("fitting_cache"), UPGRADE_BOTH),
        code="V32",
    ),
    Failure(
        # As pybind11 and PyO3 say it of compiled functions.
        "native_arguments",
        said(
            r"incompatible (?:function|constructor) arguments\. The following argument types are supported",
            r"argument '\w+': Can't extract `\w+` to `\w+`|argument '(?P<name>\w+)': '\w+' object "
            r"(?:cannot|can't) be",
        ),
        (Remedy("other_kind"), Remedy("upgrade_all")),
        code="V28",
    ),
    Failure(
        "registered_twice",
        said(
            r"'?(?P<name>[\w./-]+)'? is already (?:used by a Transformers config|registered in)",
            r"(?P<name>[\w./-]+) is already registered(?: in| at|!|'|$)",
        ),
        (Remedy("one_registers"), Remedy("upgrade_all")),
        code="V29",
    ),
    Failure(
        "not_json",
        said(r"Object of type '?(?P<kind>(?!Undefined\b)\w+)'? is not JSON serializable"),
        (Remedy("plain_values"), Remedy("upgrade_all")),
        code="V30",
    ),
    Failure(
        "package_new",
        said(
            r"'type' object is not subscriptable",
            r"cannot import name '\w+' from 'typing'",
        ),
        (Remedy("python_312"),),
        code="V18",
        reader=read_newer_package,
    ),
    Failure(
        "package_old",
        said(
            r"AttributeError: (?:cython_sources|install_layout)",
            r"mutable default [^\n]{1,200} is not allowed: use default_factory",
            r"module '(?:inspect|collections|asyncio|fractions|pkgutil)' has no attribute '(?!ImpImporter)\w+'",
            r"cannot import name '\w+' from '(?:collections|inspect|fractions|asyncio)'",
            r"use_2to3 is invalid",
        ),
        (Remedy("newer_package"),),
        code="V16",
    ),
    Failure(
        "notebook_old",
        said(
            r"(?:must|need to) restart the (?:runtime|kernel|session)",
            r"packages were previously imported in this (?:runtime|session)",
        ),
        (Remedy("restart_python"), Remedy("install_first")),
        code="V48",
    ),
    Failure(
        "protobuf_old",
        said(
            r"Descriptors cannot (?:not )?be created directly",
            r"must be regenerated with protoc|into descriptor pool",
        ),
        (Remedy("protobuf"),),
        code="V15",
    ),
    Failure(
        "own_import",
        None,
        (Remedy("one_state"), Remedy("same_name")),
        code="V42",
        reader=read_own_import,
    ),
    Failure(
        "own_module",
        None,
        (Remedy("own_folder"),),
        code="V11",
        reader=read_own_module,
    ),
    Failure(
        "shadowed_module",
        said(
            r"partially initialized module '(?P<module>[\w.]+)'[^\n]{0,200}circular import",
            r"cannot import name '\w+' from '(?P<module>[\w.]+)' \((?![^)\n]*(?:site|"
            r"dist)-packages)(?!unknown)[^)\n]{1,200}"
            r"[\\/](?:datasets|transformers|torch|trl|peft|triton|accelerate|tokenizers|random|"
            r"logging|types|copy|queue|token)\.py\)",
        ),
        (Remedy("rename_file", needs=("module",)), REBUILD),
        code="V12",
    ),
    Failure(
        "variable_unset", None, (Remedy("set_variable", needs=("name",)),), code="V13", reader=read_variable
    ),
)
