"""The chat page in a real browser, against a stand-in that streams what the test says."""

import re
import threading

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.daemon.harness import until
from tests.webui.stub import LOADING, MODEL, Answer, StubDaemon, answer


def ask(page: Page, text: str) -> None:
    """Send the text once the answer on show has ended: before, nothing is sent."""
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="emberd")


def questions(page: Page) -> Locator:
    return page.get_by_role("article", name="You").get_by_role("paragraph")


def conversations(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Conversations").get_by_role("listitem")


def wait_until_kept(page: Page, count: int) -> None:
    """Wait until the browser's database holds `count` conversations whose last message has its timings."""
    page.wait_for_function(
        """(count) => new Promise((resolve) => {
            const opening = indexedDB.open("emberd");
            opening.onsuccess = () => {
                const reading = opening.result.transaction("messages").objectStore("messages").getAll();
                reading.onsuccess = () => {
                    opening.result.close();
                    resolve(reading.result.filter((messages) => messages.at(-1).timings).length === count);
                };
            };
        })""",
        arg=count,
    )


def stop_timers(page: Page) -> None:
    """What the page takes back after a while stays: a slow machine would look too late."""
    page.evaluate("window.setTimeout = () => 0")


def test_the_model_served_is_named(page: Page) -> None:
    expect(page.get_by_role("status")).to_have_text(MODEL)


def test_an_answer_streams_as_markdown(page: Page, daemon: StubDaemon) -> None:
    gate = threading.Event()
    daemon.answers = [answer("Some **bold** words\n\n- one\n- two", gate=gate, before_gate=2)]
    ask(page, "hello")
    expect(answers(page).locator("strong")).to_have_text("bold")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    assert answers(page).locator("li").count() == 0
    gate.set()
    expect(answers(page).locator("li")).to_have_text(["one", "two"])
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert daemon.requests == [[{"role": "user", "content": "hello"}]]


def test_code_tables_and_task_lists_are_shown(page: Page, daemon: StubDaemon) -> None:
    text = "```python\nprint('<b>')\n```\n\n| a | b |\n|--:|---|\n| 1 | 2 |\n\n- [x] done\n"
    daemon.answers = [Answer([text])]
    ask(page, "show")
    expect(answers(page).locator("pre code.language-python")).to_have_text("print('<b>')\n")
    expect(answers(page).locator("td")).to_have_text(["1", "2"])
    expect(answers(page).locator("input[type=checkbox][disabled]")).to_be_checked()


def test_code_can_be_copied_without_the_words_around_it(page: Page, daemon: StubDaemon) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    daemon.answers = [Answer(["Here:\n\n```python\nx = 1\n```\n\nand\n\n- item\n\n      plain\n"])]
    ask(page, "code")
    code = answers(page).locator(".code")
    expect(code).to_have_count(2)
    expect(code.first).to_contain_text("python")
    stop_timers(page)
    code.first.get_by_role("button", name="Copy").click()
    expect(code.first.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1\n"


@pytest.mark.parametrize("opened", ["<think>\n", ""], ids=["by the model", "by the template"])
def test_thoughts_are_folded_and_not_copied(page: Page, daemon: StubDaemon, opened: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    gate = threading.Event()
    daemon.answers = [
        Answer([opened + "Let me **see**.\n", "</think>\n\n", "It is *so*."], gate=gate, before_gate=1)
    ]
    ask(page, "why?")
    expect(answers(page)).to_contain_text("Thinking…" if opened else "Let me see")
    gate.set()
    expect(answers(page).locator(".prose")).to_have_text("It is so.")
    thoughts = answers(page).get_by_text("Let me **see**.")
    expect(thoughts).not_to_be_visible()
    answers(page).get_by_text("Thoughts").click()
    expect(thoughts).to_be_visible()
    stop_timers(page)
    answers(page).get_by_role("button", name="Copy").click()
    expect(answers(page).get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "It is *so*."


def test_each_answer_shows_speed_and_where_its_prompt_came_from(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("yes")]
    ask(page, "remember?")
    expect(answers(page).locator(".cost")).to_have_text(
        "57 tokens · 56 tokens/s · 1,498 of 1,510 prompt tokens cached, from the store"
    )


def test_stop_ends_the_stream_and_keeps_what_came(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("half an answer", gate=threading.Event(), before_gate=2), answer("more")]
    ask(page, "go")
    expect(answers(page)).to_contain_text("half an")
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("Stopped.")
    assert daemon.disconnected.wait(60), "the daemon must see that its client has gone"
    ask(page, "go on")
    expect(answers(page).last).to_contain_text("more")
    assert [message["content"] for message in daemon.requests[1]] == ["go", "half an ", "go on"]


def test_regenerate_replaces_the_last_answer(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("first"), answer("second"), answer("third")]
    ask(page, "one")
    expect(answers(page)).to_contain_text("first")
    ask(page, "two")
    expect(answers(page).last).to_contain_text("second")
    page.get_by_role("button", name="Regenerate").click()
    expect(answers(page).last).to_contain_text("third")
    expect(answers(page)).to_have_count(2)
    assert daemon.requests[2] == daemon.requests[1]
    assert [message["content"] for message in daemon.requests[2]] == ["one", "first", "two"]


def test_conversations_survive_a_reload(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("pong"), answer("ping")]
    ask(page, "first topic")
    expect(answers(page)).to_contain_text("pong")
    wait_until_kept(page, 1)
    page.get_by_role("button", name="New conversation").click()
    ask(page, "second topic")
    expect(answers(page)).to_contain_text("ping")
    wait_until_kept(page, 2)
    page.reload()
    expect(answers(page)).to_contain_text("ping")
    expect(conversations(page)).to_have_text([re.compile("second topic"), re.compile("first topic")])
    page.get_by_role("button", name="first topic", exact=True).click()
    expect(answers(page)).to_contain_text("pong")
    expect(answers(page).locator(".cost")).to_contain_text("1,498")


def test_an_answer_goes_on_while_another_conversation_is_on_show(page: Page, daemon: StubDaemon) -> None:
    gate = threading.Event()
    daemon.answers = [answer("slow answer", gate=gate)]
    ask(page, "slow one")
    expect(answers(page)).to_contain_text("slow")
    page.get_by_role("button", name="New conversation").click()
    expect(answers(page)).to_have_count(0)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.get_by_role("button", name="slow one", exact=True).click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    gate.set()
    expect(answers(page)).to_contain_text("slow answer")


def test_a_reload_in_the_middle_keeps_the_question(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("never ends", gate=threading.Event()), answer("ended")]
    ask(page, "a question")
    expect(answers(page)).to_contain_text("never")
    expect(conversations(page)).to_have_count(1)
    page.reload()
    expect(questions(page)).to_have_text("a question")
    page.get_by_role("button", name="Regenerate").click()
    expect(answers(page)).to_contain_text("ended")


def test_a_deleted_conversation_is_gone_after_a_reload(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("to be forgotten", gate=threading.Event())]
    ask(page, "secret")
    expect(answers(page)).to_contain_text("to")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete: secret").click()
    expect(conversations(page)).to_have_count(0)
    assert daemon.disconnected.wait(60)
    until(lambda: bool(daemon.forgotten))
    assert daemon.forgotten == [[{"role": "user", "content": "secret"}]]
    page.reload()
    expect(page.get_by_role("heading", name="What shall we talk about?")).to_be_visible()
    expect(conversations(page)).to_have_count(0)


def test_a_loading_model_is_waited_for(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [LOADING] * 1000
    ask(page, "are you there?")
    expect(answers(page)).to_contain_text("The model is loading…")
    daemon.answers = [answer("loaded now")]
    expect(answers(page)).to_contain_text("loaded now")
    expect(answers(page)).not_to_contain_text("loading…")
    assert len(daemon.requests) >= 2


def ask_twice(page: Page) -> None:
    """Have two conversations, "first" answered with "one" and, on show, "second" answered with "two"."""
    ask(page, "first")
    expect(answers(page)).to_contain_text("one")
    page.get_by_role("button", name="New conversation").click()
    ask(page, "second")
    expect(answers(page)).to_contain_text("two")
    wait_until_kept(page, 2)


SLOW_READS = """() => {
    const get = IDBObjectStore.prototype.get;
    IDBObjectStore.prototype.get = function (key) {
        const slow = {};
        get.call(this, key).onsuccess = ({ target }) =>
            setTimeout(() => { slow.result = target.result; slow.onsuccess(); }, 500);
        return slow;
    };
}"""


def test_a_question_asked_while_a_conversation_opens_belongs_to_it(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("one"), answer("two"), answer("three")]
    ask_twice(page)
    page.evaluate(SLOW_READS)
    page.get_by_role("button", name="first", exact=True).click()
    ask(page, "more")
    expect(questions(page)).to_have_text(["first", "more"])
    expect(answers(page).last).to_contain_text("three")


def test_of_two_conversations_opened_at_once_the_last_is_shown(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("one"), answer("two")]
    ask_twice(page)
    page.evaluate(SLOW_READS)
    page.get_by_role("button", name="first", exact=True).click()
    page.get_by_role("button", name="New conversation").click()
    page.wait_for_timeout(1000)
    expect(questions(page)).to_have_count(0)


BUSY_DISK = """() => new Promise((resolve) => {
    indexedDB.open("emberd").onsuccess = ({ target }) => {
        const store = target.result.transaction(["headers", "messages"], "readwrite").objectStore("headers");
        const end = performance.now() + 1000;
        const go = () => {
            if (performance.now() < end) store.get("").onsuccess = go;
            resolve();
        };
        go();
    };
})"""


def test_a_question_asked_while_a_conversation_is_deleted_begins_a_new_one(
    page: Page, daemon: StubDaemon
) -> None:
    daemon.answers = [answer("one"), answer("two")]
    ask(page, "first")
    expect(answers(page)).to_contain_text("one")
    wait_until_kept(page, 1)
    page.once("dialog", lambda dialog: dialog.accept())
    page.evaluate(BUSY_DISK)
    page.get_by_role("button", name="Delete: first").click()
    ask(page, "next")
    expect(answers(page)).to_contain_text("two")
    expect(questions(page)).to_have_text(["next"])
    expect(conversations(page)).to_have_text([re.compile("^next")])
    assert daemon.requests[1] == [{"role": "user", "content": "next"}]


def test_a_question_in_other_words_stays_in_its_conversation_while_another_is_opened(
    page: Page, daemon: StubDaemon
) -> None:
    daemon.answers = [answer("one"), answer("two"), answer("three")]
    ask_twice(page)
    page.get_by_role("article", name="You").hover()
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Your message").fill("other words")
    page.evaluate(SLOW_READS)
    page.evaluate(
        """() => {
            [...document.querySelectorAll("nav button.title")].find((e) => e.title === "first").click();
            const field = document.querySelector("form.rewording textarea");
            field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
        }"""
    )
    expect(questions(page)).to_have_text(["first"])
    until(lambda: len(daemon.requests) == 3)
    assert daemon.requests[2] == [{"role": "user", "content": "other words"}]
    page.get_by_role("button", name="other words", exact=True).click()
    expect(answers(page)).to_contain_text("three")


def test_a_click_on_a_conversation_is_not_lost_while_another_is_answered(
    page: Page, daemon: StubDaemon
) -> None:
    gate = threading.Event()
    daemon.answers = [answer("one"), answer("slow answer", gate=gate)]
    ask(page, "first")
    expect(answers(page)).to_contain_text("one")
    page.get_by_role("button", name="New conversation").click()
    ask(page, "second")
    expect(answers(page)).to_contain_text("slow")
    wait_until_kept(page, 1)
    expect(conversations(page)).to_have_count(2)
    page.get_by_role("button", name="first", exact=True).hover()
    page.mouse.down()
    gate.set()
    expect(answers(page)).to_contain_text("slow answer")
    wait_until_kept(page, 2)
    page.wait_for_timeout(100)
    page.mouse.up()
    expect(questions(page)).to_have_text(["first"])


def test_a_daemon_that_is_away_is_waited_for(page: Page, daemon: StubDaemon) -> None:
    expect(page.get_by_role("status")).to_contain_text(MODEL)
    daemon.away = True
    daemon.answers = [answer("back again")]
    ask(page, "still there?")
    expect(answers(page)).to_contain_text("emberd cannot be reached. Trying again…")
    expect(page.get_by_role("status")).to_contain_text("emberd cannot be reached")
    daemon.away = False
    expect(answers(page)).to_contain_text("back again")
    expect(page.get_by_role("status")).to_contain_text(MODEL)


def test_a_page_opened_while_the_model_loads_names_it_later(page: Page, daemon: StubDaemon) -> None:
    daemon.healthy = False
    page.reload()
    expect(page.get_by_role("status")).to_contain_text("the model is loading…")
    daemon.healthy = True
    expect(page.get_by_role("status")).to_contain_text(MODEL)


def test_waiting_can_be_stopped(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [LOADING] * 50
    ask(page, "hello?")
    expect(answers(page)).to_contain_text("The model is loading…")
    page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text("Stopped.")
    expect(answers(page)).not_to_contain_text("loading")


FULL = {
    "code": 400,
    "message": "request (5000 tokens) exceeds the available context size (4096 tokens)",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 5000,
    "n_ctx": 4096,
}


@pytest.mark.parametrize(
    ("planned", "shown"),
    [
        (Answer(status=400, error=FULL), "5,000 tokens"),
        (Answer(status=400, error={"code": 400, "message": "no", "type": "invalid_request_error"}), "no"),
        (Answer(["part "], error={"code": 500, "message": "it broke", "type": "server_error"}), "it broke"),
        (Answer(["part "], break_off=True), "The connection ended before the answer did."),
    ],
    ids=["context full", "refused", "error event in the stream", "connection ends"],
)
def test_errors_are_readable_and_can_be_tried_again(
    page: Page, daemon: StubDaemon, planned: Answer, shown: str
) -> None:
    daemon.answers = [planned, answer("better")]
    ask(page, "try")
    expect(answers(page).get_by_role("alert")).to_contain_text(shown)
    page.get_by_role("button", name="Regenerate").click()
    expect(answers(page)).to_contain_text("better")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_cut_off_answer_says_so(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("and so on", finish="length")]
    ask(page, "count")
    expect(answers(page)).to_contain_text("Cut off")


def test_a_question_whose_answer_failed_is_asked_as_one_with_the_next(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [Answer(status=500, error={"code": 500, "message": "oops"}), answer("fine")]
    ask(page, "one")
    expect(answers(page).get_by_role("alert")).to_contain_text("oops")
    ask(page, "two")
    expect(answers(page).last).to_contain_text("fine")
    assert daemon.requests[1] == [{"role": "user", "content": "one\n\ntwo"}]


HOSTILE = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'></svg>",
    "<iframe srcdoc='<script>parent.pwned = 1</script>'></iframe>",
    "[click](javascript:window.pwned=1)",
    "[data](data:text/html,<script>opener.pwned=1</script>)",
    "<a href='javascript:window.pwned=1'>click</a>",
    "![](http://192.0.2.1/seen.png)",
    "<img src='http://192.0.2.1/seen.png'>",
    "<style>body { display: none }</style>",
    "<div style='position:fixed;inset:0' id=composer>gone</div>",
    "<form action='http://192.0.2.1/'><input name=key type=password><button>ok</button></form>",
    "<base href='http://192.0.2.1/'><link rel=stylesheet href='http://192.0.2.1/x.css'>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=pwned=1&gt;'>",
    "<noscript><p title='</noscript><img src=x onerror=window.pwned=1>'>",
    "```html\n<script>window.pwned = 1</script>\n```",
    "<meta http-equiv=refresh content='0;url=http://192.0.2.1/'>",
    "<b onmouseover='window.pwned=1'>hover</b> ![x\" onerror=\"window.pwned=1](y)",
]


@pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "letter by letter"])
def test_hostile_output_is_inert(page: Page, daemon: StubDaemon, piecewise: bool) -> None:
    text = "\n\n".join(HOSTILE) + "\n\nthe end"
    daemon.answers = [Answer(list(text) if piecewise else [text])]
    ask(page, "attack")
    expect(answers(page)).to_contain_text("the end")
    prose = answers(page).locator(".prose")
    for link in prose.locator("a").all():
        assert re.match(r"https?://|$", link.get_attribute("href") or "")
        assert "noopener" in (link.get_attribute("rel") or "")
    forbidden = (
        "script, img, svg, iframe, style, form, base, link, meta, object, embed, math, [style], [id], [name]"
    )
    assert prose.locator(forbidden).count() == 0
    attributes = prose.evaluate(
        "node => [...node.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
        ".filter(name => name.startsWith('on'))"
    )
    assert attributes == []
    assert page.evaluate("window.pwned") is None
    expect(answers(page)).to_contain_text("<script>window.pwned = 1</script>")
    expect(page.get_by_label("Message", exact=True)).to_be_visible()


def test_the_sanitiser_holds_alone_where_a_tag_passes_as_text(browser: Browser, daemon: StubDaemon) -> None:
    # Not the `page` fixture: Chromium reports handlers in the sanitiser's inert copy as refused by policy.
    page = browser.new_page()
    page.goto(daemon.url)
    left = page.evaluate(
        """async (texts) => {
            const { render } = await import(new URL("markdown.js", document.baseURI));
            const holder = document.createElement("div");
            document.body.append(holder);
            for (const text of texts) {
                const raw = { type: "text", raw: text, text, escaped: true };
                holder.append(render({ type: "paragraph", raw: text, text, tokens: [raw] }));
            }
            return [...holder.querySelectorAll("*")].flatMap((e) => [
                e.localName, ...e.getAttributeNames(), e.getAttribute("href") ?? "https:"]);
        }""",
        HOSTILE,
    )
    assert page.evaluate("window.pwned") is None
    page.context.close()
    tags = {"p", "a", "b", "br", "code", "li", "ol", "table", "tbody", "td", "tr", "ul"}
    assert set(left) <= tags | {"href", "https:", "rel", "target", "title"}


def test_a_question_is_text_and_nothing_else(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("ok")]
    ask(page, "<img src=x onerror='window.pwned=1'> **not bold**")
    expect(questions(page)).to_have_text("<img src=x onerror='window.pwned=1'> **not bold**")
    assert page.evaluate("window.pwned") is None


def test_keyboard_alone_is_enough(page: Page, daemon: StubDaemon) -> None:
    daemon.answers = [answer("done")]
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("line one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line two")
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("done")
    assert daemon.requests == [[{"role": "user", "content": "line one\nline two"}]]
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    assert len(daemon.requests) == 1


def test_a_narrow_screen_has_everything(page: Page, daemon: StubDaemon) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    wide = "| " + " | ".join(f"column{n}" for n in range(12)) + " |\n|" + "---|" * 12
    daemon.answers = [answer("fits"), Answer([wide + "\n\n`" + "x" * 300 + "`\n\n" + "w" * 300 + " end"])]
    ask(page, "narrow")
    expect(answers(page)).to_contain_text("fits")
    navigation = page.get_by_role("navigation", name="Conversations")
    expect(navigation).not_to_be_visible()
    page.get_by_role("button", name="Conversations").click()
    expect(navigation).to_be_visible()
    page.keyboard.press("Escape")
    expect(navigation).not_to_be_visible()
    page.get_by_role("button", name="Conversations").click()
    page.get_by_role("button", name="New conversation").click()
    expect(navigation).not_to_be_visible()
    ask(page, "wide things")
    expect(answers(page)).to_contain_text("end")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.getElementById('scroller').scrollWidth") <= 360
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport()


def test_chosen_colours_are_kept(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Colours: as the system").click()
    page.get_by_role("button", name="Colours: light").click()
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
    dark = page.evaluate(background)
    assert dark != light
    page.get_by_role("button", name="Colours: dark").click()
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) == dark


def test_a_long_answer_is_followed_unless_the_reader_scrolled_up(page: Page, daemon: StubDaemon) -> None:
    gate = threading.Event()
    pieces = [f"paragraph {number}\n\n" for number in range(80)]
    daemon.answers = [Answer(pieces, gate=gate, before_gate=60)]
    ask(page, "long")
    expect(answers(page)).to_contain_text("paragraph 59")
    expect(answers(page).get_by_text("paragraph 59")).to_be_in_viewport()
    page.evaluate("document.getElementById('scroller').scrollTop = 0")
    gate.set()
    expect(answers(page)).to_contain_text("paragraph 79")
    assert page.evaluate("document.getElementById('scroller').scrollTop") == 0
    page.get_by_role("button", name="Go to the end").click()
    expect(answers(page).get_by_text("paragraph 79")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Regenerate")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Go to the end")).not_to_be_visible()


def test_everything_is_relative_so_a_path_prefix_works(browser: Browser) -> None:
    stub = StubDaemon(prefix="/ember/api")
    stub.answers = [answer("prefixed")]
    page = browser.new_page()
    try:
        page.goto(stub.url)
        expect(page.get_by_role("status")).to_contain_text(MODEL)
        ask(page, "hello")
        expect(answers(page)).to_contain_text("prefixed")
    finally:
        page.context.close()
        stub.close()
