"""Failures of processes that work together, and of the window's address."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.core.facts import MachineFacts
from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.probes import Values, found
from studio.machine.failures.remedies import RESUME

CHILD = re.compile(
    r"CalledProcessError|ChildFailedError|WorkerGroupFailureException|returned non-zero exit status|"
    r"ProcessRaisedException|EngineDeadError|"
    r"[Ee]ngine (?:process|core) (?:failed|initialization failed)|WorkerProc|ActorDiedError|RayTaskError|"
    r"ExecuteUserScriptError"
)
POINTS_UP = re.compile(
    r"\b(?:check|see|look at|refer to|find) (?:the )?(?:stack ?trace|traceback|logs?|errors?|output|messages?) above\b|"
    r"\b(?:root cause|stack ?trace|traceback|reason) (?:is |stands |can be found )?above\b",
    re.IGNORECASE,
)
"""A message that only says where the reason stands."""
ENDED = re.compile(
    r"(?:\bexits? with return code|\b(?:[Pp]rocess|[Ww]orker|[Cc]ommand|[Jj]ob|[Ss]ubprocess|pid)\b[^\n]{0,120}"
    r"(?:exited with (?:exit |return )?(?:code|status)|terminated with exit code))(?: =|:)? ?(?:[1-9]\d{0,2}|-6)\s*$|"
    r"^[\w./\\-]{1,200}\.py FAILED\s*$|"
    r"\b[Cc]ommand '[^\n]{1,2000}' failed with exit (?:status )?(?:code )?'?[1-9]\d{0,2}'?",
    re.MULTILINE,
)
"""What a launcher writes last: the number says only that it was no success."""
PANIC = re.compile(
    r"^panic: (?:runtime error|interface conversion|assignment to|reflect)[^\n]*|"
    r"^thread '[^'\n]+' (?:\(\d+\) )?panicked at (?P<place>[^\n]+)|^pyo3_runtime\.PanicException: [^\n]*",
    re.MULTILINE,
)
LOADED_NOT = re.compile(
    r"^(?:main: )?error: (?:unable|failed) to load model\s*$|^error: subprocess-exited-with-error\s*$|"
    r"\bCommand '[^\n]{1,600}' returned non-zero exit status [1-9]\d{0,2}\.?\s*$",
    re.MULTILINE,
)
"""What a program says at its very end, when its loader has told the reason."""
GO_PACKAGE = re.compile(r"^(?:github\.com|golang\.org)/[\w.-]+/(?P<name>[\w-]+)", re.MULTILINE)
RUST_PACKAGE = re.compile(
    r"(?:registry/src/[^/\n]+|rust_dependencies)/(?P<name>[a-z][\w-]*?)-\d|^(?P<own>[a-z]\w+)/src/"
)


def _read_child(reading: Reading) -> Mapping[str, str] | None:
    """A report of another program's end, with nothing of why."""
    raised = reading.last
    if raised is None:
        ended = (
            ENDED.search(reading.words)
            or LOADED_NOT.search(reading.words)
            or re.search(r"ray\.exceptions\.RayTaskError\(\w+\)", reading.words)
        )
        return {"says": ended[0]} if ended else None
    if POINTS_UP.search(raised.message):
        return {}
    alone = raised.type.startswith(("RayTaskError", "ActorDiedError")) or "RayTaskError(" in raised.message
    return {} if (raised.wraps or alone) and CHILD.search(f"{raised.type}: {raised.message}") else None


def _read_panic(reading: Reading) -> Mapping[str, str] | None:
    """A program of Go or Rust that met what it does not expect."""
    found = PANIC.search(reading.words)
    if found is None or (reading.last is not None and "Panic" not in reading.last.type):
        return None
    told = GO_PACKAGE.search(reading.words) or RUST_PACKAGE.search(found["place"] or "")
    named = next((name for name in told.groupdict().values() if name), "") if told else ""
    return {"package": named or "?", "says": found[0][:200]}


def _no_symlinks(machine: MachineFacts) -> Values | None:
    off = machine.windows is not None and machine.windows.developer_mode is False
    return found("Developer Mode is off") if off else None


