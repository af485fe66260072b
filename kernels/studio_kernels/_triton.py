"""The only `import triton`: the real package, or inert stand-ins and the reason why it is missing."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import SubprocessError

from studio_kernels.op import Support

LOWEST_CAPABILITY = (7, 0)
"""Volta. Below it fp32 atomics and sums joined with them fail to compile."""


LOWEST_WITH_DOTS = (8, 0)
"""Ampere. Matrix products of Triton below it are wrong or slower than cuBLAS."""


class _InertKernel:
    """What `@triton.jit` returns without Triton: it can be named but not launched."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, grid: object) -> None:
        raise RuntimeError(f"The kernel {self.name} needs Triton: {IMPORT_ERROR}")


class _InertTriton:
    """Stands for the module `triton` while kernels are being declared."""

    @staticmethod
    def jit(function: Callable | None = None, **options: object) -> object:
        """Hands back an inert kernel for the function, with and without options."""
        if function is None:
            return lambda function: _InertKernel(function.__name__)
        return _InertKernel(function.__name__)


class _InertLanguage:
    """Stands for `triton.language`: annotations and constants need `constexpr`, bodies are never run."""

    @staticmethod
    def constexpr(value: object) -> object:
        """The constant itself."""
        return value


# Besides ImportError (absent, blocked in sys.modules, "DLL load failed while importing libtriton"), broken
# installs were seen to raise OSError (a DLL held by a virus scanner), AttributeError (pkgutil.ImpImporter on
# Python 3.12), SystemError (an extension of another Python) and RuntimeError.
try:
    import triton
    import triton.language as tl

    IMPORT_ERROR: str | None = None
    COMPILER_ERRORS: tuple[type[Exception], ...] = (triton.TritonError,)
except (ImportError, OSError, AttributeError, SystemError, RuntimeError) as error:
    triton = _InertTriton()
    tl = _InertLanguage()
    IMPORT_ERROR = f"{type(error).__name__}: {error}"
    COMPILER_ERRORS = ()

ERRORS: tuple[type[Exception], ...] = (
    *COMPILER_ERRORS,
    ImportError,
    OSError,
    RuntimeError,
    SubprocessError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""All that a first launch was seen to raise: Triton's compiler, a missing C compiler (RuntimeError, OSError,
CalledProcessError), a driver library that cannot be loaded (ImportError), the CUDA driver (RuntimeError)."""


def importable() -> Support:
    """Whether Triton was imported; says nothing about whether it can compile (see `self_compile` and `self_test`)."""
    if IMPORT_ERROR is not None:
        return Support(False, f"Triton cannot be imported ({IMPORT_ERROR}).")
    return Support(True, f"Triton {triton.__version__} was imported.")


def hash_triton() -> bool:
    """Let Triton hash its own files, as it does once a process before it looks for a compiled kernel: 0.3 to 0.4 s.

    To be called on a thread while something else is waited for. False where this version of Triton keeps it elsewhere.
    """
    try:
        from triton.runtime.cache import triton_key
    except (ImportError, AttributeError):
        return False
    triton_key()
    return True


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (on the CPU, for tests)."""
    return IMPORT_ERROR is None and bool(triton.knobs.runtime.interpret)


def gpu_support(
    device_type: str,
    capability: tuple[int, int] | None,
    dtype: object,
    dtypes: tuple[object, ...],
    *,
    dots: bool = False,
) -> Support:
    """The part of `supports` that all ops share: Triton, the device, its capability and the dtype.

    `dtypes` are the torch dtypes that the op's kernels were written and tested for, `dots` is the op's `needs_dots`.
    """
    if IMPORT_ERROR is not None:
        return importable()
    if dtype not in dtypes:
        return Support(False, f"The kernel is not written for {dtype}.")
    if interpreted():
        return Support(True, "Triton's interpreter runs the kernel.")
    if device_type != "cuda":
        return Support(False, f"The kernel needs an NVIDIA or AMD GPU, not a device of type {device_type}.")
    if capability is None or capability < LOWEST_CAPABILITY:
        return Support(False, f"The kernel needs compute capability 7.0 or higher, not {capability}.")
    if dots and capability < LOWEST_WITH_DOTS:
        return Support(False, f"The kernel needs compute capability 8.0 or higher, not {capability}.")
    return Support(True, "The device and the dtype are supported.")
