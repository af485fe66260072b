"""Failures of training methods and adapters: settings of peft and trl that exclude each other, rows for another one."""

from studio.machine.failures.failure import Failure, Remedy, said
from studio.machine.failures.remedies import CHECK_DATA

FAILURES = (
    Failure(
        # There are rows, and the program took none of them.
        "no_valid_rows",
        said(
            r"\b(?:cannot find|found no|no|any) (?:valid|usable) (?:training )?(?:samples?|examples?|"
            r"rows?|records?)\b",
            r"\ball (?:samples|examples|rows) (?:were|are) (?:invalid|filtered|dropped|skipped)",
        ),
        (Remedy("rows_of_stage"), CHECK_DATA),
        code="D216",
    ),
    Failure(
        "quant_weight",
        said(r"'(?P<name>\w*(?:WQLinear|QuantLinear|HQQLinear)\w*)' object has no attribute 'weight'"),
        (Remedy("train_in_4_bits"), Remedy("newer_program")),
        code="A9",
    ),
    Failure(
        "adapter_twice",
        said(
            r"passed a `?PeftModel`?[^\n]{0,80}`?peft_config`?",
            r"Adapter with name \S+ already exists",
            r"already (?:has|have) (?:a |an )?(?:peft|lora|adapter)\w*[^\n]{0,60}(?:adapter|config)",
        ),
        (Remedy("one_adapter"),),
        code="R40",
    ),
    Failure(
        # peft's own layer around each one that it changes.
        "adapter_nested",
        said(r"Target modules \W{0,3}base_layer\W{0,3} not found"),
        (Remedy("adapter_of_plain"),),
        code="R66",
    ),
    Failure(
        "merge_quantised",
        said(
            r"Cannot merge (?:LORA|LoRA|adapter)?\s?layers? when the model is",
            r"Cannot merge[^\n]{0,60}(?:8-bit|4-bit|gptq|quantized)",
            r"quanti[sz]ed[^\n]{0,60}(?:not|n't) (?:support|allow)[^\n]{0,20}\bmerg(?:e|ing)\b",
            r"\b[Mm]erg(?:e|ing)\b[^\n]{0,60}(?:into|with|of) (?:a |an |the )?quanti[sz]ed (?:model|base)[^\n]{0,40}"
            r"(?:not|n't) (?:supported|possible|allowed)",
            # Packed weights have two numbers in each byte, in one long column.
            r"input tensor size \[\d+, 1\] and output tensor size \[\d+, \d+\] should match",
        ),
        (Remedy("merge_in_16_bits"),),
        code="R41",
    ),
    Failure(
        "unsloth_halves",
        said(
            r"RL_REPLACEMENTS\[[^\n]*\n(?:[^\n]*\n){0,6}?KeyError: '(?P<name>\w+)'",
            r"cannot import name '(?P<name>\w+)' from 'unsloth_zoo\b",
        ),
        (Remedy("clear_compiled"),),
        code="V95",
    ),
    Failure(
        "no_engine",
        said(r"object has no attribute '(?:vllm_engine|load_lora|save_lora|fast_generate)'"),
        (Remedy("fast_inference"),),
        code="R52",
    ),
    Failure(
        "no_adapter",
        said(
            r"'\w+(?:ForCausalLM|ForConditionalGeneration|ForSequenceClassification|Model)' object "
            r"has no attribute '(?:merge_and_unload|merge_adapter|unmerge_adapter|print_trainable_parameters|"
            r"peft_config|get_base_model|save_pretrained_merged|disable_adapters?_layers)'",
        ),
        (Remedy("attach_first"), Remedy("merged_already")),
        code="R47",
        unless=said(r"'Peft\w+' object has no attribute|'LoraModel' object has no attribute"),
    ),
    Failure(
        # trl's PPOTrainer was written anew for 0.12: it takes four models, and none with a value head.
        "value_head_old",
        said(
            r"'\w+WithValueHead' object has no attribute "
            r"'(?:generation_config|base_model_prefix|score|is_gradient_checkpointing)'"
        ),
        (Remedy("reward_as_classes"), Remedy("trl_of_heads")),
        code="V59",
    ),
    Failure(
        "no_language_head",
        said(r"model does not have a language model head"),
        (Remedy("with_head"), Remedy("upgrade_all")),
        code="R63",
    ),
    Failure(
        # Only models with an encoder and a decoder take these.
        "task_of_other_kind",
        said(
            r"forward\(\) got an unexpected keyword argument 'decoder_(?:input_ids|attention_mask|"
            r"inputs_embeds)'"
        ),
        (Remedy("causal_task"),),
        code="R64",
    ),
    Failure(
        # What only one of the two has, asked of the other one.
        "other_object",
        said(
            r"'(?P<name>\w*Tokenizer(?:Fast|Base)?)' object has no attribute '(?P<call>resize_token_embeddings|"
            r"generate|parameters|named_parameters|train|eval|state_dict|gradient_checkpointing_enable|forward|"
            r"get_input_embeddings|enable_input_require_grads)'",
            r"'(?P<name>\w+(?:ForCausalLM|ForConditionalGeneration|"
            r"ForSequenceClassification))' object has no attribute "
            r"'(?P<call>encode|decode|batch_decode|tokenize|apply_chat_template|pad_token|"
            r"convert_tokens_to_ids|"
            r"add_special_tokens)'",
            r"'(?P<name>DatasetDict)' object has no attribute '(?P<call>select|train_test_split|to_pandas|"
            r"features|"
            r"add_column|to_list|iter)'",
        ),
        (Remedy("call_on_other"), Remedy("one_split")),
        code="V58",
    ),
    Failure(
        # What Unsloth adds to the models that it makes itself.
        "unwrapped_model",
        said(
            r"'(?P<name>\w+(?:ForCausalLM|ForConditionalGeneration|ForSequenceClassification|LMHeadModel|Model))' "
            r"object has no attribute '(?P<call>save_pretrained_(?:gguf|torchao)|push_to_hub_(?:merged|gguf)|"
            r"for_inference|for_training)'",
        ),
        (Remedy("wrap_model"),),
        code="V89",
    ),
    Failure(
        "adapter_type",
        said(
            r"Unknown PEFT type|is not a valid PeftType",
            r"PEFT_TYPE_TO_\w+\[[\s\S]{0,200}?KeyError: '?[\w.]+'?",
        ),
        (Remedy("adapter_folder"), Remedy("upgrade_peft")),
        code="R42",
    ),
    Failure(
        "server_adapter",
        said(
            r"LoRA rank \d+ is greater than max_lora_rank|set enable_lora=True",
            r"expected target modules in[^\n]{0,600}but received",
        ),
        (Remedy("server_lora"), Remedy("merge_in_16_bits")),
        code="R45",
    ),
    Failure(
        "prompt_masks",
        said(r"Expected a single attention mask, got \d+ instead"),
        (Remedy("upgrade_peft"), Remedy("train_lora")),
        code="R59",
    ),
    Failure(
        "group_size",
        said(
            r"evenly divisible by the number of generations per prompt",
            r"generation_batch_size[^\n]{0,80}divisible by[^\n]{0,20}num_generations",
            r"num_generations[^\n]{0,60}(?:must be|should be) (?:at least|greater|divisible)",
        ),
        (Remedy("match_generations"),),
        code="R43",
    ),
    Failure(
        "reference_model",
        said(
            r"`model` and `ref_model` cannot be the same",
            r"ref_model[^\n]{0,80}(?:not (?:needed|allowed)|pass(?:ed|ing)? a)[^\n]{0,60}peft",
        ),
        (Remedy("no_reference"),),
        code="R44",
    ),
)
