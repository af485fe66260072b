"""Failures of loading a model or an adapter."""

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.key_errors import read_model_key
from studio.machine.failures.remedies import FETCH_AGAIN, FOUR_BITS, LOCAL_MODEL, SMALLER_MODEL

VOCABULARY, PACKED = 20_000, 5_000_000
"""A dimension of this size is that of the words; of this one, of a whole weight in 4 bits, packed into a column."""


def _read_vocabularies(reading: Reading) -> Mapping[str, str] | None:
    """Two tables of words of different size, in the words that PyTorch has for any two tensors."""
    raised = reading.last
    sizes = (
        re.search(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", raised.message)
        if raised
        else None
    )
    numbers = sorted((int(sizes[1]), int(sizes[2]))) if sizes else [0, 0]
    return {} if VOCABULARY < numbers[0] and numbers[1] < PACKED else None


OF_TOKENIZER = (
    r"tokeniz\w*|get_vocab|(?:base_)?vocab\w*|pad|pad_token\w*|eos_token\w*|bos_token\w*|unk_token\w*|"
    r"convert_\w+|encode\w*|"
    r"add_(?:special_)?tokens|padding_side|truncation_side|special_tokens_map|all_special_\w+|"
    r"model_max_length|__len__"
)
"""What a tokenizer has, and a processor has inside of it."""
QUANTISED = (
    r"(?:[Uu]nexpected|unused)[^\n]{0,60}(?:key|weight)[\s\S]{0,2000}?\.(?:absmax|quant_map|quant_state\.\w+|"
    r"weight_format|SCB|nested_absmax)\b"
)
"""Names that only quantised weights have, where the model has no place for them."""

FAILURES = (
    Failure(
        "inference_only",
        said(
            r"^\W*assert not self\.training\b",
            r"(?:does not|doesn't|not) support (?:\w+ )?training(?: mode)?\b[^\n]{0,40}(?:model|code|kernel)",
        ),
        (Remedy("settings_of_model"), Remedy("other_model")),
        code="R69",
    ),
    Failure(
        "processor_given",
        said(
            rf"'\w+(?<!Image)(?<!Video)Processor' object has no attribute '(?P<name>{OF_TOKENIZER})'",
            r"object of type '\w+(?<!Image)Processor' has no len\(\)",
        ),
        (Remedy("inner_tokenizer"), Remedy("text_model")),
        code="D162",
    ),
    Failure(
        "architecture_unknown",
        said(
            r"does not recognize this architecture",
            # A rule of a newer family: Llama 3.1 needs transformers 4.43.
            r"`?rope_scaling`? must (?:be a dictionary with|contain keys)",
            r"Unrecognized keys in `?rope_scaling",
            r"Model architecture \S+ is not supported|No module named 'transformers\.models\.[\w-]+'",
        ),
        (Remedy("upgrade_transformers"), Remedy("other_model")),
        code="D50",
        reader=read_model_key,
    ),
    Failure(
        "config_untyped",
        said(
            r"Unrecognized model in (?P<path>[^\n]{1,200}?)\. Should have a `?model_type",
            # Where no file names it, transformers looks for a model's name in the path.
            r"configurati?on of type [\w-]+ cannot be instantiated",
        ),
        (Remedy("look_at_config"), Remedy("upgrade_transformers")),
        code="D149",
        doubt=Doubt("architecture_unknown", "model_type"),
    ),
    Failure(
        "auto_class",
        said(r"Unrecognized configuration class", r"Cannot infer the auto class from the config"),
        (Remedy("fitting_class"), Remedy("upgrade_transformers")),
        code="D105",
    ),
    Failure(
        "offload_folder",
        said(
            r"We need an `?offload_(?:dir|folder)`?",
            r"Please provide an `?offload_folder`?",
            r"`?device_map`? had weights offloaded to the disk",
        ),
        (SMALLER_MODEL, FOUR_BITS, Remedy("name_offload")),
        code="D98",
    ),
    Failure(
        "device_map",
        said(r"passing a string for `?device_map`?, please choose", r"[\w.]+ doesn't have any device set"),
        (Remedy("plain_device_map"),),
        code="D99",
    ),
    Failure(
        "quantisation_unknown",
        said(
            r"Unknown quantization (?:type|method|config)",
            r"quantization (?:method|type) \S+ is not (?:supported(?! for the current GPU)|known)",
        ),
        (Remedy("upgrade_transformers"), Remedy("other_model")),
        code="D100",
    ),
    Failure(
        "quantisation_card",
        said(
            r"quantized models? (?:is|are) only supported on GPUs with compute capability",
            r"quantization method \S+ is not supported for the current GPU",
        ),
        (Remedy("other_quantisation"), Remedy("other_model")),
        code="D101",
    ),
    Failure(
        "model_lacks",
        said(
            r"does not support gradient checkpointing",
            r"Model \w+ does not support (?:\w+ quantization|LoRA|\w+ parallelism)",
            r"does not support an attention implementation through",
            r"does not support Flash Attention",
        ),
        (Remedy("leave_feature"), Remedy("upgrade_transformers")),
        code="D102",
    ),
    Failure(
        "vision_or_text",
        said(
            r"dataset appears to be vision-related",
            r"model does not support (?:image|video|audio) input",
            r"(?:Processor|[Ii]mage ?[Pp]rocessor|[Ff]eature extractor) was not found",
            r"not (?:seem to be )?a vision-language model",
            r"is only for (?:image|vision|multi-?modal) models",
            r"\b\w+TokenizerFast'?(?: object)? has no attribute '?(?:tokenizer|image_processor|"
            r"feature_extractor)\b",
        ),
        (Remedy("whole_processor"), Remedy("leave_pictures")),
        code="D114",
    ),
    Failure(
        "remote_code",
        said(
            r"(?:requires you to execute|contains custom code)[\s\S]{0,400}trust_remote_code",
            r"set the option `trust_remote_code=True`",
            r"contains custom code which must be executed",
        ),
        (Remedy("other_model"),),
        code="D51",
    ),
    Failure(
        "adapter_targets",
        said(
            r"ValueError: No [Ll]o[Rr][Aa] (?:layers? |modules? )?(?:injected|found)",
            r"Target modules (?!\W{0,3}base_layer).{0,300}not found in the base model",
        ),
        (Remedy("all_linear", {"adapter.target_modules": "all-linear"}),),
        code="D52",
    ),
    Failure(
        # Only the number of tokens differs: the vocabulary of one of them has grown.
        "tokens_added",
        said(
            r"size mismatch for [\w.]*(?:embed_tokens|lm_head|wte|word_embeddings|embed_in|embed_out|"
            r"shared)[\w.]*: "
            r"copying a param with shape torch\.Size\(\[\d{4,}(?P<rest>(?:, \d+)?)\]\) from checkpoint, "
            r"the shape in current model is torch\.Size\(\[\d{4,}(?P=rest)\]\)",
            r"loading state_dict for (?:Embedding|ParallelLMHead|VocabParallelEmbedding):\s+size mismatch",
            r"Trying to set a tensor of shape torch\.Size\(\[\d{4,}, (?P<width>\d+)\]\) in \"weight\" "
            r"\(which has shape torch\.Size\(\[\d{4,}, (?P=width)\]\)\)",
        ),
        (Remedy("resize_first"), Remedy("matching_adapter")),
        code="D87",
        reader=_read_vocabularies,
    ),
    Failure(
        "head_classes",
        said(
            r"size mismatch for (?P<layer>[\w.]*\b(?:score|classifier|class_head|qa_outputs|v_head)\b[\w.]*): "
            r"copying a param with shape torch\.Size\(\[(?P<has>\d{1,4})\b[^\n]{0,60}from checkpoint, the "
            r"shape in\s+"
            r"current model is torch\.Size\(\[(?!(?P=has)\b)(?P<wants>\d{1,4})\b",
        ),
        (Remedy("same_classes", needs=("has",)), Remedy("matching_adapter")),
        code="D145",
    ),
    Failure(
        "adapter_rank",
        said(
            r"size mismatch for (?P<layer>[\w.]+lora_A\b[\w.]*): copying a param with shape "
            r"torch\.Size\(\[(?P<has>\d+), (?P<rest>\d+)\]\) from checkpoint, the shape in\s+current model is "
            r"torch\.Size\(\[(?!(?P=has),)(?P<wants>\d+), (?P=rest)\]\)",
        ),
        (Remedy("same_rank", needs=("has", "wants")), Remedy("adapter_on_base")),
        code="D146",
    ),
    Failure(
        "adapter_name",
        said(
            r"Adapter (?P<name>[\w./-]+) not found in (?:o?dict_keys|odict_keys)",
            r"Adapter (?:with name )?'?(?P<name>[\w./-]+)'? not found",
            r"\bpeft_config\[\w+\]\s*\n(?:\s*[~^]+\s*\n)?KeyError: '(?P<name>[\w.-]+)'",
        ),
        (Remedy("names_of_adapters", needs=("name",)), Remedy("upgrade_peft_adapters")),
        code="D153",
    ),
    Failure(
        # trl takes a model apart by names that only the models of transformers have.
        "model_of_own",
        said(r"'(?!\w+WithValueHead)(?P<name>\w+)' object has no attribute 'base_model_prefix'"),
        (Remedy("one_class_model"),),
        code="D154",
    ),
    Failure(
        # Numbers that only quantised files have: how many there are depends on the group size.
        "quantised_shape",
        said(r"size mismatch for (?P<layer>[\w.]+\.(?:scales|qweight|qzeros|g_idx|SCB|absmax)):"),
        (Remedy("quantised_settings"), FETCH_AGAIN),
        code="D176",
        strength=0.96,
    ),
    Failure(
        "shape_mismatch",
        said(
            r"size mismatch for (?P<layer>[\w.]+)(?!: copying a param with shape torch\.Size\(\[0\]\) "
            r"from)\b(?!\.)"
        ),
        (Remedy("matching_adapter"), FETCH_AGAIN),
        code="D53",
        unless=said(r"size mismatch for [\w.]+\.(?:scales|qweight|qzeros|g_idx|SCB|absmax):"),
        strength=0.95,
    ),
    Failure(
        "weights_shape",
        said(
            r"You set `ignore_mismatched_sizes` to `False`",
            r"Trying to set a tensor of shape [^\n]{1,200}\(which has shape",
        ),
        (FETCH_AGAIN,),
        code="D54",
    ),
    Failure(
        "adapter_as_model",
        said(
            r"(?:KeyError: '|[Uu]nexpected (?:weight|key)\S{0,30}:? ['\"\[{]{0,3})(?P<name>[\w.]*\.lora_[AB]\b[\w.]*)",
        ),
        (Remedy("merge_or_adapter"),),
        code="D254",
        unless=said(r"size mismatch for"),
    ),
    Failure(
        "weights_names",
        said(
            r"(?:Missing|Unexpected) key\(s\) in state_dict|Missing key in checkpoint state_dict",
            r"(?:[Ff]ound|with|[Ll]oad) (?:state dict with )?(?:missing|unexpected) (?:adapter )?(?:keys|"
            r"weights)"
            r"[^\n]{0,60}: ?[\[{]['\"]",
            r"[Ww]eights? (?:is|are|was|were) not (?:initiali[sz]ed|loaded|found)(?: from (?:the )?checkpoint)?"
            r": ?[\[{]['\"]",
            r"[Uu]nexpected weight: [\w.]+\.(?:weight|bias)\b",
            r"assumes \S{1,200} is in the state_dict",
            r"[Cc]ould not find (?:[\w.]+\.\*|\S{0,60}(?:lm_head|embed_tokens|norm\.weight)\S{0,20}) in (?:the )?"
            r"(?:model|checkpoint|weights)",
            r"^lora key not loaded: \S+",
            r"KeyError: '[\w.]*(?:^|[._])(?:layers?|blocks?|h)[._]\d+[._][\w.]+'",
            r"\bweight [\w.]+\.(?:weight|bias|qweight) does not exist",
            r"Missing parameters: [\w.]+\.(?:biases|scales|weight|bias)\b|parameters not in model: ",
            r"KeyError: '(?:base_model|model|lm_head|transformer|_orig_mod|module)\.[\w.]+'",
            r"KeyError: '[\w.]+\.(?:weight|bias|qweight|scales)'",
            r"Error\(s\) in loading state_dict for (?!.*\n?.*size mismatch)",
        ),
        (Remedy("matching_adapter"), Remedy("matching_versions")),
        code="D56",
        strength=0.95,
        unless=said(r"size mismatch for", QUANTISED),
    ),
    Failure(
        # What bitsandbytes and its like write beside a weight.
        "weights_quantised",
        said(QUANTISED),
        (Remedy("build_quantised"), Remedy("merge_in_16_bits")),
        code="D233",
    ),
    Failure(
        "tokenizer_newer",
        said(
            r"AddedVocabulary bad split",
            r"data did not match any variant of untagged enum",
            # What Rust's reader of JSON says of a form that it does not know.
            r"Exception: (?:invalid type: |unknown (?:variant|field) |missing field )[^\n]{1,200} at line "
            r"\d+ column \d+",
            r"Unsupported (?:tokenizer|serialization) version",
            r"got multiple values for keyword argument 'add_prefix_space'",
        ),
        (Remedy("upgrade_tokenizers"),),
        code="D57",
    ),
    Failure(
        "sentencepiece_missing",
        said(
            r"requires the SentencePiece library",
            r"(?:requires|need|install)[^\n]{0,60}`?sentencepiece`?",
            r"make sure you have sentencepiece installed",
            r"requires the protobuf library",
            r"'NoneType' object has no attribute 'from_pretrained'",
            r"Converting from (?:SentencePiece and )?Tiktoken failed",
            r"`?tiktoken`? (?:is|and|or)[^\n]{0,60}(?:required|install|blobfile)",
        ),
        (Remedy("sentencepiece"),),
        code="D58",
        unless=said(r"(?:Failed building|Building) wheels? for|did not run successfully"),
    ),
    Failure(
        "tokenizer_class",
        said(
            r"Tokenizer class \S+ does not exist or is not currently imported",
            r"tokenization_auto\.py[^\n]*\n(?:[^\n]*\n){0,4}?[^\n]*'NoneType' object has no attribute "
            r"'__name__'",
        ),
        (Remedy("upgrade_transformers"), Remedy("check_tokenizer_class")),
        code="D59",
    ),
    Failure(
        "quant_layer",
        said(r"Target module (?P<name>\w*(?:Quant|WQ)Linear\w*)(?:\([\s\S]{0,300}?)? is not supported"),
        (Remedy("quant_packages"),),
        code="V38",
    ),
    Failure(
        "adapter_layer",
        said(r"Target module (?!\w*(?:Quant|WQ)Linear)[\s\S]{0,2000}? is not supported"),
        (Remedy("linear_targets"), Remedy("all_linear", {"adapter.target_modules": "all-linear"})),
        code="D73",
    ),
    Failure(
        "targets_unnamed",
        said(
            r"Please specify `target_modules`",
            r"No `?target_modules`? passed",
            r"Target modules (?:\[\]|set\(\)|\{\}|''|\"\") not found",
            r"`?target_modules`?[^\n]{0,60}(?:is empty|must not be empty|cannot be empty|No modules were "
            r"targeted)",
        ),
        (Remedy("name_targets"), Remedy("all_linear", {"adapter.target_modules": "all-linear"})),
        code="D74",
    ),
    Failure(
        "torch_load_blocked",
        said(
            r"serious vulnerability issue in `?torch\.load",
            r"Weights only load failed",
            r"WeightsUnpickler error",
            r"Unsupported global: GLOBAL",
        ),
        (Remedy("safetensors_or_newer"), Remedy("trusted_file")),
        code="D75",
    ),
    Failure(
        "weights_form",
        said(r"mmap can only be used with files saved with"),
        (Remedy("weights_written_anew"), FETCH_AGAIN),
        code="D147",
    ),
    Failure(
        "quantised_otherwise",
        said(r"(?:state dict|[Cc]heckpoint)[^\n]{0,120}does not contain `?bitsandbytes__"),
        (Remedy("whole_model_instead"), Remedy("upgrade_transformers_bnb"), FETCH_AGAIN),
        code="D155",
    ),
    Failure(
        "tokenizer_missing",
        said(
            r"Error while initializing BPE",
            r"^Exception: (?:expected value|EOF while parsing)[^\n]* at line \d+ column",
            r"^TypeError: not a string\s*$",
            r"Couldn't instantiate the backend tokenizer",
            r"Can't load tokenizer for",
            r"Unable to load vocabulary",
            r"sentencepiece[\s\S]{0,600}TypeError: not a string",
            r"sentencepiece_processor\.cc|model_proto->ParseFromArray|could not parse ModelProto",
        ),
        (FETCH_AGAIN, LOCAL_MODEL),
        code="D55",
    ),
    Failure(
        "untrained_tokens",
        said(r"Untrained tokens (?:of \[|found)"),
        (Remedy("trained_template"), Remedy("train_embeddings")),
        code="D181",
    ),
)
