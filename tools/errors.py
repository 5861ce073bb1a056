"""What can go wrong in a tool, beyond what the runtime and the store say themselves."""


class FetchError(Exception):
    """A file could not be brought, or is not the file that was expected; the message is one line."""
