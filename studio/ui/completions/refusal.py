"""How the address says no: a status, and OpenAI's shape of an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import Text, text

Say = Callable[[Text], str]
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class HttpRefusal(Exception):
    """A request that is not answered. `field` names the parameter that is meant, `code` what programs look at."""

    def __init__(self, status: int, *said: Text, field: str = "", code: str = "") -> None:
        super().__init__(*(one.id for one in said))
        self.status, self.said, self.field, self.code = status, said, field, code

    def body(self, say: Say) -> dict[str, Any]:
        """Return the answer's JSON."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        said = [say(one) for one in self.said]
        error = {
            "message": " ".join(said),
            "type": kind,
            "param": self.field or None,
            "code": self.code or None,
        }
        return {"error": error | {"sentences": said}}


def refuse_field(field: str, id: str, /, **values: object) -> HttpRefusal:
    """Return the refusal of a parameter; `values` go into the text answers.`id`."""
    return HttpRefusal(400, text(f"answers.{id}", field=field, **values), field=field, code="invalid_value")


def refuse_error(error: BaseException) -> HttpRefusal:
    """Return what is told of an error that an answer ended in."""
    if isinstance(error, HttpRefusal):
        return error
    if isinstance(error, StudioError):
        if error.what.id == "desk.training":
            return HttpRefusal(503, error.what, error.why, error.fix, code="training")
        status = 400 if error.exit_code == 2 else 503
        return HttpRefusal(status, error.what, error.why, error.fix, code=error.what.id)
    # Its kind alone, as its words may hold anything.
    return HttpRefusal(500, text("ui.unforeseen"), text("ui.unforeseen.why", kind=type(error).__name__))
