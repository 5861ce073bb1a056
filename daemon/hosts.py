"""Which Host headers are answered.

A page of the web can point a name of its own at 127.0.0.1 and then ask emberd under that name, as if it were
of the same origin (DNS rebinding). Such a request carries the page's name, which is refused here. An address
or a name without a dot cannot be such a name.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

_EVERYWHERE = frozenset({"0.0.0.0", "::", "[::]", "*"})


class AllowedHosts:
    """`listening` are the --host values, `further` those of --allowed-hosts.

    Who listens on every address has chosen to be found under any name, unless `further` says otherwise.
    """

    def __init__(self, listening: Iterable[str], further: Iterable[str]) -> None:
        names = {host.lower().rstrip(".") for host in listening}
        listed = {host.strip().lower().rstrip(".") for host in further} - {""}
        self._any = "*" in listed or (bool(names & _EVERYWHERE) and not listed)
        self._names = names | listed

    def allows(self, header: str) -> bool:
        """`header` is a Host header, with or without a port; browsers never leave it out."""
        if self._any or not header:
            return True
        try:
            name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if "." not in name or name in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
