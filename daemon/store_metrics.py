"""The store's figures as Prometheus metrics, ``emberd:store_*``."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

Figures = Mapping[str, int | float | str]
"""`daemon.saves.Saves.statistics`"""

Family = tuple[str, str, tuple[str, ...], dict[tuple[str, ...], str]]
"""Name, help, the names of its labels, and by their values the figure."""

_STATES = ("ok", "degraded", "off")
_GAUGES: tuple[Family, ...] = (
    (
        "bytes",
        "Bytes of what is stored, of the part that saves hold, of points, of the file, of what it has beyond",
        ("kind",),
        {
            ("live",): "live_bytes",
            ("pinned",): "pinned_bytes",
            ("point",): "point_bytes",
            ("file",): "file_bytes",
            ("free",): "free_bytes",
        },
    ),
    (
        "entries",
        "What is stored",
        ("kind",),
        {("block",): "n_blocks", ("point",): "n_points", ("save",): "n_manifests"},
    ),
    ("budget_bytes", "Live bytes that may be kept", (), {(): "budget_bytes"}),
    ("queue_bytes", "Lent bytes that wait to be written", (), {(): "queue_bytes"}),
    ("reader_age_seconds", "Age of the oldest read under way", (), {(): "oldest_reader_s"}),
)
_COUNTERS: tuple[Family, ...] = (
    (
        "lookups",
        "Look-ups by how much of the prompt was found, and why not more",
        ("result", "reason"),
        {
            ("hit", ""): "lookups_hit",
            ("partial", "differs"): "partial_differs",
            ("partial", "absent"): "partial_absent",
            ("partial", "damaged"): "partial_damaged",
            ("miss", "absent"): "miss_absent",
            ("miss", "damaged"): "miss_damaged",
            ("miss", "trouble"): "miss_trouble",
        },
    ),
    ("tokens_reused", "Positions that were restored", (), {(): "tokens_reused"}),
    ("points_reused", "Points that were restored", (), {(): "points_reused"}),
    ("read_bytes", "Bytes that were restored", (), {(): "bytes_read"}),
    ("written_bytes", "Bytes that were committed", (), {(): "bytes_written"}),
    (
        "dropped",
        "Offers given up: the queue was full, memory was needed, or nothing could be written",
        ("why",),
        {("queue",): "dropped_queue", ("memory",): "dropped_memory", ("trouble",): "dropped_trouble"},
    ),
    ("failed", "Offers that could not be written", (), {(): "failed"}),
    (
        "evicted",
        "Blocks and points that made room",
        ("kind",),
        {("block",): "evicted_blocks", ("point",): "evicted_points"},
    ),
    ("evicted_bytes", "Bytes of what made room", (), {(): "evicted_bytes"}),
    (
        "quarantined",
        "Blocks and points that failed verification: by their bytes, or by what leads to them",
        ("why",),
        {("checksum",): "quarantined_checksum", ("record",): "quarantined_record"},
    ),
    ("rebuilt", "Times the file was repaired or set aside", (), {(): "rebuilt"}),
)
_SUMMARIES = (
    ("commit_seconds", "Transactions that wrote blocks", "commits", "commit_seconds"),
    ("read_seconds", "Blocks and points that were copied out and verified", "reads", "read_seconds"),
    ("save_seconds", "Slots saved under a name, until durable", "saves", "save_seconds"),
    ("restore_seconds", "Slots restored by name", "restores", "restore_seconds"),
)


def store_metrics(state: str, figures: Figures) -> Iterator[Metric]:
    """The metrics of a store in `state`; without figures, of a store that is off, the state alone."""
    states: dict[tuple[str, ...], float] = {(known,): float(known == state) for known in _STATES}
    yield _family("state", "1 for the state that the store is in", "gauge", ("state",), states)
    if not figures:
        return
    for kind, families in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name, text, labels, fields in families:
            values = {value: float(figures[field]) for value, field in fields.items()}
            yield _family(name, text, kind, labels, values)
    for name, text, count, total in _SUMMARIES:
        metric = Metric(f"emberd:store_{name}", text, "summary")
        metric.add_sample(f"emberd:store_{name}_count", {}, float(figures[count]))
        metric.add_sample(f"emberd:store_{name}_sum", {}, float(figures[total]))
        yield metric


def _family(
    name: str, text: str, kind: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> Metric:
    metric = Metric(f"emberd:store_{name}", text, kind)
    suffix = "_total" if kind == "counter" else ""
    for value, number in values.items():
        metric.add_sample(f"emberd:store_{name}{suffix}", dict(zip(labels, value, strict=True)), number)
    return metric
