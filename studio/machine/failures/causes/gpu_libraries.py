"""Failures of bitsandbytes, of attention packages, and of the AMD and Intel stacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from studio.core.facts import MachineFacts
from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.probes import Values, describe, found, nvidia, older, variable
from studio.machine.failures.remedies import (
    INSTALL,
    NO_BITSANDBYTES,
    ON_PROCESSOR,
    PYTORCH_KERNELS,
    REBUILD,
    RESTART,
    UPDATE_DRIVER,
)
from studio.machine.versions import gate, minor_of

GROUPED_MATMUL_FIXED = (7, 13)


def _forced_library(machine: MachineFacts) -> Values | None:
    named = variable(machine, "BNB_CUDA_VERSION", "BNB_ROCM_VERSION")
    return found(named) if named else None


def _card_without_bitsandbytes(machine: MachineFacts) -> Values | None:
    if "bitsandbytes" not in machine.packages:
        return None
    for gpu in nvidia(machine):
        # The wheel for Windows holds no code for Volta (7.0) up to CUDA 12.6.
        volta = (
            machine.system == "Windows" and gpu.capability == (7, 0) and older(machine.torch_cuda, (12, 8))
        )
        if gpu.capability < gate("four_bit") or volta:
            return found(describe(gpu))
    return None


def _no_fitting_library(machine: MachineFacts) -> Values | None:
    """bitsandbytes takes a library for an older CUDA of the same major version, and none of another."""
    cuda = minor_of(machine.torch_cuda)
    built = re.findall(r"libbitsandbytes_cuda(\d+)", " ".join(machine.bitsandbytes_libraries))
    if (
        cuda is None
        or not machine.bitsandbytes_libraries
        or str(cuda[0]) in {number[:-1] for number in built}
    ):
        return None
    version = machine.packages.get("bitsandbytes", "")
    return found(
        f"bitsandbytes {version} is for CUDA {', '.join(built) or '-'}, PyTorch for {machine.torch_cuda}"
    )


def _unsupported_amd(machine: MachineFacts) -> Values | None:
    spoof = variable(machine, "HSA_OVERRIDE_GFX_VERSION")
    for gpu in machine.gpus:
        if gpu.vendor != "amd" or not machine.torch_hip or not gpu.architecture:
            continue
        chips = {name.partition(":")[0] for name in machine.torch_architectures}
        if chips and gpu.architecture not in chips and not spoof:
            return found(f"{describe(gpu)}, this PyTorch has {', '.join(sorted(chips))}")
    return None


def _moe_on_new_amd(machine: MachineFacts) -> Values | None:
    for gpu in machine.gpus:
        if gpu.architecture.startswith(("gfx12", "gfx115")) and older(
            machine.torch_hip, GROUPED_MATMUL_FIXED
        ):
            return found(f"{describe(gpu)}, ROCm {machine.torch_hip}")
    return None


def _native_kernels(machine: MachineFacts) -> Values | None:
    version = machine.packages.get("kernels")
    return found(f"kernels {version}") if version else None


REASONS = re.compile(r"^`[\w@.+-]+` is not supported because: *\n(?P<why>(?:[ \t]+[^\n]+\n?)+)", re.MULTILINE)
"""What xFormers says of each of its ways to calculate."""


def _every_way(*signs: str) -> Callable[[Reading], Mapping[str, str] | None]:
    """Return a reader of xFormers' reasons: every one of its ways, or at least the last one, has one of `signs`."""
    sign = re.compile("|".join(signs))

    def read(reading: Reading) -> Mapping[str, str] | None:
        if reading.last is None or "No operator found for" not in reading.last.message:
            return None
        ways = [found["why"] for found in REASONS.finditer(reading.words)]
        built = [way for way in ways if not NOT_BUILT.search(way)]
        return {} if built and all(sign.search(way) for way in built) else None

    return read


NOT_BUILT = re.compile(r"wasn't buil[dt]|xFormers wasn't buil|triton is not available")


def _wedged_intel(machine: MachineFacts) -> Values | None:
    intel = any(gpu.vendor == "intel" for gpu in machine.gpus)
    silent = "answer within" in machine.torch_error
    return found(machine.torch_error) if intel and silent else None


