"""Generate development key pairs, in a folder that only its owner can read."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key

from gatepost_keys.public_keys import ALGORITHMS, KID_PREFIX, kid_of

SUFFIX = ".private.json"


class GenerationRefused(Exception):
    """
    The request would be unsafe or cannot be fulfilled; the message is a sentence for a person.
    """


def new_key(algorithm: str) -> Key:
    """
    Return a private key that signs with *algorithm* and carries its `kid`, `alg` and `use`.

    GenerationRefused when the algorithm is not one of ``jwks.ALGORITHMS``: symmetric ones would let
    every verifier sign, and `none` needs no key.
    """
    if algorithm not in ALGORITHMS:
        raise GenerationRefused(
            f"unknown algorithm {algorithm!r}: use one of {', '.join(ALGORITHMS)}"
        )
    kind, size = ALGORITHMS[algorithm]
    # Created in one step. Reading it back from its numbers, with the id among its parameters, would
    # check them once more, which takes twice as long as creating it.
    key = JWKRegistry.generate_key(kind, size, {"alg": algorithm, "use": "sig"}, private=True)
    key.dict_value["kid"] = kid_of(key)
    return key


def write_key(key: Key, folder: Path) -> Path:
    """Keep *key* in *folder* as a file that only its owner can read; gives the file."""
    prepare(folder)
    path = folder / f"{time.time_ns():020d}-{key.kid}{SUFFIX}"
    text = json.dumps(key.as_dict(private=True))
    # The mode is set when the file is created: with a later chmod, every user of the machine could
    # open it for a moment.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    return path


def read_keys(folder: Path) -> list[Key]:
    """
    Return the keys of *folder*, oldest first: the last one signs, all are published.

    GenerationRefused when there is none, when others may read one, or when a file is not such a
    key.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    if not paths:
        raise GenerationRefused(f"no key in {folder}: make one with `python -m gatepost_keys new`")
    return [_read_key(path) for path in paths]


def forget_old(folder: Path, keep: int) -> list[Path]:
    """Delete all but the newest *keep* keys (at least one); gives the files that are gone."""
    old = sorted(folder.glob(f"*{SUFFIX}"))[: -max(keep, 1)]
    for path in old:
        path.unlink()
    return old


def prepare(folder: Path) -> None:
    """Make *folder* for the owner alone; raise GenerationRefused if git tracks its files."""
    refuse_tracked(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        raise GenerationRefused(
            f"{folder} is open to other users of this machine: chmod 700 it first"
        )


def refuse_tracked(folder: Path) -> None:
    """Refuse a *folder* in a git work tree that does not ignore it."""
    path = folder.resolve()
    tree = next((at for at in (path, *path.parents) if (at / ".git").exists()), None)
    if tree is None:
        return
    git = shutil.which("git")
    probe = path / f"{KID_PREFIX}probe{SUFFIX}"
    command = [git or "git", "-C", str(tree), "check-ignore", "--quiet", str(probe)]
    # There is no shell, and the only argument is a path of our own.
    if git is None or subprocess.run(command, check=False).returncode != 0:  # noqa: S603
        raise GenerationRefused(
            f"{folder} lies in a git repository that does not ignore it: "
            "keep keys outside, or add the folder to .gitignore first"
        )


def _read_key(path: Path) -> Key:
    if path.stat().st_mode & 0o077:
        raise GenerationRefused(
            f"{path} can be read by other users of this machine: chmod 600 it first"
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        fits = isinstance(data, dict) and ALGORITHMS[data["alg"]][0] == data["kty"]
        key = JWKRegistry.import_key(data) if fits else None
    except (ValueError, LookupError, TypeError, JoseError):
        key = None
    if key is None or not key.is_private or not (key.kid or "").startswith(KID_PREFIX):
        raise GenerationRefused(f"{path} is not a private key that this program wrote")
    return key
