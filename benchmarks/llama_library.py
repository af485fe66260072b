"""llama.cpp's own library, which lies in the package xllamacpp, by ctypes: its packing, and its logits of whole texts.

Only what these benchmarks need, on Linux and macOS: Windows' file exports nothing but the Python module.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

CONTEXT = dict.fromkeys((0, 1, 2, 5, 6), "tokens") | dict.fromkeys((7, 8), "threads")
"""What the first numbers of a context's parameters are in llama.cpp 0.5 (xllamacpp 2026.10.11549): its length, batch,
what is computed at once, and how many tokens have logits, in all and of a text; threads of one token and of many."""
STRUCT_BYTES = 4096
"""Structures that are passed by value have their room here: what stands behind their end nobody reads."""


class Whole(ctypes.Structure):
    """Parameters as the library fills them; the first numbers of a context's are its sizes."""

    _fields_ = [("numbers", ctypes.c_uint32 * (STRUCT_BYTES // 4))]


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)), ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]  # fmt: skip


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def open_library() -> ctypes.CDLL:
    """Return the library."""
    import xllamacpp

    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
    pack = library.ggml_quantize_chunk
    pack.restype = ctypes.c_size_t
    pack.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    return library


def pack_by_llama_cpp(
    library: ctypes.CDLL, values: np.ndarray, form: str, importance: np.ndarray | None, row_bytes: int
):
    """Return the rows of `values` (rows, columns) fp32 as llama.cpp packs them, (rows, row_bytes) uint8."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    packed = np.zeros((values.shape[0], row_bytes), dtype=np.uint8)
    weights = (
        np.ascontiguousarray(importance, dtype=np.float32).ctypes.data if importance is not None else None
    )
    library.ggml_quantize_chunk(
        int(GGMLQuantizationType[form]), values.ctypes.data, packed.ctypes.data, 0, *values.shape, weights
    )
    return packed


class LlamaModel:
    """A GGUF file that the library has opened: log-probabilities of the tokens of a text."""

    def __init__(
        self, library: ctypes.CDLL, file: Path, *, tokens: int, threads: int, vocabulary: int
    ) -> None:
        """`tokens`: of the longest text."""
        self._library, self._vocabulary = library, vocabulary
        self._quiet = LOG(lambda level, words, data: None)
        library.llama_log_set(self._quiet, None)
        library.llama_backend_init()
        for name, result in (
            ("llama_model_default_params", Whole), ("llama_context_default_params", Whole),
            ("llama_batch_init", Batch), ("llama_model_load_from_file", ctypes.c_void_p),
            ("llama_init_from_model", ctypes.c_void_p), ("llama_get_memory", ctypes.c_void_p),
            ("llama_get_logits", ctypes.POINTER(ctypes.c_float)), ("llama_n_ctx", ctypes.c_uint32),
            ("llama_decode", ctypes.c_int32), ("llama_memory_clear", None), ("llama_free", None),
            ("llama_model_free", None),
        ):  # fmt: skip
            getattr(library, name).restype = result
        library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Whole]
        library.llama_init_from_model.argtypes = [ctypes.c_void_p, Whole]
        library.llama_memory_clear.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        for name in ("llama_get_memory", "llama_get_logits", "llama_n_ctx", "llama_free", "llama_model_free"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        library.llama_decode.argtypes = [ctypes.c_void_p, Batch]
        self._model = library.llama_model_load_from_file(
            str(file).encode(), library.llama_model_default_params()
        )
        settings = library.llama_context_default_params()
        for place, value in CONTEXT.items():
            settings.numbers[place] = {"tokens": tokens, "threads": threads}[value]
        self._context = library.llama_init_from_model(self._model, settings)
        if not self._context or library.llama_n_ctx(self._context) < tokens:
            raise RuntimeError(f"llama.cpp did not open {file.name} with a context of {tokens} tokens")
        self._batch = library.llama_batch_init(tokens, 0, 1)

    def score(self, ids: list[int]) -> np.ndarray:
        """Return the log-probability of each token behind the first, (tokens - 1,) float64."""
        library, batch = self._library, self._batch
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place], batch.n_seq_id[place], batch.logits[place] = (
                token,
                place,
                1,
                1,
            )
            batch.seq_id[place][0] = 0
        if library.llama_decode(self._context, batch):
            raise RuntimeError("llama.cpp could not read a text")
        flat = np.ctypeslib.as_array(library.llama_get_logits(self._context), (len(ids), self._vocabulary))
        logits = flat.astype(np.float64)
        return score_logits(logits, ids)

    def close(self) -> None:
        """Give back its memory."""
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)


def score_logits(logits: np.ndarray, ids: list[int]) -> np.ndarray:
    """Return the log-probability of each token behind the first, from logits (tokens, vocabulary)."""
    top = logits.max(-1, keepdims=True)
    normal = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return normal[np.arange(len(ids) - 1), ids[1:]]
