"""Failures of a program's own settings and tables, and of objects that its versions of packages use otherwise."""

from __future__ import annotations

from studio.machine.failures.failure import Failure, Remedy, said
from studio.machine.failures.key_errors import read_table
from studio.machine.failures.package_frames import read_axis, read_index, read_use

CONFIG_KEY = (
    r"\bConfig(?:Key|Attribute)Error: (?:Error merging [^\n]{0,80}\n?)?(?:Missing key |Key ')(?P<name>[\w.-]+)",
    r"\b[Nn]on-existent (?:config )?key: (?P<name>[\w.-]+)",
    r"(?P<name>[\w.-]{2,80}) is not a valid config key",
    r"Could not override '(?P<name>[\w.-]+)'",
    r"Key '(?P<name>[\w.-]+)' is not in struct",
)
"""How omegaconf, hydra and yacs say that a settings file and the program's own list of settings differ."""

FAILURES = (
    Failure(
        "config_key",
        said(*CONFIG_KEY),
        (Remedy("settings_of_version", needs=("name",)), Remedy("plus_before_key", needs=("name",))),
        code="V91",
    ),
    Failure(
        # One unknown name is a slip; many known ones were written for another of the program's commands.
        "settings_of_another",
        said(r"not used by the HfArgumentParser: \[(?P<name>'[\w-]+'(?:, '[\w-]+'){4,})"),
        (Remedy("file_of_command"), Remedy("newer_options")),
        code="V75",
    ),
    Failure(
        "table_lacks",
        None,
        (Remedy("newest_settings"), Remedy("known_name")),
        code="V69",
        reader=read_table,
        last_resort=True,
    ),
    Failure(
        "own_index",
        None,
        (Remedy("print_both_lengths"), Remedy("print_row")),
        code="V71",
        reader=read_index,
        last_resort=True,
        strength=0.5,
    ),
    Failure(
        "axis_absent",
        None,
        (Remedy("print_predictions"), Remedy("upgrade_all")),
        code="S9",
        reader=read_axis,
        last_resort=True,
    ),
    Failure(
        "object_used",
        None,
        (Remedy("upgrade_package", needs=("package",)), Remedy("older_package", needs=("package",))),
        code="V70",
        reader=read_use,
        last_resort=True,
    ),
)
