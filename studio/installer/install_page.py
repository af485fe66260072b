"""Shows an installation in a page of the person's browser instead of a black console, and turns into the studio.

A small server on the loopback interface, for this browser alone: the Host is checked, the address holds a token that
counts once, and a cookie takes its place. How far the installation is is read from its log. Standard library only,
imports nothing of studio, parses and runs on Python 3.8: launch.py loads it by its path before .venv exists.
"""

from __future__ import annotations

import hmac
import html
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ADDRESS_VARIABLE = "FINETUNE_STUDIO_ADDRESS_FILE"
"""Names the file in which somebody waits for the studio's address, and shows it themselves."""
PHASES = ("python", "venv", "download", "install", "check", "start")
COOKIE = "finetune_studio_install"
SILENCE_S = 45.0
"""A page that asks for nothing for so long is closed: a refusal is then told where the start was made."""
FOLLOW_S = 3.0
LOG_LINES = 200
LOG_BYTES = 400000
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def install_and_start(install, root, wishes, arguments, environment):
    """Install as `wishes` (the arguments of install.ensure) say while a page shows it; return the studio's process.

    None when no browser took the page, and nothing was done. Raises install.Refusal as show() does.
    """

    def ensure():
        python = install.ensure(root, **wishes)
        if wishes["again"]:
            install.finish(root, shortcut="--shortcut" in arguments)
        return python

    def start(python):
        if os.name == "nt":  # the studio is not to end with the installer's console
            python = Path(python).with_name("pythonw.exe")
        words = [] if wishes["again"] else arguments
        return [str(python), "-P", "-m", "studio.cli"] + words, environment

    window = install.load_file(Path(__file__).with_name("app_window.py"))
    return show(install, root, ensure, start, window.open_window)


def show(install, root, ensure, start, open_page):
    """Install by `ensure()` while a page shows how far it is, then start the studio and lead the page there.

    `install` is the module install.py, `start(python)` gives (command, environment) of the studio, `open_page(address)`
    says whether a browser took the page. Returns the studio's process; None when there is no browser, and nothing was
    done. Raises the Refusal that the person did not answer with another try.
    """
    page = InstallPage(install, root)
    try:
        if not open_page(page.address):
            return None
        while True:
            try:
                python = ensure()
                break
            except install.Refusal as refusal:
                if not page.ask_again(refusal):
                    raise
        return page.lead_on(*start(python))
    finally:
        page.close()


class InstallPage:
    """The server of the page; `state()` is what the page shows."""

    def __init__(self, install, root):
        self.root, self._say = Path(root), install.say
        self._log = self.root / install.LOG
        self._begin = self._log.stat().st_size if self._log.exists() else 0
        self._pins = count_pins(self.root)
        self._started_s = self._heard_s = time.monotonic()
        self._error, self._next, self._phase = None, "", ""
        self._again = threading.Event()
        self._followed = threading.Event()
        self._token, self._session = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.page = self
        self.port = self._server.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}/?token={self._token}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        """End the server."""
        self._server.shutdown()
        self._server.server_close()

    def state(self):
        """Return what the page shows, as JSON data."""
        words = self._read_log()
        found = read_progress(words, self._pins)
        found["phase"] = self._phase or found["phase"]
        found["elapsed_s"] = int(time.monotonic() - self._started_s)
        found["log"] = words.splitlines()[-LOG_LINES:]
        return dict(found, error=self._error, next=self._next)

    def ask_again(self, refusal):
        """Show `refusal` with a button for another try; return whether that was pressed."""
        self._error = [refusal.what, refusal.why, refusal.fix]
        while not self._again.wait(0.2):
            if self._is_silent():
                return False
        self._again.clear()
        self._begin = self._log.stat().st_size if self._log.exists() else 0
        self._error, self._started_s = None, time.monotonic()
        return True

    def lead_on(self, command, environment):
        """Start the studio, send the page to its address once that is known, and return the process.

        A slow first start is waited for as long as it lives and somebody looks; a studio that finds nobody waiting for
        its address any more shows itself.
        """
        self._phase = "start"
        folder = Path(tempfile.mkdtemp(prefix="finetune-studio-"))
        file = folder / "address"
        try:
            process = subprocess.Popen(command, env=dict(environment, **{ADDRESS_VARIABLE: str(file)}))
            while not file.exists() and process.poll() is None and not self._is_silent():
                time.sleep(0.05)
            if file.exists():
                self._next = file.read_text(encoding="utf-8").strip()
                self._followed.wait(FOLLOW_S)
            elif process.poll() is not None:
                id = "install.page.no_start"
                self._error = [self._say(self.root, id + part) for part in ("", ".why", ".fix")]
                self._followed.wait(FOLLOW_S)
            return process
        finally:
            shutil.rmtree(str(folder), ignore_errors=True)

    def render(self):
        """Return the page's HTML in the person's language."""
        page = (self.root / "assets" / "install.html").read_text(encoding="utf-8")
        blanks = {"done": "{done}", "total": "{total}", "package": "{package}"}

        def fill(match):
            return html.escape(self._say(self.root, match.group(1), **blanks))

        return re.sub(r"\{\{([a-z_.]+)\}\}", fill, page)

    def answer(self, method, path, headers):
        """Return (status, headers, body) of one request."""
        self._heard_s = time.monotonic()
        host = f"127.0.0.1:{self.port}"
        if headers.get("Host") != host:
            return 400, {}, b""
        path, _, query = path.partition("?")
        if method == "GET" and path == "/" and self._takes(query):
            cookie = f"{COOKIE}={self._session}; Path=/; HttpOnly; SameSite=Strict"
            return 303, {"Location": "/", "Set-Cookie": cookie}, b""
        known = re.search(COOKIE + r"=([\w-]+)", headers.get("Cookie", ""), re.ASCII)
        if not known or not hmac.compare_digest(known.group(1), self._session):
            return 401, {}, b""
        if method == "POST":
            if headers.get("Origin") != "http://" + host or path != "/again":
                return 403, {}, b""
            self._again.set()
            return 204, {}, b""
        if path == "/state":
            body = json.dumps(self.state()).encode("utf-8")
            if self._next or (self._error and self._phase == "start"):
                self._followed.set()
            return 200, {"Content-Type": "application/json"}, body
        if path == "/":
            return 200, {"Content-Type": "text/html; charset=utf-8"}, self.render().encode("utf-8")
        return 404, {}, b""

    def _is_silent(self):
        return time.monotonic() - self._heard_s > SILENCE_S

    def _takes(self, query):
        """Return whether `query` holds the token; it counts once."""
        token = query[len("token=") :] if query.startswith("token=") else ""
        if not self._token or not hmac.compare_digest(token.encode("utf-8"), self._token.encode("utf-8")):
            return False
        self._token = ""
        return True

    def _read_log(self):
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._begin, size - LOG_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:  # not yet begun
            return ""


