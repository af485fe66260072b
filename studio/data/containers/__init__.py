"""How rows lie in a file: one module a container, in the order in which they are tried."""

from studio.data.containers import arrow, delimited, json_lines, json_whole, parquet, plain, workbook
from studio.data.containers.container import Container

CONTAINERS: tuple[Container, ...] = (
    parquet.CONTAINER,
    arrow.CONTAINER,
    workbook.CONTAINER,
    delimited.CSV,
    delimited.TSV,
    plain.TXT,
    plain.MD,
    json_lines.CONTAINER,
    json_whole.CONTAINER,
)
