"""Failures of building native code: compilers, CUDA's toolkit, CMake, linkers, libraries built for another PyTorch."""

from __future__ import annotations

from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.remedies import REBUILD

PREBUILT = Remedy("prebuilt")

STANDARD_HEADERS = (
    r"(?:c(?:string|std\w+|math|assert|limits|float|ctype)|algorithm|array|vector|memory|type_traits|complex|utility|"
    r"(?:stdio|stddef|stdint|stdlib|stdbool|string|math|io|float|assert|limits|crtdbg|crtdefs|corecrt|vcruntime|"
    r"windows|excpt|omp)\.h)"
)
"""Header files that come with Microsoft's compiler and the Windows SDK."""

FAILURES = (
    Failure(
        # FlashAttention's setup looks for a ready-made file first, and tells last that there is none.
        "wheel_unbuilt",
        said(
            r"urlretrieve\(wheel_url[\s\S]{0,2500}?HTTP Error 404",
            r"HTTP Error 404[\s\S]{0,400}?\bwheel_url\b",
        ),
        (Remedy("ready_made_build"), Remedy("no_flash_attention"), Remedy("read_above")),
        code="B90",
        strength=0.9,
    ),
    Failure(
        "msvc_missing",
        said(
            r"nvcc fatal[^\n]{0,4}: Cannot find compiler 'cl",
            r"Microsoft Visual C\+\+ 14\.\d+ (?:or greater )?is required",
            r"Unable to find vcvarsall\.bat",
            r"Error checking compiler version for cl",
            r"Could not find (?:any instance of|a) (?:suitable )?Visual Studio",
            r"Visual Studio Build Tools (?:were |was )?(?:not|could not be) found",
        ),
        (PREBUILT, Remedy("build_tools")),
        code="K20",
    ),
    Failure(
        "rust_missing",
        said(
            r"can't find Rust compiler",
            r"Rust toolchain .{0,40}not found",
            r"Cargo, the Rust package manager, is not installed",
            r"No such file or directory: '?(?:rustc|cargo)\b",
            r"\b(?:rustc|cargo)'? ?(?:: (?:command )?not found|is not (?:installed|on PATH|recognized))",
        ),
        (Remedy("python_312"), Remedy("install_rust")),
        code="K21",
    ),
    Failure(
        "rust_build",
        said(
            r"error: could not compile `[\w-]+`",
            r"^ *error\[E\d{4}\]: [^\n]+",
            r"cargo (?:rustc|build)[^\n]{0,200}failed with code",
        ),
        (Remedy("newer_wheel"), Remedy("python_312")),
        code="K43",
    ),
    Failure(
        "cuda_differs",
        said(
            r"The detected CUDA version \([\d.]+\) mismatches the version that was used to compile",
            r"Cuda extensions are being compiled with a version of Cuda that does not match",
            r"Installed CUDA version [\d.]+ does not match the version torch was compiled with",
        ),
        (Remedy("same_cuda"), PREBUILT),
        code="K22",
    ),
    Failure(
        # Each CUDA drops the oldest generations and adds the newest.
        "cuda_generation",
        said(
            r"Unsupported gpu architecture '(?P<name>(?:compute|sm)_\d+\w?)'",
            r"nvcc fatal[^\n]{0,4}: Value '(?P<name>\w+)' is not defined for option 'gpu-(?:architecture|code)'",
        ),
        (Remedy("cuda_of_card"), PREBUILT),
        code="K93",
    ),
    Failure(
        "compiler_new",
        said(
            r"unsupported GNU version",
            # CUDA's compiler stumbles over the headers of a newer C++.
            r"/usr/include/c\+\+/\d+/[\w./]+:\d+:\d+: error: "
            r"(?:parameter packs|.{0,40}\b(?:builtin|_Float|bf16|type trait))",
            r"/usr/include/c\+\+/\d+/[\w./]+\(\d+\): error: ",
            r"greater than the maximum required version by CUDA",
            r"gcc versions later than \d+ are not supported",
            r"unsupported Microsoft Visual Studio version",
            r"Only the versions between 2\d{3} and 2\d{3} \(inclusive\) are supported",
            r"unsupported clang version",
            r"STL1002: Unexpected compiler version",
        ),
        (Remedy("older_compiler"), PREBUILT),
        code="K23",
    ),
    Failure(
        "host_compiler",
        said(
            r"Host compiler targets unsupported OS",
            r"nvcc fatal[^\n]{0,4}: nvcc cannot find a supported version of",
        ),
        (Remedy("compile_with_cl"), PREBUILT),
        code="K101",
    ),
    Failure(
        "cuda_toolset",
        said(r"No CUDA toolset found"),
        (Remedy("cuda_after_vs"), PREBUILT),
        code="K24",
    ),
    Failure(
        "cuda_toolkit",
        said(
            r"CUDA_HOME (?:environment variable is not set|does not exist)",
            r"MissingCUDAException",
            r"flash_attn was requested, but nvcc was not found",
            r"Failed to find nvcc|nvcc (?:was )?not found|nvcc: (?:command )?not found",
            r"Could not find CUDA(?:Toolkit)?\b|Failed to find CUDA|CUDA Toolkit not found|"
            r"CUDA_TOOLKIT_ROOT_DIR not found",
            r"No CMAKE_CUDA_COMPILER could be found",
            r"Failed to detect a default CUDA architecture",
            r"Couldn't find CUDA library root|CUDA compiler identification is unknown",
            r"No such file or directory: '[^'\n]*[\\/]?nvcc(?:\.exe)?'",
            r"[\\/]bin[\\/]+nvcc['\"][\s\S]{0,1500}?(?:WinError [23]\]|\[Errno (?:2|13)\])",
            r"CUDA::\w+\s+but the target was not found",
        ),
        (PREBUILT, Remedy("cuda_toolkit")),
        code="K25",
        unless=said(r"No CUDA toolset found"),
    ),
    Failure(
        "rocm_missing",
        said(
            r"Failed to find ROCm root directory|HIP compiler identification is unknown|hipcc: (?:command )?not found"
        ),
        (Remedy("install_rocm"), PREBUILT),
        code="K61",
    ),
    Failure(
        "cmake_missing",
        said(
            r"CMake must be installed",
            r"No module named '?cmake\b",
            r"CMake (?:is not|was not|not) (?:installed|found)|cmake: (?:command )?not found|Could not find CMake",
            r"CMAKE_(?:C|CXX)_COMPILER not set",
            r"Running '?nmake'?.{0,20}failed|'nmake' '-\?'",
            r"No CMAKE_(?:C|CXX)_COMPILER could be found",
            r"CMake was unable to find a build program",
            r"Compatibility with CMake < 3\.5 has been removed",
            r"CMake 3\.\d+(?:\.\d+)? or higher is required",
            r"Ninja is required to load C\+\+ extensions",
            # pip's own report of a build in which a program was called that is not there.
            r"to build wheel did not run successfully[\s\S]{0,4000}?FileNotFoundError: \[WinError 2\]"
            r"[^\n]*(?:\s*\[end of output\])?",
        ),
        (PREBUILT, Remedy("python_312"), Remedy("build_basics")),
        code="K26",
    ),
    Failure(
        "launcher_build",
        said(
            r"CalledProcessError: Command '\['[^'\n]*(?:gcc|cc|clang|g\+\+)(?:\.exe)?', '[^'\n]{0,200}(?:main|"
            r"cuda_utils|__triton_launcher)\.c'",
        ),
        (Remedy("python_headers_linux"), Remedy("read_above")),
        code="K27",
        strength=0.85,
        doubt=Doubt("libcuda_missing", "compile_by_hand"),
    ),
    Failure(
        "compiler_fails",
        said(
            r"is not able to compile a simple test program",
            r"Check for working [\w+]+ compiler: (?P<path>[^\n]+?) - broken",
        ),
        (Remedy("unset_compiler"), Remedy("native_prompt")),
        code="K73",
        strength=0.8,
    ),
    Failure(
        "compiler_headers",
        said(rf"C1083:? [^\n]{{0,80}}?['\"](?P<header>{STANDARD_HEADERS})['\"]"),
        (Remedy("native_prompt"),),
        code="K72",
    ),
    Failure(
        "header_missing",
        said(
            r"fatal error: (?P<header>[\w./+-]+\.h(?:pp)?): No such file",
            r"C1083:? [^\n]{0,60}?['\"]?(?P<header>[\w./+-]+\.h(?:pp)?)\b['\"]?",
        ),
        (Remedy("install_header", needs=("header",)), PREBUILT),
        code="K28",
        unless=said(rf"C1083:? [^\n]{{0,80}}?['\"]{STANDARD_HEADERS}['\"]", r"[\"' ]Python\.h\b"),
    ),
    Failure(
        "linker_library",
        said(
            r"cannot find -l(?P<library>[\w+.-]+)",
            r"LNK1181:?[^\n]{0,60}'(?P<library>[\w+.-]+)\.lib'",
            r"LNK1104:?[^\n]{0,60}[\"'](?P<library>[\w+.-]+)\.lib[\"']",
            r"library not found for -l(?P<library>[\w+.-]+)",
        ),
        (Remedy("install_library", needs=("library",)), PREBUILT),
        code="K29",
        # The first error of a build is the cause, and these follow from it.
        strength=0.9,
    ),
    Failure(
        # The message names three reasons; the library that it misses names the one.
        "torchcodec_other",
        said(
            r"Could not load libtorchcodec[\s\S]*?(?:lib(?:nvrtc|cudart|c10|torch|nppicc|cu)[\w.]*: cannot open|"
            r"libtorchcodec\S*: undefined symbol)",
        ),
        (Remedy("torchcodec_pair"),),
        code="K83",
    ),
    Failure(
        "torchcodec_ffmpeg",
        said(
            r"Could not load libtorchcodec[\s\S]*?libav\w+[\w.]*: cannot open",
            r"(?P<doubtful>Could not load libtorchcodec)",
        ),
        (Remedy("ffmpeg_shared"), Remedy("torchcodec_pair")),
        code="K84",
        unless=said(
            r"lib(?:nvrtc|cudart|c10|torch_cuda|nppicc)[\w.]*: cannot open|libtorchcodec\S*: undefined symbol"
        ),
        doubt=Doubt("torchcodec_other", "ffmpeg_there", asked=True),
    ),
    Failure(
        "binary_mismatch",
        said(
            r"(?P<file>[\w.+-]+\.(?:so|pyd)[\w.]*): undefined symbol: (?!_Z\d)_Z\w*(?:c10|at|torch|2at)\w*",
            r"undefined symbol: (?:_ZNK?3c10|_ZN2at|_ZNK2at|_ZN5torch|_ZN6caffe2|_ZN3c10)\w*",
            r"Failed to load image Python extension",
            r"(?:was|were) (?:built|compiled) (?:for|with|against) (?:a different|"
            r"another) (?:version of )?(?:PyTorch|torch)",
            r"PyTorch and (?:torchvision|torchaudio) (?:has|have|were) (?:different|been compiled)",
            r"Could not load this library: \S+torch(?!codec)\w*",
        ),
        (Remedy("torch_family"), REBUILD),
        code="K30",
        unless=said(r"Could not load libtorchcodec"),
    ),
    Failure(
        # Not PyTorch's own names, which binary_mismatch knows.
        "library_lacks",
        said(
            r"(?P<file>[\w.+-]+\.(?:so|dylib|dll)[\w.]*): undefined symbol: (?!_ZN|_ZNK)(?P<name>\w+)",
            r"function '(?P<name>\w+)' not found",
        ),
        (Remedy("rebuild_library"),),
        code="K50",
        strength=0.95,
    ),
    Failure(
        "library_damaged",
        said(
            r"(?P<library>[\w+./\\:-]+\.(?:so|dylib|dll|a)[\w.]*): (?:file too short|"
            r"invalid ELF header|file truncated|"
            r"cannot read file data|wrong ELF class)",
        ),
        (Remedy("install_file_again"),),
        code="K52",
    ),
    Failure(
        "library_replaced",
        said(r"(?P<library>[\w.+-]+\.(?:so|dylib)[\w.]*) \(deleted\)"),
        (Remedy("restart_python"), Remedy("install_file_again")),
        code="K57",
    ),
    Failure(
        "environment_absent",
        said(
            r"[\\/]activate(?:\.\w+)?['’]? is not recognized|"
            r"[\\/]activate(?:\.\w+)?['’]?: (?:No such file|The term )|"
            r"[\\/]activate(?:\.bat)?['\"]?\s*\n\s*(?:The system cannot find the path|系统找不到指定的路径)|"
            r"The term '[^'\n]*[\\/]activate(?:\.ps1)?' is not recognized"
        ),
        (Remedy("make_environment"),),
        code="K59",
    ),
    Failure(
        "mkl_missing",
        said(
            r"lib(?:mkl_\w+|openblas[\w.-]*)\.so[\w.]*: cannot open shared object",
            r"MKL FATAL ERROR: Cannot load|Cannot load (?:lib)?mkl_\w+",
        ),
        (Remedy("one_numpy"),),
        code="K53",
    ),
    Failure(
        "torch_library",
        said(r"\b(?P<library>lib(?:torch|c10)\w*\.(?:so|dylib)): cannot open shared object"),
        (Remedy("torch_family"), REBUILD),
        code="K46",
    ),
    Failure(
        "system_library",
        said(r"(?P<library>lib(?!mkl_|openblas)[\w+-]+\.so[.\d]*): cannot open shared object file"),
        (Remedy("install_library", needs=("library",)),),
        code="K31",
        strength=0.95,
    ),
    Failure(
        "extension_build",
        said(
            r"Error building extension '(?P<name>\w+)'",
            r"ninja: build stopped: subcommand failed",
            r"error: identifier \"\w+\" is undefined",
            r"error: command '[^'\n]+' failed",
            r"Error compiling objects for extension",
            # What the optimizer says when it is thrown away half made.
            r"has no attribute 'ds_opt_\w+'",
        ),
        (Remedy("first_build_error"), PREBUILT),
        code="K37",
        strength=0.5,
        unless=said(r"' failed: No such file"),
        doubt=Doubt("cuda_differs", "build_alone"),
    ),
    Failure(
        "triton_from_source",
        said(r"LLVM pre-compiled image is not available for [\w-]+"),
        (Remedy("triton_windows"), Remedy("use_wsl")),
        code="K67",
    ),
    Failure(
        "build_failed",
        said(
            r"Could not build wheels for (?P<package>[\w.-]+)",
            r"Failed building wheel for (?P<package>[\w.-]+)",
            r"Failed to build (?P<package>[\w.-]+)",
            r"Building wheel for (?P<package>[\w.-]+) \([\w. ]+\) did not run successfully",
            r"failed-wheel-build-for-install",
            r"metadata-generation-failed|legacy-install-failure",
            r"Getting requirements to build wheel did not run successfully",
        ),
        (PREBUILT, Remedy("python_312"), Remedy("first_build_error")),
        code="K38",
        strength=0.5,
    ),
    Failure(
        "nvcc_option",
        said(r"nvcc fatal[^\n]{0,4}: (?:Unknown option|Don't know what to do with) '(?P<name>[^'\n]{1,80})'"),
        (Remedy("newer_nvcc"), PREBUILT),
        code="K100",
    ),
)
