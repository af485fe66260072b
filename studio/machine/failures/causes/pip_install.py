"""Failures of pip, uv and conda: no such version, no wheel, clashing requirements, files in use."""

from __future__ import annotations

from studio.machine.failures.failure import Doubt, Failure, Remedy, said

NO_SUCH_CUDA = r"(?:cu(?:11[249]|12[02357]|131)|cu1[123])"
"""Addresses of PyTorch that never were: no build was made for these versions of CUDA."""

FAILURES = (
    Failure(
        "build_isolation",
        said(
            r"build requirement `(?P<module>[\w-]+)` was declared with `match-runtime",
            r"(?:get_requires_for_build_wheel|prepare_metadata_for_build|Getting requirements to build wheel|"
            r"build_meta\.py|"
            r"pip-build-env|setup\.py egg_info|Preparing metadata|build_wheel)[\s\S]{0,4000}?"
            r"No module named '?(?P<module>torch|numpy|packaging|psutil|Cython|pybind11)",
            r"No module named '?(?P<module>torch|numpy|packaging|psutil|Cython|pybind11)'?\s*$[\s\S]{0,1200}?"
            r"(?:metadata-generation-failed|originates from a subprocess|Failed (?:to build|building))",
            r"No module named '?(?P<module>torch|numpy|packaging|psutil|Cython|pybind11)'?\s*\n\s*"
            r"\[end of output\]",
            r"(?:ops without|[Pp]lease install) (?P<module>torch) (?:installed|before (?:attempting|building))",
        ),
        (Remedy("no_isolation"),),
        code="K1",
        # A build whose own backend is broken is another matter.
        unless=said(
            r"No module named '?(?:distutils|pkg_resources)", r"pip3? install[^\n]*--no-build-isolation"
        ),
    ),
    Failure(
        "distutils_gone",
        said(
            r"No module named '?(?P<module>distutils|pkg_resources|imp|(?:py)?audioop|cgi|"
            r"crypt|imghdr|sndhdr|asyncore|telnetlib|pipes)(?:\.\w+)*'?\s*$"
        ),
        (Remedy("setuptools_80"),),
        code="K2",
    ),
    Failure(
        "pip_conflict",
        said(
            r"Unsatisfiable package specifications",
            r"pip's dependency resolver does not currently take into account(?![\s\S]*not installed)",
            r"ResolutionImpossible",
            r"these package versions have conflicting dependencies",
            r"^The conflict is caused by:",
            r"(?P<who>[\w.-]+ \S+) (?:requires|has requirement) [^\n]{1,120}, but you (?:have|"
            r"'ll have) (?P<has>[^\n]{1,60}?)(?: which is incompatible|\.$)",
            r"No solution found when resolving dependencies",
            r"LibMambaUnsatisfiableError|UnsatisfiableError",
        ),
        (Remedy("fresh_environment"), Remedy("loosen_pins")),
        code="K3",
        strength=0.9,
    ),
    Failure(
        "conda_priority",
        said(r"is excluded by strict repo priority"),
        (Remedy("flexible_priority"), Remedy("conda_other_system")),
        code="K64",
    ),
    Failure(
        # conda's own name for the driver that it sees.
        "conda_no_driver",
        said(
            r"nothing provides (?:requested )?__cuda\b",
            r"__cuda[^\n]{0,60}(?:missing|not found|not installable)",
        ),
        (Remedy("driver_or_override"),),
        code="K63",
    ),
    Failure(
        # Builds named to the last sign exist for the system alone that the list was written on.
        "conda_lacks",
        said(
            r"PackagesNotFoundError|ResolvePackageNotFound",
            r"nothing provides requested [^\n]+",
            r"nothing provides (?!__)[^\n]+ needed by",
            r"does not exist \(perhaps (?:a typo or )?a missing channel\)",
        ),
        (Remedy("conda_other_system"),),
        code="K44",
        unless=said(r"not available from current channels:[\s\S]{0,300}?/(?:win|linux)-32\b"),
    ),
    Failure(
        "conda_gone",
        said(r"CondaHTTPError: HTTP (?:404|403)\b"),
        (Remedy("conda_clean"), Remedy("conda_other_system")),
        code="K82",
    ),
    Failure(
        # uv takes a package from the first index that has it, and looks in no other one.
        "index_lacks",
        said(
            r"Because (?P<package>[\w-]+) was not found in the package registry",
            r"Because there is no version of (?P<package>[\w-]+)[^\n]* and [\s\S]{1,80} depends on ",
            r"--index-strategy unsafe-best-match",
        ),
        (Remedy("second_index"), Remedy("spelt_package")),
        code="K45",
    ),
    Failure(
        # What it cannot read of a package's description it calls unknown.
        "pip_old",
        said(
            r"has inconsistent (?:name|version): (?:filename|expected)[^\n]{1,120}(?:unknown|0\.0\.0)",
            r"produced metadata for project name unknown",
            r"Successfully (?:built|installed) UNKNOWN\b|UNKNOWN-0\.0\.0",
        ),
        (Remedy("upgrade_pip"),),
        code="K56",
    ),
    Failure("pip_managed", said(r"externally[- ]managed"), (Remedy("make_venv"),), code="K4"),
    Failure(
        "pip_hash",
        said(
            r"DO NOT MATCH THE HASHES",
            r"Wheel '[^'\n]+' located at [^\n]+ is invalid",
            r"Hash mismatch|HashMismatch|hashes? (?:did|do) not match",
        ),
        (Remedy("pip_no_cache"),),
        code="K5",
    ),
    Failure(
        "index_down",
        said(
            r"CondaHTTPError: HTTP 5\d\d\b",
            r"(?:HTTP error|HTTPError:?|status code) 5\d\d\b[^\n]{0,200}(?:/simple/|repodata|\.whl|\.conda)",
        ),
        (Remedy("index_later"), Remedy("other_channel")),
        code="K92",
    ),
    Failure(
        "pip_itself",
        said(r"To modify pip, please run the following command"),
        (Remedy("pip_by_python"),),
        code="K91",
    ),
    Failure(
        "pip_in_use",
        said(
            r"Could not install packages due to an (?:OSError|EnvironmentError): \[WinError (?:5|32)\]",
            r"WinError (?:5|32)\][^\n]{0,200}(?:pip-uninstall|\.pyd|\.dll|Scripts)",
            r"failed to remove (?:file|directory)[^\n]{0,200}(?:os error (?:5|32)|being used)",
        ),
        (Remedy("close_python"),),
        code="K6",
        unless=said(
            r"due to an (?:OSError|EnvironmentError): \[WinError 5\][^\n]*\\(?:WindowsApps|Program Files)\\"
        ),
    ),
    Failure(
        "cache_held",
        said(r"failed to rename (?:file|directory) from[\s\S]{0,500}?\(os error (?:5|32)\)"),
        (Remedy("cache_again"),),
        code="K87",
    ),
    Failure(
        "lock_unread",
        said(r"Failed to parse `?(?P<path>[^`\n]{0,200}?(?:\.lock|pylock[\w.]*\.toml))\b`?"),
        (Remedy("lock_anew"),),
        code="K88",
    ),
    Failure(
        "pip_denied",
        said(
            r"Could not install packages due to an (?:OSError|EnvironmentError): \[Errno 13\]",
            r"due to an (?:OSError|EnvironmentError): \[WinError 5\][^\n]*\\(?:WindowsApps|Program Files)\\",
            # A program that is being replaced cannot be put aside.
            r"\[WinError 2\][^\n]*\.exe' -> '[^'\n]*\.deleteme'",
        ),
        (Remedy("make_venv"),),
        code="K7",
    ),
    Failure(
        "pip_absent",
        said(
            r"No module named '?(?:pip|ensurepip|venv)\b",
            r"\bpip3?(?:\.exe)?'? ?(?:: command not found|is not recognized|: not found)",
            r"ensurepip is not\s+available",
        ),
        (Remedy("ensure_pip"),),
        code="K8",
    ),
    Failure(
        "no_ssl",
        said(
            r"SSL module is not available",
            r"No module named '?_ssl",
            r"Can't connect to HTTPS URL because the SSL module",
        ),
        (Remedy("conda_libraries"), Remedy("full_python_own")),
        code="K9",
    ),
    Failure(
        "wheel_other",
        said(
            r"(?P<wheel>\S+\.whl) is not a supported wheel on this platform",
            r"dependency is incompatible with the current platform: (?P<wheel>\S+)",
        ),
        (Remedy("fitting_wheel"), Remedy("python_312")),
        code="K10",
    ),
    Failure(
        "wheel_absent",
        said(
            r"(?P<package>[\w-]+)[=<>~!]*[\w.+]* has no (?:usable )?wheels with a matching (?:Python|platform)",
            r"Because (?P<package>[\w-]+)[=<>~!]*[\w.+]* is unusable because no wheels are available with a matching",
            r"no wheels are available with a matching (?:Python|platform)",
            r"Distribution `(?P<package>[\w-]+)[^`\n]*` can't be installed because it doesn't have a "
            r"(?:source distribution or )?wheel for the current platform",
            r"doesn't have a (?:source distribution or )?wheel for the current platform",
        ),
        (Remedy("python_312"), Remedy("platforms_named"), Remedy("torch_index")),
        code="K65",
        unless=said(r"You're on Linux \(`manylinux_2_\d+_(\w+)`\), but [^\n]*`manylinux_2_\d+_\1`"),
    ),
    Failure(
        # PyTorch's builds for a CUDA are only at that CUDA's own address, and only some versions have one.
        "cuda_index",
        said(
            # Other versions for that CUDA are there: it may be the Python.
            r"satisfies the requirement (?P<package>torch\w*)==[\d.]+(?P<doubtful>\+\w+) "
            r"\(from versions: [^\n)]*\d(?P=doubtful)",
            r"satisfies the requirement (?P<package>torch\w*|xformers|vllm|flash[-_]attn)[=<>~!]=?[\d.]+\+\w+",
            r"No matching distribution found for (?P<package>torch\w*)==[\d.]+\+\w+",
            rf"/whl/{NO_SUCH_CUDA}\b[\s\S]{{0,900}}?\(from versions: none\)",
            rf"/whl/{NO_SUCH_CUDA}\b[\s\S]{{0,300}}?(?:HTTP error 40[34]|40[34] (?:Client Error|Forbidden))",
        ),
        (Remedy("torch_index"), Remedy("python_312")),
        code="K16",
        unless=said(r"Retrying \(Retry"),
        doubt=Doubt("no_version", "python_of_torch", asked=True),
    ),
    Failure(
        "no_version",
        said(
            r"Could not find a version that satisfies the requirement (?P<package>[^\s(]+)[^\n]*\(from version"
            r"s: (?!none)[^)\n]*\d",
            r"Ignored the following versions that require a different python version",
            r"Because there is no version of (?P<package>[\w-]+)",
        ),
        (Remedy("listed_version"), Remedy("python_312"), Remedy("newer_glibc")),
        code="K11",
    ),
    Failure(
        "no_wheel",
        said(
            r"Could not find a version that satisfies the requirement (?P<package>[^\s(]+)[^\n]*\(from version"
            r"s: none\)",
            r"No matching distribution found for (?P<package>\S+)",
        ),
        (Remedy("python_312"), Remedy("spelt_package")),
        code="K12",
        strength=0.95,
        unless=said(r"produced metadata for project name unknown"),
        doubt=Doubt("pip_unreachable", "pip_index"),
    ),
    Failure(
        "pip_requirement",
        said(
            r"error: Failed to parse: `",
            r"Invalid requirement",
            r"InvalidRequirement|Invalid version: '|InvalidVersion",
            r"Could not open requirements file",
        ),
        (Remedy("check_requirement"),),
        code="K13",
    ),
    Failure(
        "macos_old",
        said(
            r"built for macOS [\d.]+ which is newer than running OS",
            r"macOS [\d.]+ or (?:later|newer|higher) is required|requires macOS [\d.]+",
        ),
        (Remedy("update_macos"), Remedy("older_release")),
        code="K17",
    ),
    Failure(
        "glibc_old",
        said(
            r"version `?(?P<needs>GLIBC(?:XX)?_[\d.]+|CXXABI_[\d.]+)'? not found",
            # uv names a processor's own packages only where they need a newer C library than it saw.
            r"You're on Linux \(`manylinux_2_\d+_(?P<kind>\w+)`\), but [^\n]*`manylinux_2_\d+_(?P=kind)`",
        ),
        (Remedy("newer_system"), Remedy("conda_libstdcxx")),
        code="K15",
    ),
)
