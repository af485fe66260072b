"""The formats in which examples are written: one module a format."""

from studio.data.formats import (
    alpaca,
    kto,
    messages,
    preference,
    pretokenized,
    prompt_completion,
    rl,
    sharegpt,
    text,
    vision,
)
from studio.data.formats.format import Format

FORMATS: tuple[Format, ...] = (
    messages.FORMAT,
    sharegpt.FORMAT,
    alpaca.FORMAT,
    prompt_completion.FORMAT,
    text.FORMAT,
    preference.FORMAT,
    kto.FORMAT,
    rl.FORMAT,
    vision.FORMAT,
    pretokenized.FORMAT,
)
