"""Answers that no page has heard yet: Gradio keeps each until the page asks for it, and a page may never ask."""

from __future__ import annotations

import gradio as gr

MESSAGES_EACH = 64
"""Of one page's session: each event makes about three, and one that is drawn anew holds all points of a run."""
MESSAGES_ALL = 600
"""Of all sessions of an app: 200 answers of 750 KB, as a run of 20,000 steps has them, are 150 MB."""


async def has_room(blocks: gr.Blocks, session: str) -> bool:
    """Return whether the page `session` may ask once more, in the event loop of the app of `blocks`.

    What waits for the page with the most is given up first where all together have too many: without it one guest who
    asks and never listens let the server grow by 14 MB a second.
    """
    queue = blocks._queue
    waiting = queue.pending_messages_per_session
    if session in waiting and waiting[session].qsize() >= MESSAGES_EACH:
        return False
    while sum(messages.qsize() for messages in waiting.values()) >= MESSAGES_ALL:
        deaf = max(waiting, key=lambda name: waiting[name].qsize())
        await queue.clean_events(session_hash=deaf)
        waiting.pop(deaf, None)
        queue.pending_event_ids_session.pop(deaf, None)
    return True
