"""Questions with options: how options are written in a row, and which of them an answer means.

The rule, which the preview shows: options stand below the question, a letter each; what is learned is the words of the
option, also where the file names it by letter or number.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

from studio.core.i18n import text
from studio.data.containers.json_text import parse_json
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import part_name
from studio.data.row import RowError
from studio.data.row_codes import RowCode

Options = Sequence[tuple[str, str]]
"""(mark, words) of each."""
WORD_KEYS = ("text", "content", "value", "answer", "option")
MARK_KEYS = ("label", "key", "id", "letter", "option", "mark")
TRAILED = re.compile(r"([^\d]*?[^\W\d_] ?)(\d)( ?[-(:,][^\d].*)")
OPTIONAL = re.compile(r"\s*\((?:optional|if any)\)\s*$", re.I)
SERIES = re.compile(r"^(.*?)([a-hA-H]|[0-9])$")
"""Columns that hold an option each: `A` to `D`, `option_1` to `option_4`, `opa` to `opd`, `ending0` to `ending3`."""
SERIES_WORDS = frozenset(
    "option options choice choices op opt ending sol answer ans alternative candidate selection quiz "
    "réponse reponse respuesta opción opcion resposta opção opcao risposta opzione antwort ответ вариант 选项 選項 "
    "選択肢 보기".split()
)
LETTERED = re.compile(
    r"(?:^|[\n,;|]|\s{1,3}|(?<=\s))\s*[(\[]?([A-H])\s?[).:\]]\s*(.+?)(?=(?:[\n,;|]|\s+)\s*[(\[]?[A-H]\s?[).:\]]\s|$)",
    re.S,
)
SMALL_LETTERED = re.compile(
    r"(?:^|[\n,;|]|\s)\s*\(?([a-h])\s?\)\s*(.+?)(?=[\n,;|\s]\s*\(?[a-h]\s?\)\s|$)", re.S
)
LETTER = re.compile(r"[(\[]?([A-Za-z])[)\].:]?")
PLACES = frozenset("index idx number no num position place nr".split())
"""Words in the names of columns that give an option by its place."""
MOSTLY_WORDS = 9
"""So many times more often is a number an option itself than its place, where it is no place."""
MOST = 12
LOOKED_AT = 200
KEY_WORDS = frozenset(
    "answer answers key correct right label labels gold target solution cop idx index choice ans true truth "
    "best bonne réponse reponse correcta respuesta correta resposta corretta risposta richtig richtige antwort ответ "
    "答案 正确答案 正解 정답".split()
)
"""Words in the name of a column that says which option is right."""


def find_series(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that hold an option each, in order; () where there are none."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in columns:
        called = OPTIONAL.sub("", name).strip() if isinstance(name, str) else ""
        found = SERIES.match(called) or TRAILED.match(called)
        if (
            found and found.re is TRAILED
        ):  # `Answer 1 - max 75 characters`: what follows the number is the same
            groups.setdefault(f"{found[1].lower()}\0{found[3].lower()}", []).append((found[2], name))
        elif found:
            groups.setdefault(found[1].lower(), []).append((found[2].lower(), name))
    for front, members in groups.items():
        marks = sorted(mark for mark, _ in members)
        front = front.partition("\0")[0]
        words = {*part_name(front)}
        named = not front.strip(" _-.") or words & SERIES_WORDS or front.strip(" _-.").lower() in SERIES_WORDS
        first = marks[0] in ("a", "0", "1")
        steady = all(ord(b) == ord(a) + 1 for a, b in zip(marks, marks[1:], strict=False))
        if named and first and steady and 2 <= len(marks) <= MOST:
            return tuple(name for _, name in sorted(members))
    return ()


def read_options(values: Values, column: str) -> Options:
    """Return the options of a row: those of a list, an object, lettered text or a series of columns; () for none."""
    cell = values.get(column)
    series = find_series([name for name in values if isinstance(name, str)])
    if column in series:
        filled = [values[name] for name in series if not is_empty(values.get(name))]
        return tuple(zip(string.ascii_uppercase, map(str, filled), strict=False))
    return part_options(cell)


def part_options(cell: object) -> Options:
    """Return the options that one cell holds; () where it holds none."""
    if isinstance(cell, str):
        if cell.lstrip()[:1] in ("[", "{"):
            try:
                return part_options(parse_json(cell.encode("utf-8", "surrogatepass")))
            except ValueError:
                return _part_repr(cell)
        lettered = [(mark, words.strip(" \n,;|")) for mark, words in LETTERED.findall(cell)]
        marks = [mark for mark, _ in lettered]
        if len(marks) >= 2 and marks == list(string.ascii_uppercase[: len(marks)]):
            return tuple(lettered)
        lettered = [(mark, words.strip(" \n,;|")) for mark, words in SMALL_LETTERED.findall(cell)]
        marks = [mark for mark, _ in lettered]
        if len(marks) >= 2 and marks == list(string.ascii_lowercase[: len(marks)]):
            return tuple(lettered)
        for sign in ("\n", "|", ";"):
            parts = [part.strip() for part in cell.split(sign)]
            if 2 <= len(parts) <= MOST and all(parts):
                return tuple(zip(string.ascii_uppercase, parts, strict=False))
        return ()
    if isinstance(cell, Mapping):
        words = next((cell[key] for key in WORD_KEYS if isinstance(cell.get(key), (list, tuple))), None)
        if words is not None:
            marks = next((cell[key] for key in MARK_KEYS if isinstance(cell.get(key), (list, tuple))), None)
            return _mark(words, marks)
        filled = {mark: one for mark, one in cell.items() if one is not None}
        if all(isinstance(one, (str, int, float)) for one in filled.values()) and len(filled) <= MOST:
            return tuple((str(mark).strip(), str(one)) for mark, one in filled.items())
        return ()
    if isinstance(cell, (list, tuple)) and 2 <= len(cell) <= MOST:
        if all(isinstance(one, (str, int, float)) for one in cell):
            # Some files write the letter into each option.
            lettered = [re.match(r"\s*[(\[]?([A-H])[).:\]]\s+(.+)", str(one), re.S) for one in cell]
            if all(lettered):
                return tuple((found[1], found[2].strip()) for found in lettered)
            return _mark(cell, None)
        if all(isinstance(one, Mapping) for one in cell):
            if all(len(one) == 1 and isinstance(next(iter(one.values())), str) for one in cell):
                lone = [next(iter(one.items())) for one in cell]  # an object an option, under its mark
                if len({mark for mark, _ in lone}) == len(lone):
                    return tuple((str(mark).strip(), words) for mark, words in lone)
            if not any(key in one for one in cell for key in WORD_KEYS):
                return _part_objects(cell)
            words = [next((one[key] for key in WORD_KEYS if one.get(key) is not None), None) for one in cell]
            marks = [next((one[key] for key in MARK_KEYS if one.get(key) is not None), None) for one in cell]
            return _mark(words, marks) if all(word is not None for word in words) else ()
    return ()


def _part_objects(cell: Sequence[Mapping[str, object]]) -> Options:
    """Return the options of objects with keys of their own, such as `aid` and `atext`: their only texts, and marks."""
    keys = [key for key in cell[0] if all(isinstance(one.get(key), str) for one in cell)]
    numbers = [key for key in cell[0] if all(type(one.get(key)) is int for one in cell)]
    if len(keys) == 2 and not numbers:
        numbers, keys = sorted(keys, key=lambda key: max(len(one[key]) for one in cell))[:1], keys
        keys = [key for key in keys if key not in numbers]
    if len(keys) != 1 or len(numbers) > 1:
        return ()
    marks = [one[numbers[0]] for one in cell] if numbers else None
    if marks and (len({*marks}) < len(marks) or any(len(str(mark)) > 2 for mark in marks)):
        return ()
    return _mark([one[keys[0]] for one in cell], marks)


def _part_repr(cell: str) -> Options:
    import ast

    if len(cell) > 100_000:
        return ()
    try:
        return part_options(ast.literal_eval(cell.strip().replace("' '", "', '").replace("'\n '", "', '")))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()


def _mark(words: Sequence[object], marks: Sequence[object] | None) -> Options:
    known = marks is not None and len(marks) == len(words) and all(mark is not None for mark in marks)
    chosen = [str(mark).strip() for mark in marks] if known else string.ascii_uppercase
    return tuple(zip(chosen, map(str, words), strict=False))


def holds_options(cell: object) -> bool:
    """Return whether a cell holds options, or, of a series of columns, one of them."""
    return isinstance(cell, (str, int, float)) or bool(part_options(cell))


def say_options(options: Options) -> str:
    """Return options as they stand below the question."""
    letters = string.ascii_uppercase
    return "\n".join(f"{letters[place]}. {words}" for place, (_, words) in enumerate(options))


def choose(
    options: Options, answer: object, column: str, first: int = 0, *, by_place: bool = False
) -> str | None:
    """Return the words of the option that `answer` means: its words, its mark, or its number counted from `first`.

    by_place: a number is a place, also where an option is that very number. None for an answer in words of its own.
    Raises RowError for a number or letter without an option.
    """
    words = [one.strip() for _, one in options]
    if flags := read_flags(answer, len(options)):
        return ", ".join(word for word, flag in zip(words, flags, strict=True) if flag)
    if isinstance(answer, bool):
        return None
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    said = str(answer).strip()
    counted = by_place and said.isdecimal()
    if said in words and not counted:
        return said
    marks = [mark.strip().lower() for mark, _ in options]
    letter = LETTER.fullmatch(said)
    mark = (letter[1] if letter else said).lower()
    if mark in marks and not (
        counted and marks == [one.lower() for one in string.ascii_uppercase[: len(marks)]]
    ):
        return words[marks.index(mark)]
    place = None
    if letter:
        place = string.ascii_lowercase.find(letter[1].lower())
    elif re.fullmatch(r"-?\d{1,3}", said):
        place = int(said) - first
    if place is None:
        # "B. Paris", "(b) Paris": the letter and the words of one option.
        begun = re.match(r"[(\[]?([A-Ha-h])[)\].:]\s*(.+)", said, re.S)
        if begun and begun[2].strip() in words:
            return begun[2].strip()
        return None
    if not 0 <= place < len(words):
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.no_option", column=shorten(column), found=shorten(said, 20))
        )
    return words[place]


def gives_place(column: str) -> bool:
    """Return whether a column's name says that it gives an option by its place."""
    return bool(PLACES & {*part_name(column)})


