"""Names the files of a model by what they hold: its weights, and the configuration and tokenizer beside them."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HASH_THREADS = 8
"""One core hashes 1.1 GB a second: 14 s for an 8B model, whose files are hashed side by side."""
BLOCK_BYTES = 2**24
"""Read and hashed without Python's lock, which a thread that imports hands over after 5 ms; hashlib.file_digest asks
for it every 256 KiB."""
SETTINGS = (".json", ".jinja", ".txt", ".model")
"""Suffixes of what a model's folder holds beside weights: configuration, tokenizer, chat template."""


def hash_weights(folder: str | Path) -> str:
    """Return the SHA-256 over names, sizes and contents of a folder's safetensors: names a base without its path."""
    paths = sorted(Path(folder).glob("*.safetensors"))
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        contents = list(pool.map(_hash_file, paths))
    digest = hashlib.sha256()
    for path, content in zip(paths, contents, strict=True):
        digest.update(f"{path.name}\0{path.stat().st_size}\0{content}\0".encode())
    return digest.hexdigest()


def hash_settings(folder: str | Path) -> str:
    """Return the SHA-256 over names and contents of the files beside the weights: configuration, tokenizer, template.

    Other files, such as a model card, do not count.
    """
    folder = Path(folder)
    paths = [path for path in folder.iterdir() if path.suffix in SETTINGS and path.is_file()]
    paths += (folder / "additional_chat_templates").glob("*.jinja")
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{_hash_file(path)}\0".encode())
    return digest.hexdigest()


def _hash_file(path: Path) -> str:
    digest, view = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(view):
            digest.update(view[:count])
    return digest.hexdigest()
