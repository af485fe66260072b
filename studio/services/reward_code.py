"""A person's own rewards: files in the workspace, and which code has been confirmed to run from the window.

What the editor writes is the person's own. What came with somebody else's recipe is shown first: it runs from the
window once they have said so, known by its content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from studio.core.atomic_files import write_file, write_json
from studio.core.errors import Problem, StudioError
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.core.recipe import RewardSpec
from studio.machine.workspace import Workspace
from studio.services.recipes import FILE

FOLDER = "rewards"
NEW = '''def my_reward(completions, answer, **columns):
    """One number for each completion: higher is better, None where it says nothing.

    `answer` and every other column of the data come as lists, a value for each completion.
    """
    return [float(right.strip() in words) for words, right in zip(completions, answer)]
'''
"""What a new file holds."""


class RewardCode:
    """The rewards of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.folder = workspace.root / FOLDER
        self._list = self.folder / "confirmed.json"

    def create(self) -> Path:
        """Write a new file and return it. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = 1
        while (path := self.folder / f"my_reward{'' if number == 1 else f'_{number}'}.py").exists():
            number += 1
        self.write(path, NEW)
        return path

    def is_own(self, path: Path) -> bool:
        """Whether the editor may write a file: those of the workspace's folder alone."""
        return path.resolve().parent == self.folder.resolve() and path.suffix == ".py"

    def write(self, path: Path, code: str) -> None:
        """Replace the code of one's own file, which is confirmed by that. Raises StudioError for any other, OSError."""
        if not self.is_own(path):
            raise StudioError(
                *(text(f"reward.foreign{part}", name=path.name) for part in ("", ".why", ".fix"))
            )
        write_file(path, code.replace("\r\n", "\n").encode("utf-8", "replace"))
        self.confirm(path)

    def read(self, path: Path) -> str:
        """Return the code of a file. Raises StudioError."""
        from studio.engine.rewards.code import read_code

        return read_code(path)

    def confirm(self, path: Path) -> None:
        """Let the code that a file holds now run from the window. Raises StudioError, OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        found = self._hash(path)
        known = [one for one in self._known() if one != found]
        write_json(self._list, {"confirmed": [*known, found]})

    def is_confirmed(self, path: Path) -> bool:
        """Whether the code that a file holds now may run from the window. Raises StudioError."""
        return self._hash(path) in self._known()

    def find_problems(self, rewards: Sequence[RewardSpec], *, confirmed: bool = True) -> tuple[Problem, ...]:
        """Return what is wrong with `rewards` as they stand; no code is run. `confirmed`: whether it must be."""
        from studio.engine.rewards import make_reward
        from studio.engine.rewards.code import Code, choose_function, read_code

        problems = []
        for spec in rewards:
            try:
                made = make_reward(spec)
                if isinstance(made, Code):
                    choose_function(read_code(Path(made.path)), made.function, made.path)
                    if confirmed and not self.is_confirmed(Path(made.path)):
                        name = Path(made.path).name
                        problems.append(
                            Problem(
                                field="rewards",
                                message=text("reward.unconfirmed", name=name),
                                fix=text("reward.unconfirmed.fix"),
                            )
                        )
            except StudioError as error:
                message = text("sentence.two", first=error.what, second=error.why)
                problems.append(Problem(field="rewards", message=message, fix=error.fix))
        return tuple(problems)

    def _known(self) -> list[str]:
        try:
            found = read_json(self._list)
        except StudioError:
            return []  # nothing was confirmed yet, or what was is not known any more
        listed = found.get("confirmed") if isinstance(found, dict) else None
        return [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []

    def _hash(self, path: Path) -> str:
        return hashlib.sha256(self.read(path).encode()).hexdigest()


def path_of(spec: RewardSpec) -> Path | None:
    """Return the file of a reward that is a person's own code, None for one of the library."""
    return Path(spec.name.removeprefix(FILE)) if spec.name.startswith(FILE) else None
