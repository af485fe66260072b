"""Lists of turns with `role` and `content`, as OpenAI's chat files have them."""

from functools import partial

from studio.data.formats.aliases import LISTS, REASONING, SYSTEM, TOOLS
from studio.data.formats.cells import holds_setting
from studio.data.formats.context import MATERIALS, holds_thoughts
from studio.data.formats.flags import ROW_WEIGHTS, holds_weight
from studio.data.formats.format import Format
from studio.data.formats.message_parsing import adopt_turns, doubt_open, holds_turns_by, read_chat
from studio.data.formats.tool_calls import holds_tools

FORMAT = Format(
    name="messages",
    roles={
        "messages": LISTS,
        "system": SYSTEM,
        "tools": TOOLS,
        "reasoning": REASONING,
        "weight": ROW_WEIGHTS,
        **dict.fromkeys(MATERIALS, ()),
    },
    required=("messages",),
    kinds={
        "messages": holds_turns_by("role"),
        "system": holds_setting,
        "tools": holds_tools,
        "weight": holds_weight,
        "reasoning": holds_thoughts,
    },
    doubt=doubt_open,
    beside="chosen",
    adopt=adopt_turns("messages", "role"),
    read=partial(read_chat, list_role="messages"),
)
