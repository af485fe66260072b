"""How many files and connections this process may have open."""

from __future__ import annotations

import os
from contextlib import suppress

PLENTY = 65_536


def raise_limit() -> None:
    """Let this process and its children open as many files as the system allows, PLENTY at most.

    The soft limit is 1,024 nearly everywhere, for programs of old that call select(); a run beside a few hundred
    connections meets it. A system that refuses leaves it as it is.
    """
    if os.name == "nt":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = PLENTY if hard == resource.RLIM_INFINITY else min(hard, PLENTY)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
