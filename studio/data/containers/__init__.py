"""How rows lie in a file: one module a container, in the order in which they are tried."""

from studio.data.containers import (
    arrow,
    captions,
    delimited,
    json_document,
    json_lines,
    mails,
    parquet,
    quizzes,
    tagged_words,
    text_files,
    translation_memory,
    workbook,
    yaml_document,
)
from studio.data.containers.container import Container

CONTAINERS: tuple[Container, ...] = (
    parquet.CONTAINER,
    arrow.CONTAINER,
    workbook.CONTAINER,
    mails.CONTAINER,
    translation_memory.CONTAINER,
    tagged_words.CONTAINER,
    delimited.CSV,
    delimited.TSV,
    captions.CONTAINER,
    quizzes.CONTAINER,
    yaml_document.CONTAINER,
    text_files.TXT,
    text_files.MD,
    json_lines.CONTAINER,
    json_document.CONTAINER,
)
