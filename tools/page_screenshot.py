#!/usr/bin/env python3
"""Draws docs/data/page.png: the page of `thalweg serve` in headless Chromium, after a talk with the model in the box.

    python3 tools/page_screenshot.py build/release/bin/thalweg models/story-q4_k.gguf docs/data/page.png

Needs Playwright (PyPI) and Chromium.
"""

import shutil
import subprocess
import sys

from playwright.sync_api import sync_playwright

MESSAGES = (
    "Anna put the red ball in the kitchen. Tom took the lamp to the attic. Anna gave the book to Tom. "
    "Then Anna moved the red ball to the garden.",
    "Where is the red ball?",
    "And the lamp?",
)


def main():
    binary, model, picture = sys.argv[1:]
    command = [binary, "serve", "-m", model, "--device", "cpu", "--port", "0", "--log", "off"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = next(line.strip() for line in server.stdout if line.startswith("http://"))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1100, "height": 720})
            page.goto(address)
            for message in MESSAGES:
                box = page.get_by_role("textbox").last
                box.fill(message)
                box.press("Enter")
                page.wait_for_timeout(2500)
            page.screenshot(path=picture)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
