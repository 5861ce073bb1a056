"""The smaller routes: models, props, slots, text, metrics, store."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from daemon.config import Config
from daemon.loading import Prepared, Report
from daemon.metrics import Throughput, exposition
from daemon.native_format import timings_json
from daemon.routes.slots import is_valid_name
from daemon.saves import (
    DamagedSave,
    ForeignSave,
    NoMemory,
    RestoreResult,
    SaveError,
    SaveResult,
    SavesNotYet,
    SavesUnavailable,
    UnknownSave,
)
from runtime.engine import CacheSource, EngineStatistics, Timings
from store import StoreStatistics, figures
from tests.daemon.harness import MODEL, RunningDaemon, prepare_fake, tokenizer, until


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "2", "-c", "512", "--metrics") as running:
        yield running


def test_health_counts_slots(daemon: RunningDaemon) -> None:
    for path in ("/health", "/v1/health"):
        body = daemon.client.get(path).json()
        assert (body["status"], body["slots_idle"], body["slots_processing"]) == ("ok", 2, 0)
        assert body["store"] == "off"


def test_models_describe_the_file(daemon: RunningDaemon) -> None:
    body = daemon.client.get("/v1/models").json()
    assert body == daemon.client.get("/models").json()
    (entry,) = body["data"]
    assert entry["id"] == "test-model" and entry["object"] == "model"
    assert entry["meta"]["n_vocab"] == tokenizer().n_vocab
    assert entry["meta"]["vocab_type"] == 2 and entry["meta"]["n_params"] > 0
    assert body["models"][0]["name"] == "test-model"
    assert daemon.client.get("/v1/models/test-model").json() == entry
    assert daemon.client.get("/v1/models/another").status_code == 404


@pytest.mark.parametrize("name", ["/models/a b.gguf", "USER/REPO:Q4_K_M"])
def test_a_model_named_by_a_path_or_a_repository_is_found_by_its_name(name: str) -> None:
    def prepare(config: Config, report: Report) -> Prepared:
        prepared = prepare_fake(config, report)
        return replace(prepared, model=replace(prepared.model, name=name, aliases=(name,)))

    with RunningDaemon(prepare=prepare) as daemon:
        for spelled in (quote(name), quote(name, safe="")):
            assert daemon.client.get(f"/v1/models/{spelled}").json()["id"] == name
        assert daemon.client.get("/v1/models/" + quote(name[1:])).status_code == 404


def test_the_codex_command_line_finds_its_catalogue(daemon: RunningDaemon) -> None:
    (record,) = daemon.client.get("/v1/models").json()["models"]
    n_ctx = daemon.client.get("/props").json()["default_generation_settings"]["n_ctx"]
    assert (record["slug"], record["visibility"], record["supported_in_api"]) == ("test-model", "list", True)
    assert record["truncation_policy"] == {"mode": "tokens", "limit": n_ctx}
    assert record["context_window"] == record["max_context_window"] == n_ctx
    assert record["auto_compact_token_limit"] == n_ctx * 9 // 10
    asked = """slug display_name description default_reasoning_level supported_reasoning_levels shell_type
        visibility supported_in_api priority additional_speed_tiers service_tiers default_service_tier
        availability_nux upgrade base_instructions model_messages supports_reasoning_summaries
        default_reasoning_summary support_verbosity default_verbosity apply_patch_tool_type
        web_search_tool_type truncation_policy supports_parallel_tool_calls supports_image_detail_original
        context_window max_context_window auto_compact_token_limit effective_context_window_percent
        experimental_supported_tools input_modalities supports_search_tool use_responses_lite
        auto_review_model_override tool_mode multi_agent_version"""
    assert set(asked.split()) <= record.keys()


def test_props_show_defaults_in_both_peers_places(daemon: RunningDaemon) -> None:
    body = daemon.client.get("/props").json()
    defaults = body["default_generation_settings"]
    assert defaults["params"]["temperature"] == 0.8 == defaults["temperature"]
    assert defaults["n_ctx"] == 256 and body["n_ctx"] == 512 and body["total_slots"] == 2
    assert body["model_path"] == str(MODEL) and body["model_alias"] == "test-model"
    assert body["chat_template_caps"]["supports_system_role"] is True
    assert body["build_info"].startswith("b")
    assert daemon.client.post("/props", json={}).status_code == 501


def test_a_fresh_slot_has_only_what_is_always_known() -> None:
    with RunningDaemon("-np", "2") as daemon:
        fresh = daemon.client.get("/slots").json()[0]
        assert fresh == {"id": 0, "n_ctx": 256, "speculative": False, "is_processing": False}
        daemon.post("/completion", {"prompt": "a", "n_predict": 1})
        used = daemon.client.get("/slots").json()[0]
        assert used["n_prompt_tokens"] == 1 and used["id_task"] > 0
        assert {"params", "next_token", "cache_source", "cache_reason"} <= used.keys()
        assert isinstance(used["next_token"], list) and "stop" not in used["params"]


def test_slots_can_be_hidden_and_can_say_that_none_is_free() -> None:
    with RunningDaemon("--no-slots") as daemon:
        assert daemon.client.get("/slots").status_code == 501
    with RunningDaemon("-np", "1") as daemon:
        assert daemon.client.get("/slots?fail_on_no_slot=1").status_code == 200
        daemon.engine.gate.clear()
        with daemon.client.stream("POST", "/completion", json={"prompt": "a", "stream": True}):
            until(lambda: daemon.client.get("/slots?fail_on_no_slot=1").status_code == 503)
        daemon.engine.gate.set()


def test_a_slot_is_erased(daemon: RunningDaemon) -> None:
    assert daemon.client.post("/slots/1?action=erase").json() == {"id_slot": 1, "n_erased": 7}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/slots/x?action=erase", None, "Invalid slot ID"),
        ("/slots/2?action=erase", None, "Invalid slot ID"),
        ("/slots/-1?action=erase", None, "Invalid slot ID"),
        ("/slots/0_1?action=erase", None, "Invalid slot ID"),
        ("/slots/\u0661?action=erase", None, "Invalid slot ID"),
        ("/slots/0?action=burn", None, "Invalid action"),
        ("/slots/0", None, "Invalid action"),
        ("/slots/0?action=save", None, "Field 'filename': is required"),
        ("/slots/0?action=save", {"filename": 5}, "Field 'filename'"),
        ("/slots/0?action=save", {"filename": "../x"}, "Invalid filename"),
        ("/slots/0?action=restore", {"filename": ""}, "Invalid filename"),
    ],
)
def test_a_wrong_slot_action_says_what_is_wrong(
    daemon: RunningDaemon, path: str, body: Any, message: str
) -> None:
    response = daemon.client.post(path, json=body) if body is not None else daemon.client.post(path)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_without_a_store_nothing_is_saved(daemon: RunningDaemon) -> None:
    assert "store" in daemon.error("/slots/0?action=save", {"filename": "a"}, 501)


class ScriptedSaves:
    """Saves that answer what a test wants."""

    def __init__(self, outcome: SaveError | None) -> None:
        self.outcome = outcome

    async def save(self, id_slot: int, name: str) -> SaveResult:
        if self.outcome:
            raise self.outcome
        return SaveResult(n_tokens=10, n_bytes=99, bytes_shared=5, n_resumable=10)

    async def restore(self, id_slot: int, name: str) -> RestoreResult:
        if self.outcome:
            raise self.outcome
        return RestoreResult(n_tokens=10, n_bytes=99, n_resumable=10)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (UnknownSave("no save named a"), 404),
        (ForeignSave("saved with another model", "model"), 409),
        (DamagedSave("a record is damaged"), 400),
        (SavesUnavailable("the store is off"), 501),
        (SavesNotYet("the disk does not answer"), 503),
        (SaveError("disk full"), 500),
    ],
)
def test_what_goes_wrong_with_a_save_has_its_status(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, outcome: SaveError, status: int
) -> None:
    monkeypatch.setattr(NoMemory, "restore", ScriptedSaves(outcome).restore)
    response = daemon.post("/slots/0?action=restore", {"filename": "a"})
    assert response.status_code == status
    error = response.json()["error"]
    assert str(outcome) in error["message"]
    assert error.get("field") == getattr(outcome, "field", None)


def test_a_save_and_a_restore_are_answered_with_both_peers_fields(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = ScriptedSaves(None)
    monkeypatch.setattr(NoMemory, "save", scripted.save)
    monkeypatch.setattr(NoMemory, "restore", scripted.restore)
    saved = daemon.post("/slots/0?action=save", {"filename": "a"}).json()
    assert (saved["id_slot"], saved["filename"], saved["n_saved"], saved["n_written"]) == (0, "a", 10, 99)
    assert saved["timings"]["save_ms"] >= 0 and saved["bytes_shared"] == 5
    restored = daemon.post("/slots/0?action=restore", {"filename": "a"}).json()
    assert (restored["n_restored"], restored["n_read"]) == (10, 99)
    assert restored["timings"]["restore_ms"] >= 0


@pytest.mark.parametrize("name", ["a", "a.bin", "chat 1", "\u00e9t\u00e9", "x" * 255, ".hidden", "a.b.c"])
def test_ordinary_names_are_allowed(name: str) -> None:
    assert is_valid_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a..b", "a/b", "a\\b", "a:b", "a*", "a?", 'a"', "<a", "a>", "a|b", " a", "a ", "a.",
     "x" * 256, "\u00e9" * 128, "a\x00", "a\n", "a\x7f", "a\x85", "a\uff0eb", "a\u2215b", "a\u2216b",
     "a\ufffd", "\ufeffa", "a\ud800"],
)  # fmt: skip
def test_names_that_are_paths_or_tricks_are_not(name: str) -> None:
    assert not is_valid_name(name)


def test_text_becomes_tokens_and_back(daemon: RunningDaemon) -> None:
    codec = tokenizer()
    assert daemon.post("/tokenize", {"content": "hello"}).json() == {"tokens": codec.encode("hello")}
    assert daemon.post("/tokenize", {}).json() == {"tokens": []}
    assert daemon.post("/tokenize", {"content": ["ab", 5, "c"]}).json()["tokens"] == [
        *codec.encode("ab"),
        5,
        *codec.encode("c"),
    ]
    special = codec.encode("hello", add_special=True)
    assert daemon.post("/tokenize", {"content": "hello", "add_special": True}).json()["tokens"] == special
    tokens = codec.encode("h\u00e9!")
    assert daemon.post("/detokenize", {"tokens": tokens}).json() == {"content": "h\u00e9!"}
    assert daemon.post("/detokenize", {}).json() == {"content": ""}


def test_pieces_that_are_no_characters_are_shown_as_bytes(daemon: RunningDaemon) -> None:
    pieces = daemon.post("/tokenize", {"content": "a\U0001f44b", "with_pieces": True}).json()["tokens"]
    assert pieces[0]["piece"] == "a"
    data = b"".join(
        bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces
    )
    assert data.decode() == "a\U0001f44b"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": 5.5}),
        ("/tokenize", {"content": [None]}),
        ("/tokenize", {"content": [-1]}),
        ("/tokenize", {"content": [10**9]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": "a"}),
    ],
)
def test_wrong_text_requests_are_answered_400(daemon: RunningDaemon, path: str, body: Any) -> None:
    daemon.error(path, body, 400)


def test_metrics_have_llama_cpps_names_and_can_be_parsed(daemon: RunningDaemon) -> None:
    daemon.post("/completion", {"prompt": "abc", "n_predict": 1})
    response = daemon.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert re.fullmatch(r"\d+", response.headers["process-start-time-unix"])
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    for name in (
        "prompt_tokens",
        "prompt_seconds",
        "tokens_predicted",
        "tokens_predicted_seconds",
        "n_decode",
    ):
        assert families[f"llamacpp:{name}"].type == "counter"
        assert families[f"llamacpp:{name}"].samples[0].name == f"llamacpp:{name}_total"
    for name in ("prompt_tokens_seconds", "kv_cache_usage_ratio", "requests_deferred", "n_tokens_max"):
        assert families[f"llamacpp:{name}"].type == "gauge"
    assert families["llamacpp:prompt_tokens"].samples[0].value > 0


def test_metrics_are_off_unless_asked_for() -> None:
    with RunningDaemon() as daemon:
        assert daemon.client.get("/metrics").status_code == 501


def test_throughput_is_the_average_since_the_last_scrape() -> None:
    throughput = Throughput()
    first = throughput.read(EngineStatistics(prompt_tokens_total=100, prompt_seconds_total=2.0))
    second = throughput.read(EngineStatistics(prompt_tokens_total=130, prompt_seconds_total=3.0))
    third = throughput.read(EngineStatistics(prompt_tokens_total=130, prompt_seconds_total=3.0))
    assert (first.prompt, second.prompt, third.prompt) == (50.0, 30.0, 0.0)


def test_the_stores_numbers_become_metrics() -> None:
    actions = {"saves": 2, "save_seconds": 0.5, "restores": 0, "restore_seconds": 0.0}
    counted = StoreStatistics(
        live_bytes=5,
        file_bytes=12,
        partial_differs=3,
        dropped_queue=1,
        commits=4,
        commit_seconds=0.25,
        evicted_points=6,
        quarantined_checksum=2,
    )
    text = exposition(EngineStatistics(), Throughput(), figures(counted) | actions, "degraded").decode()
    for line in (
        'emberd:store_bytes{kind="live"} 5.0',
        'emberd:store_bytes{kind="free"} 7.0',
        'emberd:store_lookups_total{reason="differs",result="partial"} 3.0',
        'emberd:store_lookups_total{reason="",result="hit"} 0.0',
        'emberd:store_evicted_total{kind="point"} 6.0',
        'emberd:store_quarantined_total{why="checksum"} 2.0',
        'emberd:store_dropped_total{why="queue"} 1.0',
        "emberd:store_commit_seconds_count 4.0",
        "emberd:store_commit_seconds_sum 0.25",
        "emberd:store_save_seconds_count 2.0",
        'emberd:store_state{state="ok"} 0.0',
        'emberd:store_state{state="degraded"} 1.0',
        "# TYPE emberd:store_evicted_total counter",
    ):
        assert line in text.splitlines()


def test_a_store_that_is_off_says_so_in_the_metrics() -> None:
    text = exposition(EngineStatistics(), Throughput(), {}).decode()
    assert 'emberd:store_state{state="off"} 1.0' in text and "store_bytes" not in text


def test_the_store_shows_its_state(daemon: RunningDaemon) -> None:
    assert daemon.client.get("/store").json()["status"] == "off"


def test_rates_are_numbers_even_for_one_token() -> None:
    timings = timings_json(
        Timings(cache_n=5, cache_source=CacheSource.STORE, predicted_n=1, predicted_ms=0.5), 256
    )
    assert timings["predicted_per_second"] == 0.0 and timings["predicted_per_token_ms"] == 0.0
    assert timings["prompt_per_second"] == 0.0
    assert timings["cache_source"] == "store" and timings["n_past"] == 6


def test_settings_are_shown_with_all_of_llama_cpps_keys(daemon: RunningDaemon) -> None:
    answer = daemon.post("/completion", {"prompt": "a", "n_predict": 1, "logit_bias": [[5, False]]}).json()
    shown = answer["generation_settings"]
    assert shown["logit_bias"] == [{"bias": None, "token": 5}]
    assert shown["seed"] == 4294967295
    assert {"samplers", "speculative.types", "stop", "grammar", "lora", "chat_format"} <= shown.keys()
