"""What users ask of a hub: a repository, a quant, a file; and the one line that says why not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.hub.conftest import REPO, Log
from tests.tools.hub.local_hub import File, LocalHub, listed
from tools.errors import FetchError
from tools.hub import Hub, fetch_repo, listing


def refused(hub: Hub, log: Log, reference: str = REPO, file: str = "") -> str:
    with pytest.raises(FetchError) as caught:
        fetch_repo(hub, reference, log.watch, file)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_a_model_lands_under_its_hub_and_repository(
    hub: Hub, server: LocalHub, content: bytes, log: Log
) -> None:
    path = fetch_repo(hub, REPO, log.watch)
    port = server.url.rpartition(":")[2]
    assert path == hub.folder / f"127.0.0.1_{port}" / REPO / "tiny-Q4_K_M.gguf"
    assert path.read_bytes() == content
    assert log.steps[0] == ("tiny-Q4_K_M.gguf", 0, len(content))
    assert log.steps[-1] == ("tiny-Q4_K_M.gguf", len(content), len(content))
    assert [one.name for one in path.parent.iterdir() if not one.name.startswith(".")] == [path.name]


def test_what_the_cache_has_is_not_brought_again(hub: Hub, server: LocalHub, log: Log) -> None:
    path = fetch_repo(hub, REPO, log.watch)
    assert fetch_repo(hub, f"{REPO}:q4_k_m", log.watch) == path
    assert len(server.requests()) == 1
    assert len(server.requests("/api/models/")) == 2


def test_a_file_that_changed_on_the_hub_replaces_the_cached_one(
    hub: Hub, file: File, content: bytes, log: Log
) -> None:
    path = fetch_repo(hub, REPO, log.watch)
    file.content = content[:-1] + b"?"
    assert fetch_repo(hub, REPO, log.watch) == path
    assert path.read_bytes() == file.content


def test_a_cached_file_with_other_bytes_is_brought_again(hub: Hub, content: bytes, log: Log) -> None:
    path = fetch_repo(hub, REPO, log.watch)
    path.write_bytes(bytes(len(content)))
    assert fetch_repo(hub, REPO, log.watch).read_bytes() == content


def test_a_file_put_there_by_hand_is_checked_and_used(
    hub: Hub, server: LocalHub, content: bytes, log: Log
) -> None:
    path = fetch_repo(hub, REPO, log.watch)
    for note in path.parent.glob(".*"):
        note.unlink()
    assert fetch_repo(hub, REPO, log.watch) == path
    assert len(server.requests()) == 1


def test_shards_are_fetched_together_and_the_first_one_is_the_model(
    hub: Hub, server: LocalHub, content: bytes, log: Log
) -> None:
    names = [f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    server.repos["user/split"] = {name: File(content + name.encode()) for name in names}
    for path in (
        fetch_repo(hub, "user/split", log.watch),
        fetch_repo(hub, "user/split", log.watch, file=names[1].upper()),
    ):
        assert path.name == "m-Q8_0-00001-of-00003.gguf"
        for name in names:
            assert (path.parents[1] / name).read_bytes() == content + name.encode()
    assert len(server.requests()) == 3


def test_no_shard_gets_its_name_before_all_are_here(
    hub: Hub, server: LocalHub, content: bytes, log: Log
) -> None:
    server.repos["user/split"] = {
        "m-00001-of-00002.gguf": File(content),
        "m-00002-of-00002.gguf": File(content, listed_sha256="a" * 64),
    }
    assert "checksum" in refused(hub, log, "user/split")
    assert not list(hub.folder.rglob("m-*.gguf"))
    server.repos["user/split"]["m-00002-of-00002.gguf"].listed_sha256 = ""
    asked = len(server.requests())
    fetch_repo(hub, "user/split", log.watch)
    assert len(server.requests()) == asked + 1, "the good shard was kept"


def test_a_shard_that_the_repository_lacks_is_named(
    hub: Hub, server: LocalHub, content: bytes, log: Log
) -> None:
    server.repos["user/split"] = {"m-00001-of-00002.gguf": File(content)}
    assert "m-00002-of-00002.gguf is missing" in refused(hub, log, "user/split")


def test_a_long_listing_is_read_to_its_end(hub: Hub, server: LocalHub, content: bytes, log: Log) -> None:
    server.page_size = 2
    server.repos["user/many"] = {f"{n}.txt": File(b"x", lfs=False) for n in range(5)}
    server.repos["user/many"]["z-Q8_0.gguf"] = File(content)
    assert fetch_repo(hub, "user/many", log.watch).name == "z-Q8_0.gguf"


def test_names_that_lead_elsewhere_are_never_used(
    hub: Hub, server: LocalHub, content: bytes, log: Log, tmp_path: Path
) -> None:
    hostile = ("../../../../escaped.gguf", f"{tmp_path}/escaped.gguf", "a/../../escaped.gguf", ".hidden.gguf")
    server.repos["user/bad"] = {name: File(content) for name in hostile}
    assert "no GGUF model" in refused(hub, log, "user/bad")
    for name in hostile:
        assert "has no file" in refused(hub, log, "user/bad", name)
    assert not list(tmp_path.rglob("*escaped*"))


def test_a_listed_symbolic_link_is_no_file(hub: Hub, server: LocalHub, file: File, log: Log) -> None:
    server.raw_listing = json.dumps([listed("tiny-Q8_0.gguf", file) | {"type": "symlink"}]).encode()
    assert "no GGUF model" in refused(hub, log)


def test_a_folder_of_the_cache_that_leads_elsewhere_is_refused(
    hub: Hub, server: LocalHub, content: bytes, log: Log, tmp_path: Path
) -> None:
    path = fetch_repo(hub, REPO, log.watch)
    (tmp_path / "elsewhere").mkdir()
    (path.parent / "Q8_0").symlink_to(tmp_path / "elsewhere")
    server.repos[REPO]["Q8_0/tiny-Q8_0.gguf"] = File(content)
    assert "symbolic link" in refused(hub, log, f"{REPO}:Q8_0")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_partial_download_that_is_a_symbolic_link_is_not_followed(
    hub: Hub, server: LocalHub, content: bytes, log: Log, tmp_path: Path
) -> None:
    path = fetch_repo(hub, REPO, log.watch)
    path.unlink()
    (tmp_path / "victim").write_bytes(b"precious")
    path.with_name(f".{path.name}.part").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        fetch_repo(hub, REPO, log.watch)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_an_unknown_repository(make_hub: Callable[..., Hub], log: Log) -> None:
    assert "user/none" in refused(make_hub(token="hf_any"), log, "user/none")
    anonymous = refused(make_hub(), log, "user/none")
    assert "or private" in anonymous
    assert "HF_TOKEN" in anonymous


def test_a_gated_repository_names_the_token_and_where_to_ask(
    make_hub: Callable[..., Hub], server: LocalHub, log: Log
) -> None:
    server.gated.add(REPO)
    message = refused(make_hub(), log)
    assert "set HF_TOKEN" in message
    assert f"{server.url}/{REPO}" in message
    assert "HF_TOKEN has no access" in refused(make_hub(token="hf_other"), log)
    assert fetch_repo(make_hub(token=server.token), REPO, log.watch).is_file()


def test_what_there_is_instead_of_a_missing_quant_or_file(hub: Hub, log: Log) -> None:
    assert "has no Q2_K (it has Q4_K_M)" in refused(hub, log, f"{REPO}:Q2_K")
    assert "(it has tiny-Q4_K_M.gguf)" in refused(hub, log, REPO, "other.gguf")


def test_a_repository_without_a_gguf(hub: Hub, server: LocalHub, log: Log) -> None:
    server.repos["user/torch"] = {"model.safetensors": File(b"x"), "mmproj-f16.gguf": File(b"x")}
    assert "has no GGUF model" in refused(hub, log, "user/torch")


@pytest.mark.parametrize(
    "listing",
    [
        b"",
        b"<html>",
        b"{}",
        b'{"error": 1}',
        b'[{"path": 1}]',
        b"[" * 100_000,
        b'[{"path": "\\ud800"}]',
        b"\xff",
    ],
)
def test_what_is_no_hub_is_told_so(hub: Hub, server: LocalHub, log: Log, listing: bytes) -> None:
    server.raw_listing = listing
    assert "does not answer like the Hugging Face API" in refused(hub, log)


def test_a_listing_that_goes_on_elsewhere_or_forever_is_refused(
    hub: Hub, server: LocalHub, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_MAX_PAGES", 5)
    server.page_size = 0
    assert "no end" in refused(hub, log)
    server.url = "http://127.0.0.1:9"
    assert "goes on elsewhere" in refused(hub, log)


@pytest.mark.parametrize(
    "endpoint", ["huggingface.co", "ftp://hub", "http://", "file:///etc", "http://../x", "http://["]
)
def test_an_endpoint_that_is_none(make_hub: Callable[..., Hub], log: Log, endpoint: str) -> None:
    assert "HF_ENDPOINT" in refused(make_hub(endpoint=endpoint), log)


@pytest.mark.parametrize("token", ["a b", "a\nb", "tökén"])
def test_a_token_that_cannot_be_sent(make_hub: Callable[..., Hub], log: Log, token: str) -> None:
    message = refused(make_hub(token=token), log)
    assert "HF_TOKEN" in message
    assert token not in message


def test_offline_uses_the_cache_by_the_same_words(
    make_hub: Callable[..., Hub], server: LocalHub, content: bytes, log: Log
) -> None:
    path = fetch_repo(make_hub(), REPO, log.watch)
    server.seen.clear()
    offline = make_hub(offline=True)
    assert fetch_repo(offline, REPO, log.watch) == path
    assert fetch_repo(offline, f"{REPO}:Q4_K_M", log.watch) == path
    assert fetch_repo(offline, REPO, log.watch, "tiny-q4_k_m.gguf") == path
    assert "has no Q8_0 (it has Q4_K_M)" in refused(offline, log, f"{REPO}:Q8_0")
    assert "offline: nothing of user/none is in the cache" in refused(offline, log, "user/none")
    assert not server.seen


def test_offline_wants_every_shard(
    make_hub: Callable[..., Hub], server: LocalHub, content: bytes, log: Log
) -> None:
    server.repos["user/split"] = {f"m-0000{n}-of-00002.gguf": File(content) for n in (1, 2)}
    path = fetch_repo(make_hub(), "user/split", log.watch)
    path.with_name("m-00002-of-00002.gguf").unlink()
    assert "m-00002-of-00002.gguf" in refused(make_hub(offline=True), log, "user/split")


def test_a_hub_out_of_reach_is_no_error_when_the_cache_has_the_model(
    make_hub: Callable[..., Hub], server: LocalHub, log: Log
) -> None:
    path = fetch_repo(make_hub(), REPO, log.watch)
    server.failures = [503] * 3
    assert fetch_repo(make_hub(), REPO, log.watch) == path
    assert f"answered 503; using the copy in the cache, {path}" in log.text


def test_a_cache_that_cannot_be_written_serves_what_it_has(
    hub: Hub, server: LocalHub, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch_repo(hub, REPO, log.watch)
    for note in path.parent.glob(".*"):
        note.unlink()

    def refuse(*arguments: object) -> None:
        raise PermissionError("read-only")

    for name in ("tools.hub.download.write_note", "tools.hub.model.exclusive"):
        monkeypatch.setattr(name, refuse)
    assert fetch_repo(hub, REPO, log.watch) == path


def test_a_hub_out_of_reach_is_one_line(make_hub: Callable[..., Hub], log: Log) -> None:
    message = refused(make_hub(endpoint="http://127.0.0.1:9"), log)
    assert "127.0.0.1: cannot connect" in message
    assert "Errno" not in message
