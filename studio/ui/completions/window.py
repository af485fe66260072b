"""The same answers at the window's own port, for programs that show the studio's key: the command line is one."""

from __future__ import annotations

from studio.core.i18n import text
from studio.ui.auth.middleware import ROLE
from studio.ui.completions.app import Completions, Limits, Receive, Scope, Send, send_json
from studio.ui.completions.refusal import HttpRefusal
from studio.ui.completions.served import EveryRun
from studio.ui.context import Context
from studio.ui.shell.routes import ANSWERS

LIMITS = Limits(tokens=2**20, temperature=10.0)
"""What the command line may ask for; a model's own length is the limit."""


class WindowCompletions:
    """ASGI middleware behind the gate: answers what begins with ANSWERS, for the owner alone."""

    def __init__(self, app: object, context: Context) -> None:
        self.app, self.context = app, context
        self._completions = Completions(
            context.desk.chat, EveryRun(context.desk), lambda: context.language, LIMITS
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on what is the page's."""
        if scope["type"] != "http" or not scope["path"].startswith(ANSWERS):
            return await self.app(scope, receive, send)
        if scope.get(ROLE) != "owner":
            refusal = HttpRefusal(401, text("ui.gate.401"))
            return await send_json(send, refusal.status, refusal.body(self._completions.choose_words(scope)))
        self.context.renewal.note_presence()
        await self._completions(scope, receive, send)
