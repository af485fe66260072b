"""Failures of how a program is started and where it runs: as what, in which folder, as which user, in which loop."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Failure, Remedy, said

CLEARED = re.compile(r"Exception ignored in: <function (?P<name>[\w.]{1,80})\.__del__")


def _read_cleanup(reading: Reading) -> Mapping[str, str] | None:
    """What Python notes of an object that it clears away, where the text holds nothing else."""
    raised, found = reading.last, CLEARED.search(reading.words)
    alone = raised is not None and raised.ignored and raised.type in ("AttributeError", "TypeError")
    return {"name": found["name"]} if found and alone else None


FAILURES = (
    Failure(
        "import_relative",
        said(
            r"attempted relative import (?:with no known parent package|beyond top-level package)",
            r"attempted relative import in non-package",
        ),
        (Remedy("run_as_module"), Remedy("from_its_folder")),
        code="D218",
    ),
    Failure(
        "event_loop",
        said(
            r"asyncio\.run\(\) cannot be called from a running event loop",
            r"This event loop is already running",
            r"There is no current event loop in thread",
            r"RuntimeError: Event loop is closed",
        ),
        (Remedy("await_in_notebook"), Remedy("as_a_script")),
        code="D219",
    ),
    Failure(
        # A container that runs under a number which no list of users holds.
        "user_unnamed",
        said(r"getpwuid\(\): uid not found", r"No username set in the environment", r"I have no name!"),
        (Remedy("name_user"), Remedy("caches_named")),
        code="D220",
    ),
    Failure(
        "path_escapes",
        said(
            r"\(unicode error\) 'unicodeescape' codec",
            r"invalid escape sequence '?\\[UuxN]",
        ),
        (Remedy("raw_path"),),
        code="D221",
    ),
    Failure(
        "folder_for_file",
        said(
            r"\[Errno 21\] Is a directory: ?'?(?P<path>[^'\n]+)",
            r"(?:IsADirectoryError|os error 21\b)[^\n]*",
        ),
        (Remedy("name_file"),),
        code="D222",
    ),
    Failure(
        # An option begins with a dash: words without one are a value that was cut at its spaces.
        "words_unquoted",
        said(r"error: unrecognized arguments: (?P<name>(?!-)[^\s=]{1,80}(?: [^\s=-][^\s=]{0,80}){0,11})"),
        (Remedy("quote_value"), Remedy("line_goes_on")),
        code="D223",
    ),
    Failure(
        "database_locked",
        said(r"sqlite3\.OperationalError: (?:database is locked|unable to open database|disk I/O error)"),
        (Remedy("one_user_of_file"), Remedy("local_cache")),
        code="D224",
    ),
    Failure(
        "service_absent",
        said(
            r"\bUnit (?P<name>[\w@.-]+)\.service (?:could not be found|not found|not loaded)",
            r"[Tt]he command '(?P<name>[\w-]+)' could not be found in this WSL",
            r"no runtime binary found from candidate list: \[(?P<name>docker)-runc",
            r"\b(?P<name>[\w@.-]+): unrecognized service\b",
        ),
        (Remedy("docker_desktop_wsl"), Remedy("install_service", needs=("name",))),
        code="D236",
    ),
    Failure(
        "no_systemd",
        said(
            r"System has not been booted with systemd",
            r"Failed to connect to bus: (?:Host is down|No such file|Operation not permitted)",
        ),
        (Remedy("without_systemd"), Remedy("systemd_wsl")),
        code="D237",
    ),
    Failure(
        "shell_module",
        said(
            r"The '(?P<name>[\w.-]+)' command was found in the module '[\w.-]+', but the module could not be loaded",
            r"The specified module '(?P<name>[\w.\\/:-]+)' was not loaded because no valid module file",
        ),
        (Remedy("whole_path_command"), Remedy("module_by_hand", needs=("name",))),
        code="D238",
    ),
    Failure(
        # What Python only notes while it clears away an object that was never whole, or while it ends.
        "cleanup_echo",
        None,
        (Remedy("error_before"), Remedy("nothing_at_end")),
        code="D240",
        reader=_read_cleanup,
        unless=said(r"DeepSpeedCPUAdam"),
    ),
    Failure(
        "package_data",
        said(
            r"Resource \W*(?P<name>[\w./]+)\W* not found\.[^\n]*\s*Please use the NLTK",
            r"Can't find model '(?P<name>\w+)'\. It doesn't seem to be a Python package",
        ),
        (Remedy("fetch_package_data"),),
        code="D225",
    ),
    Failure(
        "server_model",
        said(
            r"[Tt]he model `(?P<name>[^`\n]{1,120})` does not exist",
            r"model ['\"](?P<name>[^'\"\n]{1,120})['\"] not found, try pulling it first",
            r"pull model manifest: (?P<name>file does not exist)",
        ),
        (Remedy("served_names"), Remedy("ollama_names")),
        code="D231",
    ),
    Failure(
        "image_name",
        said(r"pull access denied for (?P<name>[^\s,]+)", r"manifest for (?P<name>\S+) not found"),
        (Remedy("image_spelling"), Remedy("docker_login")),
        code="K98",
    ),
    Failure(
        "git_owner",
        said(r"detected dubious ownership in repository at '(?P<path>[^'\n]+)'"),
        (Remedy("safe_folder", needs=("path",)),),
        code="K99",
    ),
)
