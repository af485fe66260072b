"""Lists of turns with `from` and `value`, as ShareGPT files have them; roles are called human and gpt."""

from functools import partial

from studio.data.formats.aliases import LISTS, REASONING, SYSTEM, TOOLS
from studio.data.formats.cells import holds_text
from studio.data.formats.context import MATERIALS, holds_material
from studio.data.formats.format import Format
from studio.data.formats.message_parsing import doubt_open, holds_turns_by, read_chat
from studio.data.formats.tool_calls import holds_tools

FORMAT = Format(
    name="sharegpt",
    roles={
        "conversations": ("conversations", *(name for name in LISTS if name != "conversations")),
        "system": SYSTEM,
        "tools": TOOLS,
        "reasoning": REASONING,
        **dict.fromkeys(MATERIALS, ()),
    },
    required=("conversations",),
    kinds={
        "conversations": holds_turns_by("from"),
        "system": holds_text,
        "tools": holds_tools,
        "reasoning": holds_material,
    },
    doubt=doubt_open,
    beside="chosen",
    read=partial(read_chat, list_role="conversations"),
)