def read_flags(cell: object, count: int) -> list[bool]:
    """Return for each of `count` options whether it is right; [] where a cell is no list of flags, or none is set."""
    if not isinstance(cell, (list, tuple)) or len(cell) != count:
        return []
    flags = [bool(one) for one in cell if isinstance(one, (bool, int, float)) and one in (0, 1)]
    return flags if len(flags) == count and any(flags) else []


def find_key(columns: Sequence[str], choices: str, sample: Sequence[Values]) -> str:
    """Return which of `columns` names an option of `choices` row by row, and by its own name says so; "" for none."""
    rows = [(row, options) for row in sample[:LOOKED_AT] if len(options := read_options(row, choices)) > 1]
    if 2 * len(rows) <= len(sample[:LOOKED_AT]):
        return ""
    series = {choices, *find_series([name for name in sample[0] if isinstance(name, str)])}
    fitting = [name for name in columns if name not in series and _names_options(name, rows)]
    named = [name for name in fitting if KEY_WORDS & {*part_name(name)}]
    marked = [name for name in fitting if all(_is_mark(row.get(name), options) for row, options in rows)]
    return named[0] if named else marked[0] if len(marked) == 1 else ""


def _is_mark(cell: object, options: Options) -> bool:
    """Return whether a cell is the mark that the file itself gives an option."""
    own = [mark for mark, _ in options]
    return own != list(string.ascii_uppercase[: len(own)]) and str(cell).strip() in own


