"""Set examples apart for validation: by a hash of what they ask, so that reordering the file changes nothing."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from studio.data.conversation import Conversation


def choose_validation(conversations: Sequence[Conversation], share: float) -> frozenset[int]:
    """Return the numbers of the rows set apart: about `share` of them, whole groups with the same prompt at a time.

    At least one group is set apart and at least one stays, where there are two; with fewer nothing is set apart.
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    for i, conversation in enumerate(conversations):
        key = conversation.prompt_key.encode("utf-8", "surrogatepass")
        groups[hashlib.blake2b(key, digest_size=16).digest()].append(i)
    if share <= 0 or len(groups) < 2:
        return frozenset()
    chosen: list[int] = []
    for number, key in enumerate(sorted(groups)):
        enough = len(chosen) + len(groups[key]) / 2 > share * len(conversations)
        if number and (enough or number == len(groups) - 1):
            break
        chosen += groups[key]
    return frozenset(chosen)
