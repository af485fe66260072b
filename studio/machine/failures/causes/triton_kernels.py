"""The founding failures: Triton's assembler, its compiler, its library, and cards it was not made for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.core.facts import Gpu, MachineFacts, Tool
from studio.installer.windows import RUNTIME_FOR_TRITON
from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.probes import (
    Values,
    describe,
    found,
    nvidia,
    older,
    triton_package,
    unless_right,
    variable,
)
from studio.machine.failures.remedies import (
    INSTALL,
    PYTORCH_KERNELS,
    REBUILD,
    RESUME,
    SMALLER_BATCH,
    UPDATE_DRIVER,
    USE_FP16,
)
from studio.machine.repairs import (
    ASSEMBLER_OVERRIDES,
    BLACKWELL_ASSEMBLER,
    COMPILER_OVERRIDES,
    OLDEST_ASSEMBLER,
)
from studio.machine.versions import find_release, has_code, installed_triton, pairs, pin

LIBTRITON_LIBRARIES = ("msvcp140.dll", "vcruntime140.dll", "vcruntime140_1.dll")


def _old_assembler(machine: MachineFacts) -> Values | None:
    """An override that names an assembler which is old or not there; else the old one that Triton itself took."""
    needed = (
        BLACKWELL_ASSEMBLER if any(gpu.capability >= (10, 0) for gpu in machine.gpus) else OLDEST_ASSEMBLER
    )
    tools = {tool.path: tool for tool in machine.assemblers}
    for name in ASSEMBLER_OVERRIDES:
        override = variable(machine, name)
        if override:
            tool = tools.get(override.partition("=")[2])
            if tool is None or not tool.release:
                return found(f"{override} (it does not answer)")
            if older(tool.release, needed):
                return found(f"{override} (CUDA {tool.release})")
    taken = machine.triton_assembler or _first_on_path(machine)
    if taken is not None and older(taken.release, needed):
        return found(f"{taken.path} (CUDA {taken.release})")
    return None


def _first_on_path(machine: MachineFacts) -> Tool | None:
    """Before 3.2 Triton for Windows brought no assembler along and took the one on PATH."""
    triton = triton_package(machine).partition(" ")[2]
    return machine.assemblers[0] if machine.assemblers and older(triton, (3, 2)) else None


def _old_triton_and_bf16(machine: MachineFacts) -> Values | None:
    triton = triton_package(machine)
    for gpu in nvidia(machine):
        if (7, 0) <= gpu.capability < (8, 0) and older(triton.partition(" ")[2], (3, 3)):
            return found(f"{describe(gpu)}, {triton}")
    return None


def _hiding_compiler(machine: MachineFacts) -> Values | None:
    """A compiler that is there and stands before the one that comes with Triton for Windows."""
    if machine.system != "Windows" or not triton_package(machine) or "own_triton_tools" in machine.repairs:
        return None
    named = variable(machine, *(name for name in COMPILER_OVERRIDES if name not in machine.dead_overrides))
    return None if not named or "tcc" in named.lower() or "CC" in machine.dead_overrides else found(named)


def _no_headers(machine: MachineFacts) -> Values | None:
    if machine.interpreter.headers or not triton_package(machine) or not machine.gpus:
        return None
    return found(f"Python.h is not part of {machine.interpreter.executable or 'this Python'}")


def _old_runtime(machine: MachineFacts) -> Values | None:
    windows = machine.windows
    if windows is None or not windows.runtimes or not triton_package(machine):
        return None
    main = windows.runtimes.get("msvcp140.dll")
    if main is not None and older(main.version, RUNTIME_FOR_TRITON):
        return found("{} is {}, needed is {}.{}".format(main.path, main.version, *RUNTIME_FOR_TRITON))
    lacking = [name for name in LIBTRITON_LIBRARIES if name not in windows.runtimes]
    return found(f"{', '.join(lacking)} is missing") if lacking else None


def _first(machine: MachineFacts, low: tuple[int, int], high: tuple[int, int]) -> Gpu | None:
    return next((gpu for gpu in nvidia(machine) if low <= gpu.capability < high), None)


def _pascal(machine: MachineFacts) -> Values | None:
    gpu = _first(machine, (1, 0), (7, 0))
    return found(describe(gpu)) if gpu and triton_package(machine) else None


def _turing(machine: MachineFacts) -> Values | None:
    gpu = _first(machine, (7, 0), (8, 0))
    return found(describe(gpu)) if gpu and triton_package(machine) else None


def _blackwell(machine: MachineFacts) -> Values | None:
    """RTX 50 needs CUDA 12.8 everywhere: in PyTorch (2.7) and in Triton (3.3.1)."""
    gpu = _first(machine, (10, 0), (99, 0))
    if gpu is None:
        return None
    torch = machine.packages.get("torch", "")
    if machine.torch_cuda and (older(torch, (2, 7)) or not has_code(machine, gpu)):
        return found(f"{describe(gpu)}, torch {torch} for CUDA {machine.torch_cuda or '-'}")
    return None


def _wrong_triton(machine: MachineFacts) -> Values | None:
    """On Windows the package is called triton-windows; two owners of one folder overwrite each other."""
    owners = machine.owners.get("triton", ())
    if len(owners) > 1 and "triton-xpu" not in owners and "pytorch-triton-xpu" not in owners:
        return found("the folder triton belongs to " + ", ".join(owners))
    if (
        machine.system == "Windows"
        and "triton" in machine.packages
        and "triton-windows" not in machine.packages
    ):
        return found(f"triton {machine.packages['triton']} is not the package for Windows")
    return None


def _two_tritons_on_intel(machine: MachineFacts) -> Values | None:
    owners = machine.owners.get("triton", ())
    xpu = [name for name in owners if name.endswith("-xpu")]
    return (
        found("the folder triton belongs to " + ", ".join(owners)) if xpu and len(owners) > len(xpu) else None
    )


def _absent_triton(machine: MachineFacts) -> Values | None:
    """A card that Triton serves, and none of it: training works, and works faster with it."""
    if machine.triton_level != "absent" or triton_package(machine) or not machine.torch_cuda:
        return None
    if not any(gpu.capability >= (7, 0) for gpu in nvidia(machine)):
        return None
    wanted = f"; {pin(machine)} belongs to this PyTorch" if pin(machine) else ""
    return None if _ahead_of_triton(machine) else found(f"no Triton is installed{wanted}")


def _ahead_of_triton(machine: MachineFacts) -> Values | None:
    release = find_release(machine.packages.get("torch", ""))
    if machine.system != "Windows" or not nvidia(machine) or release is None or not release.unreleased:
        return None
    return found(f"torch {machine.packages['torch']}")


def _unpaired_triton(machine: MachineFacts) -> Values | None:
    if pairs(machine) is not False or not nvidia(machine) or _ahead_of_triton(machine):
        return None
    triton, torch = installed_triton(machine), machine.packages["torch"]
    wanted = f"; it needs {pin(machine)}" if pin(machine) else ""
    return found(f"Triton {triton} beside torch {torch}{wanted}")


def _read_pair(reading: Reading) -> Mapping[str, str] | None:
    """What PyTorch, or nobody knows who, asks of a Triton that lacks it."""
    raised = reading.last
    lacks = raised is not None and re.match(r"module 'triton(?:\.\w+)*' has no attribute", raised.message)
    asking = raised.packages[:1] if raised is not None else ()
    if not lacks or asking not in ((), ("torch",), ("triton",)):
        return None
    return {} if asking else {"doubtful": "1"}


FAILURES = (
    Failure(
        "bf16_old_gpu",
        said(r"Feature '[^'\n]*\.?bf16[^'\n]*' requires \.target sm_80"),
        (USE_FP16, PYTORCH_KERNELS),
        code="S2b",
        probe=unless_right(_old_triton_and_bf16),
        subject="triton",
    ),
    Failure(
        "gpu_too_new",
        said(
            r"computeCapability not supported",
            r"Value 'sm_1[0-9]\d[af]?' is not defined",
            r"sm_1[0-9]\d[af]? is not compatible with the current PyTorch",
            r"sm_1[0-9]\d[af]?'? is not a recognized processor",
            r"PTX version [\d.]+ does not support target 'sm_1[0-9]\d",
        ),
        (REBUILD, PYTORCH_KERNELS),
        code="G5",
        probe=_blackwell,
        subject="gpus",
    ),
    Failure(
        "assembler_old",
        said(
            r"Illegal modifier .?\.L1",
            r"Unsupported \.version",
            r"not defined for option .?gpu-name",
            r"ptxas.{0,40}Unknown option",
        ),
        (Remedy("unset_ptxas"), PYTORCH_KERNELS),
        code="S2a",
        probe=unless_right(_old_assembler),
        subject="triton",
        repair="drop_assembler",
    ),
    Failure(
        "kernel_gpu_old",
        said(
            r"Feature '\.acq_rel' requires",
            r"atom\.add\.(?:noftz\.)?f16.{0,40}sm_70",
            r"Feature '[^'\n]+' requires \.target sm_(?:60|70)",
        ),
        (PYTORCH_KERNELS,),
        code="G1",
        probe=unless_right(_pascal),
        subject="gpus",
        severity="note",
    ),
    Failure(
        "triton_gpu_old",
        said(
            r"Unsupported (?:rounding mode for )?conversion(?: from \w+ to \w+)?",
            r"too old to be supported by the triton",
            r"Triton only supports devices of CUDA Capability",
        ),
        (PYTORCH_KERNELS,),
        code="S5",
    ),
    Failure(
        "kernel_matrix_slow",
        None,
        (PYTORCH_KERNELS,),
        code="G2",
        probe=unless_right(_turing),
        subject="gpus",
        severity="note",
    ),
    Failure(
        "fp8_unsupported",
        said(r"fp8e4nv .{0,40}not supported", r"type fp8e4\w+ not supported in this architecture"),
        (PYTORCH_KERNELS,),
        code="G4",
    ),
    Failure(
        "python_library",
        said(
            r"__imp__?Py\w+",
            r"undefined (?:reference to|symbol) .?_*(?:imp_+)?_?Py[A-Z]\w+",
            r"LNK1104.*python3\d*t?\.lib",
            r"LNK2001.*__imp_Py",
            r"cannot find -lpython3\d+",
            r"tcc: error: library 'python3\d+t?' not found",
        ),
        (Remedy("unset_compiler"), PYTORCH_KERNELS),
        code="S1",
        probe=unless_right(_hiding_compiler),
        subject="triton",
        repair="drop_compiler",
    ),
    Failure(
        "python_headers",
        said(r"include file 'Python\.h' not found", r"C1083.*Python\.h", r"Python\.h: No such file"),
        (Remedy("full_python"), PYTORCH_KERNELS),
        code="S1b",
        probe=unless_right(_no_headers),
        subject="triton",
    ),
    Failure(
        "compile_untraceable",
        said(
            r"torch\._dynamo\.exc\.(?:Unsupported|UserError)",
            r"\b[A-Z]\w+Variable\([^\n]{0,200}\) is not a constant",
            r"\bUnsupported: (?:call_\w+|Graph break|builtin)",
            r"using FX to symbolically trace a dynamo-optimized function",
        ),
        (Remedy("no_compile"), PYTORCH_KERNELS),
        code="T23",
    ),
    Failure(
        "compile_helpers",
        said(r"pass_fds not supported on Windows"),
        (Remedy("compile_in_one"), Remedy("no_compile"), PYTORCH_KERNELS),
        code="T26",
    ),
    Failure(
        "compiled_too_often",
        said(r"\bFailOnRecompileLimitHit\b", r"recompile_limit reached with (?:fullgraph|one_graph)"),
        (Remedy("no_compile"), Remedy("dynamic_shapes"), PYTORCH_KERNELS),
        code="T25",
    ),
    Failure(
        "compiler_old",
        said(r"(?:__triton_launcher|cuda_utils)\.c\(\d+\): (?:fatal )?error C(?!1083)\d+"),
        (Remedy("newer_msvc"), PYTORCH_KERNELS),
        code="T24",
    ),
    Failure(
        "libtriton",
        said(r"DLL load failed while importing libtriton", r"WinError (?:126|1114)\b.{0,200}libtriton"),
        (Remedy("visual_runtime"), PYTORCH_KERNELS),
        code="S3",
        probe=unless_right(_old_runtime),
        subject="triton",
    ),
    Failure(
        "intel_triton",
        said(r"cannot import name 'intel' from 'triton"),
        (Remedy("one_triton_intel"), PYTORCH_KERNELS),
        code="X1",
        probe=unless_right(_two_tritons_on_intel),
        subject="gpus",
    ),
    Failure(
        "triton_wrong_package",
        said(
            r"No matching distribution found for triton(?!-)\b",
            r"No matching distribution found for (?P<doubtful>triton-windows)",
            r"satisfies the requirement triton(?!-)\b",
            r"satisfies the requirement (?P<doubtful>triton-windows)",
            r"Unable to find installation candidates for triton\b",
            r"Because .{0,80}\btriton\b.{0,80}has no wheels with a matching",
            r"\btriton .{0,40}is not a supported wheel on this platform",
        ),
        (Remedy("triton_windows"), PYTORCH_KERNELS),
        code="S6",
        probe=unless_right(_wrong_triton),
        doubt=Doubt("pip_unreachable", "pip_index", asked=True),
        subject="triton",
    ),
    Failure(
        "triton_absent",
        said(
            r"No module named '?triton(?:'|\s*$)",
            r"Cannot find a working triton",
            r"Triton is (?:needed|required) [^\n]{0,60}not (?:available|installed)",
            r"No package metadata was found for triton\b",
            r"requires triton[_-]windows\b.{0,80}not installed",
        ),
        (Remedy("triton_windows"), INSTALL, PYTORCH_KERNELS),
        code="T16",
        probe=_absent_triton,
        subject="triton",
    ),
    Failure(
        "triton_unreleased",
        None,
        (PYTORCH_KERNELS,),
        code="T21",
        probe=unless_right(_ahead_of_triton),
        subject="triton",
        severity="note",
    ),
    Failure(
        "triton_pair",
        said(
            r"'?CompiledKernel'? object has no attribute",
            r"has no attribute 'num_ctas'",
            r"cannot import name '(?:triton_key|AttrsDescriptor|attrs_descriptor)'",
            r"unexpected keyword argument 'num_ctas'",
            r"Unknown key: \W{0,5}(?:cubin|hsaco|ptx)\b",
            # Python names a part with its package only where it found the package.
            r"No module named 'triton\.(?!ops\b)[\w.]+'(?!; 'triton' is not)",
            r"cannot import name '(?!intel')\w+' from 'triton(?:\.\w+)*'",
        ),
        (Remedy("triton_windows"), INSTALL, PYTORCH_KERNELS),
        code="P9",
        reader=_read_pair,
        doubt=Doubt("api_attribute", "versions", asked=True),
        probe=unless_right(_unpaired_triton),
        subject="triton",
    ),
    Failure(
        "kernel_resources",
        said(
            r"out of resource: ",
            r"\bOutOfResources\b",
            r"uses too much shared data|too many resources requested for launch",
        ),
        (PYTORCH_KERNELS,),
        code="G6",
    ),
    # What follows has no words of its own: the watchdog and the warm-up name it.
    Failure("late_compile", None, (RESUME, PYTORCH_KERNELS), code="S2c", severity="note"),
    Failure("stalled", None, (RESUME, SMALLER_BATCH, UPDATE_DRIVER), code="S4"),
)
