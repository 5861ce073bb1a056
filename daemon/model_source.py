"""From the words that name a model to a file on this machine."""

from collections.abc import Callable

import msgspec

from daemon.config import Config
from daemon.logs import logger


def with_local_model(config: Config, report: Callable[[str, float], None]) -> Config:
    """The configuration with `model` set to a file: the given one, or that of -hf or -mu, fetched if need be.

    May take as long as a download. `report(stage, share)` tells its progress. Raises FetchError and OSError.
    """
    if config.model:
        return config
    # an HTTP client is imported only where there is something to fetch
    from tools.hub import Hub, Watch, fetch_repo, fetch_url

    hub = Hub.of_environment(token=config.hf_token, offline=config.offline)
    watch = Watch(
        say=logger().info,
        progress=lambda name, done, total: report(f"fetching {name}", done / total if total else 0.0),
    )
    if config.hf_repo:
        path = fetch_repo(hub, config.hf_repo, watch, config.hf_file)
    else:
        path = fetch_url(hub, config.model_url, watch)
    return msgspec.structs.replace(config, model=str(path))
