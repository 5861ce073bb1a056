"""The page on the real daemon: a conversation goes on after a restart, and nothing of it is read again.

With ``EMBERD_PICTURE=docs/chat.png`` the README's picture is taken on the way.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.models import smollm2_path

TEXT = """\
Summarise this in three short points.

Bread is among the oldest prepared foods. Flour and water become dough; left alone, it ferments, for
yeasts and lactic acid bacteria live in every flour. The yeasts eat the sugars that enzymes cut from the
starch and give off carbon dioxide and a little alcohol. Two proteins of wheat, glutenin and gliadin, join
when they are wetted and kneaded into a stretchy net called gluten. The gas cannot leave that net, so it
blows up many small bubbles and the dough rises. Warmth makes the yeasts quick, cold makes them slow, and
a slow dough tastes better, because the bacteria have time to make acids and other flavours. In the oven
the gas expands once more, the alcohol and some of the water boil, and the loaf springs up during the
first minutes. Then the proteins set, the starch swells and stiffens, and the crumb keeps its shape. On
the outside the water is gone, it becomes hotter than boiling water, and sugars and proteins brown: the
crust and most of the smell of fresh bread come from there. Salt tightens the net and slows the yeasts,
fat makes the crumb soft, and steam in the oven keeps the skin of the loaf soft so that it can spring
before it sets."""

READY_SECONDS = 180


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def emberd(port: int, state: Path) -> Iterator[None]:
    """The daemon on `port`, asked to stop at the end as a service manager would."""
    command = [Path(sys.executable).with_name("emberd"), "-m", smollm2_path(), "-c", "4096", "-np", "1"]
    with (state / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--store-path", state / "store"], stdout=log, stderr=log
        )
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1100, "height": 760})
    yield page
    page.context.close()


def ask(page: Page, text: str) -> None:
    """Send the text and wait until its answer has ended."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=READY_SECONDS * 1000)
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.slow
def test_a_conversation_goes_on_after_a_restart_without_reading_it_again(tab: Page, tmp_path: Path) -> None:
    port = free_port()
    cost = tab.get_by_role("article", name="emberd").locator(".cost")
    with emberd(port, tmp_path):
        wait_until_listening(port)
        tab.goto(f"http://127.0.0.1:{port}/")
        ask(tab, TEXT)
        _, first_prompt = counts(cost.last.inner_text())
    with emberd(port, tmp_path):
        # The page is still open: it waits for the daemon by itself.
        ask(tab, "And which of them matters most?")
        expect(cost.last).to_have_text(re.compile("prompt tokens cached, from the store"))
        cached, prompt = counts(cost.last.inner_text())
        # A sampled answer may split into other tokens when it is read as text; the first question may not.
        assert 256 < first_prompt <= cached < prompt
        if picture := os.environ.get("EMBERD_PICTURE"):
            tab.screenshot(path=picture)


def counts(cost: str) -> tuple[int, int]:
    """The cached tokens and all tokens of the prompt, as the line under an answer tells them."""
    found = re.search(r"([\d,]+) of ([\d,]+) prompt", cost)
    assert found is not None
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


def wait_until_listening(port: int) -> None:
    """A browser gives up at once on a port where nobody listens; a page that is open does not."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the daemon did not listen")
