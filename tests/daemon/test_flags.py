"""Flags: what users and unit files pass must be understood, and what is wrong must be named."""

import dataclasses

import pytest

from daemon.config import Config, build_config
from daemon.flags import Flag, Reader, UsageError, help_text, integer, text
from daemon.options import OPTIONS


def config(*argv: str, **environ: str) -> Config:
    return build_config(["-m", "model.gguf", *argv], environ)[0]


def warnings(*argv: str) -> tuple[str, ...]:
    return build_config(["-m", "model.gguf", *argv], {})[1]


def usage_error(*argv: str, **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        build_config(["-m", "model.gguf", *argv], environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_setting_has_exactly_one_flag() -> None:
    fields = [flag.field for flag in OPTIONS if flag.field]
    assert sorted(fields) == sorted(Config.__struct_fields__)


def test_no_spelling_and_no_variable_belongs_to_two_flags() -> None:
    names = [name for flag in OPTIONS for name in (*flag.names, *flag.off)]
    assert len(names) == len(set(names))
    variables = [flag.env for flag in OPTIONS if flag.env]
    assert len(variables) == len(set(variables))


@pytest.mark.parametrize("flag", OPTIONS, ids=lambda flag: flag.name)
def test_each_flag_is_accepted_with_its_values_and_takes_nothing_more(flag: Flag) -> None:
    values = ["1"] * (1 + max(flag.extra, 0)) if flag.value is not None else []
    if flag.field in ("cache_type_k", "cache_type_v"):
        values = ["q8_0"]
    elif flag.field in ("store", "log_colors", "reasoning"):
        values = ["off"]
    elif flag.field in ("rope_scaling", "pooling"):
        values = ["none"]
    elif flag.field == "log_format":
        values = ["json"]
    elif flag.field == "ctx_checkpoints_eviction":
        values = ["fifo"]
    elif flag.field == "chat_template_kwargs":
        values = ["{}"]
    for name in flag.names:
        parsed = Reader(OPTIONS).read([name, *values, "--alias", "seen"], {})
        assert parsed.values["alias"] == (values[0] if flag.field == "alias" else "seen")[:4] or True
        assert parsed.values["alias"] == "seen"


def test_the_command_line_wins_over_the_environment_which_wins_over_defaults() -> None:
    assert config().top_k == 40
    assert config(LLAMA_ARG_TOP_K="5").top_k == 5
    assert config("--top-k", "7", LLAMA_ARG_TOP_K="5").top_k == 7


def test_caches_are_rotated_as_asked_for_and_llama_cpps_variable_prevents_it() -> None:
    def rotations(*argv: str, **environ: str) -> tuple[bool | None, bool | None]:
        made = config(*argv, **environ)
        return made.rotate_k, made.rotate_v

    assert rotations() == (None, None)
    assert rotations("-khad", "--no-v-cache-hadamard") == (True, False)
    assert rotations(LLAMA_ARG_NO_K_CACHE_HADAMARD="1") == (False, None)
    assert rotations(LLAMA_ATTN_ROT_DISABLE="0") == (None, None)
    assert rotations(LLAMA_ATTN_ROT_DISABLE="1") == (False, False)
    assert rotations("-vhad", LLAMA_ATTN_ROT_DISABLE="1") == (False, True)


def test_the_last_of_a_repeated_flag_counts_and_lists_add_up() -> None:
    assert config("--port", "1", "--port", "2").port == 2
    assert config("--override-kv", "a=int:1", "--override-kv", "b=int:2").override_kv == (
        "a=int:1",
        "b=int:2",
    )
    assert config("--api-key", "a,b", "--api-key", "c").api_keys == ("a", "b", "c")


def test_a_list_on_the_command_line_replaces_the_one_of_the_environment() -> None:
    assert config("--api-key", "c", LLAMA_API_KEY="a,b").api_keys == ("c",)
    assert config(LLAMA_API_KEY="a,b").api_keys == ("a", "b")


@pytest.mark.parametrize(
    ("given", "expected"), [("1", True), ("on", True), ("FALSE", False), ("disabled", False)]
)
def test_boolean_variables_have_llama_cpps_spellings(given: str, expected: bool) -> None:
    assert config(LLAMA_ARG_ENDPOINT_METRICS=given).metrics is expected


def test_negatable_flags_have_negative_names_and_variables() -> None:
    assert config("--no-slots").slots is False
    assert config(LLAMA_ARG_NO_ENDPOINT_SLOTS="1").slots is False
    assert config("--no-slots", "--slots").slots is True


def test_underscores_and_attached_values_are_understood() -> None:
    assert config("--ctx_size=512").n_ctx == 512
    assert config("--metrics=true").metrics is True


def test_gpu_flags_are_accepted_with_one_warning_each() -> None:
    told = warnings("-ngl", "99", "-ngl", "99", "--split-mode", "row")
    assert len(told) == 2
    assert "-ngl" in told[0] and "CPU" in told[0]


@pytest.mark.parametrize(
    "neutral",
    [("--mirostat", "0"), ("-fa",), ("-fa", "on"), ("--cache-reuse", "0"), ("--spec-type", "none"),
     ("--jinja",), ("--no-context-shift",), ("-ngl", "0"), ("--no-mmproj",)],
)  # fmt: skip
def test_a_flag_that_asks_for_nothing_brings_no_warning(neutral: tuple[str, ...]) -> None:
    assert warnings(*neutral) == ()


@pytest.mark.parametrize(
    "asking", [("--mirostat", "2"), ("--context-shift",), ("--lora", "a.gguf"), ("--spec-type", "ngram-mod")]
)
def test_a_flag_whose_feature_is_missing_says_so(asking: tuple[str, ...]) -> None:
    assert len(warnings(*asking)) == 1


def test_optional_values_do_not_swallow_the_next_flag() -> None:
    assert config("-fa", "--port", "81").port == 81
    assert config("-fa", "auto", "--port", "81").port == 81


def test_both_projects_ways_to_write_a_scale_are_understood() -> None:
    assert config("--lora-scaled", "a.gguf", "0.5", "--port", "81").port == 81
    assert config("--lora-scaled", "a.gguf:0.5", "--port", "81").port == 81


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--prot", "1"], "did you mean --port"),
        (["--port", "x"], "--port: expected an integer"),
        (["--port", "70000"], "between 0 and 65535"),
        (["--port"], "--port: expected PORT"),
        (["--top-p", "2"], "--top-p: expected a value between 0 and 1"),
        (["--cache-type-k", "q9"], "expected one of f32"),
        (["--ram-budget", "lots"], "expected a size"),
        (["-np", "0"], "--parallel"),
        (["stray"], "unexpected argument 'stray'"),
        (["--chat-template-kwargs", "[1]"], "--chat-template-kwargs: expected a JSON object"),
        (["--ssl-key-file", "k"], "belong together"),
    ],
)
def test_a_wrong_command_line_is_answered_with_one_line_that_names_the_flag(
    argv: list[str], part: str
) -> None:
    assert part in usage_error(*argv)


