"""What a reader sets on the page, and questions that are asked again in other words."""

import re
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.daemon.harness import until
from tests.webui.stub import MODEL, Answer, StubDaemon, answer
from tests.webui.test_chat import answers, ask, conversations, questions, wait_until_kept


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Settings")


def choose(page: Page, **values: str) -> None:
    page.get_by_role("button", name="Settings").click()
    for label, value in values.items():
        dialog(page).get_by_label(label.replace("_", " ")).fill(value)
    dialog(page).get_by_role("button", name="Save").click()
    expect(dialog(page)).not_to_be_visible()


def edit(page: Page, question: str, text: str) -> None:
    article = page.get_by_role("article", name="You").filter(has_text=question)
    article.hover()
    article.get_by_role("button", name="Edit").click()
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


@pytest.fixture
def locked(browser: Browser) -> Iterator[tuple[Page, StubDaemon]]:
    """A page on a daemon that asks for a key. What is refused is reported by Chromium as an error."""
    stub = StubDaemon()
    stub.key = "opensesame"
    page = browser.new_page()
    page.goto(stub.url)
    yield page, stub
    page.context.close()
    stub.close()


def test_a_key_is_asked_for_and_kept(locked: tuple[Page, StubDaemon]) -> None:
    page, daemon = locked
    expect(dialog(page)).to_contain_text("emberd asks for a key.")
    expect(dialog(page).get_by_label("API key")).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(dialog(page)).to_contain_text("emberd does not know this key.")
    dialog(page).get_by_label("API key").fill(daemon.key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text(MODEL)
    daemon.answers = [answer("come in")]
    ask(page, "may I?")
    expect(answers(page)).to_contain_text("come in")
    wait_until_kept(page, 1)
    page.reload()
    expect(page.get_by_role("status")).to_have_text(MODEL)
    expect(dialog(page)).not_to_be_visible()
    page.once("dialog", lambda question: question.accept())
    page.get_by_role("button", name="Delete: may I?").click()
    until(lambda: bool(daemon.forgotten))


def test_settings_go_with_every_request_from_then_on(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("one"), answer("two")]
    ask(page, "first")
    expect(answers(page)).to_contain_text("one")
    assert not {"temperature", "max_tokens"} & daemon.bodies[0].keys()
    choose(page, Temperature="0.5", Max_tokens="40")
    page.reload()
    ask(page, "second")
    expect(answers(page).last).to_contain_text("two")
    assert (daemon.bodies[1]["temperature"], daemon.bodies[1]["max_tokens"]) == (0.5, 40)


def test_what_was_not_saved_is_not_used(page: Page, daemon: StubDaemon) -> None:
    page.get_by_role("button", name="Settings").click()
    dialog(page).get_by_label("Temperature").fill("2")
    page.keyboard.press("Escape")
    daemon.answers = [answer("one")]
    ask(page, "first")
    expect(answers(page)).to_contain_text("one")
    assert "temperature" not in daemon.bodies[0]
    page.get_by_role("button", name="Settings").click()
    expect(dialog(page).get_by_label("Temperature")).to_have_value("")


def test_a_system_message_begins_new_conversations_and_stays_with_them(
    page: Page, daemon: StubDaemon
) -> None:
    daemon.answers = [answer("plain"), answer("arr"), answer("arr again"), answer("plain again")]
    ask(page, "before")
    expect(answers(page)).to_contain_text("plain")
    choose(page, System_message="Talk like a pirate.")
    page.get_by_role("button", name="New conversation").click()
    ask(page, "hello")
    expect(answers(page)).to_contain_text("arr")
    expect(page.get_by_role("button", name="hello", exact=True)).to_be_visible()
    choose(page, System_message="Talk like a poet.")
    ask(page, "more")
    expect(answers(page).last).to_contain_text("arr again")
    wait_until_kept(page, 2)
    page.reload()
    page.get_by_role("log").get_by_text("System message").click()
    expect(page.get_by_text("Talk like a pirate.")).to_be_visible()
    page.get_by_role("button", name="before", exact=True).click()
    ask(page, "after")
    expect(answers(page).last).to_contain_text("plain again")
    firsts = [messages[0] for messages in daemon.requests]
    pirate = {"role": "system", "content": "Talk like a pirate."}
    assert firsts[1:3] == [pirate, pirate]
    assert [first["content"] for first in (firsts[0], firsts[3])] == ["before", "before"]


def test_deleting_forgets_one_conversation_and_not_all_with_its_system_message(
    page: Page, daemon: StubDaemon
) -> None:
    choose(page, System_message="Be brief.")
    daemon.answers = [answer("yes")]
    ask(page, "secret")
    expect(answers(page)).to_contain_text("yes")
    page.once("dialog", lambda question: question.accept())
    page.get_by_role("button", name="Delete: secret").click()
    until(lambda: bool(daemon.forgotten))
    assert daemon.forgotten == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "secret"}]
    ]


