"""Failures of a Linux inside Windows (WSL)."""

from __future__ import annotations

from studio.core.facts import MachineFacts
from studio.machine.failures.failure import Failure, Remedy, said
from studio.machine.failures.probes import Values, found, variable
from studio.machine.failures.remedies import CLOSE_PROGRAMS, ON_PROCESSOR
from studio.machine.repairs import WSL_LIBRARIES
from studio.machine.wsl_lease import BRIDGE_VARIABLE

GIB = 2**30
SMALL_GUEST_BYTES = 16 * GIB
"""WSL takes half of the PC's memory at first; from here on that half is enough for a 7B model in 4 bits."""


def _no_gpu_path(machine: MachineFacts) -> Values | None:
    guest = machine.guest
    if guest is None or (guest.version != 1 and guest.dxg):
        return None
    name = guest.distribution or "this distribution"
    return found(f"{name} is WSL 1" if guest.version == 1 else f"{name} has no /dev/dxg")


def _wrong_libcuda(machine: MachineFacts) -> Values | None:
    guest = machine.guest
    if guest is None or guest.version == 1 or not guest.dxg:
        return None
    if guest.linux_driver:
        return found(f"an NVIDIA driver for Linux is installed inside WSL: {guest.libcuda or 'libcuda.so.1'}")
    if guest.libcuda.startswith(WSL_LIBRARIES):
        return None
    return found(f"libcuda.so.1 is {guest.libcuda or 'not found'}, not {WSL_LIBRARIES}/libcuda.so.1")


def _slow_mount(machine: MachineFacts) -> Values | None:
    # A studio that Windows opened inside WSL has its workspace there on purpose.
    bridged = bool(variable(machine, BRIDGE_VARIABLE))
    for name in ("model_cache", "program") if bridged else ("workspace", "model_cache", "program"):
        place = machine.places.get(name)
        if place is not None and place.filesystem == "9p":
            return found(f"{name}: {place.path}")
    return None


def _small_guest(machine: MachineFacts) -> Values | None:
    guest = machine.guest
    if guest is None or not guest.windows_ram_bytes or machine.ram_bytes >= SMALL_GUEST_BYTES:
        return None
    if machine.ram_bytes > 0.6 * guest.windows_ram_bytes:
        return None
    return found(f"{machine.ram_bytes / GIB:.0f} of the PC's {guest.windows_ram_bytes / GIB:.0f} GiB")


def _several_cards(machine: MachineFacts) -> Values | None:
    several = machine.guest is not None and len(machine.gpus) > 1
    return found(f"{len(machine.gpus)} cards in WSL") if several else None


def _no_interop(machine: MachineFacts) -> Values | None:
    return (
        found("Windows programs cannot be started") if machine.guest and not machine.guest.interop else None
    )


