"""Downloads that are interrupted, damaged, redirected, slow, too large, or wanted twice at once."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.hub.conftest import REPO, Log
from tests.tools.hub.local_hub import File, LocalHub
from tools.errors import FetchError
from tools.hub import Hub, fetch_repo, fetch_url
from tools.hub.client import next_hop

NAME = "tiny-Q4_K_M.gguf"


def refused(hub: Hub, log: Log) -> str:
    with pytest.raises(FetchError) as caught:
        fetch_repo(hub, REPO, log.watch)
    message = str(caught.value)
    assert message.isprintable()
    assert not [path for path in hub.folder.rglob("*.gguf") if path.name == NAME]
    return message


def ranges(server: LocalHub) -> list[str]:
    return [one.headers.get("Range", "") for one in server.cdn_requests()]


def test_a_connection_that_breaks_is_gone_on_with(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log
) -> None:
    file.drop_after, file.drops = 100_000, 4
    assert fetch_repo(hub, REPO, log.watch).read_bytes() == content
    assert ranges(server) == ["", *(f"bytes={n * 100_000}-" for n in (1, 2, 3, 4))]
    assert "trying again" in log.text


def test_a_server_that_cannot_go_on_starts_over(hub: Hub, file: File, content: bytes, log: Log) -> None:
    file.ranges, file.drop_after, file.drops = False, 100_000, 1
    assert fetch_repo(hub, REPO, log.watch).read_bytes() == content


def test_a_download_that_always_ends_early_is_given_up_and_kept(
    hub: Hub, file: File, content: bytes, log: Log
) -> None:
    file.ranges, file.drop_after, file.drops = False, 100_000, 100
    message = refused(hub, log)
    assert f"after 100000 of {len(content)} bytes" in message
    assert [part.stat().st_size for part in hub.folder.rglob(".*.part")] == [100_000]


def test_a_server_without_lengths_that_ends_early(hub: Hub, file: File, content: bytes, log: Log) -> None:
    file.chunked, file.served = True, content[:-1]
    assert f"ended early after {len(content) - 1} of {len(content)} bytes" in refused(hub, log)


def test_silence_is_a_lost_connection(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log
) -> None:
    file.stall = 1.5
    hasty = replace(hub, patience=replace(hub.patience, read=0.5, attempts=100))
    assert fetch_repo(hasty, REPO, log.watch).read_bytes() == content
    assert "nothing came for 0.5 s" in log.text


def test_a_connection_that_drips_is_as_good_as_lost(
    hub: Hub, server: LocalHub, content: bytes, log: Log
) -> None:
    server.on_body = lambda: time.sleep(0.3)
    strict = replace(hub, patience=replace(hub.patience, window=0.2, slowest=1 << 20))
    assert fetch_repo(strict, REPO, log.watch).read_bytes() == content
    assert "bytes came in 0.2 s" in log.text
    assert ranges(server)[-1]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(hub: Hub, server: LocalHub, log: Log, status: int) -> None:
    server.failures = [status]
    assert fetch_repo(hub, REPO, log.watch).is_file()
    assert f"answered {status}; trying again" in log.text


KILLED = """
import os, signal, sys
from pathlib import Path
from tools.hub import Hub, Watch, fetch_repo

def progress(label, done, total):
    if done:
        os.kill(os.getpid(), signal.SIGKILL)

