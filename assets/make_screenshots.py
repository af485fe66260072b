"""Makes a picture of every screen, in both languages, light and dark: `python assets/make_screenshots.py --out FOLDER`.

Needs what the tests need (Playwright and a Chromium). It starts the studio in a workspace of its own, trains the demo
there, and looks at each tab; `--readme` also renews the READMEs' pictures. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
README = {"en": "screenshot.png", "zh-CN": "screenshot.zh-CN.png"}
README_HEIGHT = 1000
"""So much of the Training tab shows a run with its curves."""
SIZES = {"wide": (1280, 720), "phone": (390, 844)}
SETTLE_MS = 2500
"""Cards that are filled in after a tab is opened are there by then; the doctor's probes take longer."""
SLOW_MS = {"doctor": 12_000, "dataset": 5000}


@contextmanager
def open_studio(workspace: Path, language: str) -> Iterator[str]:
    """Run the studio in `workspace` and yield its address with a token that nobody has used yet."""
    command = [
        sys.executable,
        str(ROOT / "launch.py"),
        "--here",
        "--no-browser",
        "--workspace",
        str(workspace),
    ]
    environment = os.environ | {"FINETUNE_STUDIO_LANGUAGE": language}
    with (workspace / "studio.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=workspace)
        try:
            address = workspace / "address.json"
            deadline_s = time.monotonic() + 60
            while not address.exists():
                if process.poll() is not None or time.monotonic() > deadline_s:
                    sys.exit((workspace / "studio.log").read_text(encoding="utf-8"))
                time.sleep(0.1)
            yield json.loads(address.read_text(encoding="utf-8"))["url"]
        finally:
            process.terminate()
            process.wait(30)


def train_demo(workspace: Path) -> None:
    """Train the demo in `workspace` once, so that every screen has something to show."""
    command = [sys.executable, str(ROOT / "launch.py"), "--here", "demo", "--workspace", str(workspace)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def take(page, tab: str, path: Path, *, height: int = 0) -> None:
    """Open `tab` and write its picture: all of it, or what stands in its first `height` pixels."""
    page.evaluate(f"window.studio.go('{tab}')")
    page.wait_for_selector(f"#tab-{tab}", state="visible")
    page.wait_for_timeout(SLOW_MS.get(tab, SETTLE_MS))
    clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height} if height else None
    page.screenshot(path=str(path), full_page=True, clip=clip)


def main() -> None:
    """Write the pictures that the command line asks for."""
    sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]  # Python puts this file's own folder there
    from playwright.sync_api import sync_playwright

    from studio.ui.app import TABS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--tabs", default=",".join(TABS))
    parser.add_argument("--languages", default=",".join(README))
    parser.add_argument("--sizes", default="wide")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="screens-") as folder, sync_playwright() as playwright:
        workspace = Path(folder)
        train_demo(workspace)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for language in options.languages.split(","):
            with open_studio(workspace, language) as url:
                state = None
                for size in options.sizes.split(","):
                    for scheme in ("light", "dark"):
                        width, height = SIZES[size]
                        context = browser.new_context(
                            viewport={"width": width, "height": height},
                            color_scheme=scheme,
                            locale=language,
                            storage_state=state,
                        )
                        page = context.new_page()
                        page.goto(url)
                        page.wait_for_selector("body[data-ready]")
                        url, state = url.split("?")[0], context.storage_state()
                        for tab in options.tabs.split(","):
                            take(page, tab, options.out / f"{language}-{size}-{scheme}-{tab}.png")
                        if options.readme and (size, scheme) == ("wide", "light"):
                            take(page, "training", ROOT / "assets" / README[language], height=README_HEIGHT)
                        context.close()
        browser.close()


if __name__ == "__main__":
    main()
