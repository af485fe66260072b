"""Failures of graphics card, driver, and the libraries built for them."""

from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.remedies import (
    INSTALL,
    NO_BITSANDBYTES,
    ON_PROCESSOR,
    PYTORCH_KERNELS,
    REBUILD,
    RESTART,
    RESUME,
    UPDATE_DRIVER,
)

FAILURES = (
    Failure(
        "bitsandbytes_library",
        said(
            r"Attempted to use bitsandbytes native library",
            r"bitsandbytes library load error",
            r"No compatible (?:CUDA|ROCm|XPU) binary",
            r"libbitsandbytes\w*\.\w+.{0,40}(?:cannot open|not found)",
        ),
        (NO_BITSANDBYTES, INSTALL),
    ),
    Failure(
        "bitsandbytes_absent",
        said(r"No module named '?bitsandbytes", r"requires .{0,40}bitsandbytes"),
        (INSTALL, NO_BITSANDBYTES),
    ),
    Failure(
        "torch_cpu_build",
        said(r"Torch not compiled with CUDA enabled"),
        (REBUILD, ON_PROCESSOR),
    ),
    Failure(
        "driver_old",
        said(
            r"driver on your system is too old",
            r"CUDA driver version is insufficient",
            r"unsupported toolchain",
            r"device kernel image is invalid",
        ),
        (UPDATE_DRIVER, REBUILD, ON_PROCESSOR),
    ),
    Failure(
        "driver_mismatch",
        said(r"Driver/library version mismatch"),
        (Remedy("reboot"),),
    ),
    Failure(
        "gpu_unsupported",
        said(
            r"no kernel image is available",
            r"does not include kernels for this GPU",
            r"CUDA capability sm_\d+ is not compatible",
            r"computeCapability not supported",
            r"Value 'sm_\d+' is not defined",
        ),
        (REBUILD, ON_PROCESSOR),
    ),
    Failure(
        "gpu_hidden",
        said(r"No CUDA GPUs are available", r"no CUDA-capable device is detected"),
        (Remedy("show_gpus"), ON_PROCESSOR),
    ),
    Failure(
        "gpu_lost",
        said(
            r"GPU is lost",
            r"fallen off the bus",
            r"uncorrectable ECC",
            r"\bXid\b",
            r"CUDA error: unknown error",
        ),
        (Remedy("reboot"), UPDATE_DRIVER, RESUME),
    ),
    Failure(
        "launch_timeout",
        said(r"launch timed out", r"TdrDelay"),
        (Remedy("close_games"), RESUME),
    ),
    Failure(
        "device_assert",
        said(r"device-side assert"),
        (Remedy("matching_tokenizer"), RESTART, RESUME),
    ),
    Failure(
        "illegal_access",
        said(
            r"illegal memory access",
            r"misaligned address",
            r"unspecified launch failure",
            r"illegal instruction was encountered",
            r"CUDA_ERROR_ILLEGAL_ADDRESS",
        ),
        (PYTORCH_KERNELS, RESTART, UPDATE_DRIVER),
    ),
    Failure(
        "cuda_library",
        said(
            r"lib(?:cudart|cublas|cudnn|nvrtc)\S* ?: cannot open shared object",
            r"undefined symbol: \S*nvJitLink",
            r"libcuda\.so\S* .{0,10}cannot",
        ),
        (Remedy("clean_library_path"), REBUILD),
    ),
)
