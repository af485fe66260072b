"""Failures of graphics card, driver, and the PyTorch built for them."""

from __future__ import annotations

from studio.core.facts import Gpu, MachineFacts
from studio.installer.windows import TORCH_WITH_THREADS_DLL
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.probes import (
    Values,
    describe,
    found,
    nvidia,
    older,
    read_version,
    shadowing_folders,
    unless_right,
)
from studio.machine.failures.remedies import (
    CLOSE_PROGRAMS,
    ON_PROCESSOR,
    PYTORCH_KERNELS,
    REBUILD,
    RESUME,
    UPDATE_DRIVER,
)
from studio.machine.versions import driver_floor, has_code

THREADS_RUNTIME = "vcruntime140_threads.dll"


def _processor_build(machine: MachineFacts) -> Values | None:
    torch = machine.packages.get("torch")
    other = machine.torch_cuda or machine.torch_hip or machine.torch_xpu
    if not torch or other or not nvidia(machine):
        return None
    return found(f"torch {torch} is built without CUDA; {describe(nvidia(machine)[0])} is here")


def _old_driver(machine: MachineFacts) -> Values | None:
    """A driver runs every CUDA of its own major version, and none of a later one."""
    if not machine.torch_cuda or not nvidia(machine) or machine.driver_cuda == (0, 0):
        return None
    if machine.driver_cuda >= driver_floor(machine.torch_cuda):
        return None
    supports = "{}.{}".format(*machine.driver_cuda)
    return found(
        f"driver {machine.driver or '?'} supports CUDA {supports}, PyTorch needs {machine.torch_cuda}"
    )


def _newer_kernels(machine: MachineFacts) -> Values | None:
    tool = machine.triton_assembler
    release = read_version(tool.release) if tool else ()
    if not release or machine.driver_cuda == (0, 0) or release[0] <= machine.driver_cuda[0]:
        return None
    return found(f"ptxas {tool.release}, driver for CUDA {machine.driver_cuda[0]}.{machine.driver_cuda[1]}")


def _split(machine: MachineFacts) -> tuple[list[Gpu], list[Gpu]]:
    """Return the NVIDIA cards that this PyTorch has code for, and the others."""
    cards = nvidia(machine) if machine.torch_cuda else ()
    return [gpu for gpu in cards if has_code(machine, gpu)], [
        gpu for gpu in cards if not has_code(machine, gpu)
    ]


def _no_code(machine: MachineFacts) -> Values | None:
    good, bad = _split(machine)
    # A card newer than every build before CUDA 12.8 has an entry of its own (gpu_too_new).
    if good or not bad or bad[0].capability >= (10, 0):
        return None
    known = ", ".join(machine.torch_architectures)
    return found(
        f"{describe(bad[0])}; torch is built for CUDA {machine.torch_cuda}" + (f": {known}" if known else "")
    )


def _mixed_cards(machine: MachineFacts) -> Values | None:
    good, bad = _split(machine)
    return found(f"{describe(bad[0])} beside {describe(good[0])}") if good and bad else None


def _hidden(machine: MachineFacts) -> Values | None:
    value = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if value is not None and value.strip() in ("", "-1"):
        return found(f"CUDA_VISIBLE_DEVICES={value}")
    unseen = machine.torch_sees_gpu is False and machine.torch_cuda and nvidia(machine)
    if not unseen or _old_driver(machine) or _halves_differ(machine) or _silent_driver(machine):
        return None
    return found(f"{nvidia(machine)[0].name} is here, torch.cuda.is_available() is False")


def _halves_differ(machine: MachineFacts) -> Values | None:
    if machine.driver_module and machine.driver and machine.driver_module != machine.driver:
        return found(f"kernel module {machine.driver_module}, library {machine.driver}")
    return found(machine.driver_error) if "version mismatch" in machine.driver_error else None


def _silent_driver(machine: MachineFacts) -> Values | None:
    words = machine.driver_error
    return found(words) if words and "version mismatch" not in words else None


