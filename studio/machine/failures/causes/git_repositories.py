"""Failures of git and of its large files (LFS)."""

from __future__ import annotations

from studio.machine.failures.causes.gguf_conversion import POINTER
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.remedies import FETCH_AGAIN, LOCAL_MODEL

LOGIN = (
    r"[Pp]assword authentication (?:in git is no longer supported|was removed)",
    r"fatal: (?:could not read (?:Username|Password)|Authentication failed)",
    r"Permission denied \(publickey",
    r"remote: Repository not found",
)
"""git is asked who it is, and has nothing that the server takes."""
LFS = (r"smudge filter lfs failed", r"\bbatch response: ", r"Smudge error:")

FAILURES = (
    Failure("git_login", said(*LOGIN), (Remedy("git_token"), Remedy("spelling")), code="N46"),
    Failure(
        "lfs_quota",
        said(
            r"(?:is over its data quota|exceeded its LFS budget|Git LFS (?:bandwidth|storage) (?:quota|limit))"
        ),
        (Remedy("fetch_elsewhere"),),
        code="N47",
    ),
    Failure(
        "lfs_server",
        said(
            r"batch response: [^\n]{0,300}(?:HTTP (?P<code>[45]\d\d)|Server error|Client error)",
            r"Smudge error: [^\n]{0,400}(?:i/o timeout|connection re|EOF\b|HTTP 5\d\d|timed? ?out)",
        ),
        (Remedy("without_lfs"), Remedy("without_mirror")),
        code="N48",
        unless=said(*LOGIN, r"data quota|LFS budget"),
    ),
    Failure(
        "lfs_content",
        said(r"expected OID [0-9a-f]{6,}, got [0-9a-f]{6,}"),
        (Remedy("without_lfs"),),
        code="N49",
    ),
    Failure(
        "lfs_failed",
        said(r"smudge filter lfs failed", r"external filter 'git-lfs filter-process' failed"),
        (Remedy("without_lfs"), FETCH_AGAIN),
        code="N50",
        strength=0.8,
    ),
    Failure(
        "git_transport",
        said(
            r"fatal: unable to access '",
            r"(?P<doubtful>fatal: Could not read from remote repository)",
            r"fatal: early EOF|RPC failed; curl|fetch-pack: (?:unexpected disconnect|invalid index-pack)",
            r"git clone[^\n]{0,200}did not run successfully",
        ),
        (Remedy("git_again"), LOCAL_MODEL),
        code="N32",
        unless=said(*LOGIN, *LFS),
        doubt=Doubt("git_login", "ssh_greets", asked=True),
    ),
    Failure(
        "nothing_to_commit",
        said(r"nothing to commit, working tree clean", r"nothing added to commit"),
        (Remedy("upload_without_git"),),
        code="N60",
        strength=0.9,
    ),
    Failure(
        "push_races",
        said(r"cannot lock ref '(?P<name>refs/[^'\n]+)'", r"\[remote rejected\][^\n]*failed to update ref"),
        (Remedy("one_upload"), Remedy("pull_first")),
        code="N61",
    ),
    Failure(
        "push_failed",
        said(
            r"Your push was rejected because it contains files larger",
            r"error: failed to push some refs to ",
        ),
        (Remedy("upload_without_git"), Remedy("pull_first")),
        code="N39",
        unless=said(
            r"fatal: (?:Authentication|could not read)|(?:pre-receive hook|remote) (?:declined|rejected)"
        ),
    ),
    Failure(
        "lfs_pointer",
        said(
            r"cloned a repository without having git-lfs installed",
            r"invalid load key, 'v'",
            POINTER,
            r"version https://git-lfs\.github\.com/spec",
            r"git-lfs.{0,40}(?:not found|not installed|is not a git command)|git: 'lfs' is not a git command",
        ),
        (Remedy("git_lfs_pull"), FETCH_AGAIN),
        code="N33",
    ),
)
