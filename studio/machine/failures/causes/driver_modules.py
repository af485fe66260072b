"""Failures of the driver's kernel modules on Linux: not built, not signed, or another one holds the card."""

from __future__ import annotations

from studio.machine.failures.failure import Failure, Remedy, said

MODULE = r"'?nvidia(?:[-_]\w+)?'?"
REFUSED = r"(?:Key was rejected by service|Required key not available)"

FAILURES = (
    Failure(
        "module_unsigned",
        said(
            rf"(?:insmod|modprobe|insert module|insert)\b[^\n]{{0,120}}{REFUSED}",
            r"Loading of unsigned module is rejected|Lockdown: [^\n]{0,80}unsigned module loading is restricted",
        ),
        (Remedy("enrol_key"), Remedy("secure_boot_off")),
        code="C42",
    ),
    Failure(
        "card_held",
        said(
            r"driver such as:[\s\S]{0,80}?nouveau[\s\S]{0,160}?obtained ownership of",
            r"Nouveau kernel driver is currently in use",
        ),
        (Remedy("who_drives_card"), Remedy("nouveau_off")),
        code="C43",
    ),
    Failure(
        "headers_absent",
        said(
            r"kernel headers for kernel \S+ (?:cannot|could not|can't) be found",
            r"[Uu]nable to find the (?:kernel source tree|development tool)[^\n]{0,60}kernel",
            r"/lib/modules/[^\s/]+/build(?: does not exist|: No such file)",
        ),
        (Remedy("kernel_headers"),),
        code="C44",
    ),
    Failure(
        "module_build",
        said(
            r"Bad return status for module build on kernel: (?P<kernel>[^\s(]+)",
            r"(?:dkms|DKMS)[^\n]{0,120}(?:bad exit status|[Bb]uild failed|failed to build)",
            r"An error occurred while performing the step: \"Building kernel modules\"",
            r"[Uu]nable to build the NVIDIA kernel module",
            r"The nvidia\S* kernel module (?:was not created|failed to build)",
        ),
        (Remedy("driver_for_kernel"), Remedy("kernel_headers")),
        code="C45",
    ),
    Failure(
        "module_absent",
        said(
            rf"modprobe: FATAL: Module {MODULE} not found",
            rf"modprobe: (?:ERROR|FATAL):? [^\n]{{0,40}}{MODULE}[^\n]{{0,20}}(?:No such device|Unknown symbol)",
        ),
        (Remedy("build_module"), Remedy("kernel_headers")),
        code="C46",
        # WSL has no such module: Windows' own driver reaches in.
        unless=said(r"microsoft-standard", REFUSED, r"Nouveau kernel driver is currently in use"),
    ),
)
