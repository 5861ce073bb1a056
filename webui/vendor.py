"""Brings the libraries of the page into `static/vendor/`: ``python -m webui.vendor``.

`static/vendor/vendor.json` names each npm package with its exact version, licence, the integrity of its
archive and the files taken from it, unchanged, each with its SHA-256. To upgrade, change version and
integrity there (``npm view NAME@VERSION dist.integrity``) and run this; the diff shows what came in.
"""

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TypedDict

from webui import STATIC

VENDOR = STATIC / "vendor"
RECORD = VENDOR / "vendor.json"


class VendoredFile(TypedDict):
    """`source` is the path in the package's archive, `sha256` (hex) that of the file as vendored."""

    source: str
    sha256: str


class Package(TypedDict):
    """One entry of vendor.json; the keys of `files` are names in `static/vendor`."""

    version: str
    licence: str
    integrity: str
    files: dict[str, VendoredFile]


def packages() -> dict[str, Package]:
    """The packages by their npm name."""
    content: dict[str, Package] = json.loads(RECORD.read_text())
    return content


def bring(name: str, package: Package) -> dict[str, bytes]:
    """Content of the package's wanted files, from the archive that npm's own client packs.

    Raises ValueError when the archive is not the one recorded, CalledProcessError when npm fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", "--ignore-scripts", f"{name}@{package['version']}"],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (archive_path,) = Path(folder).glob("*.tgz")
        if integrity_of(archive_path.read_bytes()) != package["integrity"]:
            raise ValueError(f"{name} {package['version']}: the archive's integrity is not the recorded one")
        contents = {}
        with tarfile.open(archive_path) as archive:
            for target, file in package["files"].items():
                member = archive.extractfile(file["source"])
                if member is None:
                    raise ValueError(f"{name}: {file['source']} is not a file")
                contents[target] = member.read()
        return contents


def integrity_of(content: bytes) -> str:
    """npm's notation of a SHA-512."""
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


def main() -> int:
    """Bring every package and record its files; what is not listed any more goes."""
    record = packages()
    kept = {RECORD.name}
    for name, package in record.items():
        for target, content in bring(name, package).items():
            (VENDOR / target).write_bytes(content)
            package["files"][target]["sha256"] = hashlib.sha256(content).hexdigest()
            kept.add(target)
            print(f"{target}: {name} {package['version']}, {package['licence']}, {len(content)} bytes")
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    for path in VENDOR.iterdir():
        if path.name not in kept:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