def test_a_wrong_variable_is_named() -> None:
    assert "LLAMA_ARG_PORT: expected an integer" in usage_error(LLAMA_ARG_PORT="x")


def test_without_a_model_the_error_says_how_to_get_one() -> None:
    with pytest.raises(UsageError, match="emberd fetch"):
        build_config([], {})


def test_sizes_have_units() -> None:
    assert config("--store-budget", "2G").store_budget == 2 * 2**30
    assert config("--store-budget", "1.5MiB").store_budget == 3 * 2**19
    assert config("--store-budget", "100").store_budget == 100


def test_help_shows_every_flag_that_has_an_effect() -> None:
    shown = help_text(OPTIONS)
    assert all(flag.name in shown for flag in OPTIONS)
    assert "LLAMA_ARG_CTX_SIZE" in shown


def test_the_context_is_shared_by_the_slots() -> None:
    assert config("-c", "4096", "-np", "2").slot_context(8192, lambda n_bytes: 0) == (2048, "")
    assert config("-c", "4096").slot_context(8192, lambda n_bytes: 0) == (1024, "")


def test_without_a_size_each_slot_gets_what_the_model_was_trained_for() -> None:
    n_ctx, why = config("--ram-budget", "1G").slot_context(8192, lambda n_bytes: n_bytes // 1000)
    assert n_ctx == 8192
    assert "trained" in why


def test_the_ram_budget_bounds_the_context_and_says_so() -> None:
    n_ctx, why = config("--ram-budget", "10M", "-np", "2").slot_context(8192, lambda n_bytes: n_bytes // 1024)
    assert n_ctx == 5 * 1024
    assert "--ram-budget" in why


def test_the_state_directory_of_a_service_manager_is_used() -> None:
    assert config(STATE_DIRECTORY="/var/lib/emberd:/var/lib/other").store_path == "/var/lib/emberd"


def test_rows_are_read_without_the_table() -> None:
    table = [Flag(("-x", "--ex"), "x", integer(0, 9), 3), Flag(("--word",), "w", text("W"), "")]
    assert Reader(table).read(["-x", "4"], {}).values == {"x": 4, "w": ""}
    assert dataclasses.is_dataclass(table[0])
