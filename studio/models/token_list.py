"""The tokens that a recipe adds to a model's tokenizer: named in it, one a line, or in a text file. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import Text, literal, text
from studio.core.json_file import read_json
from studio.core.recipe import AdapterSpec

BASE_CONFIG = "base_config.json"
"""Beside an adapter: its base's settings, where the run changed them."""
MOST_FILE_BYTES = 8 * 2**20
MOST_TOKENS = 65_536
"""Half of a vocabulary of today: who adds more trains another tokenizer."""


def list_tokens(spec: AdapterSpec) -> tuple[str, ...]:
    """Return the tokens in their order, as they are written, those of the file last; empty lines are none.

    Raises StudioError for a file that is not there, is no text in UTF-8, or is too large.
    """
    lines = _read(Path(spec.tokens_file).expanduser()).splitlines() if spec.tokens_file else []
    return (*spec.tokens, *(line for line in lines if line.strip()))


def find_problems(spec: AdapterSpec, folder: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what is wrong with a recipe's tokens: severity (error, warning), id of its text, and the text's values.

    `folder`: of the model, whose tokenizer may have some of them already; "" for none.
    """
    try:
        tokens = list_tokens(spec)
    except StudioError as error:
        yield "error", "check.tokens.file", {"what": error.what, "why": error.why}
        return
    if spec.tokens_file and len(tokens) == len(spec.tokens):
        yield "error", "check.tokens.none", {}
    if len(tokens) > MOST_TOKENS:
        yield "error", "check.tokens.many", {"count": len(tokens), "most": MOST_TOKENS}
        return
    if not all(tokens):
        yield "error", "check.tokens.empty", {}
    if twice := [token for token, count in Counter(tokens).items() if count > 1]:
        yield "error", "check.tokens.twice", {"count": len(twice), "first": twice[0]}
    if padded := [token for token in tokens if token != token.strip()]:
        yield "error", "check.tokens.blank", {"count": len(padded), "first": padded[0]}
    known = read_vocabulary(folder) if tokens and folder else frozenset()
    if there := [token for token in tokens if token in known]:
        yield "warning", "check.tokens.known", {"count": len(there), "first": there[0]}


def read_vocabulary(folder: str) -> frozenset[str]:
    """Return the words of the tokenizer.json in `folder`; none where there is no such file, or another build of it."""
    path = Path(folder) / "tokenizer.json"
    try:
        found: Any = read_json(path)
    except StudioError:
        return frozenset()
    if not isinstance(found, dict):
        return frozenset()
    model = found.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    added = found.get("added_tokens")
    names = (
        {str(one.get("content")) for one in added if isinstance(one, dict)}
        if isinstance(added, list)
        else set()
    )
    if isinstance(words, dict):
        return frozenset(words) | names
    pairs = words if isinstance(words, list) else ()  # Unigram: word and score
    return frozenset(str(pair[0]) for pair in pairs if isinstance(pair, list) and pair) | names


def count_tokens(spec: AdapterSpec) -> int:
    """Return how many tokens a recipe lists; 0 for a list that cannot be read: find_problems() says so."""
    try:
        return len(set(list_tokens(spec)))
    except StudioError:
        return 0


def split_modules(names: str) -> tuple[str, ...]:
    """Return the names of a recipe's modules that are trained in full."""
    return tuple(dict.fromkeys(name for part in names.split(",") if (name := part.strip())))


def _read(path: Path) -> str:
    try:
        state = path.stat()
    except OSError as error:
        raise _refuse_file(path, literal(error.strerror or str(error))) from error
    return _read_once(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4)
def _read_once(path: Path, size: int, changed_ns: int) -> str:
    """Read a file; a plan asks for it a hundred times, so once is enough until it changes."""
    try:
        if size > MOST_FILE_BYTES:
            values = {"megabytes": size // 2**20, "most": MOST_FILE_BYTES // 2**20}
            raise _refuse_file(path, text("tokens.file.large", **values))
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _refuse_file(path, literal(error.strerror or str(error))) from error
    except UnicodeDecodeError as error:
        raise _refuse_file(path, text("tokens.file.encoding")) from error


def _refuse_file(path: Path, why: Text) -> StudioError:
    return StudioError(text("tokens.file", name=literal(path.name)), why, text("tokens.file.fix"))


def has_tokens(folder: str) -> bool:
    """Return whether the adapter in `folder` was trained beside tokens or whole tables, and has their tokenizer."""
    place = Path(folder)
    if not (place / "adapter_config.json").is_file() or not (place / "tokenizer_config.json").is_file():
        return False
    config = read_json(place / "adapter_config.json")
    return isinstance(config, dict) and bool(
        config.get("trainable_token_indices") or config.get("modules_to_save")
    )
