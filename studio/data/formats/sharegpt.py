"""Lists of turns with `from` and `value`, as ShareGPT files have them; roles are called human and gpt."""

from functools import partial

from studio.data.formats.aliases import LISTS, REASONING, SYSTEM, TOOLS
from studio.data.formats.cells import holds_setting
from studio.data.formats.context import MATERIALS, holds_thoughts
from studio.data.formats.flags import ROW_WEIGHTS, holds_weight
from studio.data.formats.format import Format
from studio.data.formats.message_parsing import adopt_turns, doubt_open, holds_turns_by, read_chat
from studio.data.formats.tool_calls import holds_tools

FORMAT = Format(
    name="sharegpt",
    roles={
        "conversations": ("conversations", *(name for name in LISTS if name != "conversations")),
        "system": SYSTEM,
        "tools": TOOLS,
        "reasoning": REASONING,
        "weight": ROW_WEIGHTS,
        **dict.fromkeys(MATERIALS, ()),
    },
    required=("conversations",),
    kinds={
        "conversations": holds_turns_by("from"),
        "system": holds_setting,
        "tools": holds_tools,
        "weight": holds_weight,
        "reasoning": holds_thoughts,
    },
    doubt=doubt_open,
    beside="chosen",
    adopt=adopt_turns("conversations", "from"),
    read=partial(read_chat, list_role="conversations"),
)
