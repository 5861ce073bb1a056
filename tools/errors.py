"""What can go wrong in a tool, beyond what the runtime and the store say themselves."""


class FetchError(Exception):
    """A file could not be brought, or is not the file that was expected; the message is one line."""


def reason(error: BaseException) -> str:
    """One line for people: of a failed system call the file and what is wrong, without Python's notation."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)
