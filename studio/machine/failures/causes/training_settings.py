"""Failures of training itself: gradients, number formats, devices, and settings that contradict each other."""

from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.remedies import RECOMPUTE, SHORTER, SMALLER_BATCH, SMALLER_MODEL, USE_FP16

NO_METRICS = said(
    r"available evaluation metrics are: \[(?:'(?:eval_(?:runtime|\w+_per_second)|epoch|\w+_time|"
    r"global_step/max_steps|percentage)'(?:, )?)+\]"
)

FAILURES = (
    Failure(
        "no_gradient",
        said(
            r"None of the inputs have requires_grad=True[^\n]*\n(?:[^\n]*\n){0,40}?[^\n]*does not require grad",
            r"optimizer got an empty parameter list",
            r"No inf checks were recorded for this optimizer",
            r"(?:element 0 of (?:tensors|variables)|One of the differentiated Tensors) does not require grad",
            r"trainable params: 0 \|\|[\s\S]{0,6000}?(?:Error|error)\b",
            r"\[grad\] Must specify at least one argument",
        ),
        (Remedy("input_grads"), Remedy("trainable_part")),
        code="R1",
        unless=said(r"purely quantized"),
    ),
    Failure(
        "purely_quantised",
        said(
            r"only Tensors of floating point dtype can require gradients",
            r"fine-tuning on purely quantized models",
            r"purely quantized model",
            r"Only Tensors of floating point and complex dtype can require gradients",
        ),
        (Remedy("attach_adapter"), Remedy("keep_adapter")),
        code="R2",
    ),
    Failure(
        "format_untrainable",
        said(
            r"quantized with (?:QuantizationMethod\.)?(?P<name>\w+) but that quantization method do"
            r"(?:es)? not support",
            r"quantization method do(?:es)? not support training",
        ),
        (Remedy("other_precision"),),
        code="R55",
    ),
    Failure(
        "unscale_fp16",
        said(
            r"Attempting to unscale FP16 gradients",
        ),
        (Remedy("float_weights"),),
        code="R3",
    ),
    Failure(
        "two_devices",
        said(
            r"All input tensors need to be on the same GPU",
            r"Expected all tensors to be on the same device",
            r"found at least two devices",
            # DeepSpeed, which joins the weights of one device.
            r"^\s*assert len\(set\(t\.device for t in tensors\)\) == 1",
            r"tensors (?:should|must) be on the same device",
            r"is on device \S+ but expected (?:on )?\S+",
            r"Expected \w+ (?:to be )?on (?:cuda|cpu)\S*,? (?:but|got)",
            r"Placeholder storage has not been allocated on MPS",
            r"indices should be either on cpu or on the same device",
            r"module must have its parameters and buffers on device cuda:\d+ \(device_ids\[0\]\)",
            r"Pointer argument \(at \d+\) cannot be accessed from Triton \(cpu tensor\?\)",
        ),
        (Remedy("one_device"),),
        code="R4",
    ),
    Failure(
        "quantised_move",
        said(
            r"`\.to` is not supported for `?(?:4-bit|8-bit)",
            r"`\.(?:to|cuda|half|float)\(?\)?` is not supported for",
            r"cannot cast a (?:bitsandbytes|GPTQ|quantized) model in a new",
            r"Calling `(?:cuda|to|half|float)\(?\)?` is not supported for `?(?:4-bit|8-bit|GPTQ)",
        ),
        (Remedy("leave_in_place"),),
        code="R5",
    ),
    Failure(
        "offload_quantised",
        said(
            r"Some modules are dispatched on the CPU or the disk",
            r"You can't train a model that has been loaded (?:in 8-bit precision )?with CPU or disk offload",
            r"can't train a model that has been loaded in 8-bit precision on a different device",
        ),
        (Remedy("whole_on_card"), SMALLER_MODEL),
        code="R6",
    ),
    Failure(
        "helpers_wanted",
        said(
            r"(?P<name>prefetch_factor) option could only be specified in multiprocessing",
            r"(?P<name>persistent_workers) option needs num_workers > 0",
        ),
        (Remedy("give_helpers"), Remedy("without_option", needs=("name",))),
        code="R60",
    ),
    Failure(
        "mps_format",
        said(
            r"MPS framework doesn't support float64",
            r"Expected scalar_type == ScalarType::Float \|\| inputTensor\.scalar_type",
            r"\b(?:b?float\d+|complex\d*|double|u?int\d+|[BC]?(?:Float|Double|Half)\d*) is not supported on MPS",
            r"Trying to convert \w+ to the MPS backend",
            r"input type '\w+' in MPS backend|\"\w+_mps\" not implemented for '",
        ),
        (Remedy("mac_float"),),
        code="R26",
    ),
    Failure(
        "bf16_unsupported",
        said(
            r"BF16 Mixed precision training with AMP",
            r"Your setup doesn't support bf16",
            r"bf16/gpu",
            r"[Bb]f(?:loat)?16 is (?:not supported|only supported) (?:on|by|with|for)(?! quantization method)",
            r"Bfloat16 is only supported on GPUs with compute capability",
            r"does not support bfloat16|bfloat16 precision[^\n]{0,40}not supported",
            r"bfloat16 is not supported on (?:this|your)",
            r"BFloat16 gemm in CUDA requires Ampere",
        ),
        (USE_FP16, Remedy("fp16_own")),
        code="R7",
    ),
    Failure(
        "autocast_device",
        said(r"unsupported autocast device_type ?'?(?P<name>\w+)"),
        (Remedy("no_mixed_precision"), Remedy("newer_torch")),
        code="R56",
    ),
    Failure(
        "tf32_unsupported",
        said(r"tf32 requires Ampere", r"tf32[^\n]{0,60}(?:requires|not supported|only supported)"),
        (Remedy("no_tf32"),),
        code="R25",
    ),
    Failure(
        "precision_device",
        said(r"(?:fp16|bf16|fp8) mixed precision requires (?:a GPU \(not '|PyTorch >= \S+ and a supported)"),
        (Remedy("no_mixed_precision"), Remedy("upgrade_accelerate")),
        code="R67",
    ),
    Failure(
        "fp16_needs_card",
        said(
            r"Mixed precision training with AMP or APEX[^\n]{0,40}can only be used on CUDA",
            r"FP16 Mixed precision training with AMP.{0,80}can only be used on CUDA",
            r"fp16 mixed precision requires a GPU(?! \(not '(?:mps|xpu|npu))",
            r"\"(?!\w*_cuda)\w+\" not implemented for '(?:Half|BFloat16)'",
        ),
        (Remedy("float_on_processor"), Remedy("cuda_torch")),
        code="R8",
    ),
    Failure(
        "backward_twice",
        said(r"Trying to backward through the graph a second time"),
        (Remedy("no_reentrant"), Remedy("one_backward")),
        code="R9",
    ),
    Failure(
        "ready_twice",
        said(
            r"Expected to mark a variable ready only once",
            r"marked as ready twice|already been (?:computed|reduced)\. [^\n]{0,40}[Rr]educ",
        ),
        (Remedy("no_reentrant"),),
        code="R10",
    ),
    Failure(
        "unused_parameters",
        said(
            r"Expected to have finished reduction in the prior iteration",
            r"parameters that were not used in producing loss",
        ),
        (Remedy("find_unused"),),
        code="R11",
    ),
    Failure(
        "changed_in_place",
        said(
            r"modified by an inplace operation",
            r"a leaf Variable that requires grad is being used in an in-place",
        ),
        (Remedy("no_reentrant"), Remedy("own_in_place")),
        code="R12",
        unless=said(r"distributed_c10d\.py"),
    ),
    Failure(
        "checkpoint_tensors",
        said(
            r"Recomputed values for the following tensors have different metadata",
            r"A different number of tensors was saved during the original forward",
        ),
        (Remedy("no_reentrant"), Remedy("deterministic_forward")),
        code="R13",
        unless=said(r"recomputed metadata: \{'shape': torch\.Size\(\[0\]\)"),
    ),
    Failure(
        "strategy_match",
        said(
            r"load_best_model_at_end requires the (?:save and eval|saving steps|save) ",
            r"requires the save and eval strategy to match",
        ),
        (Remedy("same_strategy"),),
        code="R14",
    ),
    Failure(
        "eval_data_absent",
        said(
            r"requires an eval_dataset",
            r"evaluation requires an eval_dataset",
            r"but no eval_dataset was? (?:given|passed|provided)",
            r"You have set `?args\.eval_strategy`? to .{0,40} but you didn't pass an `?eval_dataset",
        ),
        (Remedy("give_eval_data"),),
        code="R15",
    ),
    Failure(
        "meta_tensor",
        said(
            r"Tensor on device meta is not on the expected device",
            r"Cannot copy out of meta tensor",
            r"Tensor on device (?:meta|cuda:\d+) is not on the expected device meta",
            r"is on the meta device",
            r"cannot be called on meta tensors",
        ),
        (Remedy("device_map_card"), Remedy("upgrade_loading")),
        code="R16",
    ),
    Failure(
        "shared_tensors",
        said(
            r"Some tensors share memory, this will lead to duplicate memory",
            r"The weights trying to be saved contained shared tensors",
        ),
        (Remedy("train_adapters"), Remedy("save_pretrained")),
        code="R17",
    ),
    Failure(
        "all_masked",
        said(
            r"(?:[Aa]ll|[Mm]ost) labels (?:in your dataset )?are -100",
            r"Could not find (?:response|instruction) key .{0,200} in (?:the following instance|token)",
            r"masked every label to -100|marker '[^'\n]{1,80}' was not found in any",
        ),
        (Remedy("right_marker"),),
        code="R19",
    ),
    Failure(
        # Two 4-bit numbers in each byte, in one long column.
        "packed_weight",
        said(
            r"cannot be multiplied \(\d+x\d+ and (?:1x\d{5,}|\d{5,}x1)\)|size of tensor [ab] \(\d{7,}\) must match"
        ),
        (Remedy("keep_packed"), Remedy("upgrade_transformers_bnb")),
        code="R57",
    ),
    Failure(
        "tensor_shapes",
        said(
            r"mat1 and mat2 shapes cannot be multiplied(?! \(\d+x\d+ and (?:1x\d{5,}|\d{5,}x1)\))",
            r"The size of tensor a \(\d+\) must match the size of tensor b",
            r"doesn't match the broadcast shape",
            r"shape '\[[^\]\n]+\]' is invalid for input of size",
            r"shape mismatch: value tensor of shape",
            r"Sizes of tensors must match except in dimension",
            r"The expanded size of the tensor",
            r"Expected \d+D \(\w+\) or \d+D",
            r"Dimension out of range \(expected to be in range",
            r"split_with_sizes expects split_sizes to sum exactly",
        ),
        (Remedy("look_at_shapes"), Remedy("matching_versions")),
        code="R20",
        strength=0.9,
    ),
    Failure(
        "tensor_to_numpy",
        said(
            r"can't convert \S+ device type tensor to numpy",
            r"Can't call numpy\(\) on Tensor that requires grad",
            r"Got unsupported ScalarType (?:BFloat16|Half)",
        ),
        (Remedy("plain_tensor"),),
        code="R48",
    ),
    Failure(
        "loss_not_scalar",
        said(r"grad can be implicitly created only for scalar outputs"),
        (Remedy("mean_loss"),),
        code="R50",
    ),
    Failure(
        "zero_steps",
        said(
            r"train_steps_per_second.{0,20}inf",
            r"max_steps must be positive|num_train_epochs.{0,60}(?:must|should) be positive",
            r"'TrainerState' object has no attribute 'last_model_checkpoint'",
            r"args\.max_steps must be set to a positive value if dataloader does not have a length",
        ),
        (Remedy("set_steps"),),
        code="R21",
    ),
    Failure(
        "generation_settings",
        said(
            r"generation config instance is invalid",
            r"ValueError: \W{0,3}(?:UserWarning\(['\"])?`do_sample` is set to `False`",
            r"GenerationConfig is invalid|`num_beams` is set to 1\. However",
        ),
        (Remedy("fitting_generation"),),
        code="R53",
    ),
    Failure(
        "generation_length",
        said(r"Input length of input_ids is \d+, but `?max_(?:length|new_tokens)`? is set to"),
        (Remedy("new_tokens"),),
        code="R22",
    ),
    Failure(
        # Only how long it took was measured: no batch was whole, or none had labels.
        "evaluation_empty",
        NO_METRICS,
        (Remedy("more_validation"), Remedy("label_names")),
        code="R61",
    ),
    Failure(
        "best_metric",
        said(
            r"(?:metric_for_best_model`?[^\n]{0,80}|monitor='[\w/]+'\) )not found|KeyError: '?eval_\w+'?$",
            r"on metric `[\w/]+` which is not available",
        ),
        (Remedy("named_metric"),),
        code="R27",
        unless=NO_METRICS,
    ),
    Failure(
        "eval_outputs",
        said(
            r"in (?:\w+\.)?prediction_step\b[\s\S]{0,600}?\n(?:\[rank\d+\]: )?"
            r"(?:IndexError: tuple index|KeyError: '?loss)",
            r"Expected `tensors` and `new_tensors` to have the same type",
        ),
        (Remedy("label_names"),),
        code="R54",
    ),
    Failure(
        "no_loss",
        said(
            r"model did not return a loss from the inputs",
            r"'?loss'? (?:is|was) not (?:in|among) the (?:model )?outputs",
        ),
        (Remedy("give_labels"),),
        code="R28",
    ),
    Failure(
        "label_kind",
        said(
            r"Found dtype \w+ but expected \w+",
            r"0D or 1D target tensor expected, multi-target not supported",
            r"Target size \(torch\.Size\(\[[\d, ]*\]\)\) must be the same as input size",
            r"\"\w*(?:nll_loss|softmax_lastdim)\w*\" not implemented for '(?:Float|Int|Double|Bool|Short)'",
            r"expected scalar type Long but found|Expected floating point type for target with class probabilities",
        ),
        (Remedy("labels_as_numbers"),),
        code="R30",
    ),
    Failure(
        "generate_arguments",
        said(r"`?model_kwargs`? are not used by the model"),
        (Remedy("drop_arguments"),),
        code="R31",
    ),
    Failure(
        "padding_side",
        said(
            r"batched generation with `?padding_side='?right",
            r"set `?padding_side='?left",
            r"assert self\.padding_side == [\"']left",
        ),
        (Remedy("pad_left"),),
        code="R32",
    ),
    Failure(
        "cublas_call",
        said(r"CUBLAS_STATUS_(?:NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH|INTERNAL_ERROR|MAPPING_ERROR)"),
        (Remedy("clean_library_path"), Remedy("fp16_own")),
        code="R23",
        doubt=Doubt("bf16_unsupported", "card_and_path"),
    ),
    Failure(
        "server_memory",
        said(
            r"less than desired GPU memory utilization",
            r"No available memory for the cache blocks",
            r"(?:max seq len|maximum number of tokens).{0,120}KV cache",
            r"larger than the available KV cache memory",
        ),
        (Remedy("less_utilization"), SHORTER, SMALLER_BATCH, RECOMPUTE),
        code="R24",
    ),
)