def read_progress(words, pins):
    """Return {phase, package, done, total} from what an installation has logged so far.

    `pins` is how many packages there are about: pip says itself only when it has found all. The log is what
    install.py writes: `$ COMMAND` before each step, and below it what pip says.
    """
    found = {"phase": "python", "package": "", "done": 0, "total": pins}
    steps = re.split(r"^\$ ", words, flags=re.M)[1:]
    if not steps:
        return found
    last = steps[-1]
    command = last.partition("\n")[0]
    collected = set(re.findall(r"^Collecting ([\w.-]+)", words, re.M))
    fetched = re.findall(
        r"^ *(?:Downloading|Using cached|Processing) (\S+\.(?:whl|tar\.gz))(?: |$)", words, re.M
    )
    names = [_name(file) for file in fetched]
    found["done"] = len(set(names))
    found["total"] = max(pins, len(collected), found["done"])
    found["package"] = names[-1] if names else ""
    if " -m venv " in command:
        found["phase"] = "venv"
    elif "pip install" in command:
        installing = re.findall(r"^Installing collected packages: ", last, re.M)
        found["phase"] = "install" if installing else "download"
    elif "import studio" in command:
        found["phase"] = "check"
    else:
        found["phase"] = "download"
    return found


def count_pins(root):
    """Return about how many packages an installation brings: the pins, without those that only the tests need."""
    try:
        pins = (Path(root) / "constraints.txt").read_text(encoding="utf-8")
        tests = (Path(root) / "requirements-dev.txt").read_text(encoding="utf-8")
    except OSError:
        return 0
    return max(0, len(_names(pins)) - len(_names(tests) & _names(pins)))


def _names(requirements):
    return {name.lower() for name in re.findall(r"^([\w.-]+)(?=\s*[=<>~;\[]|$)", requirements, re.M)}


def _name(file):
    """Return the package that a file of pip's is of."""
    return file.replace("\\", "/").rsplit("/", 1)[-1].split("-")[0].replace("_", "-")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    page = None


class _Handler(BaseHTTPRequestHandler):
    """Hands each request to the page."""

    def _reply(self):
        status, headers, body = self.server.page.answer(self.command, self.path, self.headers)
        self.send_response(status)
        for name, value in dict(HEADERS, **headers).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Answer."""
        self._reply()

    def do_POST(self):
        """Answer; a body is not read."""
        self._reply()

    def log_message(self, *_):
        """Keep the console clean."""
