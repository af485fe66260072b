"""Failures of Linux's own package managers (apt, dpkg, dnf), by which drivers and compilers are installed."""

from __future__ import annotations

from studio.machine.failures.failure import Failure, Remedy, said

FAILURES = (
    Failure(
        "apt_rights",
        said(
            r"are you root\?",
            r"Could not open lock file /var/\S+ - open \(13: ",
            r"This command has to be run (?:with superuser privileges|under the root user)",
        ),
        (Remedy("with_sudo"),),
        code="K74",
    ),
    Failure(
        "apt_locked",
        said(
            r"Could not get lock /var/(?:lib/(?:dpkg|apt)|cache)\S*",
            r"Waiting for cache lock: Could not get lock",
            r"is another process using it\?",
        ),
        (Remedy("wait_for_apt"),),
        code="K75",
    ),
    Failure(
        "apt_interrupted",
        said(r"dpkg was interrupted, you must manually run"),
        (Remedy("configure_all"),),
        code="K76",
    ),
    Failure(
        # A container's file that the host put there, or one that another package brought.
        "apt_file_mounted",
        said(
            r"unable to make backup link of '[^'\n]+' before installing new version: Invalid cross-device link"
        ),
        (Remedy("no_driver_inside"),),
        code="K77",
    ),
    Failure(
        "apt_overwrites",
        said(r"trying to overwrite '(?P<path>[^'\n]+)', which is also in package (?P<package>\S+)"),
        (Remedy("purge_other"), Remedy("driver_anew")),
        code="K78",
    ),
    Failure(
        "apt_unmet",
        said(
            r"The following packages have unmet dependencies",
            r"you have held broken packages",
            r"pkgProblemResolver::Resolve generated breaks",
            r"E: Unmet dependencies\b",
            r"nothing provides [^\n]{1,120} needed by [^\n]{1,120}(?:fc|el)\d",
            r"package \S+\.(?:fc|el)\d+[^\n]{0,80}? requires [^\n]{1,160}, but none of the providers",
        ),
        (Remedy("fix_broken"), Remedy("one_source"), Remedy("driver_anew")),
        code="K79",
    ),
    Failure(
        "apt_no_package",
        said(
            r"E: Unable to locate package (?P<package>\S+)",
            r"E: Package '(?P<package>[^'\n]+)' has no installation candidate",
            r"E: Version '(?P<version>[^'\n]+)' for '(?P<package>[^'\n]+)' was not found",
            r"No match for argument: (?P<package>\S+)",
        ),
        (Remedy("refresh_lists"), Remedy("add_source")),
        code="K80",
    ),
    Failure(
        "apt_source_twice",
        said(r"E: Conflicting values set for option Signed-By"),
        (Remedy("one_source_list"),),
        code="K95",
    ),
    Failure(
        "apt_key",
        said(
            r"\b(?:NO_PUBKEY|EXPKEYSIG|BADSIG) [0-9A-F]{8,}",
            r"E: The repository '[^'\n]+' is not signed",
        ),
        (Remedy("new_key"),),
        code="K81",
    ),
)
