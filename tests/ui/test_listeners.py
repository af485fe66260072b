"""The ports for those who come from outside: one that does not come up is not told as open."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette

from studio.core.errors import StudioError
from studio.machine.addresses import bind_port
from studio.ui import listeners
from studio.ui.auth.backends import Doors
from studio.ui.listeners import Listeners


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", ["fails", "hangs"])
def test_a_port_that_does_not_come_up_is_not_open(context, monkeypatch, kind):
    bound = []

    @asynccontextmanager
    async def live(_: Starlette):
        if kind == "fails":
            raise RuntimeError("no")
        await asyncio.sleep(3600)
        yield

    monkeypatch.setattr(listeners, "make_guest_app", lambda *_: Starlette(lifespan=live))
    monkeypatch.setattr(listeners, "PATIENCE_S", 30.0 if kind == "fails" else 0.2)
    monkeypatch.setattr(listeners, "FAREWELL_S", -1.9)  # one that hangs is not waited for
    monkeypatch.setattr(listeners, "bind_port", lambda *given: bound.append(bind_port(*given)) or bound[-1])
    opened = Listeners(context, None, Doors())
    with pytest.raises(StudioError) as refused:
        opened.start("viewer", "tunnel", None)
    assert refused.value.what.id == "share.silent"
    assert [one.fileno() for one in bound] == [-1] and not opened._open
