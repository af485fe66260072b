"""Lists of turns with `from` and `value`, as ShareGPT files have them; roles are called human and gpt."""

from studio.data.formats.format import Format
from studio.data.formats.turns import LIST_NAMES, make_proof, make_reader

KEYS = (("from", "speaker", "user"), ("value", "text"))

FORMAT = Format(
    name="sharegpt",
    roles={
        "conversations": ("conversations", *(name for name in LIST_NAMES if name != "conversations")),
        "system": ("system", "system_prompt"),
    },
    required=("conversations",),
    prove=make_proof("conversations", *KEYS),
    read=make_reader("conversations", *KEYS),
)
