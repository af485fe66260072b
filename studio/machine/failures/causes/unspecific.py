"""Failures that say what broke and not why: looked for last."""

from __future__ import annotations

from studio.core.facts import MachineFacts
from studio.machine.failures.causes.version_drift import NEW_NAME, OLDER, UPGRADE, UPGRADE_BOTH
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.key_errors import read_mismatch
from studio.machine.failures.missing_names import read_missing
from studio.machine.failures.probes import Values, found
from studio.machine.failures.remedies import (
    CLOSE_PROGRAMS,
    INSTALL,
    PYTORCH_KERNELS,
    REBUILD,
    RESTART,
    RESUME,
    UPDATE_DRIVER,
)

ECHO = 0.55
"""What follows from something else: any other line that names a cause weighs more."""
REQUIRED = ("transformers", "peft")
"""What a run needs beside torch, which has an entry of its own."""


def _lacking(machine: MachineFacts) -> Values | None:
    names = ", ".join(name for name in REQUIRED if name not in machine.packages)
    return {"module": names, **found(f"not installed: {names}")} if names else None


FAILURES = (
    Failure(
        "kernel_compile",
        said(
            # Only says that the assembler returned -1; Linux words the same end differently.
            r"ptxas.{0,12}failed with error code",
            r"ptxas(?:\.exe)?'[^\n]*returned non-zero exit status",
            r"Internal Triton PTX codegen error",
            r"\bPTXASError\b",
            r"triton\.compiler\.errors\.\w+",
            r"\bCompilationError: at \d+:\d+",
            r"\bAutotunerError\b",
            r"Failed to compile\. cc_cmd",
            r"PassManager::run failed",
            r"\bBackendCompilerFailed\b",
            r"\bInductorError\b",
            r"torch\._dynamo\.exc\.(?!Unsupported|Internal|TorchRuntimeError)\w+|^LLVM ERROR: ",
        ),
        (PYTORCH_KERNELS, UPDATE_DRIVER, INSTALL),
        code="S2",
        strength=ECHO,
    ),
    Failure(
        "package_mismatch",
        said(
            r"`BaseSettings` has been moved to the `pydantic-settings`",
            r"issubclass\(\) arg 1 must be a class",
            r"\bImportError:? cannot import name",
            r"cannot import name '\w+' from '(?:transformers|torch|trl|peft|accelerate|datasets|huggingface_hub)",
            r"Received a \w+ for argument \w+, but an? [^\n]{1,80} was expected",
        ),
        (NEW_NAME, UPGRADE_BOTH, UPGRADE, OLDER, REBUILD),
        code="P14",
        reader=read_mismatch,
        # A file of the program itself that lacks the name.
        unless=said(
            r"cannot import name '\w+' from '(?!(?:torch|transformers|trl|peft|accelerate|datasets|unsloth|swift|"
            r"llamafactory|llmtuner|axolotl|vllm|deepspeed|huggingface_hub)\b)[\w.]+' "
            r"\((?![^)\n]*(?:(?:site|dist)-packages|[Pp]ython3?[\d.]*[\\/]))[^)\n]+\.py\)"
        ),
    ),
    Failure(
        "package_missing",
        said(
            # What lacks is a part of a package that is there, where the name has a point behind a known one.
            r"No module named '?(?!pip\b|ensurepip\b|__|(?:transformers|torch|trl|peft|datasets|accelerate|vllm)\.)"
            r"(?P<module>[\w.]+)",
            r"requires? (?:the )?`?(?P<module>[A-Za-z][\w.-]+)`? (?:library|package|to be installed|"
            r"module)[^\n]{0,60}"
            r"(?:was not found|not installed|to be installed|pip install|but)",
            r"requires? `?(?P<module>[\w-]+)`?:? [^\n]{0,60}`?pip install",
            r"\b(?!(?:it|this|that|which|one|driver|compiler|CUDA)\b)(?P<module>[A-Za-z][\w.-]+) is not installed"
            r"(?! on\b)",
            r"[Pp]lease (?:first )?install `?(?!it\b|them\b|the\b|this\b|with\b|from\b)(?P<module>[A-Za-z][\w-]+)",
            r"[Pp]lease (?:run|install|do)? ?(?:it )?(?:with |via |using )?:? ?[`'\"]?pip3? install (?:-U |"
            r"--upgrade )?(?P<module>[A-Za-z][\w.\[\]-]+)",
            r"(?:Could not|Couldn't|Unable to) import (?P<module>[a-z]\w+)(?=[,.;]| *$)",
            r"(?:Could not|Unable to) (?:find|import) (?:the )?(?P<module>[A-Za-z][\w-]+) (?:package|library|module)",
            r"(?:Package|package) '?(?P<module>[A-Za-z][\w.-]+)'? (?:is )?(?:not found|missing)",
            r"No package metadata was found for (?P<module>[A-Za-z][\w-]+)",
            r"PackageNotFoundError: (?!No package)(?P<module>[A-Za-z][\w-]+)",
            r"[Pp]lease (?:first )?install [`'\"](?P<module>[A-Za-z][\w.-]+)[`'\"]",
            r"\bneed to (?:run|execute) `?pip3? install (?P<module>[A-Za-z][\w-]+)",
            r"\b(?P<module>[A-Z][A-Za-z]{1,30}) must be installed to\b",
            r"\bmust have (?P<module>[a-z]\w+) installed",
            r"Missing optional dependency ['\"](?P<module>[\w.-]+)",
            r"Unable to find a usable engine; tried using: '(?P<module>\w+)",
            r"`(?P<module>[A-Za-z][\w.-]+)`? (?:backend|package|library) is required",
        ),
        (Remedy("pip_install", needs=("module",)), INSTALL, REBUILD),
        code="P15",
        doubt=Doubt("own_module", "pip_knows", asked=True),
        reader=read_missing,
        probe=_lacking,
        subject="python",
        severity="blocked",
    ),
    Failure(
        # The file was found, and it is not the one that was meant.
        "library_other",
        said(
            r"\bWinError (?:127|182)\b|\(DLL entry point not found\)",
            r"DLL load failed[^\n]*(?:specified procedure could not be found|"
            r"\u627e\u4e0d\u5230\u6307\u5b9a\u7684\u7a0b\u5e8f)",
        ),
        (Remedy("one_source"), REBUILD),
        code="C20",
        unless=said(r"flash_attn|cudnn\w*\.dll|bitsandbytes"),
    ),
    Failure(
        # Linux writes .so in another form than macOS.
        "library_of_linux",
        said(r"/(?P<module>\w+)/\w+\.so'?,?[^\n]{0,400}\(not a mach-o file\)"),
        (Remedy("made_for_mac", needs=("module",)), Remedy("mlx_instead")),
        code="C23",
    ),
    Failure(
        # Python's file of a package, and the compiled one beside it.
        "extension_other",
        said(r"DLL load failed while importing (?P<module>\w*(?:_ext|_exts?|_cuda|_C|_kernels?|_ops))\b"),
        (Remedy("built_for", needs=("module",)), Remedy("visual_runtime")),
        code="C90",
        unless=said(r"flash_attn|libtriton|__triton_launcher|cuda_utils"),
    ),
    Failure(
        "library_load",
        said(
            r"INTEL MKL ERROR[^\n]*\.dll",
            # "The system cannot run %1", as Windows says it in its own languages: an older library was found first.
            r"(?P<doubtful>DLL load failed)(?![^\n]*Win32)[^\n]{0,120}%1",
            r"DLL load failed\b|\((?:DLL not found|DLL initialization failed)\)",
            r"\bWinError (?:126|1114)\b",
            r"LoadLibrary failed with error (?:126|127|1114)\b",
        ),
        (Remedy("visual_runtime"), REBUILD),
        code="C17",
        doubt=Doubt("mixed_dlls", "try_first", asked=True),
    ),
    Failure(
        "cublas_start",
        said(r"CUBLAS_STATUS_NOT_INITIALIZED", r"CUSOLVER_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)"),
        (CLOSE_PROGRAMS, RESTART),
        code="C16",
        doubt=Doubt("token_range", "blocking"),
    ),
    Failure(
        "device_assert",
        said(r"device-side assert", r"CUDA_ERROR_ASSERT"),
        (Remedy("matching_tokenizer"), RESTART, RESUME),
        code="C14",
        strength=ECHO,
        doubt=Doubt("token_range", "blocking"),
    ),
    Failure(
        "illegal_access",
        said(
            r"illegal memory access",
            r"misaligned address|invalid program counter",
            r"unspecified launch failure",
            r"illegal instruction was encountered",
            r"CUDA_ERROR_ILLEGAL_ADDRESS",
            r"CUBLAS_STATUS_EXECUTION_FAILED",
            r"CUDNN_STATUS_EXECUTION_FAILED",
        ),
        (PYTORCH_KERNELS, RESTART, UPDATE_DRIVER),
        code="C15",
    ),
    Failure(
        "nccl",
        said(
            r"NCCL [Ee]rror[^\n]{0,200}(?P<doubtful>unhandled system error)",
            r"NCCL (?:[Ee]rror|WARN).{0,200}(?:unhandled|timeout|failed|invalid|internal|remote)",
            r"\bnccl(?:Remote|Unhandled\w*|Internal|System)Error\b",
            r"NCCL (?:operations? have|communicator was) (?:failed|aborted)",
            r"[Cc]aught collective operation timeout: \w+\(SeqNum=[1-5],",
            r"communication broadband via P2P or IB",
            r"peer access is not supported between these two devices|peer mapping resources exhausted",
            r"custom_all_reduce\.\w+:\d+",
            r"ret(?:rie|rei)ving ncclUniqueId from[^\n]{0,120}(?:Timeout|Connection|error)",
            r"\bDistStoreError\b|store based barrier",
            r"Connection closed by peer \[|gloo[\\/]transport",
            r"^RuntimeError: (?:\[[^\]\n]*\][: ]*)?Connection reset by peer",
            r"\bncclUnhandledCudaError\b",
            r"\bncclSystemError\b",
            r"\bncclInternalError\b",
        ),
        (Remedy("no_peer_access"), Remedy("one_gpu"), RESUME),
        code="D7",
        # NCCL's own last error stands some lines below.
        strength=0.9,
        doubt=Doubt("shared_memory", "df_shm", asked=True),
    ),
    Failure(
        "loader_worker",
        said(r"DataLoader worker \(pids?(?:\(s\))? [\d, ]+\)", r"Pin memory thread exited unexpectedly"),
        (RESTART, RESUME),
        code="D8",
        strength=ECHO,
    ),
    Failure(
        "map_died",
        said(r"abruptly died during map operation|process pool was terminated abruptly"),
        (Remedy("one_worker"), CLOSE_PROGRAMS),
        code="D11",
        strength=ECHO,
        doubt=Doubt("ram_killed", "one_worker"),
    ),
    Failure(
        # Any other reason for which torch cannot be imported: a look at the machine names it.
        "torch_fails",
        said(r"PyTorch cannot be imported"),
        (REBUILD,),
        code="C12",
        severity="blocked",
    ),
    Failure(
        "native_crash",
        said(
            r"^Aborted \(core dumped\)|\bexitcode ?: -11\b",
            r"\bSIGSEGV\b",
            r"Segmentation fault",
            r"0xC0000005",
            r"\b3221225477\b",
            r"access violation",
            r"\bSIG(?:ABRT|FPE|TRAP)\b|\(stack (?:overflow|buffer overrun)\)|\(heap corruption\)|WinError 998\b",
            r"Fatal Python error",
            r"^(?:[\w./-]+: )?(?:free|malloc|munmap_chunk)\(\): \w",
            r"double free or corruption|corrupted (?:size|double-linked)",
            r"0xC0000409",
            r"\b3221226505\b",
        ),
        (PYTORCH_KERNELS, RESUME, Remedy("doctor")),
        code="D10",
        strength=ECHO,
    ),
    Failure(
        # A folder that is taken for a model's and lacks a file which every such folder has.
        "model_file",
        said(
            r"\[Errno 2\] No such file or directory: ['\"](?P<path>[^'\"\n]*?"
            r"(?P<name>(?:adapter_|generation_|tokenizer_|preprocessor_|processor_)?config\.json|tokenizer\.(?:json|model)|(?:pytorch_)?model[\w.-]*\."
            r"(?:safetensors|bin)(?:\.index\.json)?|adapter_model\.\w+|lit_model\.pth|consolidated\.\d+\.pth|params\.json|vocab\.json|merges\.txt))['\"]"
        ),
        (Remedy("model_files", needs=("name",)), Remedy("check_path")),
        code="D252",
        strength=0.97,
        unless=said(r"checkpoint-\d+[\\/]|Lock|\.incomplete|directory: ['\"]--"),
    ),
    Failure(
        "file_absent",
        said(
            r"(?:FileNotFound|OS|IO|Environment)Error:? \[Errno 2\] No such file or directory:? ?(?P<path>[^\n]*)",
            r"Requirement '(?P<path>[^'\n]+)' looks like a filename, but the file does not exist",
            r"\[WinError (?:2\][^\n]*['\"]|3\])(?P<path>[^\n]*)",
            r"FileNotFoundError: (?!https?://)(?P<path>[^\n]+)",
            r"can't open file '?(?P<path>[^'\n]+)'?: \[Errno 2\]",
            r"(?:ERROR|error)\b[^\n]{0,120}\[Errno 2\] No such file or directory: (?P<path>[^\n]+)",
            r"Couldn't find a dataset script at|Couldn't find any data file at",
            r"does not exist(?: or is not a directory)?: ?'?(?P<path>[^'\n]+)",
            r"Unable to (?:resolve any data file|find)\b[^\n]{0,200}? at (?P<path>[^\n]{1,200}?) with any",
            r"failed to open (?:GGUF file )?'?(?P<path>[^'\n]{1,200}\.(?:gguf|safetensors|bin))\b",
            # As programs written in Go say it.
            r"\bopen (?P<path>[^\n]{1,200}?): (?:The system cannot find the (?:file|path)|"
            r"no such file or directory)",
            r"no (?:Modelfile or )?safetensors files? found",
            r"\b(?:existence|folder|directory|path|file)[^\n]{0,120}(?:FAILED: )does not exist",
        ),
        (Remedy("check_path"),),
        code="D68",
        # What a package's own build misses is a fault of the build.
        unless=said(
            r"metadata-generation-failed|subprocess-exited-with-error|egg_info",
            r"fatal error C1083",
            r"Expected to load a `Dataset(?:Dict)?` object",
            r"Long Path support|LongPathsEnabled",
        ),
        strength=0.9,
    ),
    Failure(
        "folder_run",
        said(r"can't find '__main__' module in '(?P<path>[^'\n]+)'"),
        (Remedy("name_script"),),
        code="D148",
    ),
    Failure(
        # What a program is started with: its arguments and its environment.
        "command_none",
        said(
            r"in (?:_execute_child|list2cmdline|_spawn_process|putenv|encode)\b[\s\S]{0,700}?"
            r"(?:not NoneType|str expected, not NoneType)",
            r"TypeError: str expected, not NoneType",
        ),
        (Remedy("which_none"),),
        code="D77",
    ),
    Failure(
        "path_none",
        said(
            r"(?:path should be|expected) str(?:ing)?, bytes[^\n]{0,20} os\.PathLike[^\n]{0,40}not NoneType"
        ),
        (Remedy("check_path"), Remedy("which_files")),
        code="D76",
        unless=said(r"in (?:_execute_child|list2cmdline)\b"),
    ),
    Failure(
        "lock_not_made",
        said(
            r"(?:[Cc]ould not|[Cc]annot|[Cc]an ?not|[Ff]ailed to|[Uu]nable to|[Cc]an't) "
            r"(?:create|acquire|obtain|take|get|open) (?:a |an |the )?(?:[\w-]+ ){0,3}lock\b[^\n]*",
        ),
        (Remedy("free_lock"), Remedy("permission")),
        code="D262",
        strength=0.9,
    ),
    Failure(
        "lock_waited",
        said(
            r"(?:filelock\w*\.py|[\\/]filelock[\\/]\w+\.py)[^\n]{0,60}in acquire[\s\S]{0,200}?\bKeyboardInterrupt\b"
        ),
        (Remedy("drop_lock"), Remedy("local_cache")),
        code="D178",
    ),
    Failure("interrupted", said(r"\bKeyboardInterrupt\b", r"exited by signal SIGINT"), (RESUME,), code="D69"),
    Failure(
        "own_program",
        said(
            r"\b(?:SyntaxError|IndentationError|TabError): ",
            r"the following arguments are required",
            r"must call wandb\.init\(\)",
        ),
        (Remedy("own_line"),),
        code="D70",
        strength=0.9,
        unless=said(r"Python 3\.13\.8", r"unsloth_compiled_cache"),
    ),
    Failure(
        "recursion",
        said(r"maximum recursion depth exceeded", r"\bRecursionError\b"),
        (Remedy("upgrade_all"),),
        code="D71",
    ),
    Failure(
        "lost_error",
        said(
            r"SystemError: error return without exception set",
            r"SystemError: [^\n]{0,200}returned NULL without setting an exception",
            r"SystemError: [^\n]{0,200}returned a result with an (?:exception|error) set",
        ),
        (CLOSE_PROGRAMS, Remedy("upgrade_all"), REBUILD),
        code="D156",
        strength=0.5,
        doubt=Doubt("ram", "free_memory"),
    ),
    Failure(
        "settings_invalid",
        said(
            r"\d+ validation errors? for (?P<name>\w+)",
            r"At most one of (?P<name>fp16 and bf16)",
            r"[Mm]ust (?:provide|specify|pass|set|give) (?:at least|either|exactly|only) one of(?! --)",
            r"is not a valid (?P<name>IntervalStrategy|SchedulerType|OptimizerNames|PaddingStrategy|SaveStrategy)",
        ),
        (Remedy("settings_named"),),
        code="D72",
        strength=0.95,
        unless=said(r"[Cc]ould not load \w+ model from path"),
    ),
    Failure(
        "card_function",
        said(
            r"CUDNN_STATUS_(?:INTERNAL_ERROR|NOT_SUPPORTED|BAD_PARAM)",
            r"[Uu]nable to find an engine to execute|Triton Error \[CUDA\]: invalid (?:argument|handle)",
            r"Unable to find a valid cuDNN algorithm",
            r"CUDA error: (?:operation (?:not (?:supported|permitted)|failed due to a previous error)|"
            r"initialization error|invalid (?:argument|resource handle|device context)|context is destroyed|"
            r"driver shutting down|mapping of buffer object failed|device not ready|peer access is already enabled|"
            r"wait operation timed out|part or all of the requested memory range|OS call failed|limit is not supported|"
            r"misconfiguration)",
            r"cudaErrorNotSupported",
        ),
        (RESTART, CLOSE_PROGRAMS, UPDATE_DRIVER),
        code="C18",
        doubt=Doubt("gpu_memory", "smi"),
        unless=said(r"StorageSharing\.cpp"),
    ),
    Failure(
        # A kernel of no elements at all, or of more blocks than a card takes.
        "launch_size",
        said(r"CUDA error: invalid configuration argument|cudaErrorInvalidConfiguration"),
        (Remedy("eager_attention"), Remedy("smaller_step")),
        code="C41",
        strength=0.95,
    ),
)
