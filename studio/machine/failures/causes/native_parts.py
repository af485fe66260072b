"""Failures of the compiled parts of packages: they stop at a check of their own, outside of Python."""

from __future__ import annotations

from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.remedies import PYTORCH_KERNELS, SHORTER, SMALLER_BATCH, UPDATE_DRIVER

FAILURES = (
    Failure(
        # The package came without its part for the card, or that part is of another version.
        "part_unbuilt",
        said(
            r"^CUDA extension not installed",
            r"module '(?P<name>[\w.]+)' has no attribute '(?:\w+_cuda|_C|\w+_kernels?|vecquant\w+)'",
        ),
        (Remedy("build_part"), Remedy("ready_part")),
        code="D242",
        unless=said(r"partially initialized module"),
    ),
    Failure(
        # A part that DeepSpeed would build beforehand for everybody.
        "deepspeed_op",
        said(r"Unable to pre-compile (?P<name>(?!ops\b)\w+)"),
        (Remedy("build_when_used"), Remedy("deepspeed_in_wsl")),
        code="D239",
    ),
    Failure(
        # Weights or optimizer states that wait on a disk.
        "deepspeed_disk",
        said(
            r"deepspeed_(?:py_)?aio|_do_io_complete|aio_handle|swap_tensor/[\w/]*\.py[^\n]*\n[^\n]*\bassert"
        ),
        (Remedy("offload_to_ram"), Remedy("offload_folder_local")),
        code="D227",
        unless=said(r"async_io requires|libaio-dev|cannot find -laio"),
    ),
    Failure(
        "nvml_silent",
        said(r"NVML_SUCCESS == r INTERNAL ASSERT FAILED"),
        (SMALLER_BATCH, SHORTER, UPDATE_DRIVER),
        code="C48",
        doubt=Doubt("driver_silent", "smi_alone"),
    ),
    Failure(
        # Not Unsupported: it did not meet code that it declines, but broke on it.
        "compile_broken",
        said(
            r"\bInternalTorchDynamoError\b",
            r"torch\._dynamo\.exc\.TorchRuntimeError: (?:Dynamo f|F)ailed (?:to run|running)",
            r"torch\._dynamo\.exc\.InternalError",
        ),
        (Remedy("no_compile"), Remedy("upgrade_torch_alone"), PYTORCH_KERNELS),
        code="T28",
        strength=0.95,
    ),
    Failure(
        "tokenizer_threads",
        said(r"RuntimeError: Already borrowed"),
        (Remedy("tokenizer_each"), Remedy("upgrade_tokenizers")),
        code="D228",
    ),
    Failure(
        "tokenizer_tokens",
        said(
            r"Non-consecutive added token ['\"](?P<name>[^'\"\n]{1,60})",
            r"(?:Should have index|should be) \d+ but has (?:index )?\d+ in saved vocabulary",
        ),
        (Remedy("tokenizer_of_base"), Remedy("upgrade_tokenizers")),
        code="D229",
    ),
    Failure(
        # The answer came, and this version cannot read it.
        "xet_old",
        said(r"CasObjectError|CompressionScheme|hf_xet[^\n]{0,120}(?:FormatError|unsupported version)"),
        (Remedy("upgrade_xet"), Remedy("no_xet")),
        code="N51",
    ),
    Failure(
        "amd_fault",
        said(r"Memory access fault by GPU node", r"\bHSA_STATUS_ERROR_(?!OUT_OF|INVALID_ISA)\w+"),
        (Remedy("fitting_rocm"), SMALLER_BATCH),
        code="A10",
    ),
    Failure(
        "reward_form",
        said(
            r"reward func(?:tion|s)?\b[^\n]{0,80}(?:return(?:ed|s)? None|return(?:ed)? (?:a list|\d+)|"
            r"must return|length)",
            r"expected (?:the )?reward function",
        ),
        (Remedy("one_reward_each"),),
        code="R70",
    ),
    Failure(
        "split_taken",
        said(r"KeyError: \W{0,3}Column (?P<name>train|test|validation|eval) not in the dataset"),
        (Remedy("without_split_name"),),
        code="D230",
    ),
    Failure(
        "packaging_missing",
        said(
            r"ModuleNotFoundError: No module named '(?P<module>wheel|setuptools)(?:\.[\w.]+)?'",
            r"invalid command 'bdist_wheel'",
        ),
        (Remedy("packaging_tools"),),
        code="K96",
    ),
    Failure(
        "cpp_standard",
        said(
            r"You need C\+\+\d\d to compile PyTorch",
            r"C\+\+ versions? less than C\+\+1[47] (?:is|are) not supported",
        ),
        (Remedy("newer_source"), Remedy("newer_wheel")),
        code="K97",
    ),
    Failure(
        "ssl_old",
        said(r"urllib3 v2[\w.]* only supports OpenSSL", r"module is compiled with ['\"](?:OpenSSL|LibreSSL)"),
        (Remedy("older_urllib3"), Remedy("python_312")),
        code="P28",
    ),
    Failure(
        # What the C library writes of an assert that does not hold; the path names the package.
        "native_assert",
        said(
            r"(?<![\w./\\-])(?P<path>[\w./\\-]{1,300}\.(?:cpp|cc|cxx|c|h|hpp|cu|cuh)):\d{1,6}: [^\n]{0,600}?"
            r"Assertion [`'\"]?(?P<says>[^\n]{1,200}?)['\"`]? failed",
            # llama.cpp counts beforehand what its tables need.
            r"(?P<path>\bggml_\w+): (?P<says>not enough space in [^\n]{1,200})",
        ),
        (Remedy("package_of_path"), Remedy("smallest_example")),
        code="D226",
        strength=0.7,
    ),
)
