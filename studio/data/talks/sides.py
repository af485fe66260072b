"""Which side of a talk a key names: who asks, who answers, who sets the scene; and the keys of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from studio.data.formats.cells import is_coded
from studio.data.formats.column_names import part_name, simplify
from studio.data.formats.content_parts import THOUGHT_TYPES
from studio.data.formats.context import TECHNICAL
from studio.data.formats.roles import read_role

Side = Literal["", "user", "assistant", "system"]
ASKING = frozenset(
    "human user question query prompt instruction input inputs prompter q ask asker customer client patient student "
    "requester visitor "
    "问 问题 用户 人类 提问".split()
)
ANSWERING = frozenset(
    "assistant answer response reply bot gpt chatgpt model ai agent moss chatbot completion output a claude doctor "
    "salesman teacher 答 回答 助手 答案".split()
)
SETTING = frozenset("system preamble 系统".split())
MORE = frozenset(
    "utterance utt text content message msg turn side says said value prompt str line statement".split()
)
"""Words beside those of a side; any other makes something else of a name: `user_id`, `answer_start`."""
KINDS = frozenset("admin lead contact customer agent visitor operator".split())
"""What services call the kinds of people who write."""
SPEAKER_KEYS = ("role", "from", "speaker", "sender", "author", "type", "name", "who", "from_user", "participant",
                "actor_type", "sender_role", "author_role", "speaker_idx", "speaker_id",
                "author_id", "sender_id", "from_id")  # fmt: skip
ID_KEYS = ("speaker_id", "author_id", "sender_id")
WORD_KEYS = (
    "content",
    "value",
    "parts",
    "text",
    "utterance",
    "message",
    "mes",
    "body",
    "msg",
    "words",
    "said",
    "speech",
    "data",
    "refusal",
    "tool_calls",
    "function_call",
)
BLOCK_KEYS = ("steps", "fragments", "blocks")
"""Keys of the pieces that a turn is written in, each with its words inside of it."""
SELECTED = ("currentlySelected", "selected_version", "selectedVersion", "selected", "current")
"""Keys of the number of the version that was kept, where an answer was written several times."""


@lru_cache(maxsize=4096)
def find_side(key: object) -> Side:
    """Return the side whose words stand under `key`; "" where it names none, or something beside the words."""
    words = part_name(key)
    if not words or len(words) > 3 or not {*words} <= ASKING | ANSWERING | SETTING | MORE:
        return ""
    if ANSWERING.intersection(words):
        return "assistant"
    if ASKING.intersection(words):
        return "user"
    return "system" if SETTING.intersection(words) else ""


def find_speaker(turn: Mapping[str, object]) -> object:
    """Return who speaks a turn, as its file spells it; None where it names nobody."""
    for key in ("is_user", "is_human", "isUser", "isHuman", "human", "from_user", "is_bot", "isBot", "bot"):
        if isinstance(turn.get(key), bool):
            return "user" if turn[key] is ("bot" not in key.lower()) else "assistant"
    for key in SPEAKER_KEYS:
        cell = turn.get(key)
        if isinstance(cell, Mapping):  # the author as an object of its own
            kind = cell.get("type")
            kind = kind if isinstance(kind, str) and (read_role(kind) or kind in KINDS) else None
            cell = cell.get("role") or kind or cell.get("name")
        if key == "type" and (not isinstance(cell, str) or read_role(cell) is None):
            continue
        if isinstance(cell, (str, int)) and cell != "":
            return cell
    roles = turn.get("roles")
    if isinstance(roles, (list, tuple)) and len(roles) == 1 and isinstance(roles[0], str):
        return roles[0]
    return _find_named(turn)


def _find_named(turn: Mapping[str, object]) -> object:
    """Return the speaker under a key that elsewhere is a speaker itself: `{"user": "customer", "text": ...}`."""
    if any(isinstance(turn.get(key), str) for key in ("text", "content", "message", "utterance", "body")):
        for key in ("user", "agent", "speaker_role", "sender_type", "author_type"):
            cell = turn.get(key)
            if isinstance(cell, str) and 0 < len(cell.split()) <= 3:
                return cell
    return None


def choose_version(turn: Mapping[str, object]) -> Mapping[str, object]:
    """Return the version of a turn that was kept; the turn itself where it has no versions, or none is marked."""
    versions = turn.get("versions")
    place = next((turn[key] for key in SELECTED if type(turn.get(key)) is int), -1)
    if isinstance(versions, (list, tuple)) and 0 <= place < len(versions):
        return versions[place] if isinstance(versions[place], Mapping) else turn
    return turn


def _join_blocks(turn: Mapping[str, object]) -> list[object]:
    """Return the parts of all pieces that a turn is written in; [] where it is written otherwise.

    A piece whose style says so holds thoughts; one without content is a note of the program.
    """
    blocks = next((turn[key] for key in BLOCK_KEYS if isinstance(turn.get(key), (list, tuple))), ())
    found: list[object] = []
    for block in blocks:
        inner = block.get("content", block.get("part")) if isinstance(block, Mapping) else None
        parts = inner if isinstance(inner, (list, tuple)) else [inner] if inner else []
        style = block.get("style") if parts else None
        thoughts = isinstance(style, Mapping) and style.get("type") in THOUGHT_TYPES
        for part in parts:
            words = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(words, str):
                kind = "thinking" if thoughts else "text"
                found.append({"type": kind, kind: words})
            else:
                found.append(part)
    return found


def find_words(turn: Mapping[str, object]) -> object:
    """Return the words of a turn, as text or parts; None where it has none."""
    if parts := _join_blocks(turn):
        return parts
    for key in WORD_KEYS:
        cell = turn.get(key)
        if key == "data":
            cell = cell.get("content") if isinstance(cell, Mapping) else None
        if key == "message" and isinstance(cell, Mapping):
            cell = find_words(cell)
        if isinstance(cell, Mapping) and "parts" in cell:
            cell = cell["parts"]
        elif isinstance(cell, Mapping) and isinstance(cell.get("text"), str):
            cell = cell["text"]
        if cell is not None and cell != []:
            return cell
    rest = [
        cell
        for key, cell in turn.items()
        if isinstance(cell, str) and key not in SPEAKER_KEYS and not TECHNICAL & {*part_name(key)}
    ]
    rest = [cell for cell in rest if not is_coded(cell)]
    prose = rest if len(rest) == 1 else [cell for cell in rest if " " in cell.strip()]
    # The only words of an object that names its speaker, whatever they are called.
    return prose[0] if len(prose) == 1 and any(key in turn for key in SPEAKER_KEYS[:5] + ID_KEYS) else None


def is_list_name(key: object) -> bool:
    """Return whether a column of this name holds a talk, so that what has no speaker is one, too."""
    return not TALK_WORDS.isdisjoint(part_name(key)) or simplify(str(key)) in TALK_NAMES


TALK_WORDS = frozenset(
    "conversation conversations dialog dialogue dialogs dialogues chat chats turns utterances messages exchanges "
    "rounds talk talks thread".split()
)
TALK_NAMES = frozenset(("对话", "会话", "消息", "對話", "會話", "訊息", "多轮对话", "log"))
