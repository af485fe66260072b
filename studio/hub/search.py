"""Asks the model hub, only when a person presses Search: `python -m studio.hub.search WORDS | --facts ID`.

The process prints one JSON object: {"models": [...]}, or {"error": kind, "detail": words}. It is a child, so that the
studio itself always stays offline; it ends by itself when its standard input closes. No weights are fetched: only the
hub's list, and of each model its config.json and, where its size is not told, the index of its weights.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.json_file import parse_json
from studio.hub import child
from studio.hub.access_token import (
    LOCKED,
    NO_MIRROR,
    Mirror,
    choose_token,
    refuse_without_token,
    show_address,
)
from studio.hub.child import DETAIL, end_with_parent, say, say_error
from studio.hub.offline import wants_offline

PROGRAM = "studio.hub.search"
LIMIT = 20
ASKED_WORDS = 200
"""Characters of a search that are sent."""
CONFIG_BYTES, INDEX_BYTES, LIST_BYTES = 2**20, 32 * 2**20, 8 * 2**20
"""No more is read of a config.json, of an index of weights (that of a 405B model has 0.1 MB), of the hub's list."""
THREADS = 8
ANSWER_S = 12.0
"""How long one answer is waited for; a list is shown without the configs that have not come by then."""
PATIENCE_S = 40.0
EXPAND = ("safetensors", "downloads", "likes", "gated", "tags", "library_name", "pipeline_tag")
KINDS = ("offline", "endpoint", "gated", "login", "missing", "limit", "unreachable", "slow", "ended")
"""Errors; each names the texts `hub.KIND`."""
STORED_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}
"""Of one number, by the name that safetensors gives its type; 1 for all others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HubModel:
    """What the hub says of a model; numbers are 0 and words "" where it says nothing."""

    source: str
    parameters: int = 0
    weight_bytes: int = 0
    downloads: int = 0
    likes: int = 0
    licence: str = ""
    gated: bool = False
    safetensors: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its config.json; {} when it could not be read, as behind a login."""


def search_hub(
    words: str,
    mirror: Mirror = NO_MIRROR,
    environment: Mapping[str, str] = os.environ,
    patience_s: float = PATIENCE_S,
) -> tuple[HubModel, ...]:
    """Return the most downloaded models of the hub that match `words`; connects to the network.

    A token in `environment`, else the one that the person saved, goes along where it may (hub/access_token.py). Raises
    StudioError.
    """
    return _ask([words.strip()[:ASKED_WORDS]], words.strip(), mirror, environment, patience_s)


def fetch_facts(
    source: str,
    mirror: Mirror = NO_MIRROR,
    environment: Mapping[str, str] = os.environ,
    patience_s: float = PATIENCE_S,
) -> HubModel:
    """Return what the hub says of the model `source`, with its config; otherwise as search_hub."""
    return _ask(["--facts", source], source, mirror, environment, patience_s)[0]


def _ask(
    words: list[str], name: str, mirror: Mirror, environment: Mapping[str, str], patience_s: float
) -> tuple[HubModel, ...]:
    address = mirror.find_address(environment)
    values = {"name": literal(name), "endpoint": literal(show_address(address) or address)}
    if wants_offline(environment):
        raise _refusal("offline", **values)
    if not show_address(address):
        raise _refusal("endpoint", **values)
    token = choose_token(mirror, environment)
    child_environment = dict(environment) | {"HF_ENDPOINT": address} | token.changes
    answer = child.ask(PROGRAM, *words, environment=child_environment, patience_s=patience_s)
    kind, detail = answer.get("error", ""), str(answer.get("detail", ""))
    if not kind:
        return tuple(HubModel(**model) for model in answer["models"])
    if kind == "stalled":
        raise _refusal("slow", seconds=round(patience_s), **values)
    if kind in LOCKED and token.withheld:
        raise refuse_without_token(name, show_address(address), token)
    raise _refusal(kind if kind in KINDS else "ended", detail=literal(detail[:DETAIL].rstrip(". ")), **values)


def _refusal(kind: str, **values: object) -> StudioError:
    return StudioError(*(text(f"hub.{kind}{part}", **values) for part in ("", ".why", ".fix")))


