"""Notice changes of an author's files, so that `gatepost dev --reload` loads them again."""

import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

POLL_S = 0.3
"""The time between two checks, each of which costs a `stat` for each file."""
SERVER = Path(__file__).resolve().parents[1]
INSTALLED = tuple(
    Path(folder).resolve() for name, folder in sysconfig.get_paths().items() if name != "data"
)

Stamps = dict[Path, tuple[int, int]]


class SourceWatch(threading.Thread):
    """
    Calls *changed* from a thread of its own after files have changed and are stable again.

    It watches *files*, and every module that was imported from one of their folders, but no
    installed package.
    """

    def __init__(self, files: Iterable[Path], changed: Callable[[], object]) -> None:
        super().__init__(daemon=True, name="source-watch")
        self._files = [file.resolve() for file in files]
        self._changed = changed
        self._stopped = threading.Event()
        self._initial_stamps: Stamps = {}

    def start(self) -> None:
        """Begin to watch; every later change is noticed."""
        # Read here, because the thread may start only after the server is ready.
        self._initial_stamps = self._stamps()
        super().start()

    def run(self) -> None:
        notified = before = self._initial_stamps
        while not self._stopped.wait(POLL_S):
            now = self._stamps()
            # An editor may write a file in several steps.
            if now == before and now != notified:
                notified = now
                self._changed()
            before = now

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def forget_modules(self) -> None:
        """Make Python import the watched modules again."""
        for name, _ in list(self._modules()):
            sys.modules.pop(name, None)

    def _modules(self) -> Iterator[tuple[str, Path]]:
        folders = {file.parent for file in self._files}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not file or name == "__main__":
                continue
            path = Path(file).resolve()
            if folders.isdisjoint(path.parents) or SERVER in path.parents:
                continue
            if not any(folder in path.parents for folder in INSTALLED):
                yield name, path

    def _stamps(self) -> Stamps:
        stamps: Stamps = {}
        for path in {*self._files, *(path for _, path in self._modules())}:
            with suppress(OSError):
                status = path.stat()
                stamps[path] = (status.st_mtime_ns, status.st_size)
        return stamps
