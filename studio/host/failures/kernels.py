"""Failures of Triton: its compiler, its assembler, its libraries. Specific causes come before their umbrella."""

from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.remedies import INSTALL, PYTORCH_KERNELS, UPDATE_DRIVER, USE_FP16

FAILURES = (
    Failure(
        "assembler_old",
        said(r"Illegal modifier '\.L1'", r"Unsupported \.version", r"not defined for option 'gpu-name'"),
        (Remedy("unset_ptxas"), PYTORCH_KERNELS),
    ),
    Failure(
        "bf16_old_gpu",
        said(r"Feature '\.bf16' requires \.target sm_80"),
        (USE_FP16, PYTORCH_KERNELS),
    ),
    Failure(
        "kernel_gpu_old",
        said(
            r"Feature '\.acq_rel' requires",
            r"too old to be supported by the triton",
            r"fp8e4nv .*not supported",
        ),
        (PYTORCH_KERNELS,),
    ),
    Failure(
        "python_library",
        said(
            r"__imp__?Py\w+",
            r"undefined (?:reference to|symbol) .?_*(?:imp_)?Py",
            r"LNK1104.*python3\d+t?\.lib",
        ),
        (Remedy("unset_compiler"), PYTORCH_KERNELS),
    ),
    Failure(
        "python_headers",
        said(r"include file 'Python\.h' not found", r"C1083.*Python\.h", r"Python\.h: No such file"),
        (Remedy("full_python"), PYTORCH_KERNELS),
    ),
    Failure(
        "libtriton",
        said(r"DLL load failed while importing libtriton"),
        (Remedy("visual_runtime"), PYTORCH_KERNELS),
    ),
    Failure(
        "cuda_utils",
        said(r"DLL load failed while importing cuda_utils"),
        (UPDATE_DRIVER, PYTORCH_KERNELS),
    ),
    Failure(
        "no_compiler",
        said(r"Failed to find C compiler", r"tccdefs\.h:\d+: error"),
        (Remedy("unset_compiler"), PYTORCH_KERNELS),
    ),
    Failure(
        "compiler_path",
        said(r"tcc: error: (?:could not create|file '.*\?\?)", r"WinError 123\b"),
        (Remedy("short_workspace"), PYTORCH_KERNELS),
    ),
    Failure(
        "triton_shadowed",
        said(r"'triton' is not a package", r"partially initialized module 'triton'"),
        (Remedy("rename_triton"),),
    ),
    Failure(
        "triton_absent",
        said(
            r"No module named '?triton\b",
            r"Cannot find a working triton",
            r"No matching distribution found for triton",
            r"0 active drivers",
        ),
        (PYTORCH_KERNELS, INSTALL),
    ),
    Failure(
        "kernel_resources",
        said(r"out of resource: ", r"\bOutOfResources\b"),
        (PYTORCH_KERNELS,),
    ),
    Failure(
        "kernel_compile",
        said(
            # Only says that the assembler returned -1; Linux words the same end differently.
            r"ptxas.{0,12}failed with error code",
            r"Internal Triton PTX codegen error",
            r"\bPTXASError\b",
            r"\bCompilationError\b",
            r"\bAutotunerError\b",
            r"libtriton",
        ),
        (PYTORCH_KERNELS, INSTALL),
    ),
)
