"""Failures of turning a model into GGUF, and of the programs that read it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Failure, Remedy, said

CONVERTER = re.compile(
    r"(?:^|[\\/_])convert[\w-]*(?:gguf|ggml|hf_to|hf-to|lora_to|lora-to)[\w-]*\.py$|"
    r"llama\.?cpp\w*[\\/](?:[\w.-]+[\\/])*convert[\w-]*\.py$|[\\/]gguf(?:-py)?[\\/][\w\\/]+\.py$",
    re.IGNORECASE,
)
MISFITS = frozenset(
    "KeyError ValueError NotImplementedError IndexError AttributeError TypeError AssertionError".split()
)
"""What the converter raises where a model is not what it expects; a missing file or package is another matter."""
PACKED = re.compile(
    r"'?(?:U8|I8|uint8|int8|F8_E\w+|float8\w*|torch\.(?:u?int8|float8\w*))'?|[^\n]*(?:absmax|"
    r"quant_map|quant_state|\.SCB\b)[^\n]*"
)
"""The formats and names of weights in 4 or 8 bits."""
OTHER_NAME = (
    r"(?:(?:base_model|module|_orig_mod|pretrained_model|_fsdp_wrapped_module|policy|model\.model|actor)\.[\w.]+|"
    r"(?:embed_tokens|layers|norm|h|wte)\.[\w.]+)"
)
"""Names with a wrapper's before them, or without the model's own: as its body alone saves them."""
PACKED_NAME = (
    r"(?:quant|absmax|lora_|nf4|qweight|qzeros|g_idx|weight_(?:scale|packed|format)|\.SCB\b|\.scales)"
)

MAGIC = r"invalid (?:gguf |file )?magic[^\n]{0,40}?"
POINTER = rf"{MAGIC}(?:'vers'|\bvers\b|73726576)"
"""The first four signs of what Git LFS puts in a file's place ("version https://..."), also as one number."""
PAGE = rf"{MAGIC}(?:'<(?:!DO|!do|htm|HTM|\?xm)'?|4f44213c|6d74683c)"
"""The same of a page of the web."""


def in_converter(reading: Reading) -> bool:
    """Return whether the converter to GGUF raised it over what it reads."""
    raised = reading.last
    if raised is None or raised.type not in MISFITS:
        return False
    # The first one was called convert.py, which other programs have, too.
    known = re.search(r"gguf|ggml|SAFETENSORS_DATA_TYPES|loadHFTransformerJson|LazyTensor", reading.words)
    return any(
        CONVERTER.search(frame.path) or (known and re.search(r"(?:^|[\\/])convert\.py$", frame.path))
        for frame in raised.frames[-6:]
    )


def _read_quantised(reading: Reading) -> Mapping[str, str] | None:
    """Weights of 4 or 8 bits in the GGUF converter."""
    packed = in_converter(reading) and reading.last and PACKED.match(reading.last.message.partition("\n")[0])
    return {} if packed else None


def _read_names(reading: Reading) -> Mapping[str, str] | None:
    """A weight that the GGUF converter misses under the name that a whole model has for it."""
    raised = reading.last
    lacks = re.fullmatch(rf"'?(?P<name>{OTHER_NAME})'?", raised.message.strip()) if raised else None
    missed = lacks and raised and raised.type == "KeyError" and in_converter(reading)
    return {"name": lacks["name"]} if lacks and missed else None


def _read_converter(reading: Reading) -> Mapping[str, str] | None:
    """A model that the GGUF converter, or the one that was chosen, does not understand."""
    apart = _read_quantised(reading) is not None or _read_names(reading) is not None
    return {} if in_converter(reading) and not apart else None