FAILURES = (
    Failure(
        "wsl_gpu_blocked",
        said(r"GPU access blocked by the operating system", r"CreateVm/ConfigureGpu"),
        (Remedy("wsl_gpu_open"), Remedy("wsl_gpu_off")),
        code="L8",
    ),
    Failure(
        "wsl_virtual",
        said(
            r"0x80370102",
            r"Virtual Machine Platform[^\n]{0,80}(?:enable|feature)",
            r"HCS_E_HYPERV_NOT_INSTALLED",
            r"0x80370109",
        ),
        (Remedy("enable_virtual"),),
        code="L9",
    ),
    Failure(
        "wsl_off",
        said(
            r"0x8007019e",
            r"0x8000000d",
            r"Windows Subsystem for Linux (?:has not been enabled|is not (?:installed|enabled)|has no installed)",
            r"0x80370114|0x8007007e",
            r"only applies to machines with the Windows Subsystem for Linux",
            r"Invalid command line option: (?:wsl )?--?(?:set-|install|update|import)",
            r"'wsl(?:\.exe)?' is not recognized as|ObjectNotFound: \(wsl(?:\.exe)?:String\)",
        ),
        (Remedy("enable_wsl"),),
        code="L10",
    ),
    Failure(
        "wsl_old",
        said(
            r"0x80040326",
            r"\b0x1bc\b",
            r"WSL 2 requires an update to its kernel|Wsl[^\n]{0,60}WSL_E_WSL_(?:MOUNT_NOT|OPTIONAL)",
        ),
        (Remedy("update_wsl"),),
        code="L15",
    ),
    Failure(
        "wsl_service",
        said(
            r"\bwsl[^\n]{0,60}0x(?:80070422|8007041d|800703fa|80070426)\b",
            r"\b0x(?:80070422|8007041d|800703fa|80070426)\b[^\n]{0,60}\bwsl",
            r"Distribution Name: [^\n]{1,80}\b0x(?:80070422|8007041d|800703fa|80070426)\b",
        ),
        (Remedy("start_wsl_service"), Remedy("restart_wsl")),
        code="L16",
    ),
    Failure(
        "apps_elsewhere",
        said(
            r"because it is not installed on a system volume", r"Linux\w*_[\d.]+_x64[^\n]{0,80}0x80070032\b"
        ),
        (Remedy("apps_on_system"), Remedy("wsl_by_hand")),
        code="L29",
    ),
    Failure(
        # The name of the program with its version, and on the next line "Catastrophic failure" in any language.
        "wsl_install",
        said(
            r"\bLinux(?: de Windows)? \d+\.\d+\.\d+(?:\.\d+)?\s*\n\s*(?:Catastrophic|Falha|Fallo|D\u00e9faillance|"
            r"Schwerwiegend|Errore irr|Error catastr|\u707e\u96be|\u30a8\u30e9\u30fc|\uce58\uba85)",
            r"\bwsl(?:\.exe)? +--(?:install|update)\b[\s\S]{0,400}?(?:Catastrophic failure|0x8000FFFF)",
            r"Wsl/(?:UpdatePackage|CallMsi/Install)/\S+",
        ),
        (Remedy("wsl_by_hand"), Remedy("apps_on_system"), Remedy("wsl_distro_anew")),
        code="L28",
        unless=said(r"Wsl/InstallDistro/"),
    ),
    Failure(
        # Windows translates all but the code.
        "windows_feature",
        said(
            r"\b(?:Compon\w+|Kompon\w+|Composant)\s?:\s?'[^'\n]{1,80}(?:'[^'\n]{1,80})?'[^\n]{0,60}0x[0-9a-fA-F]{8}",
            r"\b0x800f0[89][0-9a-f]{2}\b",
        ),
        (Remedy("repair_windows"), Remedy("enable_wsl")),
        code="L12",
    ),
    Failure(
        # Windows translates the words, not the command and the code.
        "wsl_download",
        said(
            r"Distribution Name: '[^'\n]+' Error Code: (?P<name>0x[0-9a-fA-F]{8})",
            r"\bwsl(?:\.exe)? +--install\b[\s\S]{0,600}?(?P<name>0x80[0-9a-fA-F]{6})\b",
            r"Wsl/InstallDistro/(?P<name>\w+)",
        ),
        (Remedy("web_download"), Remedy("restart_wsl")),
        code="L18",
        strength=0.95,
        unless=said(r"WslRegisterDistribution|0x800701(?:9e|BC)|0x80370(?:102|109|114)|0x80070422"),
    ),
    Failure(
        "wsl_no_distro",
        said(r"WSL_E_DISTRO_NOT_FOUND", r"There is no distribution with the supplied name"),
        (Remedy("names_of_distros"),),
        code="L27",
    ),
    Failure(
        "wsl_disk_gone",
        said(
            r"MountVhd/(?:HCS/)?ERROR_(?:FILE|PATH)_NOT_FOUND",
            r"MountVhd/\S*0x8007000[23]\b",
            r"(?:WslRegisterDistribution|Wsl/Service/\S+)[^\n]*0x80040326",
        ),
        (Remedy("distro_again"),),
        code="L22",
    ),
    Failure(
        "wsl_disk_driver",
        said(r"0x[cC]03[aA]0014\b"),
        (Remedy("disk_driver_on"), Remedy("repair_windows")),
        code="L23",
    ),
    Failure(
        "wsl_disk_form",
        said(
            r"0x[cC]03[aA]001[aA]\b",
            r"MountVhd/\S*0x80070032\b|MountVhd/\S*ERROR_NOT_SUPPORTED",
            r"must be uncompressed and unencrypted and must not be sparse",
        ),
        (Remedy("disk_uncompressed"), Remedy("wsl_anew")),
        code="L24",
    ),
    Failure(
        # Windows' own store of its parts, of which one is damaged or half updated.
        "windows_parts",
        said(r"0x800737(?:01|12|15)\b|0x800[fF]081[fF]\b"),
        (Remedy("repair_windows"),),
        code="L25",
    ),
    Failure(
        "wsl_start",
        said(
            r"Wsl/\w+(?:/\w+)*/(?:0x[0-9a-fA-F]{8}|E(?:RROR)?_\w+)",
            r"WslRegisterDistribution failed",
            r"Windows Subsystem for Linux instance has terminated",
            r"Wsl/Service/\S+",
        ),
        (Remedy("restart_wsl"),),
        code="L11",
        strength=0.9,
    ),
    Failure(
        "wsl_no_gpu",
        said(
            r"/dev/dxg.{0,60}(?:No such file|not found|does not exist|cannot)",
            r"WSL ?1 .{0,40}not support",
            r"WSL environment detected but no adapters were found",
        ),
        (Remedy("convert_wsl"), ON_PROCESSOR),
        code="L1",
        probe=_no_gpu_path,
        subject="wsl",
    ),
    Failure(
        "libcuda_missing",
        said(
            r"libcuda\.so(?:\.1)?\S* ?:? .{0,40}(?:cannot|can't|not) (?:be )?(?:found|open|load)",
            r"libcuda\.so(?:\.1)?.{0,10}cannot",
            r"CUDA driver is a stub library",
            r"(?:/ld|\bcollect2|\bld(?:\.\w+)?)?: cannot find -lcuda\b",
            r"Found no NVIDIA driver on your system",
            r"could not load NVML library|NVML Shared Library Not Found|couldn't find libnvidia-ml\.so library",
        ),
        (Remedy("wsl_driver"), ON_PROCESSOR),
        code="L2",
        # An old bitsandbytes looks for Linux's libraries on Windows, too.
        unless=said(r"WindowsPath\b"),
        probe=_wrong_libcuda,
        subject="wsl",
        repair="wsl_library_path",
    ),
    Failure(
        "wsl_slow_mount",
        None,
        (Remedy("linux_home"),),
        code="L3",
        probe=_slow_mount,
        subject="disk",
        severity="note",
    ),
    Failure(
        "wsl_memory",
        None,
        (Remedy("wsl_memory"), CLOSE_PROGRAMS),
        code="L4",
        probe=_small_guest,
        subject="memory",
        severity="note",
    ),
    Failure(
        "wsl_several_gpus",
        None,
        (Remedy("one_gpu"),),
        code="L6",
        probe=_several_cards,
        subject="wsl",
        severity="note",
        repair="wsl_nccl",
    ),
    Failure(
        # Linux finds Windows' programs by the folders that WSL puts at the end of PATH.
        "wsl_windows_path",
        said(r"(?<![\w.])(?P<name>(?!wsl\.)[\w-]+\.exe): command not found"),
        (Remedy("windows_path", needs=("name",)), Remedy("interop")),
        code="L33",
    ),
    Failure(
        "wsl_interop",
        said(r"(?:powershell|cmd|wsl|explorer)\.exe: .{0,60}(?:Exec format error|cannot execute binary)"),
        (Remedy("interop"),),
        code="L7",
        probe=_no_interop,
        subject="wsl",
        severity="note",
    ),
)
