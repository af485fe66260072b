"""Set examples apart for validation: by a hash of what they ask, so that reordering the file changes nothing."""

from __future__ import annotations

import numpy as np

MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number (2**64 over the golden ratio): what is drawn here depends on nothing else that hashes decide."""


def choose_validation(prompts: np.ndarray, share: float) -> np.ndarray:
    """Return bool [rows]: about `share` of the rows, whole groups with the same prompt at a time.

    prompts: uint64 [rows], equal where two rows ask the same. At least one group is set apart and at least one stays,
    where there are two; with fewer nothing is set apart. A group larger than the share is only taken where there are
    none but such, the smallest then.
    """
    nothing = np.zeros(len(prompts), dtype=bool)
    if share <= 0 or not len(prompts):
        return nothing
    mixed = np.asarray(prompts, dtype=np.uint64) * MIX
    groups, sizes = np.unique(mixed, return_counts=True)
    if len(groups) < 2:
        return nothing
    # One question that most rows ask would else be drawn as any other, and take most rows with it.
    order = np.lexsort((groups, np.where(sizes > max(share * len(prompts), 1), sizes, 0)))
    groups, sizes = groups[order], sizes[order]
    before = np.cumsum(sizes) - sizes
    enough = before + sizes / 2 > share * len(prompts)
    enough[0], enough[-1] = False, True
    return np.isin(mixed, groups[: int(enough.argmax())])