def test_a_question_asked_in_other_words_takes_the_place_of_what_followed(
    page: Page, daemon: StubDaemon
) -> None:
    daemon.answers = [answer("first"), answer("second"), answer("third")]
    ask(page, "one")
    expect(answers(page)).to_contain_text("first")
    ask(page, "two")
    expect(answers(page).last).to_contain_text("second")
    edit(page, "two", "too")
    expect(answers(page).last).to_contain_text("third")
    expect(answers(page)).to_have_count(2)
    assert [message["content"] for message in daemon.requests[2]] == ["one", "first", "too"]
    assert daemon.forgotten == []
    wait_until_kept(page, 1)
    page.reload()
    expect(questions(page)).to_have_text(["one", "too"])


def test_another_first_question_names_the_conversation_anew_and_the_old_one_is_forgotten(
    page: Page, daemon: StubDaemon
) -> None:
    daemon.answers = [answer("first"), answer("second")]
    ask(page, "one")
    expect(answers(page)).to_contain_text("first")
    edit(page, "one", "uno")
    expect(answers(page)).to_contain_text("second")
    expect(conversations(page)).to_have_text([re.compile("^uno")])
    until(lambda: bool(daemon.forgotten))
    assert daemon.forgotten == [[{"role": "user", "content": "one"}]]


def test_editing_can_be_given_up_and_waits_for_the_answer(page: Page, daemon: StubDaemon) -> None:
    gate = threading.Event()
    daemon.answers = [answer("slow answer", gate=gate)]
    ask(page, "one")
    expect(answers(page)).to_contain_text("slow")
    page.get_by_role("article", name="You").hover()
    expect(page.get_by_role("button", name="Edit")).not_to_be_visible()
    gate.set()
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Your message").fill("other")
    page.keyboard.press("Escape")
    expect(page.get_by_role("article", name="You")).to_contain_text("one")
    assert len(daemon.requests) == 1


def test_reading_a_long_prompt_tells_how_far_it_is(page: Page, daemon: StubDaemon) -> None:
    gate = threading.Event()
    read = [(3000, 500, 500), (3000, 500, 1524)]
    daemon.answers = [Answer(["done"], gate=gate, before_gate=0, progress=read)]
    ask(page, "long")
    expect(answers(page)).to_contain_text("Reading: 1,524 of 3,000 tokens")
    assert daemon.bodies[0]["return_progress"] is True
    gate.set()
    expect(answers(page)).to_contain_text("done")
    expect(answers(page)).not_to_contain_text("Reading")


def test_a_prompt_that_is_remembered_is_not_reported(page: Page, daemon: StubDaemon) -> None:
    gate = threading.Event()
    daemon.answers = [Answer(["done"], gate=gate, before_gate=0, progress=[(3000, 2900, 2900)])]
    ask(page, "short")
    expect(answers(page)).to_have_count(1)
    page.wait_for_timeout(200)
    expect(answers(page)).not_to_contain_text("Reading")
    gate.set()
    expect(answers(page)).to_contain_text("done")
