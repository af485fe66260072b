"""Failures of files and disks."""

from __future__ import annotations

from studio.core.facts import MachineFacts
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.probes import Values, found
from studio.machine.failures.remedies import FETCH_AGAIN, FREE_DISK, RESUME

DISK_FLOOR_BYTES = 5 * 2**30
"""A 2B model in 16 bits, or a few checkpoints of an adapter."""


def _little_disk(machine: MachineFacts) -> Values | None:
    for name in ("workspace", "model_cache", "temp"):
        place = machine.places.get(name)
        if place is not None and 0 < place.free_bytes < DISK_FLOOR_BYTES:
            return found(f"{name}: {place.free_bytes / 2**30:.1f} GiB free in {place.path}")
    return None


def _unwritable_workspace(machine: MachineFacts) -> Values | None:
    place = machine.places.get("workspace")
    return found(place.path) if place is not None and not place.writable else None


FAILURES = (
    Failure(
        "disk_full",
        said(
            r"No space left on device",
            r"\bErrno 28\b",
            # A limit of a file's size, and a quota, as Rust says them: `File too large (os error 27)`.
            r"\(os error (?:27|28|112|122)\)",
            r"\bStorageFull\b|not enough space on the disk",
            r"WinError 112\b",
            r"Not enough (?:free )?disk space(?!\. Needed: Unknown size)",
            # torch.save on a full disk (measured): no word of a disk.
            r"unexpected pos \d+",
            r"PytorchStreamWriter failed writing",
        ),
        (FREE_DISK, RESUME),
        code="M8",
        doubt=Doubt("shared_memory", "df", asked=True),
        probe=_little_disk,
        subject="disk",
        unless=said(r"/dev/shm|</torch_\d|multiprocessing\.SemLock|shared memory|inotify|file watch"),
    ),
    Failure(
        "save_unopened",
        said(r"RuntimeError: File (?P<path>[^\n]{1,300}?) cannot be opened"),
        (Remedy("make_folder"), FREE_DISK),
        code="M44",
        doubt=Doubt("disk_full", "df_folder"),
    ),
    Failure(
        # As programs say it of their own, whatever the reason was.
        "file_unloaded",
        said(
            r"(?:[Cc]ould not|[Cc]annot|[Ff]ailed to|[Uu]nable to) load (?:the )?(?:base |Llama )?"
            r"(?:model|checkpoint|weights|vae|file):? (?:from )?"
            r"(?:from |path: )?['\"]?(?P<path>[^\s'\":]*[\\/:][^\s'\"]*\.(?:safetensors|ckpt|pth?|bin|gguf))"
        ),
        (Remedy("check_path"), FETCH_AGAIN),
        code="M46",
        strength=0.8,
        doubt=Doubt("weights_damaged", "size_of_file"),
    ),
    Failure(
        # Shared and remote folders lack some of what a disk does: links, locks, renaming.
        "file_function",
        said(
            r"\[Errno (?:37|38|95|524)\] (?P<says>[^\n]{1,300})", r"Function not implemented \(os error 38\)"
        ),
        (Remedy("local_folder"), Remedy("local_cache")),
        code="M47",
    ),
    Failure("quota", said(r"[Qq]uota exceeded", r"\[Errno 122\]"), (Remedy("quota"),), code="M11"),
    Failure(
        "watch_limit",
        said(r"inotify watch limit reached", r"file watch limit|inotify[^\n]{0,80}No space left"),
        (Remedy("more_watches"),),
        code="M12",
    ),
    Failure(
        # transformers 4.36 and 4.37 wrote into tmp-checkpoint-N first, and renamed it while it was still open.
        "checkpoint_renamed",
        said(r"(?:\[WinError \d+\]|\[Errno \d+\])[^\n]*tmp-checkpoint-\d+['\"] -> "),
        (Remedy("newer_saving"), Remedy("one_process")),
        code="D260",
    ),
    Failure(
        "rename_failed",
        said(
            r"(?:FileExistsError|FileNotFoundError|PermissionError|OSError):? \[(?:Errno|"
            r"WinError) \d+\][^\n]*['\"] -> ['\"](?![^\n]*\.deleteme)[^\n]*",
            r"Failed to rename: [^\n]{1,500}(?:Access is denied|being used|Permission denied)",
        ),
        (Remedy("one_process"), Remedy("allow_in_antivirus_own")),
        code="D26",
        unless=said(r"\[Errno (?:18|38|95)\]|WinError 17\b|tmp-checkpoint-\d+['\"] -> "),
    ),
    Failure(
        "read_only",
        said(r"Read-only file system", r"\[Errno 30\]|WinError 19\b"),
        (Remedy("other_workspace"),),
        code="D20",
    ),
    Failure(
        # Windows says so of a folder that is opened like a file.
        "folder_opened",
        said(
            r"\[Errno 13\] Permission denied: '(?=[A-Za-z]:|[^'\n]{0,200}\\)"
            r"(?P<path>(?:[^'\n]{0,250}[\\/])?[^'\n.\\/:]{1,80})'\s*$"
        ),
        (Remedy("name_file"), Remedy("upgrade_all")),
        code="D158",
        doubt=Doubt("permission", "dir_path"),
    ),
    Failure(
        "room_unknown",
        said(r"Not enough disk space\. Needed: Unknown size"),
        (Remedy("local_cache"), Remedy("upgrade_datasets")),
        code="D165",
        doubt=Doubt("disk_full", "df_cache"),
    ),
    Failure(
        # Windows says the same of a file that is open in another program.
        "windows_denied",
        said(r"\[WinError 5\][^\n\['\"]{0,80}['\"][^'\"\n]{2,400}['\"]"),
        (Remedy("close_holders"), Remedy("permission"), Remedy("other_workspace")),
        code="D159",
        unless=said(
            r"Could not install packages",
            r"WinError 5\][^\n\[]{0,400}['\"] -> ['\"]",
            r"[A-Z]:\\+(?:Program|Windows)",
        ),
        doubt=Doubt("permission", "who_holds_5"),
    ),
    Failure(
        # Windows lets a file that is open be opened a second time only where both sides allow it.
        "temporary_open",
        said(
            r"\[Errno 13\] Permission denied: ['\"][A-Za-z]:[\\/]+[^'\"\n]*[\\/]Temp[\\/]+tmp\w{6,10}\b[^\n]*"
        ),
        (Remedy("closed_first"), Remedy("newer_program")),
        code="D261",
        doubt=Doubt("permission", "who_holds"),
    ),
    Failure(
        "permission",
        said(
            r"\bPermissionError\b",
            r"\[Errno (?:1|13)\]",
            r"WinError 5\b",
            r"Permission denied(?! \(publickey)",
        ),
        (Remedy("permission"), Remedy("other_workspace")),
        code="D21",
        unless=said(r"can't overwrite itself", r"SELinux is preventing"),
        probe=_unwritable_workspace,
        subject="python",
        severity="blocked",
    ),
    # A path that is not there says nothing of why: whoever knows that it was the run's own folder names this entry.
    Failure("run_folder_gone", None, (Remedy("leave_folder"),), code="D25"),
    Failure(
        "dataset_overwrites",
        said(r"a dataset can't overwrite itself"),
        (Remedy("new_or_overwrite"),),
        code="D203",
    ),
    Failure(
        "exists_already",
        said(
            r"CondaValueError: prefix already exists: (?P<path>[^\n]+)",
            r"destination path '(?P<path>[^'\n]+)' already exists and is not an empty",
            r"[Oo]utput directory \(?(?P<path>[^)\n]+?)\)? already exists and is not empty",
        ),
        (Remedy("new_or_overwrite"),),
        code="D27",
    ),
    Failure(
        "no_folder",
        said(r"\b(?:FileExists|NotADirectory)Error\b", r"\[Errno (?:17|20)\]", r"WinError (?:183|267)\b"),
        (Remedy("other_folder"),),
        code="D22",
    ),
    Failure(
        "too_many_files",
        said(r"Too many open files", r"\[Errno 24\]", r"received 0 items of ancdata"),
        (Remedy("restart"),),
        code="D23",
    ),
    Failure(
        "safetensors_old",
        said(r"SafetensorError[^\n]*unknown variant `(?P<name>\w+)`"),
        (Remedy("upgrade_safetensors"),),
        code="N8",
    ),
    Failure(
        "safetensors_metadata",
        said(
            r"safetensors archive passed at \S+ does not contain the valid metadata",
            r"metadata\.get\(\"format\"\)[\s\S]{0,200}?'NoneType' object has no attribute 'get'",
        ),
        (Remedy("write_metadata"),),
        code="N13",
    ),
    Failure(
        "weights_damaged",
        said(
            r"PytorchStreamReader failed reading file",
            r"There is no item named '[\w./]+' in the archive",
            r"Unable to load weights from pytorch checkpoint file",
            r"SafetensorError|error converting from safetensors\"? error=\"?(?:unexpected )?EOF",
            r"InvalidHeader",
            r"HeaderTooLarge",
            r"MetadataIncompleteBuffer",
            r"invalid JSON in header",
            r"incomplete metadata, file not fully covered",
            r"EOFError: Ran out of input",
            r"unexpected EOF, expected \d+ more bytes",
            r"PytorchStreamReader failed reading zip archive",
            r"size to read: \d+ given file_length: \d+ are out of bounds",
            r"storage has wrong size: expected -?\d+ got \d+",
            r"UnpicklingError: (?:invalid load key, '[^v]|pickle data was truncated)",
        ),
        (FETCH_AGAIN,),
        code="N7",
        unless=said(
            r"SafetensorError[^\n]*unknown variant `",
            r"SafetensorError: device \S+ is invalid",
            r"No space left|os error 28",
            r"SafetensorError: Error while serializing",
        ),
    ),
    Failure(
        "disk_error",
        said(
            r"\[Errno 107\]",
            r"\[Errno 116\]|Stale file handle",
            # A disk that is full behind the network's says no more.
            r"(?P<doubtful>write\(\): fd \d+ failed with) Input/output error",
            r"Input/output error",
            r"\[Errno 5\]",
            r"WinError (?:21|23|121|433|483|1006|1117|1392)\b|\[Errno (?:6|19|61|74|117|121)\]",
            # It could not be written; what was written before is whole.
            r"SafetensorError: Error while serializing: (?:IoError|I/O error)",
        ),
        (Remedy("other_workspace"), RESUME),
        code="D24",
        doubt=Doubt("disk_full", "df", asked=True),
        unless=said(
            r"Failed to rename: [^\n]*Access is denied|No space left|StorageFull|os error (?:28|"
            r"122)\)|[Qq]uota exceeded|\(Permission denied\)"
        ),
    ),
    Failure(
        # A file is renamed, which works within one disk only.
        "other_disk",
        said(r"WinError 17\b|\[Errno 18\] (?:Invalid cross-device link|Cross-device)[^\n]*"),
        (Remedy("one_disk"), Remedy("local_folder")),
        code="M49",
    ),
    Failure(
        "virus_found",
        said(r"WinError 225\b|os error 225\b"),
        (Remedy("allow_in_antivirus"), FETCH_AGAIN),
        code="M50",
    ),
)
