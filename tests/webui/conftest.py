"""A real browser on the page, and rules that hold in every test of it."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser import launch
from tests.webui.stub import StubDaemon

expect.set_options(timeout=30_000)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def daemon() -> Iterator[StubDaemon]:
    stub = StubDaemon()
    yield stub
    stub.close()


@pytest.fixture
def page(browser: Browser, daemon: StubDaemon) -> Iterator[Page]:
    """The page, open. In the end no request may have left the origin, and no script or policy failed."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(30_000)
    complaints: list[str] = []
    foreign: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    origin = urlsplit(daemon.url).netloc
    page.on(
        "request",
        lambda request: foreign.append(request.url) if urlsplit(request.url).netloc != origin else None,
    )
    page.goto(daemon.url)
    yield page
    context.close()
    assert foreign == []
    # Chromium logs each refused request as an error of its own; the tests that provoke them look at the page.
    assert [line for line in complaints if not line.startswith("Failed to load resource")] == []
