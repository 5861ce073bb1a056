"""The process: command line, HTTP, chat formats, and the life of the daemon."""

DISTRIBUTION = "emberd"
"""Says whose package this is: other distributions install a top-level `daemon` too."""