FAILURES = (
    Failure(
        "ray_worker",
        said(
            r"A worker died or was killed while executing a task by an unexpected system error",
            r"[Ww]orkers? of the worker process\(\d+\) have not registered within the timeout[^\n]{0,80}",
            r"Worker exit type: (?:SYSTEM_ERROR|NODE_OUT_OF_MEMORY)|[Ww]orker exit detail: Owner's node has crashed",
            r"raylet[^\n]{0,80}(?:killed|workers? killed) due to (?:memory|the node running low on memory)",
            r"Task was killed due to the node running low on memory|OutOfMemoryError: \d+ Workers? killed",
        ),
        (Remedy("ray_memory"), Remedy("ray_fewer"), Remedy("logs_of_ray")),
        code="D253",
        strength=0.9,
    ),
    Failure(
        # A helper process has no terminal that could be asked.
        "breakpoint_left",
        said(r"\bBdbQuit\b"),
        (Remedy("drop_breakpoint"),),
        code="D215",
    ),
    Failure(
        # pip goes on after its retries as if there were no versions, which reads like a fault of the package.
        "pip_unreachable",
        said(
            r"Retrying \(Retry\(total=[\s\S]{0,9000}?No matching distribution found",
            r"Retrying \(Retry\(total=[\s\S]{0,9000}?satisfies the requirement",
            r"(?P<doubtful>CondaHTTPError: HTTP 000)(?![\s\S]{0,900}(?:NewConnectionError|[Tt]imed? ?out|unreachable))",
            r"CondaHTTPError: HTTP 000|^\s*[\u00d7x] Failed to (?:download|fetch)[^\n]{1,200}\s[\s\S]{0,600}?"
            r"(?:error sending request|operation timed out|connection)",
            r"pip\._vendor[\s\S]{0,400}?(?:ReadTimeoutError|ConnectTimeoutError|NewConnectionError|IncompleteRead)",
            r"host='(?:files\.pythonhosted|pypi|download\.pytorch|packages)[\w.]*'[^\n]{0,200}(?:timed out|"
            r"Max retries|NewConnection)",
        ),
        (Remedy("pip_mirror"),),
        code="N12",
        unless=said(
            r"certificate verify failed",
            r"ProxyError|Cannot connect to proxy",
            r"SSL module is not available",
        ),
        doubt=Doubt("no_ssl", "ssl_there", asked=True),
    ),
    Failure(
        "multi_gpu_windows",
        said(
            r"doesn't have NCCL built in",
            r"ProcessGroupNCCL is only supported",
            r"nccl.{0,30}not available on Windows",
        ),
        (Remedy("one_gpu"),),
        code="D1",
    ),
    Failure("libuv", said(r"use_libuv was requested"), (Remedy("no_libuv"), Remedy("one_gpu")), code="D2"),
    Failure(
        "helper_ended",
        said(
            r"ForkingPickler\(file, protocol\)\.dump\(obj\)\s+(?:[~^ ]+\n)?\s*(?:\w+\.)?(?:BrokenPipeError|EOFError)",
        ),
        (Remedy("main_guard"), Remedy("no_helpers")),
        code="D152",
        strength=0.9,
        unless=said(r"bootstrapping phase|freeze_support|out of memory|WinError 1455"),
    ),
    Failure(
        "forked",
        said(r"bootstrapping phase", r"freeze_support\(\)", r"No module named 'Unsloth\w+Trainer"),
        (Remedy("use_launcher"),),
        code="D3",
    ),
    Failure(
        "symlinks",
        said(r"WinError 1314\b"),
        (Remedy("developer_mode"),),
        code="D6",
        probe=_no_symlinks,
        subject="disk",
        severity="note",
    ),
    Failure(
        "job_limit",
        said(r"CANCELLED AT \S+ DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)", r"DUE TO TIME LIMIT"),
        (RESUME, Remedy("longer_job")),
        code="D12",
    ),
    Failure(
        "static_tls",
        said(r"cannot allocate memory in static TLS block"),
        (Remedy("load_first"),),
        code="D13",
    ),
    Failure(
        "server_off",
        said(
            r"could not connect to (?:a running )?ollama|ollama app, is it running",
            r"(?:localhost|127\.0\.0\.1)[^\n]{0,200}(?:Connection refused|actively refused|WinError 10061|Errno 111)",
            r"openai\.APIConnectionError|\bECONNREFUSED (?:127\.0\.0\.1|::1|localhost)",
            r"dial tcp (?:127\.0\.0\.1|\[::1\]):\d+: connect",
        ),
        (Remedy("start_server"),),
        code="D14",
    ),
    Failure(
        "port_taken",
        said(
            r"Cannot find empty port",
            r"[Aa]ddress already in use",
            r"(?:WinError|Errno) 10048\b",
            r"\[Errno 98\]",
            r"All ports from \d+ to \d+ are in use",
            r"\b[Pp]ort \d+ is (?:already |currently )?(?:in use|used|taken|occupied|busy)",
        ),
        (Remedy("other_port"),),
        code="D9",
    ),
    Failure(
        "threads_limit",
        said(
            r"can't start new thread",
            r"(?:pthread_create|Thread creation) failed|blas_thread_init",
            r"fork: (?:retry: )?(?:Resource temporarily unavailable|Cannot allocate memory)",
            r"BlockingIOError: \[Errno 11\]",
        ),
        (Remedy("fewer_threads"), Remedy("raise_processes")),
        code="R65",
    ),
    Failure(
        "child_failed",
        None,
        (Remedy("above_it"),),
        code="D136",
        reader=_read_child,
        last_resort=True,
    ),
    Failure(
        "panicked",
        None,
        (Remedy("newest_program"), Remedy("print_handed")),
        code="D206",
        reader=_read_panic,
        last_resort=True,
        doubt=Doubt("value_handed", "own_frame"),
    ),
    Failure(
        # nn.DataParallel repeats the error of one card under its own name.
        "in_replica",
        said(r"Caught \w+ in (?:replica|DataLoader worker process) \d+"),
        (Remedy("original_traceback"), Remedy("one_gpu")),
        code="D244",
        strength=0.3,
    ),
    Failure(
        # Python and shells give a number only; `spell_out` writes this behind it.
        "ended_outside",
        said(r"ended from outside by SIGTERM", r"\bexited by signal SIGTERM\b"),
        (Remedy("above_it"), RESUME),
        code="D250",
        strength=0.55,
    ),
    Failure(
        "reader_gone",
        said(r"\bBrokenPipeError\b|\[Errno 32\] Broken pipe|\bwrite EPIPE\b|WinError (?:109|232)\b"),
        (Remedy("above_it"), Remedy("no_head")),
        code="D245",
        strength=0.6,
    ),
)
