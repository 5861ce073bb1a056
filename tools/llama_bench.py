"""Runs llama.cpp's llama-bench on the model and sizes that emberd is measured at."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


class ToolFailed(Exception):
    """llama-bench cannot be run, or says something else than a speed."""


@dataclass(frozen=True, slots=True)
class Case:
    """A test of llama-bench: `n_prompt` tokens read or `n_gen` decoded, after `depth` tokens."""

    n_prompt: int
    n_gen: int
    depth: int


@dataclass(frozen=True, slots=True)
class LlamaBench:
    """`program` with the settings that are the same for all cases. Its libraries may lie beside it."""

    program: Path
    model: Path
    n_threads: int
    n_ubatch: int
    key_type: str
    value_type: str

    def speed(self, case: Case) -> float:
        """Tokens per second of one run, after its own warm-up. Errors: ToolFailed."""
        done = self._run(case)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ToolFailed(f"{self.program}: exit {done.returncode}: {last}")
        sizes = case.n_prompt, case.n_gen
        try:
            rows = json.loads(done.stdout)
            return next(float(r["avg_ts"]) for r in rows if (r["n_prompt"], r["n_gen"]) == sizes)
        except (ValueError, KeyError, TypeError, StopIteration):
            raise ToolFailed(f"{self.program}: does not answer as llama-bench does") from None

    def _run(self, case: Case) -> subprocess.CompletedProcess[str]:
        flags = {
            "-m": self.model, "-p": case.n_prompt, "-n": case.n_gen, "-d": case.depth, "-t": self.n_threads,
            "-ub": self.n_ubatch, "-ctk": self.key_type, "-ctv": self.value_type, "-r": 1, "-o": "json",
        }  # fmt: skip
        command = [str(self.program), *(str(word) for pair in flags.items() for word in pair)]
        beside = os.pathsep.join(filter(None, (str(self.program.parent), os.environ.get("LD_LIBRARY_PATH"))))
        try:
            environment = {**os.environ, "LD_LIBRARY_PATH": beside}
            return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        except OSError as error:
            raise ToolFailed(f"{self.program}: {error.strerror}") from None
