"""A stand-in for the hub on this machine that takes repositories: whoami, create, preupload, LFS, commit."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "Secret0123456789" * 2


class Hub:
    """What the server holds, and what it was sent."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Any]] = {}
        self.blobs: dict[str, bytes] = {}
        self.sent: list[tuple[str, str, bytes]] = []
        """(method, path, body) of each request."""
        self.authorisations: list[tuple[str, str]] = []
        self.cut_after = -1
        """So many uploads of large files are taken; the next one's connection is cut in its middle."""
        self.full = False
        self.wait_s = 0.0
        """So long an upload of a large file is left without an answer, or until this is 0 again."""
        self.waiting = False
        """Whether one is."""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(self))
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, name="hub-server", daemon=True).start()

    def uploads(self) -> int:
        """Return how many large files were sent whole."""
        return sum(path.startswith("/put/") for method, path, _ in self.sent if method == "PUT")

    def close(self) -> None:
        """End the server."""
        self.server.shutdown()
        self.server.server_close()


def _make_handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def _answer(self, value: Any, status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _read_chunks(self) -> bytes:
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _handle(self) -> None:
            path, method = self.path.partition("?")[0], self.command
            size = int(self.headers.get("Content-Length") or 0)
            if path.startswith("/put/") and hub.cut_after == hub.uploads():
                hub.cut_after = -1
                self.rfile.read(size // 2)
                self.connection.close()
                return
            body = (
                self._read_chunks()
                if self.headers.get("Transfer-Encoding") == "chunked"
                else self.rfile.read(size)
            )
            until_s = time.monotonic() + hub.wait_s
            while path.startswith("/put/") and time.monotonic() < until_s and hub.wait_s:
                hub.waiting = True
                time.sleep(0.02)
            if path.startswith("/put/") and hub.waiting:
                hub.waiting = False
                self.close_connection = True
                return
            hub.sent.append((method, path, body))
            hub.authorisations.append((path, self.headers.get("Authorization", "")))
            if not path.startswith("/put/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._answer({"error": f"Invalid token {self.headers.get('Authorization')}"}, 401)
            if path == "/api/whoami-v2":
                return self._answer({"name": "me", "type": "user", "orgs": []})
            if path == "/api/validate-yaml":  # of the card's head
                return self._answer({"errors": [], "warnings": []})
            if path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked.get('organization') or 'me'}/{asked['name']}"
                if name in hub.repos:
                    return self._answer({"error": "exists", "url": f"{hub.address}/{name}"}, 409)
                hub.repos[name] = {"private": asked.get("visibility", "public") == "private", "files": {}}
                return self._answer({"url": f"{hub.address}/{name}", "name": name})
            if path.startswith("/put/"):
                if hub.full:
                    return self._answer({"error": "no space left"}, 507)
                digest = hashlib.sha256(body).hexdigest()
                assert digest == path.removeprefix("/put/")
                hub.blobs[digest] = body
                return self._answer({})
            if re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/main", path):
                return self._answer({"files": [_sort(one) for one in json.loads(body)["files"]]})
            if re.fullmatch(r"/[^/]+/[^/]+\.git/info/lfs/objects/batch", path):
                objects = [one | _where(hub, one["oid"]) for one in json.loads(body)["objects"]]
                return self._answer({"transfer": "basic", "objects": objects})
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
                return self._commit(hub.repos[found.group(1)]["files"], body)
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/main)?", path)
            if found and found.group(1) in hub.repos:
                return self._answer(_describe(found.group(1), hub.repos[found.group(1)]))
            return self._answer({"error": "missing"}, 404)

        def _commit(self, files: dict[str, Any], body: bytes) -> None:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = (base64.b64decode(line["value"]["content"]), False)
                elif line["key"] == "lfsFile":
                    files[line["value"]["path"]] = (hub.blobs[line["value"]["oid"]], True)
            told = {"success": True, "commitOid": "1" * 40, "commitUrl": f"{hub.address}/me/x/commit/1"}
            self._answer(told | {"pullRequestUrl": None})

        do_GET = do_POST = do_PUT = do_HEAD = _handle

    return Handler


def _sort(file: dict[str, Any]) -> dict[str, Any]:
    """Return how a file is to be sent: beyond 3,000 bytes by LFS."""
    return {
        "path": file["path"],
        "uploadMode": "lfs" if file["size"] > 3000 else "regular",
        "shouldIgnore": False,
    }


def _where(hub: Hub, oid: str) -> dict[str, Any]:
    """Return where a large file is sent; nothing for one that is here."""
    return {} if oid in hub.blobs else {"actions": {"upload": {"href": f"{hub.address}/put/{oid}"}}}


def _describe(name: str, repo: dict[str, Any]) -> dict[str, Any]:
    siblings = []
    for file, (data, lfs) in repo["files"].items():
        one = {
            "rfilename": file,
            "size": len(data),
            "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
        }
        if lfs:
            one["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 1}
        siblings.append(one)
    told = {"id": name, "modelId": name, "private": repo["private"], "sha": "0" * 40, "siblings": siblings}
    return told | {"tags": [], "downloads": 0, "likes": 0}


def open_hub(monkeypatch) -> Hub:
    """Return a server of its own, with its address and token in the environment; who asks closes it."""
    found = Hub()
    monkeypatch.setenv("HF_ENDPOINT", found.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("FINETUNE_STUDIO_OFFLINE", "0")  # HF_HUB_OFFLINE is the tests' own
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", raising=False)
    return found
