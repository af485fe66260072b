"""The workspace: the one folder that everything the studio writes goes into, and the environment that points there."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from studio.core.atomic_files import write_file
from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.hub.offline import OFFLINE_VARIABLE, wants_offline

WORKSPACE_VARIABLE = "FINETUNE_STUDIO_WORKSPACE"
KERNELS_VARIABLE = "FINETUNE_STUDIO_KERNELS"
"""In it a person decides on the kernels of every run whose recipe leaves it open: triton or pytorch."""
MEMORY_VARIABLE = "FINETUNE_STUDIO_MEMORY_SHARE"
"""In it a person gives runs only so much of the memory that is free: 0.5 leaves the other half to other programs."""
LOCAL_VARIABLE = "FINETUNE_STUDIO_LOCAL"
"""In a WSL that works in a workspace of Windows: a folder of the Linux disk, for what a Windows disk cannot hold."""
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""How torch lays out a GPU's memory; torch before 2.9 reads the second alone. Segments that grow lose 2 to 4 % of it
between blocks instead of 6 to 10 %; Windows and its WSL do not have them."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)
NOT_WRITABLE = (*FULL_DISK, errno.EROFS)
RESERVE_BYTES = 8 * 2**20
"""Of a file that is given up when the disk is full: enough for the window to open, in which runs can be deleted."""
FILE_ENDINGS = (".json", ".key", ".lock")
"""Of what lies in the workspace itself."""
LONGEST_TMP = 70
"""Characters: data workers put sockets there (32 characters more), and the path of a socket ends at 107."""


@dataclass(frozen=True)
class Workspace:
    """Where things lie below `root`."""

    root: Path

    @property
    def runs(self) -> Path:
        """One folder a run."""
        return self.root / "runs"

    @property
    def datasets(self) -> Path:
        """Data sets that the person brought in through the window."""
        return self.root / "datasets"

    @property
    def exports(self) -> Path:
        """Exported models that were given no folder of their own."""
        return self.root / "exports"

    @property
    def queue(self) -> Path:
        """The runs that wait for their turn, a JSON file."""
        return self.root / "queue.json"

    @property
    def settings(self) -> Path:
        """The person's settings, a JSON file."""
        return self.root / "settings.json"

    @property
    def logs(self) -> Path:
        """What the window's process prints, and the stacks of native crashes."""
        return self.root / "logs"

    @property
    def triton_cache(self) -> Path:
        """Compiled kernels."""
        return self.root / "cache" / "triton"

    @property
    def data_cache(self) -> Path:
        """Data sets converted and tokenised, and what was fetched for them."""
        return self.root / "cache" / "data"

    @property
    def gradio_temp(self) -> Path:
        """Uploads and files that the window serves."""
        return self.root / "cache" / "gradio"

    @property
    def tmp(self) -> Path:
        """Temporary files of ours."""
        return self.root / "tmp"

    @property
    def server_cwd(self) -> Path:
        """The server's working directory, always empty: Gradio serves any file below it that a handler names."""
        return self.root / "cwd"

    @property
    def heartbeat(self) -> Path:
        """The active run's sign of life (studio.core.heartbeat)."""
        return self.root / "heartbeat.json"

    @property
    def facts(self) -> Path:
        """What the probes found, kept until something changes; WSL2 and Windows share a workspace, not their facts."""
        return self.root / "cache" / f"facts-{sys.platform}.json"

    @property
    def tuned(self) -> Path:
        """Tile sizes that `launch.py bench --tune` found to be faster on this machine's GPU."""
        return self.root / "cache" / f"tuned-{sys.platform}.json"

    @property
    def front_end(self) -> Path:
        """Names of the files of Gradio that the window's pages are made of."""
        return self.root / "cache" / "front-end.json"

    @property
    def remembered(self) -> Path:
        """What earlier runs learned of this machine: kernels that failed, batch sizes that fitted."""
        return self.root / f"remembered-{sys.platform}.json"

    @property
    def reserve(self) -> Path:
        """Room that is kept for the day on which the disk is full."""
        return self.root / "cache" / "reserve.bin"

    @property
    def locks(self) -> Path:
        """Where the claims lie: inside WSL not beside those that Windows holds, which cannot be opened there."""
        return Path(os.environ.get(LOCAL_VARIABLE) or self.root)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder that a workspace has from the start."""
        return (
            self.runs,
            self.datasets,
            self.exports,
            self.logs,
            self.triton_cache,
            self.gradio_temp,
            self.tmp,
            self.server_cwd,
        )


def open_workspace(path: str | None = None, *, writes: bool = True) -> Workspace:
    """Return the workspace at `path`, else at $FINETUNE_STUDIO_WORKSPACE, else in the per-user data folder.

    What is absent is made, with mode 0700; what is there is closed to other accounts when it is a workspace of this
    one's. On a full disk the reserve is given up. Raises StudioError when the place is no folder, not writable or full;
    a workspace that is there opens on a full or read-only disk all the same for what `writes` nothing of its own.
    """
    chosen = path or os.environ.get(WORKSPACE_VARIABLE)
    if not chosen:
        from platformdirs import user_data_path

        chosen = str(user_data_path("finetune-studio", appauthor=False))
    try:
        workspace = Workspace(Path(os.path.expanduser(chosen)).absolute())
        _require_name(workspace)
        mine = _is_mine(workspace)
        if workspace.root.is_dir():
            _require_files(workspace)
        for folder in (workspace.root, *workspace.folders):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if mine:
            with suppress(OSError):  # a disk without such modes
                workspace.root.chmod(workspace.root.stat().st_mode & ~0o077)
        _require_room(workspace)
    except OSError as error:
        kept = not writes and error.errno in NOT_WRITABLE and workspace.runs.is_dir()
        if not kept:
            raise refuse_workspace(chosen, error) from error
    return workspace


def _require_name(workspace: Workspace) -> None:
    """Raise StudioError for a path that is no text: libraries that print or store it fail long after the start."""
    try:
        str(workspace.root).encode("utf-8")
    except UnicodeEncodeError as error:
        shown = os.fsencode(workspace.root).decode("utf-8", "backslashreplace")
        what, why = text("workspace.unusable", path=shown), text("workspace.name")
        raise StudioError(what, why, text("workspace.name.fix", variable=WORKSPACE_VARIABLE)) from error


def _require_files(workspace: Workspace) -> None:
    """Raise StudioError when a folder or a pipe stands where the studio keeps a file: opening one may never return."""
    with os.scandir(workspace.root) as entries:
        named = [entry for entry in entries if entry.name.endswith(FILE_ENDINGS)]
    # A link that leads nowhere is replaced by a file.
    odd = next((entry for entry in named if not entry.is_file() and os.path.exists(entry.path)), None)
    if odd is not None:
        parts = (text(f"workspace.odd{part}", name=odd.name, path=odd.path) for part in ("", ".why", ".fix"))
        raise StudioError(*parts)


def _require_room(workspace: Workspace) -> None:
    """Write and delete a small file; where there is no room for it, give the reserve up. Raises OSError."""
    probe = workspace.tmp / f"writable-{os.getpid()}"
    try:
        probe.write_bytes(b"studio" * 700)
    except OSError as error:
        if error.errno not in FULL_DISK or not workspace.reserve.is_file():
            raise
        workspace.reserve.unlink()
        probe.write_bytes(b"studio" * 700)
    finally:
        with suppress(OSError):  # it was never made
            probe.unlink()


def keep_reserve(workspace: Workspace) -> None:
    """Make the reserve where there is none and the disk has plenty; a disk that refuses it is no failure."""
    with suppress(OSError):
        if not workspace.reserve.is_file() and shutil.disk_usage(workspace.root).free > 20 * RESERVE_BYTES:
            # Nothing that a disk could compress away.
            write_file(workspace.reserve, os.urandom(RESERVE_BYTES))


def _is_mine(workspace: Workspace) -> bool:
    """Return whether the folder is there and may be closed to others: this account's, a workspace before or empty.

    A home folder or /tmp that somebody named as a workspace stays as it is.
    """
    root = workspace.root
    if os.name == "nt" or not root.is_dir() or root == Path.home():
        return False
    found = root.stat()
    worked = workspace.runs.is_dir() and workspace.server_cwd.is_dir()
    sticky = bool(found.st_mode & stat.S_ISVTX)
    return found.st_uid == os.geteuid() and not sticky and (worked or not any(root.iterdir()))


def refuse_workspace(path: str, error: OSError) -> StudioError:
    """Return the StudioError that says why the workspace at `path` cannot be used."""
    if error.errno in FULL_DISK:
        kind = "full"
    elif isinstance(error, (FileExistsError, NotADirectoryError)):
        kind = "not_folder"
    else:
        kind = "unwritable"
    return StudioError(
        text("workspace.unusable", path=path),
        text(f"workspace.{kind}", reason=literal(error.strerror or str(error))),
        text(f"workspace.{kind}.fix", variable=WORKSPACE_VARIABLE),
    )


def refuse_gone(workspace: Workspace, error: OSError) -> StudioError | None:
    """Return the StudioError for a workspace that was taken away; None when `error` is about another thing."""
    if not isinstance(error, FileNotFoundError) or workspace.root.is_dir():
        return None
    return StudioError(*(text(f"workspace.gone{part}") for part in ("", ".why", ".fix")))


def child_environment(workspace: Workspace, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process of the studio, made from `base` before its interpreter starts.

    Everything written goes into `workspace`, every library's telemetry is off, foreign GRADIO_* switches (share, MCP,
    served paths) are gone. The Hugging Face libraries stay off the network (studio/hub alone goes there)
    and use the user's own cache.
    """
    # Windows matches names of variables without case.
    environment = {
        name: value
        for name, value in base.items()
        # transformers reads docstrings as it is imported, which an optimised interpreter leaves out.
        if not name.upper().startswith("GRADIO_") and name.upper() != "PYTHONOPTIMIZE"
    }
    environment |= {
        WORKSPACE_VARIABLE: str(workspace.root),
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
        # The driver counts GPUs by slot, CUDA by speed unless told: `cuda:1` must mean one card to both.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TRITON_CACHE_DIR": str(workspace.triton_cache),
        "FINETUNE_STUDIO_TUNED": str(workspace.tuned),
        "GRADIO_TEMP_DIR": str(workspace.gradio_temp),
        "GRADIO_ANALYTICS_ENABLED": "False",
        # After each event Gradio makes a table of the last 10,000; nobody asks for it here (ui/auth/middleware.py).
        "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9),
        "GRADIO_ANALYTICS_MAX_EVENTS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        OFFLINE_VARIABLE: base.get(OFFLINE_VARIABLE) or ("1" if wants_offline(base) else "0"),
        "TOKENIZERS_PARALLELISM": "false",
        # bitsandbytes asks torch.compile for six functions that no run calls, which imports all of its compiler: 1.9 s
        # of each start. Nothing of ours is compiled by it.
        "TORCHDYNAMO_DISABLE": base.get("TORCHDYNAMO_DISABLE", "1"),
    }
    local = base.get(LOCAL_VARIABLE)
    if local:  # a Windows disk has no sockets, and thousands of small files take minutes there
        environment |= {"TRITON_CACHE_DIR": f"{local}/triton"} | dict.fromkeys(
            ("TMPDIR", "TEMP", "TMP"), local
        )
    elif len(str(workspace.tmp)) <= LONGEST_TMP:
        environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(workspace.tmp))
    if sys.platform == "linux" and not any(
        name in base for name in (*ALLOCATOR_VARIABLES, "WSL_DISTRO_NAME")
    ):
        environment |= {ALLOCATOR_VARIABLES[0]: "expandable_segments:True"}
    return environment


def clear_caches(workspace: Workspace) -> int:
    """Remove compiled kernels, converted data sets, served and temporary files; return the bytes. Raises OSError."""
    freed_bytes = 0
    for folder in (workspace.triton_cache, workspace.gradio_temp, workspace.tmp, workspace.data_cache):
        freed_bytes += count_bytes(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return freed_bytes


def count_bytes(folder: Path) -> int:
    """Return the bytes of the files below `folder`, links not followed; what goes meanwhile counts for nothing."""
    total, waiting = 0, [str(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:  # deleted, or closed to us
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total
