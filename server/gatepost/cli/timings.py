"""Measure the cost of each part of a start, for `gatepost serve --timings`."""

import importlib.abc
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

MEMORY = Path("/proc/self/statm")
"""The pages of this process (proc(5)), the resident ones second; Linux only."""
MIN_S = 0.003
"""The time from which a package has a line of its own."""


class Part(NamedTuple):
    """One part of the start: its seconds, its resident bytes, and its seconds by package."""

    name: str
    seconds: float
    resident: int
    imports: Mapping[str, float]


class StartTimings:
    """Measures the parts of a start, one after another, and the packages that each imports."""

    def __init__(self) -> None:
        # The interpreter and the command line have run by now; their elapsed time is unknown.
        self._parts = [Part("Python (CPU time)", time.process_time(), resident(), {})]
        self._imports = ImportTimes()
        self._at, self._resident = time.perf_counter(), resident()
        sys.meta_path.insert(0, self._imports)

    def part_done(self, part: str) -> None:
        """Note that *part* has run since the one before it."""
        now, bytes_now = time.perf_counter(), resident()
        seconds, added = now - self._at, bytes_now - self._resident
        self._parts.append(Part(part, seconds, added, self._imports.take()))
        self._at, self._resident = now, bytes_now

    def table(self) -> Iterator[str]:
        """End the measurement and yield its lines: milliseconds, MiB, name."""
        sys.meta_path.remove(self._imports)
        yield f"{'ms':>7} {'MiB':>6}  part of the start"
        for part in self._parts:
            yield _line(part.seconds, part.name, part.resident)
            for package, seconds in part.imports.items():
                if seconds >= MIN_S:
                    yield _line(seconds, f"  import {package}")
        seconds = sum(part.seconds for part in self._parts)
        yield _line(seconds, "all", sum(part.resident for part in self._parts))


def _line(seconds: float, name: str, size: int | None = None) -> str:
    mebibytes = "" if not size else f"{size / 2**20:.1f}"
    return f"{seconds * 1000:7.1f} {mebibytes:>6}  {name}"


def resident() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not tell."""
    try:
        pages = MEMORY.read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class ImportTimes(importlib.abc.MetaPathFinder):
    """Measures how long the modules of each package run when they are imported."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._nested: list[float] = []
        """For each running module, the seconds of the modules that it imports."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is None:
                continue
            loader = spec.loader
            # Built-in and frozen modules have a class as their loader, and cost next to nothing.
            if loader is not None and not isinstance(loader, type):
                run = self._measured(fullname, loader.exec_module)
                # Patch the loader instead of wrapping it, because programs ask the loader for data
                # files.
                setattr(loader, "exec_module", run)  # noqa: B010  # a method, to mypy
            return spec
        return None

    def take(self) -> Mapping[str, float]:
        """Return the seconds by package since the last call, in the order of the imports."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        return seconds

    def _measured(
        self, name: str, run: Callable[[ModuleType], None]
    ) -> Callable[[ModuleType], None]:
        def measured(module: ModuleType) -> None:
            # The package comes first, because it began before its imports.
            self._seconds[_package(name)] += 0.0
            self._nested.append(0.0)
            began = time.perf_counter()
            try:
                run(module)
            finally:
                seconds = time.perf_counter() - began
                self._seconds[_package(name)] += seconds - self._nested.pop()
                if self._nested:
                    self._nested[-1] += seconds

        return measured


def _package(module: str) -> str:
    """Return the distribution's package, with its part for Gatepost's own."""
    first, *inner = module.split(".")
    if first in sys.stdlib_module_names:
        return "the standard library"
    return f"{first}.{inner[0]}" if first == "gatepost" and inner else first
