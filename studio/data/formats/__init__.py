"""The formats in which examples are written: one module a format."""

from studio.data.formats import alpaca, messages, prompt_completion, sharegpt, text
from studio.data.formats.format import Format

FORMATS: tuple[Format, ...] = (
    messages.FORMAT,
    sharegpt.FORMAT,
    alpaca.FORMAT,
    prompt_completion.FORMAT,
    text.FORMAT,
)
