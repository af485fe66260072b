"""Which page of keys and values belongs to whom: pages in use are counted, whole ones are found again by their tokens.

A whole page is known by the page before it and by its own tokens, so that a chain of pages stands for a prefix; the
first follows a root, and prefixes of different roots (a model with and without its adapter) never meet. What nobody
uses stays until its room is needed, least recently used first, a chain's last page before those that it follows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from studio.models.decoder.cached_rows import PAGE_TOKENS

Key = tuple[int | str, tuple[int, ...]]
"""The page before, or the root, and the page's tokens."""


class PagePool:
    """Pages 0 to `count` - 1 of an arena."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = [True] * count
        self._free_count = count
        self._users = [0] * count
        self._children = [0] * count
        self._keys: dict[int, Key] = {}
        self._known: dict[Key, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Known pages that nobody uses, least recently used first."""

    @property
    def room(self) -> int:
        """Pages that can be had: free ones and idle ones."""
        return self._free_count + len(self._idle)

    def find(self, root: str, tokens: Sequence[int]) -> list[int]:
        """Return the known pages of the longest kept prefix of `tokens`, of which one at least stays to be computed."""
        found: list[int] = []
        before: int | str = root
        for start in range(0, (len(tokens) - 1) // PAGE_TOKENS * PAGE_TOKENS, PAGE_TOKENS):
            page = self._known.get((before, tuple(tokens[start : start + PAGE_TOKENS])))
            if page is None:
                break
            found.append(page)
            before = page
        return found

    def use(self, pages: Sequence[int]) -> None:
        """Count one user more of known pages."""
        for page in pages:
            self._users[page] += 1
            self._idle.pop(page, None)

    def take(self, count: int, after: int | None = None) -> list[int] | None:
        """Return `count` free pages, neighbours where there can be such, best those behind `after`; None without room.

        Their first user is counted. Idle pages are given up as needed, for neighbours too.
        """
        if count > self.room:
            return None
        pages = self._find_run(count, after)
        while pages is None and self._idle:
            self._forget(next(page for page in self._idle if not self._children[page]))
            pages = self._find_run(count, after)
        if pages is None:
            pages = [page for page in range(self.count) if self._free[page]][:count]
        for page in pages:
            self._free[page] = False
            self._users[page] = 1
        self._free_count -= count
        return pages

    def keep(self, root: str, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Make known the whole pages of `tokens`, all of which are computed; `pages`: the sequence's, in use."""
        before: int | str = root
        for number in range(len(tokens) // PAGE_TOKENS):
            key = before, tuple(tokens[number * PAGE_TOKENS : (number + 1) * PAGE_TOKENS])
            page = pages[number]
            if key in self._known:
                before = self._known[key]
                continue
            if page in self._keys:  # it stands for another chain
                return
            self._known[key], self._keys[page] = page, key
            if isinstance(before, int):
                self._children[before] += 1
            before = page

    def release(self, pages: Sequence[int]) -> None:
        """Count one user less; who is known and without users is idle, a chain's last page longest unused."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._keys:
                self._idle[page] = None
            else:
                self._free[page] = True
                self._free_count += 1

    def forget_all(self) -> None:
        """Forget every prefix: weights have changed. Raises nothing; pages in use stay with their users."""
        self._known.clear()
        self._keys.clear()
        self._children = [0] * self.count
        for page in self._idle:
            self._free[page] = True
        self._free_count += len(self._idle)
        self._idle.clear()

    def _forget(self, page: int) -> None:
        key = self._keys.pop(page)
        del self._known[key], self._idle[page]
        if isinstance(key[0], int):
            self._children[key[0]] -= 1
        self._free[page] = True
        self._free_count += 1

    def _find_run(self, count: int, after: int | None) -> list[int] | None:
        """Return free neighbours: behind `after`, else the first; None where there are none."""
        if (
            after is not None
            and after + count < self.count
            and all(self._free[after + 1 : after + 1 + count])
        ):
            return list(range(after + 1, after + 1 + count))
        length = 0
        for page in range(self.count if count <= self._free_count else 0):
            length = length + 1 if self._free[page] else 0
            if length >= count:
                return list(range(page + 1 - count, page + 1))
        return None if count else []
