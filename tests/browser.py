"""The browser of the page's tests: the machine's own Chromium, driven by Playwright."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

# The network beyond this machine may be closed: Chromium's own services would only wait for it. The sandbox
# needs user namespaces, which containers and root do not have.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> Path:
    """Path of the browser: $EMBERD_CHROMIUM, else the first of its usual names on the path.

    Without one the calling test is skipped, or fails when ``CI=true``.
    """
    found = os.environ.get("EMBERD_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found:
        return Path(found)
    message = "no Chromium found: install one (Debian: apt install chromium) or set EMBERD_CHROMIUM"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def launch(playwright: Playwright) -> Browser:
    """A headless browser with an empty profile."""
    return playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
