"""Where in a row a talk lies: in a column, inside of other objects, its last answer apart from it, in a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from studio.data.containers.json_text import TALK
from studio.data.formats.aliases import (
    ANSWERS,
    CHOSEN,
    HISTORY,
    INSTRUCTION,
    LISTS,
    QUESTIONS,
    REJECTED,
    SYSTEM,
)
from studio.data.formats.cells import count_words, is_blank
from studio.data.formats.column_names import part_name, simplify
from studio.data.formats.flags import find_sense
from studio.data.formats.roles import read_role
from studio.data.speakers import guess_role
from studio.data.talks.sides import find_side, is_list_name
from studio.data.talks.trees import Branches, follow, follow_list, list_paths
from studio.data.talks.turns import Turn, Turns, is_plain, parse_text, to_turn, to_turns

Values = Mapping[str, object]
DEPTH = 7
SIDES = frozenset((*CHOSEN, *REJECTED))
SIDE_WORDS = frozenset(("chosen", "rejected", "preferred", "dispreferred"))
"""First or last words in the names of talks that end with an answer that was preferred, or with one that was not."""
KNOWN = frozenset(
    (
        *LISTS,
        *QUESTIONS,
        *INSTRUCTION,
        *ANSWERS,
        *SIDES,
        *HISTORY,
        "prompt",
        "input",
        "target",
        "solution",
        "history",
    )
)
"""Columns of turns that formats know by their names."""
SYSTEM_KEYS = ("systemInstruction", "system_instruction", "meta_instruction", "preamble", *SYSTEM)
TOOL_KEYS = ("tools", "functions", "toolConfig", "tool_config")
SPOKEN = frozenset(
    ("output", "response", "completion", "reply", "assistant", "model_output", "generated_text")
)
"""Columns that hold what was said next, and no solution to compare an answer with."""
WANTED = frozenset((*SPOKEN, "target", "answer", "label"))
"""Columns whose JSON may be the calls that are to be made."""
REQUESTERS = ("requester_id", "submitter_id", "customer_id", "asker_id", "reporter_id", "requester", "customer",
              "reporter", "opened_by", "created_by", "user", "author")  # fmt: skip
"""Keys that name the one who opened a ticket, by the id or name with which the messages are signed."""
SIGNS = ("author_id", "user_id", "author", "user", "from_id", "sender_id", "created_by")
BODIES = ("body", "text", "message", "content", "comment", "description")
"""Keys of the author and of the words of a message of a ticket."""
PASSED = frozenset(("metadata", "meta", "usage", "spans", "entities", "annotations", "objects", *TOOL_KEYS))
"""Keys below which no talk is looked for."""
ORIGINAL = frozenset("original originals orig raw".split())
"""Words in the names of objects that hold a talk as it was before, in another language."""
PROSE_WORDS = 4


@dataclass(slots=True)
class MessagePlace:
    """Turns that were found in a row."""

    path: tuple[str, ...]
    turns: Turns
    owners: tuple[Values, ...]
    """The objects around them, the row first."""
    plain: bool = False
    """Whether formats read them as they stand."""


@dataclass(slots=True)
class FoundTalks:
    """All talks of a row."""

    talks: list[MessagePlace] = field(default_factory=list)
    singles: list[MessagePlace] = field(default_factory=list)
    """Turns that stand alone, such as the answer in the log of a service."""
    paths: list[Turns] = field(default_factory=list)
    """Of a tree: the talks to each of its ends; the place of the first is in `talks`."""
    unclear: bool = False
    """Several answers, or branches, of which none is marked."""


def recast(values: Values, named: frozenset[str] = frozenset()) -> list[dict[str, object]] | None:
    """Return the rows that a row becomes when its talk is a column of plain turns; None where nothing is to be done.

    named: columns that hold talks though their names do not say so.
    """
    if read_role(values.get("role")) and (paths := list_paths(values)):
        return [{TALK: path} for path in paths]  # the row is the first message of a tree
    found = FoundTalks()
    _look(values, (), (values,), found, named)
    if found.unclear:
        return None
    pairs = [place for place in found.talks if _is_side(place.path)]
    talks = [place for place in found.talks if not _is_side(place.path)]
    if not talks:
        changed = {place.path[0]: place.turns for place in pairs if len(place.path) == 1 and not place.plain}
        return [{**values, **changed}] if changed else None
    main, *others = talks
    if _only_answers(main) and any(
        find_side(key) == "user" for key, cell in values.items() if isinstance(cell, str)
    ):
        return None  # what several models answered to the question beside it
    turns, used = list(main.turns), [main]
    now: dict[str, Turn] = {}
    for place in [*others, *found.singles]:
        if _repeats(place.turns, turns):
            used += [place] if len(place.path) > 1 else []
        elif main.plain and place.plain and {main.path, place.path} == {("prompt",), ("completion",)}:
            continue
        elif place in found.singles and _opens(place.turns, turns):
            turns, used = [*place.turns, *turns], [*used, place]
        elif _is_answer(place.turns) and _is_open(turns) and not (pairs or _is_side(place.path)):
            turns, used = [*turns, *place.turns], [*used, place]
        elif len(place.path) > 1 and place in others and not ORIGINAL & {*part_name(place.path[0])}:
            return None
    alone = len(main.path) == 1 and len(used) == 1 and not found.paths
    name = main.path[-1] if alone and simplify(main.path[-1]) in KNOWN else "messages"
    if alone and simplify(name) in HISTORY and (now := _read_now(values)):
        turns, name = [*turns, *now.values()], "messages"
    elif alone and simplify(name) not in LISTS and not pairs and not _is_open(turns):
        name = name if any(find_side(key) for key in values if key != name) else "messages"
    flags = {key: cell for key, cell in values.items() if _flags_turns(key, cell)}
    for key, cell in flags.items():
        turns = _mark(turns, key, cell)
    if len(main.path) > 1 and (pairs or any(_is_side(place.path) for place in found.singles)):
        name = "prompt"
    if alone and simplify(name) in LISTS and not pairs and _is_open(turns) and (now := _read_answer(values)):
        turns, name = [*turns, *now.values()], "messages"
    more, read = _read_beside(main, turns)
    if (
        main.plain
        and len(used) == 1
        and main.path == (name,)
        and not (more or now or flags)
        and all(one.plain for one in pairs)
    ):
        return None
    gone = (
        {place.path[0] for place in used} | {*flags} | read | {*(now if alone and name == "messages" else ())}
    )
    rest = {key: cell for key, cell in values.items() if key not in gone}
    rest |= {key: cell for place in used for key, cell in _list_prose(place) if key not in rest}
    rest |= {place.path[0]: place.turns for place in pairs if len(place.path) == 1 and not place.plain}
    return [{name: one, **rest, **more} for one in (found.paths or [turns])]


def _only_answers(place: MessagePlace) -> bool:
    """Return whether turns are answers throughout, in a column that is called no talk, and not what was kept of one."""
    roles = {read_role(turn.get("role")) for turn in place.turns}
    return roles == {"assistant"} and len(place.path) == 1 and not is_list_name(place.path[0])


def _flags_turns(key: str, cell: object) -> bool:
    """Return whether a column says which turns are learned: a list of flags, or one for all of them."""
    if not find_sense(key):
        return False
    return isinstance(cell, bool) or (
        isinstance(cell, (list, tuple)) and not any(isinstance(c, Mapping) for c in cell)
    )


def _mark(turns: Turns, key: str, cell: object) -> Turns:
    """Return turns with the flags of a column: one for each turn, or each answer; else the list, which is refused."""
    answers = [i for i, turn in enumerate(turns) if read_role(turn.get("role")) == "assistant"]
    if isinstance(cell, (list, tuple)) and len(cell) == len(turns):
        flags = dict(enumerate(cell))
    elif isinstance(cell, (list, tuple)) and len(cell) == len(answers):
        flags = dict(zip(answers, cell, strict=True))
    else:
        flags = dict.fromkeys(answers, cell)
    return [{**turn, key: flags[i]} if i in flags else turn for i, turn in enumerate(turns)]


def _read_now(values: Values) -> dict[str, Turn]:
    """Return what is said after a history, by column: a message and its answer. {} where formats know the columns."""
    answers = [key for key in values if isinstance(values[key], str) and find_side(key) == "assistant"]
    if not isinstance(values.get("message"), str) or len(answers) != 1:
        return {}
    said = {"message": "user", answers[0]: "assistant"}
    return {key: {"role": role, "content": values[key]} for key, role in said.items()}


def _read_answer(values: Values) -> dict[str, Turn]:
    """Return what a model put out after an open talk, by its column; {} where a column may be there for checks."""
    for key, cell in values.items():
        calls = parse_text(cell) if isinstance(cell, str) and WANTED & {*part_name(key)} else None
        if isinstance(calls, Mapping) and isinstance(calls.get("tool_calls"), list) and calls["tool_calls"]:
            return {key: {"role": "assistant", "content": "", "tool_calls": calls["tool_calls"]}}
    said = [
        key
        for key in values
        if isinstance(values[key], str) and simplify(key) in SPOKEN and values[key].strip()
    ]
    return {said[0]: {"role": "assistant", "content": values[said[0]]}} if len(said) == 1 else {}


def _look(
    value: Values, path: tuple[str, ...], owners: tuple[Values, ...], found: FoundTalks, named: frozenset[str]
) -> None:
    """Add the talks in `value` to `found`."""
    for key, cell in value.items():
        if not isinstance(key, str) or key in PASSED or found.unclear or not cell:
            continue
        here = (*path, key)
        if isinstance(cell, str):
            if path or cell.lstrip()[:1] not in ("[", "{"):
                continue
            if is_plain(cell):
                parsed = parse_text(cell)
                plain = simplify(key) in KNOWN
                found.talks.append(MessagePlace(here, to_turns(parsed, True) or [], owners, plain))
                continue
            cell = parse_text(cell)
        if isinstance(cell, Mapping):
            _look_into(cell, key, value, here, owners, found, named)
        elif isinstance(cell, (list, tuple)) and cell:
            try:
                kept = follow_list(value, cell)
            except Branches:
                found.unclear = True
                return
            turns = (
                kept or to_turns(cell, is_list_name(key) or key in named) or _from_ticket(cell, owners[-1])
            )
            if turns:
                plain = kept is None and isinstance(value[key], (list, tuple)) and is_plain(cell)
                found.talks.append(MessagePlace(here, turns, owners, plain))
            elif isinstance(cell[0], Mapping):
                _look_along(cell, here, owners, found, named)


def _from_ticket(cell: Sequence[object], owner: Values) -> Turns | None:
    """Return messages by author as turns where the object around them names the one who asked; None elsewhere.

    The text of an issue stands beside its comments, and is its first message.
    """
    asker = next((name for key in REQUESTERS if (name := _sign(owner.get(key)))), "")
    if not asker or not all(isinstance(one, Mapping) for one in cell):
        return None
    signs = [next((name for key in SIGNS if (name := _sign(one.get(key)))), "") for one in cell]
    words = [next((one[key] for key in BODIES if isinstance(one.get(key), str)), "") for one in cell]
    if not all(signs) or not all(words) or {*signs} == {asker}:
        return None
    opening = next((owner[key] for key in BODIES if isinstance(owner.get(key), str)), "")
    front = [(asker, opening)] if asker not in signs[:1] and not is_blank(opening) else []
    said = [*front, *zip(signs, words, strict=True)]
    if asker not in [sign for sign, _ in said]:
        return None
    return [{"role": "user" if sign == asker else "assistant", "content": one} for sign, one in said]


def _sign(cell: object) -> str:
    """Return the name or id of a person, also of one described by an object."""
    if isinstance(cell, Mapping):
        cell = next((cell[key] for key in ("login", "username", "name", "id") if cell.get(key)), None)
    return str(cell) if isinstance(cell, (str, int)) and not isinstance(cell, bool) else ""


def _look_into(
    cell: Values,
    key: str,
    owner: Values,
    here: tuple[str, ...],
    owners: tuple[Values, ...],
    found: FoundTalks,
    named: frozenset[str],
) -> None:
    """As _look for an object: a tree, a single turn, an object of turns, or one that only holds a talk."""
    try:
        paths = list_paths(cell)
        turns = None if paths else follow(owner, cell)
    except Branches:
        found.unclear = True
        return
    if paths:
        found.paths = paths if not found.talks else found.paths
        found.talks.append(MessagePlace(here, paths[0], owners))
        return
    turns = turns or to_turns(cell, is_list_name(key) or key in named)
    if turns:
        found.talks.append(MessagePlace(here, turns, owners))
        return
    turn = to_turn(cell)
    if turn is not None and read_role(turn["role"]):
        found.singles.append(MessagePlace(here, [turn], owners))
    elif len(here) < DEPTH:
        _look(cell, here, (*owners, cell), found, named)


def _look_along(
    cell: Sequence[object],
    here: tuple[str, ...],
    owners: tuple[Values, ...],
    found: FoundTalks,
    named: frozenset[str],
) -> None:
    """As _look for a list of objects: with several that hold an answer each, none is marked as the one."""
    before = len(found.singles)
    for one in cell[:2]:
        if isinstance(one, Mapping) and len(here) < DEPTH:
            inner = FoundTalks()
            _look(one, here, (*owners, one), inner, named)
            if len(cell) == 1:
                found.talks += inner.talks
            found.singles += inner.singles
    found.unclear = found.unclear or len(found.singles) - before > 1


def _is_side(path: Sequence[str]) -> bool:
    """Return whether turns are an answer that was preferred, or one that was not."""
    words = part_name(path[0])
    return simplify(path[0]) in SIDES or bool(SIDE_WORDS & {*words[:1], *words[-1:]})


def _is_open(turns: Turns) -> bool:
    return read_role(turns[-1].get("role")) != "assistant"


def _opens(turns: Turns, talk: Turns) -> bool:
    """Return whether turns are the question that a talk answers, where the talk begins with its answer."""
    roles = [read_role(one[0].get("role")) or guess_role(str(one[0].get("role"))) for one in (turns, talk)]
    return roles == ["user", "assistant"]


def _is_answer(turns: Turns) -> bool:
    """Return whether turns are one answer, with calls and results before it perhaps; several answers are a choice."""
    roles = [read_role(turn.get("role")) for turn in turns]
    return {*roles} <= {"assistant", "tool"} and ("assistant", "assistant") not in zip(
        roles, roles[1:], strict=False
    )


def _repeats(turns: Turns, known: Turns) -> bool:
    """Return whether the turns say nothing new."""
    said = [turn.get("content") for turn in known]
    return all(turn.get("content") in said for turn in turns)


def _read_beside(main: MessagePlace, turns: Turns) -> tuple[dict[str, object], set[str]]:
    """Return system and tools beside a talk, or around it, in a form that formats do not read, and their columns."""
    found: dict[str, object] = {}
    read: set[str] = set()
    by_author = any(
        "author" in turn for owner in main.owners[-1:] for turn in _list_objects(owner, main.path[-1])
    )
    keys = (*SYSTEM_KEYS, "context") if by_author else SYSTEM_KEYS
    for owner in reversed(main.owners):
        top = owner is main.owners[0]
        for key, cell in owner.items():
            if key in keys and "system" not in found and cell:
                words = say(cell)
                if not is_blank(words) and not (top and isinstance(cell, str) and simplify(key) in SYSTEM):
                    found["system"] = words
                    read |= {key} if top else set()
            elif key in TOOL_KEYS and "tools" not in found and cell and not (top and key == "tools"):
                found["tools"] = cell
                read |= {key} if top else set()
    if "tools" not in found and (offered := _list_offered(main)):
        found["tools"] = offered
    if "system" in found and turns and read_role(turns[0].get("role")) == "system":
        del found["system"]
        read -= {
            *SYSTEM_KEYS,
            "context",
        }  # said twice, or otherwise: the person sees it among what is not used
    return found, read


def _list_offered(main: MessagePlace) -> list[object]:
    """Return the functions that are described beside the turns of a talk, each once."""
    offered: list[object] = []
    for cell in (
        turn.get(key) for turn in _list_objects(main.owners[-1], main.path[-1]) for key in TOOL_KEYS
    ):
        offered += [one for one in cell if one not in offered] if isinstance(cell, (list, tuple)) else ()
    return offered


def _list_objects(owner: Values, key: str) -> Iterator[Values]:
    cell = owner.get(key)
    yield from (one for one in cell if isinstance(one, Mapping)) if isinstance(cell, (list, tuple)) else ()


def say(cell: object) -> str:
    """Return the words of a text, of parts, or of an object around them."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Mapping):
        return say(next((cell[key] for key in ("parts", "text", "content") if cell.get(key)), ""))
    return "\n\n".join(filter(None, map(say, cell))) if isinstance(cell, (list, tuple)) else ""


def _list_prose(place: MessagePlace) -> Iterator[tuple[str, object]]:
    """Yield what else stands in the objects around a talk, where it holds words that a person may want."""
    for owner in place.owners[1:]:
        for key, cell in owner.items():
            if key in place.path or key in SYSTEM_KEYS or key in TOOL_KEYS or to_side(key):
                if not (to_side(key) and isinstance(cell, (str, list, Mapping))):
                    continue
                yield key, cell
            elif isinstance(cell, str) and count_words(cell) >= PROSE_WORDS:
                yield key, cell


def to_side(key: str) -> bool:
    """Return whether a key holds an answer that was preferred, one that was not, or a label."""
    return simplify(key) in SIDES or "label" in part_name(key)
