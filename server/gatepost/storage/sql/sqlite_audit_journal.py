"""
The journals of a SQLite file: batches of audit records before they are in its tables.

A commit of SQLite writes a page or more for each chain, index and table. A batch is durable sooner
if it is appended to a file of its own, which takes one write and one synchronisation, and no other
process waits for it. Each process has a journal, as `gatepost.db-audit-1`, which it locks as long
as it runs. `SqliteMerger` moves the batches into the tables.

A journal is a sequence of frames: a header, a proof by the key ring, and a batch. The digest of a
frame covers the digest before it. How far a journal is merged stands in the table of heads: with
no tenant, the number of the journal as the writer, the last frame's number and digest, and, as
`pruned`, the offset behind it.
"""

import fcntl
import os
import struct
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import count
from typing import Annotated

import msgspec

from gatepost.permissions import close_to_others
from gatepost.storage.audit import AuditDraft, Batch, ChainHead, Linker, Stored
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit_heads import OF_JOURNALS
from gatepost.storage.sql.sqlite import JOURNAL, check_file, overwrite

ALLOCATED = 1_048_576
"""Bytes by which the file grows: to synchronise a file that has grown takes longer."""
CLOSING_S = 1.0
"""How long a stop waits for a batch that is being appended."""

MOST_BYTES = 67_108_864
"""Bytes of a journal that are looked through; none becomes so large."""

_MAGIC = b"GPA1"
_HEADER = struct.Struct("<4sIHQ32s")
"""The magic, the bytes of the batch and of the proof, the number, and the digest."""


class Busy(StoreUnavailable):
    """Raised if a batch is being appended for too long."""

    def __init__(self) -> None:
        super().__init__("a batch of audit records is still being written")


class Frame(msgspec.Struct, frozen=True):
    """A batch in a journal."""

    number: int
    digest: bytes
    end: int
    """The offset behind it."""
    size: int
    batch: Batch
    doubt: str = ""
    """Why no process with the key ring can have written it; empty: one may have."""


class _StoredDraft(msgspec.Struct, array_like=True, frozen=True):
    body: bytes
    at: Stored
    sort: Annotated[tuple[str | Stored, ...], msgspec.Meta(min_length=3, max_length=5)]
    side: bytes | None


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, Stored, list[_StoredDraft]]]).decode


