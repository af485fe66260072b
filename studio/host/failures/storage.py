"""Failures of files and disks."""

from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.remedies import FETCH_AGAIN, FREE_DISK, RESUME

FAILURES = (
    Failure(
        "disk_full",
        said(
            r"No space left on device",
            r"\bErrno 28\b",
            r"WinError 112\b",
            r"Not enough free disk space",
            r"Disk quota exceeded",
            # torch.save on a full disk (measured): no word of a disk.
            r"unexpected pos \d+",
            r"PytorchStreamWriter failed writing",
        ),
        (FREE_DISK, RESUME),
    ),
    Failure("read_only", said(r"Read-only file system", r"\[Errno 30\]"), (Remedy("other_workspace"),)),
    Failure(
        "file_locked",
        said(r"WinError (?:32|33|225|1224)\b"),
        (Remedy("allow_in_antivirus"), RESUME),
    ),
    Failure(
        "security_policy",
        said(r"WinError (?:4551|1260)\b", r"0xc0e90002"),
        (Remedy("pytorch_kernels", {"limits.kernels": "pytorch"}),),
    ),
    Failure(
        "permission",
        said(r"\bPermissionError\b", r"\[Errno 13\]", r"WinError 5\b", r"Permission denied"),
        (Remedy("permission"), Remedy("other_workspace")),
    ),
    Failure(
        "no_folder",
        said(r"\b(?:FileExists|NotADirectory)Error\b", r"\[Errno (?:17|20)\]", r"WinError (?:183|267)\b"),
        (Remedy("other_folder"),),
    ),
    Failure(
        "path_too_long",
        said(r"WinError 206\b", r"File name too long", r"\[Errno 36\]"),
        (Remedy("short_workspace"),),
    ),
    Failure("too_many_files", said(r"Too many open files", r"\[Errno 24\]"), (Remedy("restart"),)),
    Failure(
        "weights_damaged",
        said(
            r"SafetensorError",
            r"InvalidHeader",
            r"HeaderTooLarge",
            r"MetadataIncompleteBuffer",
            r"invalid JSON in header",
        ),
        (FETCH_AGAIN,),
    ),
    Failure(
        "disk_error",
        said(r"Input/output error", r"\[Errno 5\]", r"WinError 1117\b"),
        (Remedy("other_workspace"), RESUME),
    ),
)
