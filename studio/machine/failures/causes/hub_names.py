"""Failures of names that the hub does not take: empty, with a version behind a colon, an address, signs of its own."""

from __future__ import annotations

from studio.machine.failures.failure import Failure, Remedy, said

CHECKED = r"(?:Repo id must|Repo_id cannot|repo_id[^\n]{0,40}(?:invalid|not valid)|Cannot have -- or \.\. in repo_id)"
"""How huggingface_hub begins what it says of a name; the name stands behind it in single quotes."""
PART = r"[A-Za-z0-9](?:[\w.-]*\w)?"
A_PATH = r"(?:[A-Za-z]:[\\/]|\.{0,2}[\\/]|~|[^'\n]*\\|[^'\n]*/[^'\n]*/)"
"""What begins a path, or has more parts than an owner and a name."""

FAILURES = (
    Failure(
        "name_empty",
        said(rf"{CHECKED}[^\n]*: '\s*'"),
        (Remedy("give_name"),),
        code="N64",
    ),
    Failure(
        # A file or a branch put behind the name.
        "name_with_version",
        said(
            rf"{CHECKED}[^\n]*: '(?P<name>(?:hf\.co/)?{PART}/{PART}):(?P<version>[\w.-]+)'",
            rf"{CHECKED}[^\n]*: '(?P<name>{PART}(?:/{PART})?)@(?P<version>[\w.-]+)'",
        ),
        (Remedy("revision_apart", needs=("name", "version")),),
        code="N65",
    ),
    Failure(
        # One letter is a drive of Windows.
        "name_of_ollama",
        said(rf"{CHECKED}[^\n]*: '(?P<name>(?!\w:){PART}):(?P<version>[\w.-]+)'"),
        (Remedy("owner_and_name"), Remedy("revision_of_name", needs=("version",))),
        code="N70",
    ),
    Failure(
        "name_is_address",
        said(rf"{CHECKED}[^\n]*: '(?P<name>(?:https?://|www\.|huggingface\.co/|hf\.co/)[^'\n]+)'"),
        (Remedy("name_of_address"),),
        code="N66",
    ),
    Failure(
        "name_signs",
        said(
            rf"{CHECKED}[^\n]*: '(?P<name>(?!{A_PATH})(?=[^'\n]*[^\w./'\n-]|[-.]|[^'\n]*[-.]'|[^'\n]*(?:--|\.\.)|"
            rf"[^'\n]{{97}}|[^'\n]*\.git'|[^'\n]*[^\x00-\x7f])(?!https?:|hf\.co/)[^'\n:@]+)'",
        ),
        (Remedy("plain_hub_name", needs=("name",)), Remedy("check_folder")),
        code="N67",
        unless=said(r"Repo id must [^\n]{0,200}'[^'\n]+\.(?:json|bin|safetensors|pt|pth|gguf|ckpt|model)'"),
    ),
)
