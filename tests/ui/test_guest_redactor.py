"""The redactor before guests: folders with blanks, the workspace in every spelling, and words made to take long."""

from __future__ import annotations

import time
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from studio.ui.guest.cards import PLACE, GuestRedactor


@pytest.fixture
def redactor(workspace) -> GuestRedactor:
    return GuestRedactor(workspace, str)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("'/srv/My Projects/llama 3 (old)/x y.json'", f"'{PLACE}x y.json'"),
        (r"cannot open D:\My Models\x.json: gone", f"cannot open {PLACE}x.json: gone"),
        (r"open 'D:\\My Models\\x.json'", f"open '{PLACE}x.json'"),
        (r"open \\nas\my share\models\x.json", f"open {PLACE}x.json"),
        (r"open '\\\\nas\\my share\\x.json'", f"open '{PLACE}x.json'"),
        ("file:///srv/My%20Projects/x.json", f"{PLACE}x.json"),
        ("read /a/b.json: 12 tokens/s. /c/d. See e/f", f"read {PLACE}b.json: 12 tokens/s. {PLACE}d. See e/f"),
        ("/a/b.json or /c/d.json", f"{PLACE}b.json or {PLACE}d.json"),
        ("1 / 2 of it, or a/b, see https://example.org/a b/c", None),
    ],
)
def test_folders_with_blanks_go_and_what_is_no_path_stays(redactor, words, shown):
    assert redactor.clean(words) == (shown or words)


@pytest.mark.parametrize(
    "root",
    [Path("/srv/My Projects and more/ws one"), Path("/srv/it's, mine; (a) [b]|c/ws"),
     PureWindowsPath(r"C:\Work\Rosa Lind\ws, 2"), PureWindowsPath(r"\\nas\My Share\it's, mine\ws")],
    ids=str,
)  # fmt: skip
def test_no_part_of_the_workspaces_path_is_shown(root):
    redactor = GuestRedactor(SimpleNamespace(root=_Resolved(root)), str)
    path = str(root / "runs" / "one" / "x.bin")
    for words in (
        *(path, repr(path), path.upper(), path.replace("\\", "/")),
        "file://" + quote("/" + path.replace("\\", "/").lstrip("/"), safe="/:"),
        f"no file '{path}' there",
        f"{root}: no space",
    ):
        shown = redactor.clean(words).lower()
        for part in ("projects", "mine", "rosa", "lind", "share", "nas", "srv", "ws", "runs"):
            assert part not in shown, (words, shown)
        assert "x.bin" in shown or "no space" in shown, "the last part says what it is about"


def test_words_made_to_take_long_do_not(redactor):
    """A row of 20,000 slashes in a dataset took 13 s, and is looked at once a second for each guest."""
    before_s = time.process_time()
    for part in ("/", "\\", "(a", "a-b.", "a ", "/a b c d e", "\\\\a", "://x:", "/ab. ", "a:", "~/"):
        redactor.clean("/" + part * (30_000 // len(part)))
    assert time.process_time() - before_s < 4


class _Resolved:
    """Stands in for a Path of any system."""

    def __init__(self, path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def resolve(self):
        return self.path
