"""The model as the catalogue of the Codex command line describes models (http-api.md 7)."""

from typing import Any

from daemon.model import ServedModel

_COMPACT_AT = 0.9
_EFFECTIVE_PERCENT = 95


def codex_record(model: ServedModel) -> dict[str, Any]:
    """All fields that Codex asks a catalogue for. What a conversation can hold is one slot's context."""
    return {
        "slug": model.name,
        "display_name": model.name,
        "description": "",
        "default_reasoning_level": None,
        "supported_reasoning_levels": [],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 0,
        "additional_speed_tiers": [],
        "service_tiers": [],
        "default_service_tier": None,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": "",
        "model_messages": None,
        "supports_reasoning_summaries": False,
        "default_reasoning_summary": "none",
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": None,
        "web_search_tool_type": "text",
        "truncation_policy": {"mode": "tokens", "limit": model.n_ctx},
        "supports_parallel_tool_calls": False,
        "supports_image_detail_original": False,
        "context_window": model.n_ctx,
        "max_context_window": model.n_ctx,
        "auto_compact_token_limit": int(_COMPACT_AT * model.n_ctx),
        "effective_context_window_percent": _EFFECTIVE_PERCENT,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
        "supports_search_tool": False,
        "use_responses_lite": False,
        "auto_review_model_override": None,
        "tool_mode": None,
        "multi_agent_version": None,
    }
