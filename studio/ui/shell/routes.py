"""The addresses of Gradio that a page of ours asks for; whatever else Gradio serves is closed.

Closed are so proxy, login, history, monitoring, MCP, code editing, profiling, recording, and what a later version adds.
"""

from __future__ import annotations

STARTUP = "/gradio_api/startup-events"
"""Gradio asks itself for it at its start, without a cookie; it tells nothing."""
UPLOAD = "/gradio_api/upload"
FILE = "/gradio_api/file="
ASSETS = ("/assets/", "/static/")
STREAMS = ("/gradio_api/queue/data", "/gradio_api/heartbeat/")
CALL_V2 = "/gradio_api/call/v2/"
"""Closed, though below one that is open: it has a fault of the server (500) for a parameter that it does not know."""
JOIN = "/gradio_api/queue/join"
"""A page that asks for it has everything that it was made of."""
ANSWERS = "/v1/"
"""Not Gradio's: answers for programs (studio/ui/completions)."""
WATCHING = (
    *("/config", "/theme.css", "/favicon.ico", "/manifest.json", "/gradio_api/theme.css"),
    *(JOIN, "/gradio_api/cancel", "/gradio_api/reset"),
    "/gradio_api/app_id",  # a page that lost its connection asks for it, and hears no click before it is told
    *ASSETS,
    *STREAMS,
)
"""What a page needs that only looks on; an address with a slash or = at its end is the beginning of several."""
WORKING = (
    *WATCHING,
    *("/gradio_api/info", "/gradio_api/call/", "/gradio_api/run/"),
    *("/gradio_api/component_server", "/gradio_api/component_server/"),
    *(UPLOAD, "/gradio_api/upload_progress", FILE, STARTUP, ANSWERS),
)
"""What the owner's page and programs need."""
