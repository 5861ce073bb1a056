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

STORY = """\
The keeper had trimmed the lamp every evening for thirty-one years, and every evening he had written one
line in the book: the wind, the sea, the ships. On the night of the first autumn storm he wrote nothing,
for the glass on the west side broke at nine, and the rain came in sideways, and he held the lamp alight
with his coat around it and his back to the gap until the morning. He sang, to stay awake, everything that
he knew, first the hymns, then the songs of the harbour, then the ones that his daughter had made up when
she was small, about a crab who wanted to be king. Towards four he saw the lights of a boat, low in the
water, turning away from the rocks. He could not tell whose it was. He sang the song of the crab again.
When the sun came up the sea was flat and brown and full of branches, and on the stones below the tower
sat a woman in oilskins, wringing out her hat. She had rowed the last mile. She looked up, and he saw that
it was his daughter, and that she was laughing. The whole way in, she said, she had steered by the light,
but in the dark behind the point, where no light reaches, she had steered by that terrible song. He made
tea. Then he took the book, and under the date he wrote: wind west, sea high, one ship, home."""

READY_SECONDS = 180


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def emberd(port: int, state: Path) -> Iterator[None]:
    """The daemon on `port`, asked to stop at the end as a service manager would."""
    command = [Path(sys.executable).with_name("emberd"), "-m", smollm2_path()]
    command += ["--alias", "SmolLM2 135M Instruct", "-c", "4096", "-np", "1", "--temp", "0", "-n", "120"]
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


def ask(page: Page, text: str) -> str:
    """Send the text, wait until its answer has ended, and return the line that tells what it cost."""
    answers = page.get_by_role("article", name="emberd")
    before = answers.count()
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()
    cost = answers.nth(before).locator(".cost")
    expect(cost).to_contain_text("prompt tokens", timeout=READY_SECONDS * 1000)
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    return cost.inner_text()


@pytest.mark.slow
def test_a_conversation_goes_on_after_a_restart_without_reading_it_again(tab: Page, tmp_path: Path) -> None:
    port, story = free_port(), STORY.replace("\n", " ")
    with emberd(port, tmp_path):
        wait_until_listening(port)
        tab.goto(f"http://127.0.0.1:{port}/")
        cost = ask(tab, f"Read this story:\n\n{story}\n\nWhat is a good title for it?")
        _, first_prompt = counts(cost)
    with emberd(port, tmp_path):
        # The page is still open: it waits for the daemon by itself.
        cost = ask(tab, "Who was in the boat?")
        assert "prompt tokens cached, from the store" in cost
        cached, prompt = counts(cost)
        # An answer may split into other tokens when it is read as text; the question before it may not.
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
