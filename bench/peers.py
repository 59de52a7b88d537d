"""The peers' own environment: made from its lock on first use, never mixed with ours."""

import hashlib
import subprocess
import sys
from pathlib import Path

PEERS_FOLDER = Path(__file__).resolve().parent
# Below .venv, so that what cleans, ignores and skips that folder does it for this one too.
ENVIRONMENT = PEERS_FOLDER.parent / ".venv/peers"
LOCK = PEERS_FOLDER / "requirements.lock"
STAMP = "lock.sha256"
INSTALL_S = 600


class PeersMissing(Exception):
    """The environment could not be made; the message is what pip said."""


def python(environment: Path = ENVIRONMENT, lock: Path = LOCK) -> Path:
    """Return the peers' Python interpreter; install it if it is missing or not current."""
    interpreter = environment / "bin/python"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    stamp = environment / STAMP
    if stamp.exists() and stamp.read_text(encoding="ascii") == digest:
        return interpreter
    print("installing the peers from their lock (once) ...", flush=True)
    pip = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(environment)],
        # The lock is complete. Where an extra is asked for, pip would look for other versions.
        [*pip, "--no-deps", "--require-hashes", "--requirement", str(lock)],
    )
    for step in steps:
        try:
            completed = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_S)
        except subprocess.TimeoutExpired:
            raise PeersMissing(f"installing took more than {INSTALL_S} s") from None
        if completed.returncode:
            raise PeersMissing(last_line(completed.stderr) or f"{step[1]} failed")
    stamp.write_text(digest, encoding="ascii")
    return interpreter


def packages(environment: Path = ENVIRONMENT) -> list[Path]:
    """Return where the peers' packages are; nowhere before they are installed."""
    return [*environment.glob("lib/python3*/site-packages")]


def last_line(text: str) -> str:
    """Return the last line that reports an error, which is where pip puts the reason."""
    errors = [line.strip() for line in text.splitlines() if line.strip()]
    blamed = [line for line in errors if line.startswith("ERROR")]
    return (blamed or errors or [""])[-1]
