"""The chat page: files that a browser runs as they are."""

from pathlib import Path

STATIC = Path(__file__).resolve().parent / "static"
"""Folder of the page: `index.html` and everything that it names by a relative path."""
