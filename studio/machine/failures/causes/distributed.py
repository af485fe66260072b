"""Failures of several cards or processes at work together: NCCL, torchrun, DeepSpeed."""

from studio.machine.failures.failure import Doubt, Failure, Remedy, said

FAILURES = (
    Failure(
        # accelerate's stand-ins, which DeepSpeed takes away when it is started.
        "deepspeed_stand_in",
        said(r"'Dummy(?P<name>Optim|Scheduler)' object has no attribute"),
        (Remedy("start_deepspeed"), Remedy("no_deepspeed")),
        code="D207",
    ),
    Failure(
        "nccl_one_card",
        said(
            r"Duplicate GPU detected(?:[^\n]*\n){1,20}?[^\n]*NCCL error: invalid usage",
            r"Duplicate GPU detected",
            r"ncclInvalidUsage",
        ),
        (Remedy("one_rank_a_card"),),
        code="D60",
    ),
    Failure(
        "nccl_network",
        said(
            r"NCCL WARN [^\n]{0,120}(?:[Cc]onnect|recv|accept)[^\n]{0,120}(?:failed|timeout|timed out|"
            r"refused|closed)[^\n]*",
            r"NCCL WARN [^\n]{0,160}(?:No route to host|[Cc]onnection (?:refused|timed out|reset)|"
            r"no socket interface)",
            r"Bootstrap : no socket interface found",
            r"\bRendezvous(?:Connection|Timeout|Closed)Error\b",
            r"client socket has (?:timed out after|failed to connect)|\bDistNetworkError\b",
            r"TCP client failed to connect",
        ),
        (Remedy("nccl_interface"), Remedy("open_ports")),
        code="D164",
    ),
    Failure(
        # Who waits tells of it, and the reason lies with the one that it waits for. Where the first calls of all
        # already fail, nothing ever went from card to card: nccl.
        "collective_waited",
        said(
            r"[Cc]aught collective operation timeout(?!: \w+\(SeqNum=[1-5],)",
            r"ProcessGroupNCCL[^\n]*(?:Heartbeat monitor timed out|watchdog got stuck)",
        ),
        (
            Remedy("first_rank_error"),
            Remedy("longer_timeout"),
            Remedy("same_batches"),
            Remedy("no_peer_access"),
        ),
        code="D232",
        strength=0.9,
        doubt=Doubt("nccl", "nccl_alone"),
    ),
    Failure(
        "process_group",
        said(
            r"Default process group has not been initialized",
            r"environment variable (?P<name>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|"
            r"LOCAL_RANK) expected, but not set",
            r"init_process_group[^\n]{0,60}(?:not|never) (?:been )?called",
            r"No backend type associated with device type",
            r"^KeyError: '(?P<name>RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'\s*$",
        ),
        (Remedy("start_with_torchrun"),),
        code="D61",
    ),
    Failure(
        # What the processes bring together must be alike, or some wait for ever.
        "shapes_apart",
        said(
            r"DistributedOperationException",
            r"All shapes across devices must be valid",
            r"Detected mismatch between collectives on ranks",
            r"params\[\d+\] in this process with sizes [^\n]{1,80} appears not to match",
        ),
        (Remedy("pad_across"),),
        code="D217",
    ),
    Failure(
        # Without NCCL a broadcast writes into the weights themselves, which newer PyTorch forbids.
        "gloo_broadcast",
        said(
            r"distributed_c10d\.py[\s\S]{0,1500}?a leaf Variable that requires grad is being used in an in-place"
        ),
        (Remedy("one_gpu"), Remedy("linux_for_cards")),
        code="D214",
    ),
    Failure(
        # An optimizer of bitsandbytes keeps its state in another form than FSDP gathers.
        "sharded_optimizer",
        said(
            r"_optim_utils\.py[^\n]*_convert_all_state_info[\s\S]{0,300}?(?:AssertionError|has no attribute 'cpu')"
        ),
        (Remedy("torch_optimizer"), Remedy("one_gpu")),
        code="D213",
    ),
    Failure(
        "deepspeed_config",
        said(
            r"(?:invalid literal for int\(\) with base 10|could not convert string to float): 'auto'",
            r"Please correct the following DeepSpeed config values",
            r"Check batch related parameters",
            r"DeepSpeed config .{0,80}(?:mismatch|inconsisten)",
            r"accelerate config variables will be ignored",
        ),
        (Remedy("deepspeed_auto"), Remedy("once_for_deepspeed")),
        code="D62",
    ),
    Failure(
        "deepspeed_offload",
        said(r"CPUAdam param is on|make sure you enabled 'offload_\w+'"),
        (Remedy("offload_on"), Remedy("optimizer_of_card")),
        code="D144",
    ),
    Failure(
        "zero3_loading",
        said(
            r"the shape in current model is torch\.Size\(\[0\]\)",
            # A part of it has one dimension: nothing gathered the whole.
            r"'weight' must be 2-D",
        ),
        (Remedy("zero3_config"), Remedy("start_with_torchrun"), Remedy("one_gpu_own")),
        code="D96",
    ),
    Failure(
        "empty_weights",
        said(
            r"index \d{4,6} is out of bounds for dimension 0 with size 0",
            r"[\\/](?:peft|deepspeed|accelerate|fsdp)[\\/][\s\S]{0,3000}?size of tensor a \(0\) must match",
            r"Error invalid configuration argument at line \d+ in file [^\n]*\bops\.cu",
            r"assert loaded_weight\.shape\[output_dim\] == ",
            # FSDP keeps them flat.
            r"RuntimeError: weight should have at least three dimensions",
            r"data is not allocated yet\. Caffe2 uses a lazy allocation",
        ),
        (Remedy("gather_first"), Remedy("one_gpu_own")),
        code="D117",
    ),
    Failure(
        "zero3_saved",
        said(r"copying a param with shape torch\.Size\(\[0\]\) from checkpoint"),
        (Remedy("gather_on_save"),),
        code="D113",
    ),
    Failure(
        "sharded_quantised",
        said(
            r"Must flatten tensors with (?:uniform|the same) dtype",
            r"FlatParameter`? requires uniform `?dtype",
            r"Cannot flatten integer dtype|Integer parameters are unsupported",
            r"expected there to be only one unique element in <generator object \w*\.?_convert_to_deepspeed_param",
            r"(?:output|input) tensor must have the same (?:type|dtype) as (?:input|output) tensor",
            r"^\s*assert len\(set\(t\.dtype for t in tensors\)\) == 1",
            r"DeepSpeed ZeRO-?3 (?:is|are) (?:not compatible|incompatible)",
            r"(?:FSDP|DeepSpeed)[^\n]{0,100}(?:not|isn't) (?:compatible|supported) with",
        ),
        (Remedy("one_dtype"), Remedy("one_gpu_own")),
        code="D63",
        unless=said(r"not compatible with[^\n]{0,60}device_map"),
    ),
    Failure(
        "fsdp_frozen",
        said(
            r"FlatParameter`? requires uniform `?requires_grad",
            r"Must flatten tensors with uniform `?requires_grad|FSDP expects uniform `?requires_grad",
        ),
        (Remedy("original_parameters"), Remedy("one_gpu_own")),
        code="D111",
    ),
    Failure(
        "zero3_recomputed",
        said(r"recomputed metadata: \{'shape': torch\.Size\(\[0\]\)"),
        (Remedy("reentrant_with_zero3"), Remedy("zero2_or_version"), Remedy("one_gpu_own")),
        code="D143",
    ),
    Failure(
        # A part of the model was used while its weights were still spread over the cards.
        "zero3_spread",
        said(
            r"\bds_status == ZeroParamStatus|param\.ds_summary\(\)|'status': '(?:NOT_AVAILABLE|INFLIGHT)'",
            r"\} already in registry\b",
            r"are out of bounds for storage of size 0\b",
            r"size of tensor [ab] \(0\) must match the size of tensor [ab] \(\d{3,}\)",
        ),
        (Remedy("zero2_or_version"), Remedy("no_reentrant"), Remedy("one_gpu_own")),
        code="D157",
    ),
    Failure(
        "zero3_ranks",
        said(r"disagreement between rank ?\d+ and rank ?\d+"),
        (Remedy("same_way_each_rank"), Remedy("zero2_or_version")),
        code="D258",
    ),
    Failure(
        "zero3_in_flight",
        said(r"still have inflight params", r"tracing error at step \d+: module id"),
        (Remedy("zero2_or_version"), Remedy("one_gpu_own")),
        code="D112",
    ),
    Failure(
        "ddp_mapped",
        said(
            r"loaded in (?:8|4)-bit precision on multiple devices",
            r"You can't train a model that has been loaded with `?device_map='auto'`? in any distributed mode",
            r"device_map='auto'[^\n]{0,80}distributed",
            r"device_ids and output_device arguments only work with[^\n]{0,300}index=\d+\), device\(",
            r"Zero-?3 is not compatible with[^\n]{0,60}device_map",
            r"loaded in (?:8-bit|4-bit) precision on a different device than the one you're training on",
        ),
        (Remedy("map_by_rank"),),
        code="D64",
    ),
    Failure(
        "cards_divide",
        said(
            r"(?:heads|vocab_?size|hidden size)[^\n]{0,60}must be divisible by (?:the )?tensor[ _]parallel",
            r"is not divisible by (?:the )?(?:tensor[ _]parallel|tp|world)[_ ]?size",
            r"not aligned with the quantized weight shape[^\n]*tensor parallel",
        ),
        (Remedy("fitting_split"),),
        code="D103",
    ),
    Failure(
        "tpu",
        said(
            r"TPU initialization failed|[Cc]ouldn't open device: /dev/accel",
            r"libtpu\.so[^\n]{0,80}(?:already|in use|lockfile)",
            r"Cannot replicate if number of devices \(\d+\) is different from",
        ),
        (Remedy("tpu_once"), Remedy("gpu_instead")),
        code="D125",
    ),
    Failure(
        "mapped_move",
        said(
            r"You (?:can't|shouldn't) move a model (?:that has some modules offloaded|when it is dispatched)"
        ),
        (Remedy("leave_mapped"),),
        code="D126",
    ),
    Failure(
        "wrapped_model",
        said(
            r"'(?:(?:Distributed|FullySharded)?DataParallel|OptimizedModule|"
            r"DeepSpeedEngine)' object has no attribute",
            r"'AutoModelForCausalLMWithValueHead' object has no attribute "
            r"'(?!generation_config|base_model_prefix|score|is_gradient_checkpointing)",
        ),
        (Remedy("unwrap"),),
        code="D104",
    ),
    Failure(
        "gpu_number",
        said(
            r"CUDA device \d+ but torch\.cuda\.device_count\(\) is",
            r"invalid device ordinal|Invalid device argument : did you call init",
            r"SafetensorError: device \S+ is invalid",
            r"Device index must be|device >= 0 && device < num_gpus|Invalid device id",
            r"requested device[^\n]{0,40}\(cuda:\d+\) is not available",
        ),
        (Remedy("count_cards"),),
        code="D65",
    ),
    Failure(
        "cuda_forked",
        said(
            r"Cannot re-initialize CUDA in forked subprocess",
            r"cudaErrorInitializationError[\s\S]{0,400}(?:fork|DataLoader)",
        ),
        (Remedy("spawn"),),
        code="D66",
    ),
    Failure(
        "pickle",
        said(
            r"Can't (?:pickle|get) (?:local object|attribute|<function)",
            r"cannot pickle '[^'\n]+' object",
            r"\bPicklingError",
        ),
        (Remedy("top_level_function"),),
        code="D67",
    ),
    Failure(
        # Each process and each of its workers reads parts of its own.
        "few_shards",
        said(
            r"Too many dataloader workers: \d+ \(max is",
            r"iterable_dataset\.py[^\n]{0,40}in (?:_iter_pytorch|split_shard\w*|shard_data_sources|"
            r"_prepare_ex_iterable\w*)[\s\S]{0,900}?IndexError: ",
            r"number of (?:dataset )?shards[^\n]{0,60}(?:less|smaller|fewer|lower) than",
        ),
        (Remedy("fewer_workers_stream"), Remedy("more_shards")),
        code="D235",
        strength=0.9,
    ),
)