def _names_options(column: str, rows: Sequence[tuple[Values, Options]]) -> bool:
    """Return whether a column holds a mark, a number or the words of an option in nearly all rows."""
    told = named = 0
    for row, options in rows:
        cell = row.get(column)
        if isinstance(cell, (list, tuple)) and cell:
            told += 1
            named += bool(read_flags(cell, len(options)))
            continue
        if is_empty(cell) or not isinstance(cell, (str, int, float)) or isinstance(cell, bool):
            continue
        told += 1
        said = str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell).strip()
        number = re.fullmatch(r"\d{1,2}", said) is not None and int(said) <= len(options)
        known = {part.strip().lower() for option in options for part in option}
        letter = LETTER.fullmatch(said)
        place = string.ascii_lowercase.find(letter[1].lower()) if letter else -1
        named += number or said.lower() in known or 0 <= place < len(options)
    return told > 0 and named >= 0.95 * told and 2 * told >= len(rows)


def counts_from(column: str, choices: str, sample: Sequence[Values]) -> int | None:
    """Return from which number a column counts the options, 0 or 1; None where the sample does not tell.

    0 for one that gives letters or words.
    """
    lowest_is_zero = highest_is_last = False
    numbers = words = 0
    for row in sample:
        answer = row.get(column)
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)
        if is_empty(answer) or isinstance(answer, bool) or not re.fullmatch(r"\s*\d{1,3}\s*", str(answer)):
            continue
        options = read_options(row, choices)
        if not options or str(answer).strip() in [one.strip() for part in options for one in part]:
            words += bool(options)
            continue
        numbers += 1
        lowest_is_zero |= int(answer) == 0
        highest_is_last |= int(answer) == len(options)
    if lowest_is_zero or numbers * MOSTLY_WORDS <= words:
        return 0
    return 1 if highest_is_last else None
