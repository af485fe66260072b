"""Files that a person brings by the window: one that can be read takes its place, of any other nothing stays."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from studio.core.atomic_files import replace_file
from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.recipe import DatasetSpec
from studio.data.row_codes import RowCode
from studio.data.source import Source, open_source


def keep_upload(source: Path, target: Path) -> Path:
    """Copy `source` to `target` and return it; a file there before is replaced only by one that can be read.

    Raises StudioError for what no question could make readable: no kind that is known, damaged, empty, a bomb.
    """
    staged = target.parent / f".{os.getpid()}" / target.name
    staged.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(source, staged)
        _check_rows(open_source(DatasetSpec(source=str(staged))), target.name)
        replace_file(staged, target)
    except StudioError as error:
        what, why, fix = (
            _name(said, str(staged), target.name) for said in (error.what, error.why, error.fix)
        )
        raise StudioError(what, why, fix, error.exit_code) from error
    finally:
        shutil.rmtree(staged.parent)
    return target


def _check_rows(source: Source, name: str) -> None:
    """Raise StudioError where not one of the first rows can be read, and no answer would help."""
    broken = [row for row in source.sample if row.problem is not None]
    if not broken or len(broken) < len(source.sample):
        return
    first = broken[0]
    if source.questions and first.problem.code == RowCode.BAD_CHARACTERS:
        return  # another encoding may be the right one
    why = text("data.sniff.broken", count=len(broken), line=first.line, message=first.problem.message)
    raise StudioError(text("data.source.unreadable", name=name[:80]), why, text("data.code.E101.fix"))


def _name(said: Text, path: str, name: str) -> Text:
    """Return a sentence with the file's own name in place of where it was looked at."""
    return dataclasses.replace(
        said, values={key: name if value == path else value for key, value in said.values.items()}
    )
