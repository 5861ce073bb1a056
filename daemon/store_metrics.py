"""The store's figures as Prometheus metrics, ``emberd:store_*``."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

Figures = Mapping[str, int | float | str]
"""`daemon.saves.Saves.statistics`"""

_STATES = ("ok", "degraded", "off")
_GAUGES = (
    (
        "bytes",
        "Bytes of what is stored, of the part that saves hold, of points, and of the file",
        "kind",
        (
            ("live", "live_bytes"),
            ("pinned", "pinned_bytes"),
            ("point", "point_bytes"),
            ("file", "file_bytes"),
        ),
    ),
    (
        "entries",
        "What is stored",
        "kind",
        (("block", "n_blocks"), ("point", "n_points"), ("save", "n_manifests")),
    ),
    ("budget_bytes", "Live bytes that may be kept", "", (("", "budget_bytes"),)),
    ("queue_bytes", "Lent bytes that wait to be written", "", (("", "queue_bytes"),)),
    ("reader_age_seconds", "Age of the oldest read under way", "", (("", "oldest_reader_s"),)),
)
_COUNTERS = (
    (
        "lookups",
        "Look-ups by how much of the prompt was found",
        "result",
        (("hit", "lookups_hit"), ("partial", "lookups_partial"), ("miss", "lookups_miss")),
    ),
    ("tokens_reused", "Positions that were restored", "", (("", "tokens_reused"),)),
    ("points_reused", "Points that were restored", "", (("", "points_reused"),)),
    ("read_bytes", "Bytes that were restored", "", (("", "bytes_read"),)),
    ("written_bytes", "Bytes that were committed", "", (("", "bytes_written"),)),
    (
        "dropped",
        "Offers given up: the queue was full, memory was needed, or nothing could be written",
        "why",
        (("queue", "dropped_queue"), ("memory", "dropped_memory"), ("trouble", "dropped_trouble")),
    ),
    ("failed", "Offers that could not be written", "", (("", "failed"),)),
    ("evicted", "Blocks and points that made room", "", (("", "evicted"),)),
    ("evicted_bytes", "Bytes of what made room", "", (("", "evicted_bytes"),)),
    ("quarantined", "Blocks and points that failed verification", "", (("", "quarantined"),)),
    ("rebuilt", "Times the file was repaired or set aside", "", (("", "rebuilt"),)),
)
_SUMMARIES = (
    ("commit_seconds", "Transactions that wrote blocks", "commits", "commit_seconds"),
    ("read_seconds", "Blocks and points that were copied out and verified", "reads", "read_seconds"),
    ("save_seconds", "Slots saved under a name, until durable", "saves", "save_seconds"),
    ("restore_seconds", "Slots restored by name", "restores", "restore_seconds"),
)


def store_metrics(state: str, figures: Figures) -> Iterator[Metric]:
    """The metrics of a store in `state`; without figures, of a store that is off, the state alone."""
    yield _family("state", "1 for the state that the store is in", "gauge", "state", _one_of(state))
    if not figures:
        return
    for name, text, label, samples in _GAUGES:
        yield _family(name, text, "gauge", label, _values(samples, figures))
    for name, text, label, samples in _COUNTERS:
        yield _family(name, text, "counter", label, _values(samples, figures))
    for name, text, count, total in _SUMMARIES:
        metric = Metric(f"emberd:store_{name}", text, "summary")
        metric.add_sample(f"emberd:store_{name}_count", {}, float(figures[count]))
        metric.add_sample(f"emberd:store_{name}_sum", {}, float(figures[total]))
        yield metric


def _one_of(state: str) -> dict[str, float]:
    return {known: float(known == state) for known in _STATES}


def _values(samples: tuple[tuple[str, str], ...], figures: Figures) -> dict[str, float]:
    return {value: float(figures[field]) for value, field in samples}


def _family(name: str, text: str, kind: str, label: str, values: Mapping[str, float]) -> Metric:
    metric = Metric(f"emberd:store_{name}", text, kind)
    suffix = "_total" if kind == "counter" else ""
    for value, number in values.items():
        metric.add_sample(f"emberd:store_{name}{suffix}", {label: value} if label else {}, number)
    return metric