FAILURES = (
    Failure(
        "gguf_unwritten",
        said(
            r"basic_ios::clear: iostream error",
            r"(?:llama_model_quantize|quantize)[^\n]{0,80}failed to (?:open|create)[^\n]{0,200}",
        ),
        (Remedy("check_path"), Remedy("free_disk")),
        code="F40",
        strength=0.9,
    ),
    Failure(
        "imatrix_form",
        said(r"load_imatrix: (?:failed|no|invalid)[^\n]{0,200}", r"collect_imatrix: failed[^\n]{0,200}"),
        (Remedy("imatrix_anew"),),
        code="F41",
    ),
    Failure(
        "gguf_tokenizer",
        said(
            r"BPE pre-tokenizer was not recognized",
            r"update get_vocab_base_pre",
            r"cannot find tokenizer merges in model file",
            # Unsloth takes the converter's warning for the end of a build.
            r"Failed compiling llama\.cpp with WARNING:hf-to-gguf:\*",
        ),
        (Remedy("newer_llama_cpp"), Remedy("original_tokenizer")),
        code="K32",
    ),
    Failure(
        "gguf_vocabulary",
        said(
            r"Could not find (?:a tokenizer matching any of|tokenizer\.model in)",
            r"convert[\w-]*\.py[\s\S]{0,3000}?File not found: [^\n]*tokenizer\.(?:model|json)",
            r"Error: Missing [^\n]*tokenizer\.(?:model|json)",
            r"ERROR: byte not found in vocab",
            # What each standard library says where the vocabulary lacks the tokens of single bytes.
            r"error loading model[^\n]{0,40}: (?:invalid unordered_map<K, T> key|_Map_base::at|unordered_map::at)",
            r"must be converted with BpeVocab|Cannot find Llama BPE tokenizer",
        ),
        (Remedy("tokenizer_of_base"), Remedy("newest_converter")),
        code="K58",
    ),
    Failure(
        "gguf_names",
        said(rf"Can ?not map tensor '(?P<name>{OTHER_NAME})'"),
        (Remedy("save_with_head"), Remedy("newer_llama_cpp")),
        code="K51",
        unless=said(rf"Can ?not map tensor '[^']*{PACKED_NAME}"),
        reader=_read_names,
    ),
    Failure(
        # transformers reads GGUF itself, for vLLM and others too, and knows fewer kinds than llama.cpp.
        "gguf_reader",
        said(
            r"GGUF model with architecture (?P<name>[\w.-]+) is not supported",
            r"gguf[^\n]{0,200}\bArchitecture '?(?P<name>[\w.-]+?)'? (?:is )?not supported",
            r"[Uu]nknown gguf model_type: (?P<name>[\w.-]+)",
        ),
        (Remedy("original_weights"), Remedy("gguf_elsewhere"), Remedy("upgrade_transformers")),
        code="K102",
    ),
    Failure(
        # Loaders of finished models, as text-generation-webui and LangChain have them.
        "runner_trained",
        said(
            r"'(?P<name>LlamaCpp\w*|LlamaServer|C[Tt]ransformers\w*|Exllama\w*|GPT4All\w*)' object has no attribute "
            r"'(?:[bep]os_token(?:_id)?|pad_token(?:_id)?|decode|encode|parameters|named_parameters|named_modules|"
            r"modules|train|state_dict|config|get_input_embeddings|enable_input_require_grads|dtype)'"
        ),
        (Remedy("original_weights"),),
        code="K106",
    ),
    Failure(
        "gguf_split",
        said(
            r"(?:is a |contains |of )?(?:sharded|split|multi-?part) GGUF\w*[^\n]{0,60}(?:not|n't) support",
            r"(?:not|n't) support (?:sharded|split|multi-?part) GGUF",
        ),
        (Remedy("merge_gguf"), Remedy("one_file_gguf")),
        code="K103",
    ),
    Failure(
        "gguf_model",
        said(
            r"tensor '[\w.]+' has wrong shape; expected",
            r"hf-to-gguf:Model \S+ is not supported",
            r"check_tensor_dims: tensor '[\w.]+' (?:not found|has)",
            r"Model architecture ?'?\S+ not supported",
            r"unknown (?:model )?architecture:? '",
            r"Can ?not map tensor",
            r"unknown pre-tokenizer type|error loading model vocabulary(?!: ERROR: byte not)",
            r"architecture ['\"]?\S+ not supported (?:yet )?by (?:llama|gguf)",
            r"(?:^Error: |error=\"|converting[^\n]{0,40})unsupported architecture\b(?: \\?[\"'](?P<name>\w+))?",
            r"unsupported architecture [\"'](?P<name>\w+)",
            r"error loading model hyperparameters",
            r"tensor '[^'\n]+' is missing from model|missing tensor '|done_getting_tensors: wrong number of tensors",
            # Its head was read: it is a GGUF file, of a kind that this program does not know.
            r"gguf_init_from_file\w*: failed to read tensor info",
        ),
        (Remedy("newer_llama_cpp"), Remedy("convert_for_ollama")),
        code="K33",
        unless=said(
            rf"Can ?not map tensor '(?:[^']*{PACKED_NAME}|{OTHER_NAME}')",
            r"GGUF model with architecture \S+ is not supported|gguf[^\n]{0,200}\bArchitecture ",
        ),
    ),
    Failure(
        "gguf_quantised",
        said(
            rf"Can ?not map tensor '[^'\n]*{PACKED_NAME}",
            r"Quant method is not (?:yet )?supported: '?bitsandbytes",
            # Ollama, of safetensors that hold packed numbers.
            r"unknown data type: (?:U8|I8|F8_\w+)\b",
        ),
        (Remedy("merge_in_16_bits"),),
        code="K34",
        reader=_read_quantised,
    ),
    Failure(
        "model_not_whole",
        said(
            r"Can't find model in directory|No (?:model|safetensors or pytorch) files? (?:was |"
            r"were )?found in [^\n]+",
            r"(?:Expected|expected) '?ggcl'?, [Gg]ot",
            r"failed to guess 'n_\w+'",
        ),
        (Remedy("merge_first"), Remedy("which_files")),
        code="K55",
    ),
    Failure(
        "page_for_file",
        said(PAGE, r"invalid load key, '<'"),
        (Remedy("download_itself"), Remedy("fetch_again")),
        code="K104",
    ),
    Failure(
        "gguf_damaged",
        said(
            r"invalid (?:gguf |file )?magic|unknown \(magic, version\) combination",
            r"tensor '[^'\n]+' data is not within the file bounds|GGUF.{0,60}(?:corrupt|truncat)",
            r"failed to read (?:magic|tensor data|key-value pairs)",
            r"creating model layer +Error: invalid version|unsupported file version",
            # llama-cpp-python says why on the lines above only where verbose is on.
            r"llama_cpp[\w]*[\\/][^\n]*\n(?:[^\n]*\n){0,2}?\s*assert self\.(?:model|ctx|"
            r"_?model\.model) is not None\s+"
            r"(?:[~^ ]+\n)?\s*AssertionError",
        ),
        (Remedy("fetch_again"),),
        code="K35",
        unless=said(POINTER, PAGE),
    ),
    Failure(
        "ggml_check",
        said(
            r"GGML_ASSERT[:(][^\n]+",
            r"\b(?:ggml|llama)[\w./\\-]*\.(?:c|cpp|cu|cuh|m|h|metal):\d+: (?:fatal error|not implemented)[^\n]*",
        ),
        (Remedy("newer_llama_cpp"), Remedy("plain_gguf_run")),
        code="K47",
    ),
    Failure(
        "ollama_modelfile",
        said(
            r"command must be one of \\?\"from",
            r"Error: no FROM line",
            r"unexpected EOF.{0,40}Modelfile",
            r"ollama create[^\n]*\n(?:[^\n]*\n){0,8}?Error: unexpected EOF",
        ),
        (Remedy("modelfile_lines"),),
        code="K48",
    ),
    Failure(
        "ollama_import",
        said(
            r"(?:gathering model components|transferring model data|copying file sha256)[\s\S]{0,600}?"
            r"Error: (?:unknown type|open adapter_config\.json|open config\.json)",
            r"creating (?:adapter|model) layer\s+Error: invalid (?:file )?magic",
            r"^(?:Error: )?unsupported content type: ",
            r"Error: no (?:Modelfile or )?safetensors (?:or torch )?files? found",
            r"\"error\": ?\"read [^\"\n]+: is a directory",
        ),
        (Remedy("ollama_folder"),),
        code="K49",
    ),
    Failure(
        "llama_options",
        said(
            r"error while handling argument \"(?P<name>[^\"\n]+)",
            r"error: (?:invalid|unknown) argument: (?P<name>-[\w-]+)",
        ),
        (Remedy("same_llama_cpp"),),
        code="K54",
    ),
    Failure(
        "llama_cpp_missing",
        said(
            r"llama(?:\.cpp[\\/]|-)(?:llama-)?quantize'?[^\n]{0,60}(?:does not exist|not found|No such file)",
            r"(?:Failed|failed) (?:compiling|to compile|building|to build) llama\.cpp",
            r"Unsloth: Quantization failed",
            r"llama\.cpp folder .{0,60}(?:not exist|missing)",
            r"[Nn]o working quantizer found",
            r"Shared library with base name '(?:llama|ggml)\w*' not found",
        ),
        (Remedy("build_llama_cpp"),),
        code="K36",
        strength=0.9,
    ),
    Failure(
        "gguf_converter",
        said(
            r"Duplicated (?:key|tensor) name '[\w.]+'|tensor '[\w.]+' is duplicated",
            r"Unsloth: Failed to convert \S+",
            r"KeyError: '[\w.]+'[^\n]{0,120}\bconvert[\w-]*\.py\b",
        ),
        (Remedy("right_converter"), Remedy("newer_llama_cpp"), Remedy("merge_in_16_bits")),
        code="K39",
        reader=_read_converter,
    ),
)
