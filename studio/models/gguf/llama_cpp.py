"""Asks llama.cpp itself about a file, by its Python package xllamacpp (MIT), in a process of its own.

`python -m studio.models.gguf.llama_cpp FILE` reads {"texts": [..], "chats": [[{role, content}, ..] or
{"messages", "tools"}, ..], "prompts": [[id, ..], ..], "answers": [[[id, ..], count], ..], "adapter": FILE or ""} as
JSON and answers as JSON: the token ids of each text, each chat as llama.cpp renders it, the log-probabilities of the
token behind each prompt, and what it says to each prompt, greedily, in so many tokens. Its library takes 100 MB and
ends the process where a file is damaged.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from studio.core.json_file import parse_json

PACKAGE = "xllamacpp"
TIMEOUT_S = 300.0
CONTEXT_TOKENS = 512
"""Questions are short; a model that is stretched beyond its first length counts positions by the context's size."""
DRAWS = 8
"""How often a next token is drawn to be told of, before there is none."""


class LlamaCppError(Exception):
    """llama.cpp could not load a file, or ended; the text is the end of what it said."""


def is_there() -> bool:
    """Return whether the package is installed."""
    return find_spec(PACKAGE) is not None


def ask(file: Path, questions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what llama.cpp answers to `questions` about `file`. Raises LlamaCppError."""
    command = [sys.executable, "-m", "studio.models.gguf.llama_cpp", str(file)]
    root = Path(__file__).resolve().parents[3]
    path = os.pathsep.join([str(root), str(root / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            command, input=json.dumps(questions).encode(), capture_output=True, timeout=TIMEOUT_S, check=False,
            env=os.environ | {"PYTHONPATH": path, "GGML_NO_BACKTRACE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise LlamaCppError(f"no answer in {TIMEOUT_S:.0f} s") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").splitlines()
        told = [line for line in said if " E " in line or "ASSERT" in line]
        raise LlamaCppError("\n".join(told[:3] or said[-3:]) or f"exit code {done.returncode}")
    return parse_json(done.stdout.decode().splitlines()[-1])


class _Server:
    """A model that llama.cpp serves on this machine alone, under a key that nobody else has."""

    def __init__(self, file: Path, context: int, adapter: str = "") -> None:
        import secrets

        import xllamacpp

        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(file)
        parameters.n_ctx, parameters.n_parallel, parameters.warmup = context, 1, False
        parameters.no_extra_bufts = (
            True  # weights stay views of the file: in an order of its own they take it again
        )
        if adapter:
            added = xllamacpp.CommonAdapterLoraInfo()
            added.path, added.scale = adapter, 1.0
            parameters.lora_adapters = [added]
        self._key = secrets.token_urlsafe(24)
        parameters.api_keys = [self._key]
        threads = min(4, os.cpu_count() or 1)
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(parameters)
        self._address = urlsplit(self._server.listening_address)

    def post(self, path: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question. Raises LlamaCppError."""
        connection = http.client.HTTPConnection(self._address.hostname, self._address.port, timeout=TIMEOUT_S)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        connection.request("POST", path, json.dumps(question), headers)
        response = connection.getresponse()
        answer = response.read().decode("utf-8", "replace")
        connection.close()
        if response.status != 200:
            raise LlamaCppError(answer[:500])
        return parse_json(answer)


def _answer(file: Path, questions: Mapping[str, Any]) -> dict[str, Any]:
    server = _Server(file, questions.get("context", CONTEXT_TOKENS), questions.get("adapter", ""))
    tokens = [
        server.post("/tokenize", {"content": words, "add_special": False, "parse_special": True})["tokens"]
        for words in questions.get("texts", ())
    ]
    rendered = [
        server.post("/apply-template", chat if isinstance(chat, dict) else {"messages": chat})["prompt"]
        for chat in questions.get("chats", ())
    ]
    # What is drawn does not matter, its log-probabilities do.
    bare = {"n_predict": 1, "samplers": [], "cache_prompt": False, "ignore_eos": True}
    greedy = {"samplers": ["top_k"], "top_k": 1, "cache_prompt": False}
    shares = []
    for prompt in questions.get("prompts", ()):
        wanted = {"prompt": prompt, "n_probs": questions.get("vocabulary", 0), **bare}
        # Of a token that is no text by itself, half a sign or a mark of control, llama.cpp tells none.
        drawn = (server.post("/completion", {**wanted, "seed": seed}) for seed in range(DRAWS))
        found = next(filter(None, (one.get("completion_probabilities") for one in drawn)), [{}])[0]
        listed = found.get("top_logprobs") or found.get("top_probs") or []
        shares.append([[one["id"], one["logprob"]] for one in listed])
    said = [
        server.post("/completion", {"prompt": prompt, "n_predict": count, "return_tokens": True, **greedy})
        for prompt, count in questions.get("answers", ())
    ]
    answers = [
        {"tokens": one.get("tokens"), "text": one["content"], "reason": one.get("stop_type")} for one in said
    ]
    return {"tokens": tokens, "rendered": rendered, "log_probabilities": shares, "answers": answers}


def main() -> int:
    """Answer what stands in the input about the file that the command line names."""
    questions = parse_json(sys.stdin.read())
    print(json.dumps(_answer(Path(sys.argv[1]), questions)), flush=True)
    os._exit(0)  # its threads end with the process; taking them down takes seconds


if __name__ == "__main__":
    sys.exit(main())