class Journal:
    """The journal of this process: `append` is for one thread, and the rest for another."""

    def __init__(self, path: str, linker: Linker) -> None:
        self._path, self._linker = path, linker
        self._lock = threading.Lock()
        self.number = 0
        """Which journal it is, from 1; 0: none is locked yet."""
        self.is_ready = False
        """Whether batches can be appended; if not, `take` and `open` are due."""
        self.frames: deque[Frame] = deque()
        """Those that are not known to be merged."""
        # The bytes of all frames, and of those that are merged; each is counted by one thread.
        self._appended = self._forgotten = 0
        self.merged = ChainHead(OF_JOURNALS, 0, 0, b"", 0, "")
        """The end of what is merged, as this process knows it."""
        self.position = 0
        """The offset behind the last frame."""
        self._name, self._file, self._allocated = "", -1, 0
        self._opened = {path: os.stat(path)}
        """The database and the journal."""
        self._number, self._digest = 0, b""
        self._last: tuple[Batch | None, bytes] = None, b""
        """The last batch that was to be appended, and the digest of its frame."""

    @property
    def unmerged(self) -> int:
        """Return the bytes of the frames that are not known to be merged."""
        return self._appended - self._forgotten

    @property
    def attempted(self) -> bytes:
        """Return the digest of the last frame that was to be appended."""
        return self._last[1]

    def append(self, batch: Batch) -> None:
        """
        Append a batch, durably; raises StoreUnavailable.

        If this is the batch (the object) that is the last one already, nothing is appended: its
        writer was told of a failure, as that of a deadline, although it succeeded.
        """
        with self._lock:
            if not self.is_ready:
                raise StoreUnavailable("the journal of audit records is not open")
            for path, opened in self._opened.items():
                self.is_ready = False
                check_file(path, opened)
                self.is_ready = True
            if batch is self._last[0] and self._digest == self._last[1]:
                return
            number = self._number + 1
            content = _encode([(_spelt(chain[0]), chain[1], batch[chain]) for chain in batch])
            digest = _digest(self._digest, number, content)
            self._last = batch, digest
            proof = self._linker.prove(_head(self.number, number, digest)).proof.encode()
            header = _HEADER.pack(_MAGIC, len(content), len(proof), number, digest)
            size = self._write(b"".join((header, proof, content)))
            self.position += size
            self._appended += size
            self.frames.append(Frame(number, digest, self.position, size, batch))
            self._number, self._digest = number, digest

    def _write(self, frame: bytes) -> int:
        """Write a frame at the end, durably, and return its size."""
        end = self.position + len(frame)
        try:
            if end > self._allocated:
                self._allocate(end)
            written = 0
            while written < len(frame):
                written += os.pwrite(self._file, frame[written:], self.position + written)
            _synchronise(self._file)
        except OSError as error:
            # It may be there all the same, and another process may merge it.
            self.is_ready = False
            reason = f"the journal {self._name} cannot be written: {error.strerror}"
            raise StoreUnavailable(reason) from None
        return len(frame)

    def _allocate(self, end: int) -> None:
        size = max(ALLOCATED, end - self._allocated)
        if sys.platform != "darwin":
            with suppress(OSError):  # not every file system can do that
                os.posix_fallocate(self._file, self._allocated, size)
        self._allocated += size

    @contextmanager
    def paused(self, within_s: float) -> Iterator[None]:
        """Append nothing during a block; raises Busy."""
        if not self._lock.acquire(timeout=within_s):
            raise Busy
        try:
            yield
        finally:
            self._lock.release()

    def take(self) -> None:
        """Lock the first journal that no other process has, if need be; raises StoreUnavailable."""
        with suppress(OSError):
            if self._file >= 0 and os.path.samestat(os.stat(self._name), os.fstat(self._file)):
                return
        if self._file >= 0:  # somebody has removed it
            os.close(self._file)
            self._file = -1
        for number in count(1):
            name = f"{self._path}{JOURNAL}{number}"
            try:
                file = _locked(name, self._path)
                if file >= 0:
                    _synchronise_folder(name)
            except OSError as error:
                reason = f"the journal {name} cannot be opened: {error.strerror}"
                raise StoreUnavailable(reason) from None
            if file >= 0:
                break
        self.number, self._name, self._file = number, name, file
        self._opened = {self._path: self._opened[self._path], name: os.fstat(file)}

    def open(self, merged: ChainHead) -> bool:
        """
        Continue behind the last frame, where *merged* says what is merged; OSError.

        Return whether somebody has changed the journal; a copy is kept then.
        """
        frames = [*frames_behind(self._file, merged, self._linker)]
        last = frames[-1] if frames else None
        self.merged, self.frames = merged, deque(frames)
        self._appended, self._forgotten = sum(one.size for one in frames), 0
        self.position = merged.pruned if last is None else last.end
        self._number = merged.number if last is None else last.number
        self._digest = merged.hash if last is None else last.digest
        end = ChainHead(OF_JOURNALS, self.number, self._number, self._digest, self.position, "")
        is_damaged = has_more(self._file, end, self._linker)
        if is_damaged:
            keep_copy(self._file, self._name)
        # What follows was never acknowledged, or is older.
        os.ftruncate(self._file, self.position)
        self._allocated = self.position
        # The last frame may be one that could not be synchronised. The system may then take it for
        # written and forget it, so it is written again.
        begin = merged.pruned
        os.pwrite(self._file, os.pread(self._file, self.position - begin, begin), begin)
        _synchronise(self._file)
        self.is_ready = True
        return is_damaged

    def forget(self, merged: ChainHead) -> list[Frame]:
        """Note what is merged, and return the frames that it includes."""
        known = []
        while self.frames and self.frames[0].number <= merged.number:
            known.append(self.frames.popleft())
            self._forgotten += known[-1].size
        self.merged = merged
        return known

    def restart(self) -> None:
        """Append from the beginning, and overwrite what is merged; call this while paused."""
        end, self.position = self.position, 0
        with suppress(OSError):  # a disk that fails says so when the next batch is appended
            overwrite(self._file, end)

    def close(self) -> None:
        """Unlock the journal; what is not merged stays in it. Raises Busy."""
        with self.paused(CLOSING_S):
            file, self._file, self.number, self.is_ready = self._file, -1, 0, False
            if file >= 0:
                os.close(file)


