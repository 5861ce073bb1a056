"""The command line: ``emberd`` serves, ``emberd NAME`` runs one of the other commands."""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import distributions

import daemon

COMMANDS = {
    "fetch": ("tools.fetch", "download a default model"),
    "minilm": ("tools.minilm", "make an embedding model of PyPI's MiniLM"),
    "bench": ("tools.bench", "measure prompt processing and generation"),
    "perplexity": ("tools.perplexity", "how well a model predicts a text"),
    "logits": ("tools.logits", "write the logits of a token sequence"),
    "tokenize": ("tools.tokenize", "turn text into token ids"),
    "inspect": ("tools.inspect", "show what a model file holds"),
    "store": ("tools.store_admin", "look after stored prompts"),
}

_USAGE = """usage: emberd [serve] -m MODEL.gguf [flags]     serve llama-server's HTTP API and a chat page
       emberd COMMAND ...                      {commands}

emberd COMMAND --help explains a command. Flags of serve:
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. The exit status: 0, 1 for a failure told in one line on stderr, 2 for wrong usage of
    a tool, 75 when another process has the store, 130 when the terminal's signal came before there was
    anything to finish.
    """
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str]) -> int:
    if clash := _foreign_package():
        return _fail(f"the package {clash} installs a module `daemon` too: give emberd its own environment")
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        return _run_tool(name, arguments[1:])
    if name == "serve":
        return _serve(arguments[1:])
    if not name.startswith("-") and (meant := difflib.get_close_matches(name, [*COMMANDS, "serve"], 1, 0.75)):
        return _fail(f"unknown command {name}, did you mean {meant[0]}?")
    return _serve(arguments)


def _serve(arguments: list[str]) -> int:
    from daemon.flags import UsageError, help_text

    if any(flag in arguments for flag in ("-h", "--help", "--usage")):
        from daemon.options import OPTIONS

        print(_USAGE.format(commands=" | ".join(COMMANDS)) + "\n" + help_text(OPTIONS))
        return 0
    if "--version" in arguments:
        from daemon.build_info import VERSION

        print(f"emberd {VERSION}")
        return 0
    from daemon.config import build_config

    try:
        config, warnings = build_config(arguments, os.environ)
    except UsageError as error:
        return _fail(str(error))
    from daemon.serve import StartFailed, run

    try:
        status = run(config, warnings)
    except StartFailed as error:
        _fail(str(error))
        status = error.status
    # a model may still be loading in a thread that cannot be interrupted
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run_tool(name: str, arguments: list[str]) -> int:
    from runtime.errors import RuntimeFault
    from tools.errors import reason

    module_name, about = COMMANDS[name]
    tool = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(prog=f"emberd {name}", description=about)
    tool.add_arguments(parser)
    try:
        return int(tool.run(parser.parse_args(arguments)))
    except BrokenPipeError:
        # the reader of our output is gone; there is nobody left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RuntimeFault, OSError) as error:
        return _fail(reason(error))


def _foreign_package() -> str:
    """The distribution, other than emberd, that brings a top-level `daemon`; "" when there is none."""
    if getattr(daemon, "DISTRIBUTION", "") != "emberd":
        return str(getattr(daemon, "__file__", "daemon"))
    for distribution in distributions():
        # the name last: finding it means to parse a description of many pages
        if (
            "daemon" in (distribution.read_text("top_level.txt") or "").split()
            and distribution.name != "emberd"
        ):
            return str(distribution.name)
    return ""


def _fail(message: str) -> int:
    print(f"emberd: {' '.join(message.split())}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
