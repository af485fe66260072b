"""Lists of turns with `role` and `content`, as OpenAI's chat files have them."""

from studio.data.formats.format import Format
from studio.data.formats.turns import LIST_NAMES, make_proof, make_reader

KEYS = (("role",), ("content",))

FORMAT = Format(
    name="messages",
    roles={"messages": LIST_NAMES, "system": ("system", "system_prompt")},
    required=("messages",),
    prove=make_proof("messages", *KEYS),
    read=make_reader("messages", *KEYS),
)
