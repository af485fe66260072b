"""The forms in which a result can leave the studio, one file each; adding one is its file and its line in EXPORTERS.

Importing them takes no torch: the screens ask them what an export will take.
"""

from __future__ import annotations

from studio.engine.exporters.adapter import ADAPTER
from studio.engine.exporters.adapter_gguf import ADAPTER_GGUF
from studio.engine.exporters.exporter import Exporter
from studio.engine.exporters.gguf_file import GGUFS
from studio.engine.exporters.merged import MERGED
from studio.engine.exporters.ollama import OLLAMA
from studio.engine.exporters.packed_folder import PACKED_FOLDERS
from studio.engine.exporters.trl_script import TRL_SCRIPT

EXPORTERS: tuple[Exporter, ...] = (
    ADAPTER, MERGED, OLLAMA, TRL_SCRIPT, *PACKED_FOLDERS, *GGUFS, ADAPTER_GGUF
)  # fmt: skip


def get_exporter(name: str) -> Exporter | None:
    """Return the exporter called `name`, or None when there is none of that name."""
    return {exporter.name: exporter for exporter in EXPORTERS}.get(name)
