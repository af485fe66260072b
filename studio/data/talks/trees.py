"""Talks that branch: messages that hold their replies, and messages that name their parent; as paths from the root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from studio.data.talks.turns import Turns, to_turn

REPLY_KEYS = ("replies", "children", "responses", "answers")
PARENT_KEYS = ("parent", "parentId", "parent_id", "parentUuid", "parent_message_uuid", "parentMessageId")
ID_KEYS = ("id", "uuid", "messageId", "message_id", "node_id")
CURRENT_KEYS = ("current_node", "currentId", "current_id", "currentNode", "current_leaf_message_uuid")
UNSAID = frozenset(
    ("thoughts", "reasoning_recap", "user_editable_context", "model_editable_context", "system_error")
)
"""Kinds of content in exports of assistants that nobody wrote or read."""


class Branches(ValueError):
    """A tree does not say which of its branches is meant."""


def list_paths(value: object) -> list[Turns] | None:
    """Return the talks of a tree; None where `value` is none. Raises Branches.

    Replies inside messages: one talk for each last message. Messages that name their parent: the talk that was kept,
    up to the node that is called current.
    """
    if not isinstance(value, Mapping):
        return None
    nested = next((key for key in REPLY_KEYS if isinstance(value.get(key), list)), None)
    if nested and to_turn(value) is not None:
        return list(_walk(value, nested))
    return None


def _walk(node: Mapping[str, object], nested: str) -> Iterator[Turns]:
    turn = to_turn(node)
    if turn is None:
        return
    turn.pop(nested, None)
    replies = [one for one in node.get(nested) or () if isinstance(one, Mapping)]
    if not replies:
        yield [turn]
    for reply in replies:
        for path in _walk(reply, nested):
            yield [turn, *path]


def follow(owner: Mapping[str, object], nodes: Mapping[str, object]) -> Turns | None:
    """Return the talk in `nodes`, id -> message with its parent, that `owner` names; None for other objects.

    Raises Branches where it is not named and there are several.
    """
    found = {str(id): node for id, node in nodes.items() if isinstance(node, Mapping)}
    if not found or len(found) < len(nodes):
        return None
    parents = {id: _find(node, PARENT_KEYS) for id, node in found.items()}
    linked = sum(parent in found for parent in parents.values())
    if linked < len(found) - 1 or linked == 0:
        return None
    current = _find(owner, CURRENT_KEYS) or _find(nodes, CURRENT_KEYS)
    if current not in found:
        leaves = [id for id in found if id not in parents.values()]
        if len(leaves) != 1:
            raise Branches
        current = leaves[0]
    path: list[Mapping[str, object]] = []
    seen: set[str] = set()
    while current in found and current not in seen:
        seen.add(current)
        path.append(found[current])
        current = parents[current]
    return [turn for node in reversed(path) if (turn := _read_node(node)) is not None]


def follow_list(owner: Mapping[str, object], cell: Sequence[object]) -> Turns | None:
    """As follow for a list of messages; None where no message has two answers, so that all of them are said.

    Raises Branches.
    """
    nodes = {_find(one, ID_KEYS): one for one in cell if isinstance(one, Mapping)}
    parents = [_find(one, PARENT_KEYS) for one in nodes.values()]
    branching = {parent for parent in parents if parent in nodes and parents.count(parent) > 1}
    return follow(owner, nodes) if branching and len(nodes) == len(cell) else None


def _find(value: Mapping[str, object], keys: tuple[str, ...]) -> str:
    return next((str(value[key]) for key in keys if value.get(key) is not None), "")


def _read_node(node: Mapping[str, object]) -> dict[str, object] | None:
    """Return the turn of a node; None for what was not said: empty, hidden, or notes to the model."""
    message = node.get("message", node)
    if not isinstance(message, Mapping):
        return None
    content, told = message.get("content"), message.get("metadata")
    if isinstance(content, Mapping) and content.get("content_type") in UNSAID:
        return None
    if isinstance(told, Mapping) and told.get("is_visually_hidden_from_conversation"):
        return None
    turn = to_turn(message)
    if turn is None:
        return None
    words = turn.get("content")
    if isinstance(words, list) and not any(not isinstance(one, str) or one.strip() for one in words):
        return None
    return None if isinstance(words, str) and not words.strip() else turn
