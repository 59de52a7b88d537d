"""What runs on this machine, as the kernel says."""

from pathlib import Path


def children_of(parent: int) -> set[int]:
    """The processes that another one has started and that are not gone, zombies included."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return {pid for pid in pids if int(_stat_of(pid)[1]) == parent}


def is_alive(pid: int) -> bool:
    """Whether it runs; nobody may have asked yet how it ended."""
    return _stat_of(pid)[0] not in "XZ"


def _stat_of(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["X", "0"]
    return text.rpartition(")")[2].split()
