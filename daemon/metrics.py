"""Prometheus metrics under llama.cpp's names, and emberd's own."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from daemon.store_metrics import store_metrics
from runtime.engine.messages import EngineStatistics

_COUNTERS = (
    ("prompt_tokens", "Number of prompt tokens processed, without cached ones", "prompt_tokens_total"),
    ("prompt_tokens_cached", "Number of prompt tokens reused from the cache", "prompt_tokens_cached_total"),
    ("prompt_seconds", "Prompt processing time", "prompt_seconds_total"),
    ("tokens_predicted", "Number of generated tokens", "tokens_predicted_total"),
    ("tokens_predicted_seconds", "Generation time", "tokens_predicted_seconds_total"),
    ("n_decode", "Number of steps that generated tokens", "n_decode_total"),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second since the last scrape, 0 when nothing was processed."""

    prompt: float
    predicted: float


class Throughput:
    """Averages between scrapes, as llama.cpp's gauges are: reading them starts the next interval."""

    def __init__(self) -> None:
        self._last = EngineStatistics()

    def read(self, now: EngineStatistics) -> Rates:
        last, self._last = self._last, now
        return Rates(
            _rate(
                now.prompt_tokens_total - last.prompt_tokens_total,
                now.prompt_seconds_total - last.prompt_seconds_total,
            ),
            _rate(
                now.tokens_predicted_total - last.tokens_predicted_total,
                now.tokens_predicted_seconds_total - last.tokens_predicted_seconds_total,
            ),
        )


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def exposition(
    engine: EngineStatistics,
    throughput: Throughput,
    store: Mapping[str, int | float | str],
    store_state: str = "off",
) -> bytes:
    """The text of one scrape."""
    rates = throughput.read(engine)
    metrics = [*_engine_metrics(engine, rates), *store_metrics(store_state, store)]
    return generate_latest(_Snapshot(metrics))


class _Snapshot(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _engine_metrics(engine: EngineStatistics, rates: Rates) -> Iterator[Metric]:
    for name, text, field in _COUNTERS:
        yield _counter(f"llamacpp:{name}", text, getattr(engine, field))
    busy = engine.n_busy_slots_total / engine.n_decode_total if engine.n_decode_total else 0.0
    used = engine.kv_bytes_used / engine.kv_bytes_total if engine.kv_bytes_total else 0.0
    for name, text, value in (
        ("n_tokens_max", "Largest observed sequence length", engine.n_tokens_max),
        ("n_busy_slots_per_decode", "Average number of busy slots per step", busy),
        ("prompt_tokens_seconds", "Average prompt throughput in tokens/s", rates.prompt),
        ("predicted_tokens_seconds", "Average generation throughput in tokens/s", rates.predicted),
        ("kv_cache_usage_ratio", "Share of the memory for blocks in use", used),
        ("kv_cache_tokens", "Tokens held by slots", engine.kv_tokens),
        ("requests_processing", "Number of requests in slots", engine.requests_processing),
        ("requests_deferred", "Number of requests waiting for a slot", engine.requests_deferred),
    ):
        yield _gauge(f"llamacpp:{name}", text, value)
    yield _counter("emberd:steps", "Number of steps of the engine", engine.steps_total)
    yield _gauge("emberd:pool_blocks_used", "Blocks of the pool in use", engine.kv_blocks_used)
    yield _gauge("emberd:pool_blocks", "Blocks of the pool", engine.kv_blocks_total)
    yield _gauge("emberd:pool_bytes_used", "Memory of blocks in use", engine.kv_bytes_used)
    yield _gauge("emberd:pool_bytes", "Memory that blocks may take", engine.kv_bytes_total)
    yield _gauge(
        "emberd:points_bytes", "Bytes of the points that prompts can go on from", engine.points_bytes
    )


def _counter(name: str, text: str, value: float) -> Metric:
    metric = Metric(name, text, "counter")
    metric.add_sample(f"{name}_total", {}, value)
    return metric


def _gauge(name: str, text: str, value: float) -> Metric:
    metric = Metric(name, text, "gauge")
    metric.add_sample(name, {}, value)
    return metric