def _missing_runtime(machine: MachineFacts) -> Values | None:
    windows, torch = machine.windows, machine.packages.get("torch", "")
    if windows is None or not windows.runtimes or not torch or older(torch, TORCH_WITH_THREADS_DLL):
        return None
    lacks = THREADS_RUNTIME not in {name.lower() for name in windows.runtimes}
    return found(f"{THREADS_RUNTIME} is missing; torch {torch} needs it") if lacks else None


def _shadowed(machine: MachineFacts) -> Values | None:
    folders = list(shadowing_folders(machine))
    return found("LD_LIBRARY_PATH: " + folders[0]) if folders and machine.system == "Linux" else None


def _foreign_cudnn(machine: MachineFacts) -> Values | None:
    folders = list(shadowing_folders(machine))
    return found("PATH: " + folders[0]) if folders and machine.system == "Windows" else None


def _old_pynvml(machine: MachineFacts) -> Values | None:
    owners = machine.owners.get("pynvml", ())
    return found("the module pynvml belongs to " + ", ".join(owners)) if "pynvml" in owners else None


FAILURES = (
    Failure(
        "torch_cpu_build",
        said(
            r"Torch not compiled with CUDA enabled",
            r"torch\.version\.cuda\b[^\n]*\n[\s\^~]*(?:\w*Error: )?"
            r"(?:'NoneType' object|expected string or bytes-like object)",
            r"PyTorch here is (?:built )?without CUDA",
        ),
        (REBUILD, ON_PROCESSOR),
        code="C1",
        probe=_processor_build,
        subject="torch",
    ),
    Failure(
        "kernel_toolchain",
        said(
            r"unsupported toolchain",
            r"device kernel image is invalid",
            r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            r"PTX JIT compil(?:ation failed|er library not found)",
        ),
        (UPDATE_DRIVER, PYTORCH_KERNELS),
        code="C4",
        probe=unless_right(_newer_kernels),
        subject="driver",
    ),
    Failure(
        "driver_old",
        said(
            r"driver on your system is too old",
            r"CUDA driver version is insufficient",
            r"unsatisfied condition: cuda>=",
            r"cudaErrorInsufficientDriver",
            r"CUDA error 35\b",
            # The driver's own library lacks what a newer one has.
            r"lib(?:nvidia-ml|cuda)\.so[.\d]*: undefined symbol",
        ),
        (UPDATE_DRIVER, REBUILD, ON_PROCESSOR),
        code="C2",
        probe=_old_driver,
        subject="driver",
    ),
    Failure(
        "driver_mismatch",
        said(r"Driver/library version mismatch", r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", r"NVRM: API mismatch"),
        (Remedy("reboot"),),
        code="C6b",
        probe=_halves_differ,
        subject="driver",
    ),
    Failure(
        "driver_no_memory",
        said(r"cudaGetDeviceCount\(\).{0,200}Error 2: out of memory"),
        (CLOSE_PROGRAMS, Remedy("restart_wsl"), Remedy("one_card_shown"), Remedy("wsl_driver")),
        code="C22",
    ),
    Failure(
        # CUDA's library is newer than the driver that runs: brought along by an image, or the driver was just updated.
        "driver_behind",
        said(
            r"forward compatibility was attempted on non supported HW",
            r"CUDA error 804\b|cudaErrorCompatNot\w+",
        ),
        (UPDATE_DRIVER, Remedy("drop_compat")),
        code="C51",
        doubt=Doubt("driver_mismatch", "smi_answers"),
    ),
    Failure(
        # cudaErrorSystemNotReady: cards behind NVSwitch wait for the service that sets the switches up.
        "fabric_manager",
        said(r"system not yet initialized"),
        (Remedy("start_fabric_manager"), Remedy("reboot")),
        code="C93",
    ),
    Failure(
        "driver_silent",
        said(
            r"CUDA driver error: unknown error",
            r"(?P<doubtful>couldn't communicate with the NVIDIA driver)|CUDA Version: ERR!",
            r"nvidia-smi.{0,60}(?:timed out|did not answer|no answer)",
            r"Unable to determine the device handle for GPU",
            r"Failed to initialize NVML: Driver Not Loaded",
            r"CUDA driver initialization failed",
            r"Unexpected error from cudaGetDeviceCount\(\)(?!.{0,200}Error (?:34|2:|802))",
            r"unsupported display driver / cuda driver combination",
            r"CUDA unknown error - this may be due to an incorrectly set up environment",
        ),
        (Remedy("reboot"), UPDATE_DRIVER),
        code="C5",
        # What the kernel says of the module names the reason.
        unless=said(
            r"modprobe: (?:FATAL|ERROR)[^\n]*nvidia", r"module build on kernel", r"obtained ownership of"
        ),
        doubt=Doubt("module_absent", "ask_module", asked=True),
        probe=_silent_driver,
        subject="driver",
    ),
    Failure(
        "gpu_unsupported",
        said(
            r"no kernel image is available",
            r"cudaErrorNoKernelImageForDevice",
            r"CUDA error: named symbol not found",
            r"does not include kernels for this GPU",
            r"CUDA capability sm_\d+ is not compatible",
            r"Value 'sm_\d+\w?' is not defined",
            r"no longer supports this GPU because it is too old",
            r"nvrtc: error: invalid value for --gpu-architecture",
            r"Unknown CUDA arch",
        ),
        (REBUILD, ON_PROCESSOR),
        code="C3",
        unless=said(
            r"sm_1[0-9]\d[af]? is not compatible",
            # Another package's kernels, not PyTorch's.
            r"CUDA error \(\S*(?:xformers|flash[-_]attention)[^)\n]*\): no kernel image",
            r"(?:flash[-_]attn|flash[-_]attention|xformers|sageattention)[\\/][^\n]*\n(?:(?!\s*File )[^\n]*\n){0,6}?"
            r"[^\n]*no kernel image",
        ),
        probe=_no_code,
        subject="torch",
    ),
    Failure(
        "mixed_gpus",
        None,
        (Remedy("best_card"),),
        code="G7",
        probe=_mixed_cards,
        subject="gpus",
        severity="note",
    ),
    Failure(
        "gpu_hidden",
        said(
            r"No CUDA GPUs are available",
            r"no CUDA-capable device is detected",
            r"No HIP GPUs are available|no ROCm-capable device is detected|hipErrorNoDevice",
            r"Unsloth cannot find any torch accelerator",
            r"0 active drivers",
            r"No GPU found\. A GPU is needed|\bGPU is (?:required|needed|necessary) (?:to|for)\b",
            r"Unsloth (?:currently only works on|cannot find any)",
            r"Torch is not able to use GPU",
            r"Failed to infer device type",
            r"NotImplementedError: is_async_output_supported is not implemented",
            r"vllm[\\/]platforms[\\/]interface\.py[^\n]*\n(?:[^\n]*\n){0,3}?NotImplementedError",
            r"Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False",
            r"quantization (?:requires|needs) (?:a )?(?:CUDA|GPU)",
        ),
        (Remedy("show_gpus"), ON_PROCESSOR),
        code="C6",
        # torch warns first of why it sees none.
        unless=said(
            r"CUDA initialization: (?:The NVIDIA driver on your system|Unexpected error|CUDA driver init)"
        ),
        probe=_hidden,
        subject="gpus",
        repair="show_gpus",
    ),
    Failure(
        "gpu_lost",
        said(
            r"GPU is lost",
            r"fallen off the bus",
            r"uncorrectable ECC",
            r"\bXid\b.{0,40}\d",
            r"CUDA error: (?:unknown error|uncorrectable NVLink|hardware stack error|an async error has occurred)",
        ),
        (Remedy("reboot"), UPDATE_DRIVER, RESUME),
        code="C13",
    ),
    Failure(
        "gpu_busy",
        said(r"CUDA_ERROR_DEVICE_UNAVAILABLE", r"busy or unavailable", r"MPS client failed to connect"),
        (CLOSE_PROGRAMS, Remedy("reboot"), UPDATE_DRIVER),
        code="C21",
    ),
    Failure(
        "foreign_cudnn",
        said(
            r"Could not (?:load library|locate) cudnn\w*\.dll",
            r"Could not load library libcudnn",
            r"Unable to load any of \{libcudnn",
            r"cuDNN version incompatibility",
            r"WinError 127\b.{0,200}cudnn\w*\.dll",
            r"CUDNN_STATUS_(?:NOT_INITIALIZED|VERSION_MISMATCH|SUBLIBRARY_\w+)",
        ),
        (Remedy("clean_path"), REBUILD),
        code="C11",
        probe=_foreign_cudnn,
        subject="torch",
        severity="note",
    ),
    Failure(
        "mixed_dlls",
        said(
            r"WinError 127\b",
            r"procedure entry point .{0,80}could not be located",
        ),
        (REBUILD,),
        code="C7b",
    ),
    Failure(
        "visual_runtime",
        said(
            r"WinError (?:126|1114)\b.{0,200}(?:shm|c10\w*|torch\w*|fbgemm|asmjit|uv|libomp\w*)\.dll",
            r"vcruntime140_threads\.dll",
            r"Microsoft Visual C\+\+ Redistributable is not installed",
            r"(?:msvcp140|vcruntime140\w*)\.dll.{0,40}(?:not found|missing|could not)",
        ),
        (Remedy("visual_runtime"), REBUILD),
        code="C7",
        probe=_missing_runtime,
        subject="torch",
        severity="blocked",
    ),
    Failure(
        # As programs beside PyTorch say it that bring no libraries of CUDA; the name holds the version.
        "cuda_part",
        said(
            r"(?P<name>(?:lib)?(?:cudart|cublas|cudnn|nvrtc|cusparse|cusolver|cufft|curand)[\w.-]*?\.(?:dll|so[.\d]*))"
            r"\W{0,3}(?:is |was )?(?:not found(?! in any)|cannot be (?:found|loaded)|could not be (?:found|loaded))",
        ),
        (Remedy("cuda_of_part", needs=("name",)), Remedy("newer_program")),
        code="C92",
        unless=said(r"bitsandbytes"),
    ),
    Failure(
        "cuda_library",
        said(
            # Found, but not what it needs itself: zlib for cuDNN, or the rest of an unfinished installation.
            r"WinError 126\b.{0,200}(?:cudnn|cublas|cudart|cufft|cusparse|cusolver|nvrtc|caffe2)\w*\.dll",
            r"LoadLibrary failed with error 126\b[^\n]*_cuda\.dll",
            r"CUDA_PATH is set but CUDA wasn'?t able to be loaded",
            r"lib(?:cudart|cublas\w*|cudnn\w*|nvrtc|cusparse\w*|cufft|curand|cupti|nccl|nvJitLink)\S* ?: "
            r"cannot open shared object",
            r"undefined symbol: \S*(?:nvJitLink|cudnn|cublas|nccl)",
            r"failed to open lib(?:nvrtc|cu)\S*",
            r"Could not load (?:dynamic )?library '?lib(?:cudart|cublas|nvrtc|cusparse|cufft)\S*",
        ),
        (Remedy("clean_library_path"), REBUILD),
        code="C8",
        unless=said(r"Could not load libtorchcodec"),
        probe=unless_right(_shadowed),
        subject="torch",
        repair="clean_library_path",
        severity="note",
    ),
    Failure(
        "torchvision",
        said(
            r"Couldn't load custom C\+\+ ops",
            r"Could not run 'torchvision::\w+' with arguments from the 'CUDA' backend",
            r"operator torchvision::\w+ does not exist",
            r"partially initialized module 'torchvision' has no attribute 'extension'",
            r"torchvision.{0,60}compiled with different CUDA",
        ),
        (REBUILD,),
        code="C9",
    ),
    Failure(
        "mkl_newer",
        said(r"undefined symbol: iJIT_\w+", r"libtorch_cpu\.so: undefined symbol: iJIT"),
        (Remedy("older_mkl"), REBUILD),
        code="C19",
    ),
    Failure(
        "pynvml_old",
        said(r"module 'pynvml' has no attribute", r"cannot import name '\w+' from 'pynvml'"),
        (Remedy("remove_pynvml"),),
        code="C10",
        probe=_old_pynvml,
        subject="gpus",
        severity="note",
    ),
)
