"""How rows lie in a file: one module a container, in the order in which they are tried."""

from studio.data.containers import delimited, json_lines, json_whole, parquet
from studio.data.containers.container import Container

CONTAINERS: tuple[Container, ...] = (
    parquet.CONTAINER,
    delimited.CONTAINER,
    json_lines.CONTAINER,
    json_whole.CONTAINER,
)
