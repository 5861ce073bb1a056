"""The files of the page, without a browser: what they name exists, and nothing is inline or foreign."""

import hashlib
import re

from webui import STATIC
from webui.vendor import RECORD, VENDOR, packages

INDEX = (STATIC / "index.html").read_text()
MODULES = sorted(STATIC.glob("*.js"))


def test_the_page_has_nothing_inline_so_a_strict_policy_holds() -> None:
    assert re.findall(r"<script(?![^>]*\bsrc=)", INDEX) == []
    assert re.findall(r"<style|\bstyle=|\bon\w+=", INDEX) == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', INDEX)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_every_file_that_the_page_names_is_there_by_a_relative_path() -> None:
    named = re.findall(r'(?:src|href)="([^"#]+)"', INDEX)
    for module in MODULES:
        named += re.findall(r'from "([^"]+)"', module.read_text())
    assert named
    for name in named:
        assert not re.match(r"/|\w+:", name)
        assert (STATIC / name).is_file(), name


def test_every_call_is_relative_so_a_path_prefix_works() -> None:
    calls = re.findall(r'fetch\("([^"]+)"', (STATIC / "api.js").read_text())
    assert calls
    assert [call for call in calls if call.startswith("/") or ":" in call] == []


def test_vendored_files_are_the_recorded_ones() -> None:
    recorded = {
        name: file["sha256"] for package in packages().values() for name, file in package["files"].items()
    }
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != RECORD.name
    }
    assert found == recorded


def test_each_vendored_package_carries_its_licence_and_integrity() -> None:
    for name, package in packages().items():
        assert package["licence"], name
        assert package["integrity"].startswith("sha512-"), name
        assert any(file.endswith(".LICENSE") for file in package["files"]), name