FAILURES = (
    Failure(
        "bitsandbytes_override",
        said(
            r"unintended,? set the BNB_(?:CUDA|ROCM)_VERSION",
            r"BNB_(?:CUDA|ROCM)_VERSION.{0,40}(?:environment variable|override|=\d+)",
        ),
        (Remedy("unset_bnb_version"), NO_BITSANDBYTES),
        code="B3",
        probe=_forced_library,
        subject="four_bit",
        repair="drop_bitsandbytes_version",
    ),
    Failure(
        "bitsandbytes_binary",
        said(
            r"No compatible (?:CUDA|ROCm|XPU) binary",
            r"(?:CUDA|ROCm|XPU) (?:library )?VERSION MISMATCH",
            r"Required library version not found: libbitsandbytes",
            r"Configured (?:CUDA|ROCm|XPU) binary not found",
        ),
        (INSTALL, NO_BITSANDBYTES),
        code="B2",
        probe=_no_fitting_library,
        subject="four_bit",
    ),
    Failure(
        "bitsandbytes_gpu_old",
        said(
            r"Error (?:named symbol not found|invalid device function|no kernel image[^\n]{0,60}) at line \d+",
            r"Error named symbol not found at line",
        ),
        (NO_BITSANDBYTES,),
        code="B5",
        probe=_card_without_bitsandbytes,
        subject="four_bit",
    ),
    Failure(
        "int8_gpu_old",
        said(
            # The card is older, or newer than this bitsandbytes.
            r"(?P<doubtful>cublasLt ran into an error)",
            r"Your GPU does not support Int8 Matmul",
            r"int8 matmul.{0,60}not supported",
        ),
        (Remedy("nf4_not_int8", {"model.quantization": "nf4"}), NO_BITSANDBYTES),
        code="B4",
        unless=said(r"hipblaslt|rocblaslt|\bgfx\d|[\\/]rocm"),
        doubt=Doubt("bitsandbytes_gpu_old", "card_of_int8", asked=True),
    ),
    Failure(
        # Its paged optimizers live in memory that the driver moves, which WSL, some cards and resumed runs lack.
        "bitsandbytes_paged",
        said(r"Error (?:operation not supported|invalid argument) at line \d+ in file [^\n]*pythonInterface"),
        (Remedy("plain_optimizer"), INSTALL),
        code="B7",
    ),
    Failure(
        "bitsandbytes_library",
        said(
            r"Attempted to use bitsandbytes native library",
            r"bitsandbytes library load error",
            r"libbitsandbytes\w*\.\w+.{0,40}(?:cannot open|not found)",
            r"Could not (?:find|load) (?:the )?bitsandbytes",
            # Windows, in every language: the file is named before the reason.
            r"Could not find module '[^'\n]*libbitsandbytes",
            r"libbitsandbytes\w*\.(?:so|dll)[^\n]{0,40}undefined symbol",
            r"CUDA Setup failed despite GPU being available",
            r"CUDA[ _]SETUP: (?:Problem|Something unexpected happened|Setup Failed)",
            r"argument of type 'WindowsPath' is not iterable",
            r"'NoneType' object has no attribute 'cquantize",
            r"compiled without GPU support",
            r"name 'str2optimizer\w+' is not defined",
        ),
        (NO_BITSANDBYTES, INSTALL),
        code="B1",
        unless=said(r"BNB_(?:CUDA|ROCM)_VERSION=\d", r"unintended,? set the BNB_"),
    ),
    Failure(
        # Windows' libraries end in .dll: what names a .so there was made for Linux alone.
        "bitsandbytes_linux",
        said(r"^(?:bin )?[A-Za-z]:\\[^\n]{1,240}libbitsandbytes_\w+\.so\b"),
        (Remedy("newer_bitsandbytes"), NO_BITSANDBYTES),
        code="B8",
    ),
    Failure(
        "bitsandbytes_absent",
        said(
            r"No module named '?bitsandbytes(?:'|\s*$)",
            r"requires .{0,40}bitsandbytes",
            r"bitsandbytes is not installed",
            r"ImportError: No bitsandbytes\b",
            r"make sure that you have installed `?bitsandbytes",
            r"bitsandbytes has no library for this processor",
            r"No package metadata was found for .{0,30}bitsandbytes",
        ),
        (INSTALL, NO_BITSANDBYTES),
        code="B6",
    ),
    Failure(
        "flash_attention_build",
        said(
            r"Failed (?:to build|building wheel for).{0,60}flash[-_]attn",
            r"Building wheels? for.{0,40}flash[-_]attn[^\n]{0,60}\berror\b",
        ),
        (Remedy("no_flash_attention"),),
        code="F1",
    ),
    Failure(
        "flash_attention_torch",
        said(
            r"flash_attn\w*[^\n]{0,120}(?:undefined symbol|cannot open)",
            r"DLL load failed while importing flash_attn",
        ),
        (Remedy("flash_again"), Remedy("no_flash_attention")),
        code="F6",
    ),
    Failure(
        "flash_attention_absent",
        said(
            r"FlashAttention\d? has been toggled on, but it cannot be used",
            r"Flash Attention \d.{0,30}not available",
            r"No module named '?flash_attn(?:'|\s*$)",
            r"FlashAttention only supports (?:Ampere|Turing)",
            r"FlashAttention (?:backward|forward)?[^\n]{0,40}requires [AH]100",
        ),
        (Remedy("no_flash_attention"),),
        code="F4",
    ),
    Failure(
        # PyTorch's own fast attention looks at the card when it goes backward.
        "attention_backward",
        said(r"Expected is_sm(?:80|8x|90)"),
        (Remedy("plain_kernels"), Remedy("newer_torch_only")),
        code="F9",
    ),
    Failure(
        "attention_kernel",
        said(
            r"cutlassF: no kernel found",
            r"No available kernel\. Aborting",
            r"attn_bias_ptr is not correctly aligned|No valid attention backend",
        ),
        (Remedy("plain_attention"),),
        code="F7",
    ),
    Failure(
        "attention_card",
        said(
            r"CUDA error \(\S*(?:xformers|flash[-_]attention)[^)\n]*\): (?:no kernel image|invalid argument|"
            r"invalid device function)",
            # The package itself raised it, not PyTorch for an operation of its own.
            r"(?:flash[-_]attn|flash[-_]attention|xformers|sageattention)[\\/][^\n]*\n(?:(?!\s*File )[^\n]*\n){0,6}?"
            r"[^\n]*no kernel image",
            # PyTorch's own words for a condition on the card that a kernel of another package asks for.
            r"Expected [^\n]{0,80}\bd?props?->(?:major|minor)\b",
            r"requires device with capability (?:<=|==) \(\d+, \d+\) but your GPU has capability "
            r"\(\d+, \d+\) \(too new\)",
        ),
        (Remedy("no_xformers"), Remedy("no_flash_attention")),
        code="F8",
    ),
    Failure(
        "attention_on_cpu",
        None,
        (Remedy("inputs_to_card"), Remedy("cuda_torch")),
        code="F10",
        reader=_every_way(r"device=cpu "),
    ),
    Failure(
        "attention_mask_stride",
        None,
        (Remedy("pad_to_eight"), Remedy("plain_kernels")),
        code="F11",
        reader=_every_way(r"attn_bias\.stride\(|attn_bias type is|attn_bias is not aligned"),
    ),
    Failure(
        "xformers_mismatch",
        said(
            r"xFormers (?:can't load|was built for)",
            r"xFormers wasn't compiled",
            r"NotImplementedError: No operator found for `(?P<doubtful>memory_efficient_attention)",
        ),
        (Remedy("no_xformers"),),
        code="F2",
        unless=said(
            r"but your GPU has capability \(\d+, \d+\) \(too new\)",
            r"not supported because:\s+(?:attn_bias type[^\n]+\s+)?(?:device=cpu|attn_bias\.stride)",
        ),
        doubt=Doubt("attention_card", "xformers_info", asked=True),
    ),
    Failure(
        "kernels_package",
        None,
        (Remedy("remove_kernels"),),
        code="F5",
        probe=_native_kernels,
        subject="python",
        severity="note",
    ),
    Failure(
        "amd_int8",
        said(
            r"hipblaslt[^\n]{0,200}gfx\w+|HIPBLASLT_TENSILE_LIBPATH",
            r"hipBLASLt on an unsupported architecture",
        ),
        (Remedy("nf4_not_int8", {"model.quantization": "nf4"}), Remedy("no_hipblaslt")),
        code="A8",
        unless=said(r"(?:overriding|Overriding) [^\n]{0,60}hipblas"),
    ),
    Failure(
        "amd_unsupported",
        said(
            r"hipErrorNoBinaryForGpu",
            r"HIP error: invalid device function",
            r"TensileLibrary.{0,80}gfx",
            r"rocBLAS error: Cannot read .{0,100}TensileLibrary",
            r"invalid device function(?! at line \d+ in file)",
            r"HSA_STATUS_ERROR_INVALID_ISA",
        ),
        (REBUILD, ON_PROCESSOR),
        code="A1",
        probe=_unsupported_amd,
        subject="gpus",
    ),
    Failure(
        "amd_experts",
        said(r"(?:grouped_mm|_grouped_mm)[\s\S]{0,400}(?:0xC0000005|Segmentation fault|access violation)"),
        (PYTORCH_KERNELS, UPDATE_DRIVER),
        code="A2",
        probe=_moe_on_new_amd,
        subject="gpus",
        severity="note",
    ),
    Failure(
        "amd_library",
        said(r"amdhip64\w*\.dll", r"WinError 126\b.{0,200}(?:hip|rocm|amd_comgr)\w*\.dll"),
        (RESTART, REBUILD),
        code="A3",
    ),
    Failure(
        "amd_permission",
        said(r"/dev/kfd.{0,80}(?:Permission denied|denied)", r"Unable to open /dev/kfd"),
        (Remedy("render_group"),),
        code="A4",
    ),
    Failure(
        "amd_call",
        said(
            r"HIPBLAS_STATUS_\w+|\bhipblasLt\b[^\n]{0,80}(?:error|failed|not supported)|MIOPEN_STATUS|miopenStatus\w+"
        ),
        (Remedy("fitting_rocm"), Remedy("no_hipblaslt"), UPDATE_DRIVER),
        code="A5",
    ),
    Failure(
        "intel_hang",
        said(r"Level.?Zero.{0,80}(?:hang|timeout|not respond)", r"UR_RESULT_ERROR_DEVICE_LOST"),
        (Remedy("update_intel_driver"), ON_PROCESSOR),
        code="X2",
        probe=_wedged_intel,
        subject="gpus",
    ),
)
