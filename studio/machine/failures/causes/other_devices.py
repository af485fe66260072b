"""What a device, its driver or its runtime does not do: AMD, Intel and Apple, and cuDNN's plans."""

from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.remedies import ON_PROCESSOR, REBUILD, UPDATE_DRIVER

FAILURES = (
    Failure(
        # rocBLAS and MIOpen say what they lack themselves; this is what the driver refuses.
        "amd_driver",
        said(
            r"HIP error: (?:the operation cannot be performed in the present state|invalid resource handle|"
            r"unknown error|initialization error|invalid kernel file)",
            r"hipError(?:LaunchFailure|IllegalState|InvalidHandle|NotInitialized|InvalidKernelFile)\b",
        ),
        (Remedy("fitting_rocm"), UPDATE_DRIVER, ON_PROCESSOR),
        code="A6",
        doubt=Doubt("amd_unsupported", "arch_list"),
    ),
    Failure(
        "intel_several",
        said(r"add devices across platforms to a single context"),
        (Remedy("one_level_zero"),),
        code="X3",
    ),
    Failure(
        "intel_library",
        said(
            r"(?:WinError 12[67]\b|DLL load failed)[^\n]{0,300}(?:backend_with_compiler|intel-ext-pt-\w+|"
            r"torch_xpu|c10_xpu|sycl\d+|pi_level_zero|ur_loader)\w*\.dll",
            r"lib(?:sycl|intel-ext-pt-\w+|ur_loader|pi_level_zero|mkl_sycl\w*|imf|svml)\.so[.\d]*: "
            r"cannot open shared object",
        ),
        (Remedy("intel_runtime"), Remedy("fitting_xpu")),
        code="X4",
    ),
    Failure(
        "intel_device",
        said(
            r"\(?(?:PI|UR)_(?:RESULT_)?ERROR_(?!OUT_OF|DEVICE_LOST)\w+",
            r"No XPU devices? (?:are|is|was|were) (?:available|found)|XPU device count is zero",
        ),
        (Remedy("update_intel_driver"), Remedy("fitting_xpu"), ON_PROCESSOR),
        code="X5",
        strength=0.95,
    ),
    Failure(
        "mps_operator",
        said(
            r"operator '(?P<name>[\w:.]+)' is not current(?:ly)? (?:implemented|supported) (?:for|on) the MPS",
            r"Could not run '(?P<name>[\w:.]+)' with arguments from the '(?:Sparse|Quantized)?MPS\w*' backend",
            r"MPS does not support (?P<name>\w+) op\b",
            r"NotImplementedError: (?P<name>\w+ [^\n:]{1,50}?) (?:is |are )?not (?:yet )?"
            r"(?:implemented|supported) (?:for|on|at) (?:the )?MPS",
            r"(?P<name>\w+) ?(?:\(\))?:? (?:is )?not (?:yet )?(?:implemented|supported) (?:for|on) (?:the )?MPS",
        ),
        (Remedy("mps_fallback"), ON_PROCESSOR),
        code="M40",
    ),
    Failure(
        # Apple's graph of operations ends the process itself.
        "mps_graph",
        said(
            r"MPSGraph\w*\.mm[^\n]{0,200}error: [^\n]+",
            r"LLVM ERROR: Failed to infer result type",
            r"failed assertion `?\[MPS\w+[^\n]*",
        ),
        (Remedy("whole_numbers_out"), Remedy("mps_fallback"), ON_PROCESSOR),
        code="M43",
    ),
    Failure(
        "mac_old_system",
        said(
            r"MPS backend is supported on MacOS [\d.]+\+",
            r"not available because the (?:current )?MacOS version",
        ),
        (Remedy("newer_macos"), ON_PROCESSOR),
        code="M41",
    ),
    Failure(
        "operator_backend",
        said(
            r"Could not run '(?P<name>[\w:.]+)' with arguments from the "
            r"'(?P<kind>(?!CUDA|(?:Sparse|Quantized)?MPS)\w+)' backend",
        ),
        (Remedy("operator_elsewhere", needs=("name",)), REBUILD),
        code="M42",
        strength=0.95,
    ),
    Failure(
        "cudnn_plan",
        said(
            r"ptrDesc->finalize\(\)|cuDNN Frontend error|No (?:valid )?execution plans? (?:built|support)",
        ),
        (Remedy("newer_cudnn"), Remedy("without_cudnn")),
        code="C40",
    ),
    Failure(
        "saved_elsewhere",
        said(r"don't know how to restore data location of [\w.]+ \(tagged with (?P<kind>\w+)"),
        (Remedy("onto_processor"), Remedy("upgrade_torch")),
        code="C47",
    ),
)
