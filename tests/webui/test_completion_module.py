"""``completion.js`` in a browser, imported by a page that a user wrote for llama-server's."""

from pathlib import Path

from playwright.sync_api import Browser

from tests.daemon.harness import RunningDaemon

PAGE = """<!doctype html><title>mine</title><script type="module">
import { llama, llamaComplete, llamaEventTarget, llamaPromise } from "./completion.js";
const seen = (window.seen = { pieces: [], events: [] });
const params = { n_predict: 3, stop: [] };
const stream = llama("a", params);
for (let step = await stream.next(); ; step = await stream.next()) {
  if (step.done) { seen.returned = step.value; break; }
  seen.pieces.push(step.value.data.content);
}
seen.promised = await llamaPromise("a", params);
await llamaComplete({ prompt: "a", ...params }, undefined, (chunk) => { seen.last = chunk.data.stop; });
const target = llamaEventTarget("a", params);
for (const type of ["message", "timings", "generation_settings"])
  target.addEventListener(type, () => seen.events.push(type));
await new Promise((done) => target.addEventListener("done", done));
await llama("a", { n_predict: "x" }).next().catch((error) => { seen.error = error.message; });
const controller = new AbortController();
const endless = llama("a", { n_predict: 1e6 }, { controller });
await endless.next();
controller.abort();
seen.aborted = await endless.next().then(() => "", (error) => error.name);
document.title = "done";
</script>"""


def test_a_page_of_ones_own_streams_completions(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(PAGE)
    with RunningDaemon("-np", "1", "--path", str(tmp_path)) as daemon, browser.new_context() as context:
        page = context.new_page()
        page.goto(daemon.url)
        page.wait_for_function("document.title == 'done'")
        seen = page.evaluate("window.seen")
        assert daemon.engine.cancelled
    assert seen["pieces"] == [" w0", " w1", " w2", ""]
    assert seen["returned"] == seen["promised"] == " w0 w1 w2"
    assert seen["last"] is True
    assert seen["events"].count("message") == 4
    assert {"timings", "generation_settings"} <= set(seen["events"])
    assert "Field 'n_predict'" in seen["error"]
    assert seen["aborted"] == "AbortError"