fetch_repo(Hub(sys.argv[1], Path(sys.argv[2])), sys.argv[3], Watch(print, progress))
"""


def test_a_killed_download_is_gone_on_with(hub: Hub, server: LocalHub, content: bytes, log: Log) -> None:
    command = [sys.executable, "-c", KILLED, server.url, str(hub.folder), REPO]
    killed = subprocess.run(command, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    (part,) = hub.folder.rglob(".*.part")
    kept = part.stat().st_size
    assert 0 < kept < len(content)
    assert fetch_repo(hub, REPO, log.watch).read_bytes() == content
    assert ranges(server)[-1] == f"bytes={kept}-"
    assert not list(hub.folder.rglob(".*.part*"))


def leave_part(hub: Hub, file: File, log: Log) -> Path:
    """Break off a download after 100,000 bytes."""
    file.drop_after, file.drops = 100_000, 3
    ranged, file.ranges = file.ranges, False
    refused(hub, log)
    file.drops, file.ranges = 0, ranged
    (part,) = hub.folder.rglob(".*.part")
    return part


def test_a_part_of_another_version_is_dropped(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log
) -> None:
    leave_part(hub, file, log)
    file.content = content[:50] + b"?" + content[51:]
    assert fetch_repo(hub, REPO, log.watch).read_bytes() == file.content
    assert ranges(server)[-1] == ""


def test_a_damaged_part_costs_one_more_download(hub: Hub, file: File, content: bytes, log: Log) -> None:
    part = leave_part(hub, file, log)
    part.write_bytes(bytes(100_000))
    assert fetch_repo(hub, REPO, log.watch).read_bytes() == content
    assert "starting over" in log.text


@pytest.mark.parametrize("extra", [b"", b"and more"])
def test_a_part_that_is_whole_or_too_long(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log, extra: bytes
) -> None:
    part = leave_part(hub, file, log)
    part.write_bytes(content + extra)
    asked = len(server.cdn_requests())
    assert fetch_repo(hub, REPO, log.watch).read_bytes() == content
    assert len(server.cdn_requests()) == asked + bool(extra)


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"source": 1}', b"\xff"])
def test_a_part_with_a_damaged_note_is_dropped(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log, note: bytes
) -> None:
    part = leave_part(hub, file, log)
    part.with_name(f".{part.name}.origin").write_bytes(note)
    assert fetch_repo(hub, REPO, log.watch).read_bytes() == content
    assert ranges(server)[-1] == ""


def test_other_bytes_than_the_hub_lists_are_refused(hub: Hub, file: File, log: Log) -> None:
    file.listed_sha256 = "0" * 64
    assert "checksum mismatch" in refused(hub, log)
    assert not list(hub.folder.rglob(".*.part"))


@pytest.mark.parametrize("by", [-1, 1])
def test_another_size_than_the_hub_lists_is_refused(
    hub: Hub, file: File, content: bytes, log: Log, by: int
) -> None:
    file.listed_size = len(content) + by
    assert f"lists {len(content) + by} bytes" in refused(hub, log)


def test_more_bytes_than_announced_are_cut_off(hub: Hub, file: File, content: bytes, log: Log) -> None:
    file.chunked, file.served = True, content + bytes(1 << 20)
    assert "sends more than" in refused(hub, log)


def test_a_file_without_a_checksum_is_checked_by_its_size(
    hub: Hub, file: File, content: bytes, log: Log
) -> None:
    file.lfs = False
    path = fetch_repo(hub, REPO, log.watch)
    assert path.read_bytes() == content


def test_what_is_no_gguf_is_refused(hub: Hub, server: LocalHub, log: Log) -> None:
    server.repos[REPO] = {NAME: File(b"version https://git-lfs.github.com/spec/v1\n")}
    assert "not a GGUF file (it begins with b'vers')" in refused(hub, log)
    assert not list(hub.folder.rglob(".*.part"))


def test_a_disk_without_room_is_told_before_anything_comes(
    hub: Hub, server: LocalHub, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    message = refused(hub, log)
    assert "are missing" in message
    assert "has room for" in message
    assert not server.requests()


def test_an_endless_answer_ends_when_the_disk_is_nearly_full(
    hub: Hub, server: LocalHub, file: File, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.chunked = True
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=(64 << 20) + 100_000))
    with pytest.raises(FetchError, match="the disk is nearly full"):
        fetch_url(hub, server.file_url(REPO, NAME), log.watch)


def test_a_token_goes_to_the_hub_and_not_to_its_cdn(
    make_hub: Callable[..., Hub], server: LocalHub, log: Log
) -> None:
    fetch_repo(make_hub(token=server.token), REPO, log.watch)
    assert all(one.headers["Authorization"] == "Bearer hf_sesame" for one in server.requests("/"))
    assert server.cdn_requests()
    assert not any("Authorization" in one.headers for one in server.cdn_requests())


def test_a_token_does_not_go_to_another_host_of_a_url(
    make_hub: Callable[..., Hub], server: LocalHub, log: Log
) -> None:
    hub = make_hub(token=server.token, endpoint="https://hub.invalid")
    assert fetch_url(hub, server.file_url(REPO, NAME), log.watch).is_file()
    assert not any("Authorization" in one.headers for one in server.seen)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher:x", "http://["])
def test_redirects_lead_to_the_web_only(hub: Hub, server: LocalHub, log: Log, target: str) -> None:
    server.redirect_to = target
    assert "cannot be followed" in refused(hub, log)


@pytest.mark.parametrize(
    ("start", "location", "expected"),
    [
        ("https://hub/a", "https://cdn/b?s=1", "https://cdn/b?s=1"),
        ("https://hub/a/b", "../c", "https://hub/c"),
        ("http://hub/a", "http://cdn/b", "http://cdn/b"),
        ("http://hub/a", "https://cdn/b", "https://cdn/b"),
        ("https://hub/a", "//cdn/b", "https://cdn/b"),
    ],
)
def test_redirects_are_followed(start: str, location: str, expected: str) -> None:
    assert str(next_hop(httpx.URL(start), httpx.URL(start), location)) == expected


def test_a_redirect_from_https_to_http_is_refused() -> None:
    with pytest.raises(FetchError, match="from https to unprotected http at cdn"):
        next_hop(httpx.URL("https://hub/a"), httpx.URL("https://hub/a"), "http://cdn/b")
    with pytest.raises(FetchError, match="unprotected"):
        next_hop(httpx.URL("https://hub/a"), httpx.URL("https://cdn/b"), "http://hub/a")


def test_a_redirect_loop_ends(hub: Hub, server: LocalHub, log: Log) -> None:
    server.redirect_to = "{path}"
    assert "more than 10 redirects" in refused(hub, log)
    assert len(server.requests()) == 11


def test_a_url_is_kept_by_its_name_and_asked_for_again_by_its_etag(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log
) -> None:
    url = server.file_url(REPO, NAME) + "?download=true"
    path = fetch_url(hub, url, log.watch)
    assert (path.name, path.read_bytes()) == (NAME, content)
    server.seen.clear()
    assert fetch_url(hub, url, log.watch) == path
    assert [one.headers["If-None-Match"] for one in server.cdn_requests()]
    file.content = content + b"new"
    assert fetch_url(hub, url, log.watch).read_bytes() == content + b"new"
    file.listed_sha256 = "0" * 64
    file.content = content + b"newer"
    assert fetch_url(hub, url, log.watch).read_bytes() == content + b"new", "the checksum says no"
    assert "checksum mismatch" in log.text


def test_a_url_whose_server_has_no_etags_is_current_when_its_size_is(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log
) -> None:
    file.etag, server.linked, server.cdn = "none", False, False
    url = server.file_url(REPO, NAME)
    path = fetch_url(hub, url, log.watch)
    changed = path.stat().st_mtime_ns
    assert fetch_url(hub, url, log.watch).stat().st_mtime_ns == changed
    file.content = content + b"new"
    assert fetch_url(hub, url, log.watch).read_bytes() == content + b"new"


@pytest.mark.parametrize("etag", ['"strong"', 'W/"weak"', "none"])
def test_a_url_is_gone_on_with_only_if_its_etag_still_holds(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log, etag: str
) -> None:
    server.linked = server.cdn = False
    file.etag, file.drop_after, file.drops = etag, 100_000, 1
    assert fetch_url(hub, server.file_url(REPO, NAME), log.watch).read_bytes() == content
    asked = server.requests()[-1].headers
    assert (asked.get("Range"), asked.get("If-Range")) == (
        ("bytes=100000-", etag) if etag == '"strong"' else (None, None)
    )


def test_a_url_whose_file_changed_meanwhile_starts_over(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log
) -> None:
    server.linked = server.cdn = False
    file.drop_after, file.drops = 100_000, 1

    def change() -> None:
        if not file.drops:
            file.content = b"GGUF" + content[::-1]

    server.on_body = change
    path = fetch_url(hub, server.file_url(REPO, NAME), log.watch)
    assert path.read_bytes() == b"GGUF" + content[::-1]


def test_a_url_of_a_shard_brings_all_of_them(hub: Hub, server: LocalHub, content: bytes, log: Log) -> None:
    names = [f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    server.repos["user/split"] = {name: File(content + name.encode()) for name in names}
    path = fetch_url(hub, server.file_url("user/split", names[1]), log.watch)
    assert [path.with_name(name).read_bytes()[-len(name) :].decode() for name in names] == names
    assert path.name == names[0]
    assert fetch_url(hub, server.file_url("user/split", names[0]), log.watch) == path


def test_a_url_whose_bytes_had_all_come_is_not_fetched_again(
    hub: Hub, server: LocalHub, file: File, content: bytes, log: Log
) -> None:
    server.linked = server.cdn = False
    url = server.file_url(REPO, NAME)
    path = fetch_url(hub, url, log.watch)
    part = path.with_name(f".{path.name}.part")
    path.with_name(f".{path.name}.origin").replace(path.with_name(f".{part.name}.origin"))
    path.replace(part)
    assert fetch_url(hub, url, log.watch).read_bytes() == content
    assert server.requests()[-1].headers["Range"] == f"bytes={len(content)}-"


@pytest.mark.parametrize("status", [304, 204, 400, 418])
def test_an_answer_that_brings_no_file_is_told(hub: Hub, server: LocalHub, log: Log, status: int) -> None:
    server.failures = [status]
    with pytest.raises(FetchError, match=f"answered {status}"):
        fetch_url(hub, server.file_url(REPO, NAME), log.watch)


def test_urls_that_name_no_file_or_no_web_server(hub: Hub, log: Log) -> None:
    for url in (
        "http://h/",
        "http://h",
        "ftp://h/a.gguf",
        "http://h/..",
        "http://h/%2e%2e%2fa",
        "http:///a.gguf",
    ):
        with pytest.raises(FetchError):
            fetch_url(hub, url, log.watch)
    assert not hub.folder.exists()


@given(
    st.sampled_from(("", "http://", "https://h/")),
    st.text("htp:/[]@%.#?&\u2100\udcff\0 \\1a.gf-0o", max_size=30),
)
def test_any_text_is_a_url_or_refused_in_one_line(start: str, text: str) -> None:
    """Offline and with an empty cache nothing is found, whatever is asked for."""
    with pytest.raises(FetchError) as caught:
        fetch_url(Hub("https://hub", Path("nowhere"), offline=True), start + text, Log().watch)
    assert str(caught.value).isprintable()


def test_a_secret_of_a_url_is_neither_shown_nor_logged_nor_kept(
    make_hub: Callable[..., Hub], server: LocalHub, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    hub = make_hub()
    caplog.set_level(logging.DEBUG)
    fetch_url(hub, server.file_url(REPO, NAME) + "?sig=secret", log.watch)
    assert "secret" not in caplog.text
    for url in ("ftp://me:secret@h/a.gguf", "http://me:secret@127.0.0.1:9/a.gguf?sig=secret"):
        with pytest.raises(FetchError) as caught:
            fetch_url(hub, url, log.watch)
        assert "secret" not in str(caught.value) + log.text
    assert not any(b"secret" in path.read_bytes() for path in hub.folder.rglob(".*") if path.is_file())


def test_offline_takes_a_url_from_the_cache(
    make_hub: Callable[..., Hub], server: LocalHub, content: bytes, log: Log
) -> None:
    url = server.file_url(REPO, NAME)
    with pytest.raises(FetchError, match="offline"):
        fetch_url(make_hub(offline=True), url, log.watch)
    path = fetch_url(make_hub(), url, log.watch)
    server.seen.clear()
    assert fetch_url(make_hub(offline=True), url, log.watch) == path
    assert not server.seen


def test_two_fetchers_bring_a_model_once(hub: Hub, server: LocalHub, content: bytes, log: Log) -> None:
    second = Log()
    threads: list[threading.Thread] = []

    def start_second() -> None:
        if not threads:
            threads.append(threading.Thread(target=fetch_repo, args=(hub, REPO, second.watch)))
            threads[0].start()
            deadline = time.monotonic() + 60
            while "waiting" not in second.text and time.monotonic() < deadline:
                time.sleep(0.01)

    server.on_body = start_second
    patient = Hub(hub.endpoint, hub.folder)
    assert fetch_repo(patient, REPO, log.watch).read_bytes() == content
    threads[0].join(timeout=60)
    assert not threads[0].is_alive()
    assert "waiting for it" in second.text
    assert len(server.cdn_requests()) == 1


COMMAND = "import sys; from daemon.cli import main; sys.exit(main(sys.argv[1:]))"


def emberd(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
        timeout=60,
    )


def test_the_command_prints_the_path_last_or_one_line_of_reason(
    server: LocalHub, content: bytes, tmp_path: Path
) -> None:
    environment = {
        "HF_ENDPOINT": server.url,
        "LLAMA_CACHE": str(tmp_path / "models"),
        "HF_TOKEN": server.token,
    }
    server.gated.add(REPO)
    done = emberd("fetch", f"{REPO}:Q4_K_M", **environment)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1])
    assert path.read_bytes() == content
    assert path.is_relative_to(tmp_path / "models" / f"127.0.0.1_{server.url.rpartition(':')[2]}")
    assert f"fetching {NAME}" in done.stderr

    refused = emberd("fetch", f"{REPO}:Q8_0", **environment)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"emberd fetch: {REPO}: has no Q8_0 (it has Q4_K_M)\n"

    assert emberd("fetch", "--offline", REPO, **environment).stdout == done.stdout
    unknown = emberd("fetch", "nothing", **environment)
    assert unknown.returncode == 2
    assert "USER/REPO[:QUANT]" in unknown.stderr