def frames_behind(file: int, merged: ChainHead, linker: Linker) -> Iterator[Frame]:
    """
    Yield the frames of a journal that are not merged.

    They end with one that is incomplete, because its process is writing it or was killed, or that
    somebody has changed. Nobody can tell a shorter journal from one whose end was removed.
    """
    number, digest, offset = merged.number, merged.hash, merged.pruned
    while True:
        header = os.pread(file, _HEADER.size, offset)
        if len(header) < _HEADER.size:
            return
        magic, size, length, its_number, its_digest = _HEADER.unpack(header)
        number += 1
        if (magic, its_number) != (_MAGIC, number) or size > os.fstat(file).st_size:
            return
        rest = os.pread(file, length + size, offset + _HEADER.size)
        proof, content = rest[:length], rest[length:]
        digest = _digest(digest, number, content)
        if digest != its_digest or (batch := _read(content)) is None:
            return
        head = _proven(merged.writer, number, digest, proof.decode("ascii", "replace"))
        size = len(header) + len(rest)
        offset += size
        yield Frame(number, digest, offset, size, batch, linker.doubt(head))


def has_more(file: int, last: ChainHead, linker: Linker) -> bool:
    """
    Return whether the journal of a process that has ended has frames after the last one.

    Such a process was writing at most one frame, so another one behind it proves that somebody has
    changed the journal, or the row that says how far it is merged.
    """
    size = min(max(os.fstat(file).st_size - last.pruned, 0), MOST_BYTES)
    rest = os.pread(file, size, last.pruned)
    at = rest.find(_MAGIC)
    while 0 <= at <= len(rest) - _HEADER.size:
        _, _, length, number, digest = _HEADER.unpack_from(rest, at)
        proof = rest[at + _HEADER.size : at + _HEADER.size + length].decode("ascii", "replace")
        # The next one may be incomplete. In an argument of a caller, nothing is proven.
        if number > last.number + 1 and linker.proves(_proven(last.writer, number, digest, proof)):
            return True
        at = rest.find(_MAGIC, at + 1)
    return False


def keep_copy(file: int, name: str) -> None:
    """Copy a journal that somebody has changed to a file beside it, for the operator; OSError."""
    for number in count(1):
        with suppress(FileExistsError):
            copy = os.open(
                f"{name}.damaged-{number}",
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                0o600,
            )
            break
    with os.fdopen(copy, "wb") as target:
        target.write(os.pread(file, os.fstat(file).st_size, 0))


def is_behind(file: int, merged: ChainHead) -> bool:
    """Return whether a journal seems to have a frame that is not merged."""
    # Somebody may have changed the row to anything.
    header = os.pread(file, _HEADER.size, merged.pruned) if merged.pruned >= 0 else b""
    if len(header) < _HEADER.size:
        return False
    magic, _, _, number, _ = _HEADER.unpack(header)
    return (magic, number) == (_MAGIC, merged.number + 1)


def _head(journal: int, number: int, digest: bytes) -> ChainHead:
    """Return what the proof of a frame is of."""
    return ChainHead(OF_JOURNALS, journal, number, digest, 0, "")


def _spelt(tenant: str) -> bytes:
    """Return a tenant's id as a journal contains it, whatever that id is."""
    return tenant.encode("utf-8", "surrogatepass")


def _proven(journal: int, number: int, digest: bytes, proof: str) -> ChainHead:
    return msgspec.structs.replace(_head(journal, number, digest), proof=proof)


def _digest(previous: bytes, number: int, content: bytes) -> bytes:
    return sha256(b"%b%d %b" % (previous, number, content)).digest()


def _read(content: bytes) -> Batch | None:
    """Return the batch that was encoded so; None if it cannot be one."""
    try:
        return {
            (tenant.decode("utf-8", "surrogatepass"), writer): [
                AuditDraft(one.body, one.at, one.sort, one.side)  # type: ignore[arg-type]  # a sort
                for one in drafts
            ]
            for tenant, writer, drafts in _decode(content)
        }
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _locked(name: str, beside: str) -> int:
    """
    Open a journal, or make it, and lock it; return -1 if another process has it. OSError.

    The lock ends with the process, however it ends.
    """
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        if os.path.exists(name):
            return -1  # another user's, as root's
        raise
    try:
        if os.geteuid() == 0:
            # A command of an administrator must not leave a file that the server cannot read.
            owner = os.stat(beside)
            os.fchown(file, owner.st_uid, owner.st_gid)
        close_to_others(file, name)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return -1
    except OSError:
        os.close(file)
        raise
    return file


def _synchronise_folder(name: str) -> None:
    """Have a file that is new be found again after a loss of power."""
    folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _synchronise(file: int) -> None:
    if sys.platform == "darwin":
        # What is only synchronised may still be in the memory of the disk.
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(file)
