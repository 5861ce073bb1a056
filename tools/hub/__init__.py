"""Models from Hugging Face, a mirror of it or any web address.

`fetch_repo(hub, "user/repo:Q4_K_M", watch)` and `fetch_url(hub, url, watch)` return the path of a finished,
checked file; `Hub.of_environment()` says where from and where to, a `Watch` is told how it goes. Everything
that can go wrong is a `tools.errors.FetchError` of one line, or an OSError of the disk.

Importing this package imports an HTTP client: do it when there is something to fetch.
"""

from tools.hub.client import Patience
from tools.hub.download import Watch
from tools.hub.model import Hub, fetch_repo, fetch_url

__all__ = ["Hub", "Patience", "Watch", "fetch_repo", "fetch_url"]