# The child -----------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Answer on standard output and return the exit code."""
    end_with_parent()
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
    )

    try:
        with redirect_stdout(sys.stderr):  # what a library prints is no answer
            one = len(arguments) == 2 and arguments[0] == "--facts"
            models = [ask_facts(arguments[1])] if one else ask_list(arguments[0])
        say({"models": models})
        return 0
    except GatedRepoError as error:
        kind, reason = "gated", error
    except (RepositoryNotFoundError, HFValidationError) as error:
        kind, reason = "missing", error
    except HfHubHTTPError as error:
        status = error.response.status_code
        kind, reason = {401: "login", 403: "login", 429: "limit"}.get(status, "unreachable"), error
    except (HTTPError, OSError, ValueError) as error:
        kind, reason = "unreachable", error
    say_error(kind, reason)
    return 1


def ask_list(words: str) -> list[dict[str, Any]]:
    """Return the hub's most downloaded text models that match, as HubModel's fields, with configs as far as they come.

    Raises what the hub library raises.
    """
    query = {"search": words, "filter": "text-generation", "sort": "downloads", "limit": str(LIMIT)}
    found = read_json("/api/models", LIST_BYTES, query | {"expand": list(EXPAND)})
    if not isinstance(found, list):
        raise ValueError("its answer is no list of models")
    models = [describe(entry) for entry in found[:LIMIT] if isinstance(entry, dict)]
    open_ones = [model["source"] for model in models if model["safetensors"] and not model["gated"]]
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(try_config, source) for source in open_ones]
        done, late = wait(futures, ANSWER_S)
        for future in late:
            future.cancel()
    configs = dict(future.result() for future in done)
    return [model | {"config": configs.get(model["source"], {})} for model in models]


def ask_facts(source: str) -> dict[str, Any]:
    """Return one model as HubModel's fields. Raises what the hub library raises, for a model behind a login too."""
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(source)
    model = describe(read_object(f"/api/models/{source}", LIST_BYTES, {"expand": list(EXPAND)}))
    config = read_object(f"/{source}/resolve/main/config.json", CONFIG_BYTES)
    if model["safetensors"] and not model["weight_bytes"]:
        try:
            index = read_object(f"/{source}/resolve/main/model.safetensors.index.json", INDEX_BYTES)
        except EntryNotFoundError:
            index = {}  # one file, whose size only a download tells
        metadata = index.get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, dict) else 0
        model["weight_bytes"] = int(size) if isinstance(size, (int, float)) else 0
    return model | {"config": config}


def try_config(source: str) -> tuple[str, dict[str, Any]]:
    """Return the id and its config.json, {} where that cannot be read: the model is then listed without."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        return source, read_object(f"/{source}/resolve/main/config.json", CONFIG_BYTES)
    except (HfHubHTTPError, HTTPError, OSError, ValueError):
        return source, {}


def describe(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return HubModel's fields of a model as the hub's list has it, without the config."""
    tags = [str(tag) for tag in entry.get("tags") or ()]
    stored = entry.get("safetensors") or {}
    counts = {str(kind): int(count) for kind, count in (stored.get("parameters") or {}).items()}
    return {
        "source": str(entry.get("id") or entry.get("modelId") or ""),
        "parameters": int(stored.get("total") or sum(counts.values())),
        "weight_bytes": sum(STORED_BYTES.get(kind, 1) * count for kind, count in counts.items()),
        "downloads": int(entry.get("downloads") or 0),
        "likes": int(entry.get("likes") or 0),
        "licence": next((tag[8:] for tag in tags if tag.startswith("license:")), "")[:60],
        "gated": bool(entry.get("gated")),
        "safetensors": bool(counts) or "safetensors" in tags,
    }


def read_object(path: str, most_bytes: int, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON object at `path`; ValueError for other JSON, otherwise as read_json."""
    found = read_json(path, most_bytes, query)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no JSON object")
    return found


def read_json(path: str, most_bytes: int, query: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON at `path` of the hub, asked for once: somebody waits for the answer.

    Raises ValueError for more than `most_bytes` or something else than JSON, otherwise what the hub library raises.
    """
    from huggingface_hub import get_session
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    options = {"headers": build_hf_headers(), "follow_redirects": True, "timeout": ANSWER_S}
    with get_session().stream("GET", ENDPOINT + path, params=query, **options) as answer:
        hf_raise_for_status(answer)
        data = b""
        for part in answer.iter_bytes():
            data += part
            if len(data) > most_bytes:
                raise ValueError(f"{path} is larger than {most_bytes} bytes")
    return parse_json(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
