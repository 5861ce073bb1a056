"""The notify protocol of service managers (sd_notify): datagrams to $NOTIFY_SOCKET."""

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends state to the service manager; without one every call does nothing."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        watchdog_pid = environ.get("WATCHDOG_PID", str(os.getpid()))
        usec = environ.get("WATCHDOG_USEC", "") if watchdog_pid == str(os.getpid()) else ""
        self.watchdog_seconds = int(usec) / 1e6 if usec.isdigit() else 0.0

    def send(self, **state: str) -> None:
        """``send(READY="1", STATUS="serving")``. A manager that is gone is no error of ours."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        message = "\n".join(f"{name}={value}" for name, value in state.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(message.encode(), address)
        except OSError:
            return
