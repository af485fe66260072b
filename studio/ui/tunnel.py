"""A link from outside to one port of this machine, in a process of its own: `python -P -m studio.ui.tunnel PORT`.

It tells what becomes of it as JSON lines on standard output ({"pid"}, {"link"}, {"problem"}), ends when its standard
input does, which is when the supervisor is gone, and takes the program that holds the link along. That program is
Gradio's own client of its public relay, or the one that FINETUNE_STUDIO_TUNNEL names: it is started with the port as
its one argument and prints an https address. The relay's work is Gradio's (gradio.networking, gradio.tunneling); its
client is checked against Gradio's checksum before every start, not only when it was downloaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

TUNNEL_VARIABLE = "FINETUNE_STUDIO_TUNNEL"
LINK = re.compile(r"https://(?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d+)?(?=[/\s\"'|]|$)", re.IGNORECASE)


def main(arguments: list[str]) -> int:
    """Hold a link to the port until standard input or the program ends; return 1, as an end is a failure here."""
    port, program = int(arguments[0]), os.environ.get(TUNNEL_VARIABLE, "")
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    try:
        return _hold_program(program, port) if program else _hold_relay(port)
    finally:
        end_everything()


def find_link(line: str) -> str:
    """Return the https address in a line of a tunnel program's output; "" for none."""
    found = LINK.search(line)
    return found[0].lower() if found else ""


def end_everything() -> None:
    """Kill whatever this process started, and on POSIX itself with it: they are one group."""
    if os.name != "nt":
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        return
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    end_everything()
    os._exit(0)


def _hold_program(program: str, port: int) -> int:
    try:
        process = subprocess.Popen(
            [program, str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError:
        return _tell(problem="program")
    _tell(pid=process.pid)
    link = ""
    for raw in process.stdout:
        line = raw.decode("utf-8", "replace")
        print(line, end="", file=sys.stderr, flush=True)
        link = link or _tell_link(find_link(line))
    return _tell(problem="ended" if link else "relay")


def _hold_relay(port: int) -> int:
    # Importing Gradio takes two seconds: not before the process is known to be needed.
    import httpx
    from gradio import tunneling
    from gradio.exceptions import ChecksumMismatchError
    from gradio.networking import setup_tunnel

    client = Path(tunneling.BINARY_PATH)
    wanted = tunneling.CHECKSUMS.get(tunneling.BINARY_URL)
    if client.exists() and wanted and hashlib.sha256(client.read_bytes()).hexdigest() != wanted:
        client.unlink()  # damaged, or not Gradio's: it is fetched again
    try:
        link = setup_tunnel("127.0.0.1", port, secrets.token_urlsafe(32), None, None)
    except (OSError, ChecksumMismatchError, httpx.HTTPError) as error:
        print(error, file=sys.stderr, flush=True)
        client.unlink(missing_ok=True)  # half of it may be there
        return _tell(problem="download")
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
        return _tell(problem="relay")
    process = tunneling.CURRENT_TUNNELS[-1].proc
    _tell(pid=process.pid)
    _tell_link(find_link(link))
    # A pipe that nobody reads would stop it.
    threading.Thread(target=_drain, args=(process.stderr,), daemon=True).start()
    _drain(process.stdout)
    return _tell(problem="ended")


def _drain(lines: Iterable[bytes]) -> None:
    for _ in lines:
        continue


def _tell_link(link: str) -> str:
    if link:
        _tell(link=link)
    return link


def _tell(**values: object) -> int:
    print(json.dumps(values), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
