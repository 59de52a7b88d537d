"""
The write-ahead logs of a SQLite file: batches of audit records before they are in its tables.

A commit of SQLite writes a page or more for each chain, index and table. A batch is durable sooner
if it is appended to a file of its own, which takes one write and one synchronisation, and no other
process waits for it. Each process has a write-ahead log, as `gatepost.db-audit-1`, which it locks
as long as it runs. `SqliteMerger` moves the batches into the tables.

A write-ahead log is a sequence of frames: a header, a proof by the key ring, and a batch. The
digest of a frame covers the digest before it. The table of heads records how far a write-ahead log
is merged. Its row has no tenant, the number of the write-ahead log as the writer, the last frame's
number and digest, and the offset behind that frame as `pruned`.
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

from gatepost.storage.audit import ChainHead, Linker, NewAuditRecord, RecordsByChain, StoredInteger
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit_heads import OF_WALS
from gatepost.storage.sql.sqlite import WAL, overwrite
from gatepost.storage.sql.sqlite_audit_files import keep_copy, locked, synchronise_folder
from gatepost.storage.sql.sqlite_database import check_file, place_of

ALLOCATED = 1_048_576
"""The bytes by which the file grows; synchronising a file that has grown takes longer."""
CLOSING_S = 1.0
"""How long a stop waits for a batch that is being appended."""

MAX_BYTES = 67_108_864
"""The bytes of a write-ahead log that are read at most; none becomes so large."""

_MAGIC = b"GPA1"
_LONGEST_PROOF = 1_024
"""More than any proof has. If a caller's text looks like a header, its length field is larger."""
_HEADER = struct.Struct("<4sIHQ32s")
"""The magic, the sizes of the batch and of the proof, the number, and the digest."""


class Busy(StoreUnavailable):
    """Raised if a batch is being appended for too long."""

    def __init__(self) -> None:
        super().__init__("a batch of audit records is still being written")


class Frame(msgspec.Struct, frozen=True):
    """A batch in a write-ahead log."""

    number: int
    digest: bytes
    end: int
    """The offset behind the frame."""
    size: int
    batch: RecordsByChain
    proof: str = ""
    """The proof by the key ring; empty for a frame of this process, which knows it."""


class _StoredRecord(msgspec.Struct, array_like=True, frozen=True):
    body: bytes
    at: StoredInteger
    sort: Annotated[tuple[str | StoredInteger, ...], msgspec.Meta(min_length=3, max_length=5)]
    side: bytes | None


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, StoredInteger, list[_StoredRecord]]]).decode


class WriteAheadLog:
    """The write-ahead log of this process: `append` is for one thread, and the rest for another."""

    def __init__(self, path: str, linker: Linker) -> None:
        self._path, self._linker = path, linker
        self._lock = threading.Lock()
        self.number = 0
        """The number of the write-ahead log that `frames` are in, from 1; 0: none is open yet."""
        self.is_ready = False
        """Whether batches can be appended; if not, `take` and `open` are due."""
        self.frames: deque[Frame] = deque()
        """The frames that are not known to be merged."""
        # The bytes of all frames, and of those that are merged; each is counted by one thread.
        self._appended = self._forgotten = 0
        self.merged = ChainHead(OF_WALS, 0, 0, b"", 0, "")
        """The end of the merged frames, as this process knows it."""
        self.position = 0
        """The offset behind the last frame."""
        self._name, self._file, self._allocated = "", -1, 0
        self._locked = 0
        """The number of the write-ahead log that is locked."""
        self._database = os.stat(path)
        self._file_identity, self._opened = "", self._database
        """Where the write-ahead log is, and the file itself."""
        self._number, self._digest = 0, b""
        self._last: tuple[RecordsByChain | None, bytes] = None, b""
        """The last batch that should have been appended, and the digest of its frame."""

    @property
    def unmerged(self) -> int:
        """Return the bytes of the frames that are not known to be merged."""
        return self._appended - self._forgotten

    def append(self, batch: RecordsByChain) -> None:
        """
        Append a batch, durably; raises StoreUnavailable.

        If this is the batch (the object) that is the last one already, nothing is appended: its
        writer was told of a failure, as that of a deadline, although it succeeded.
        """
        with self._lock:
            if not self.is_ready:
                raise StoreUnavailable("the write-ahead log of audit records is not open")
            self.is_ready = False
            check_file(self._path, self._database)
            if not self._file_identity or place_of(self._file) != self._file_identity:
                check_file(self._name, self._opened)
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
            _put(self._file, frame, self.position)
            synchronise(self._file)
        except OSError as error:
            # The batch may be in the file all the same, and another process may merge it.
            self.is_ready = False
            reason = f"the write-ahead log {self._name} cannot be written: {error.strerror}"
            raise StoreUnavailable(reason) from None
        return len(frame)

    def _allocate(self, end: int) -> None:
        size = max(ALLOCATED, end - self._allocated)
        # The space is written, not only reserved: otherwise each synchronisation would change the
        # file system's own records of the file, and wait for all other writers of these.
        _put(self._file, bytes(size), self._allocated)
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

    def take(self) -> int:
        """
        Return the number of the write-ahead log that is locked.

        If there is none, or it was removed, lock the first that no other process has. Raises
        StoreUnavailable.
        """
        with suppress(OSError):
            if self._file >= 0 and os.path.samestat(os.stat(self._name), os.fstat(self._file)):
                return self._locked
        if self._file >= 0:  # the file was removed
            os.close(self._file)
            self._file = -1
        for number in count(1):
            name = f"{self._path}{WAL}{number}"
            try:
                file = locked(name, self._path)
            except OSError as error:
                reason = f"the write-ahead log {name} cannot be opened: {error.strerror}"
                raise StoreUnavailable(reason) from None
            if file >= 0:
                break
        self._locked, self._name, self._file = number, name, file
        self._file_identity, self._opened = place_of(file), os.fstat(file)
        check_file(name, self._opened)  # the place of a file that is gone already would not change
        return number

    def read(self, merged: ChainHead) -> tuple[list[Frame], bool]:
        """
        Return the frames of the locked write-ahead log that are not merged; OSError.

        *merged* says which are. Return also whether the write-ahead log was changed.
        """
        frames = [*frames_behind(self._file, merged, self._linker)]
        return frames, has_more(self._file, _end(merged, frames), self._linker)

    def resume(self, merged: ChainHead, frames: list[Frame], *, is_damaged: bool) -> None:
        """
        Continue after the frames that `read` returned; raises OSError.

        The row that contains *merged* must be durable before. A copy of a damaged write-ahead log
        is kept.
        """
        if is_damaged:
            keep_copy(self._file, self._name)
        end = _end(merged, frames)
        # The frames after this one were never acknowledged, or are older.
        os.ftruncate(self._file, end.pruned)
        # The last frame may be one that could not be synchronised. Its pages then count as written,
        # although they are not on the disk, so the next synchronisation would leave them out.
        tail = os.pread(self._file, end.pruned - merged.pruned, merged.pruned)
        _put(self._file, tail, merged.pruned)
        synchronise(self._file)
        # The file may be new. Unless its name is durable, it could not be found after a loss of
        # power.
        synchronise_folder(self._name)
        self.number, self.merged, self.frames = self._locked, merged, deque(frames)
        self._appended, self._forgotten = sum(frame.size for frame in frames), 0
        self._number, self._digest = end.number, end.hash
        self.position = self._allocated = end.pruned
        self.is_ready = True

    def wrote(self, end: ChainHead) -> bool:
        """Return whether that is the end of a frame of this process; others merge no further."""
        hashes = [self._last[1], *(frame.digest for frame in self.frames.copy())]
        return end.hash in hashes

    def forget(self, merged: ChainHead) -> list[Frame]:
        """Note how far the log is merged, and return the merged frames."""
        forgotten = []
        while self.frames and self.frames[0].number <= merged.number:
            forgotten.append(self.frames.popleft())
            self._forgotten += forgotten[-1].size
        self.merged = merged
        return forgotten

    def reopen(self) -> None:
        """Append nothing until the write-ahead log is opened again."""
        self.is_ready = False

    def restart(self) -> None:
        """Append from the beginning, and overwrite the merged frames; call this while paused."""
        end, self.position = self.position, 0
        with suppress(OSError):  # a failing disk shows when the next batch is appended
            overwrite(self._file, end)

    def close(self) -> None:
        """Unlock the write-ahead log; unmerged frames stay in it. Raises Busy."""
        with self.paused(CLOSING_S):
            file, self._file, self.number, self.is_ready = self._file, -1, 0, False
            if file >= 0:
                os.close(file)


def frames_behind(file: int, merged: ChainHead, linker: Linker) -> Iterator[Frame]:
    """
    Yield the frames of a write-ahead log that are not merged.

    They end with one that is incomplete, because its process is writing it or was killed, or that
    was changed or added. A shorter write-ahead log looks like one whose end was removed.
    """
    end = merged
    while (frame := _next(file, end)) is not None:
        proven = _proven(end.writer, frame.number, frame.digest, frame.proof)
        if linker.invalid_reason(proven):
            return
        end = msgspec.structs.replace(proven, pruned=frame.end)
        yield frame


def _next(file: int, end: ChainHead) -> Frame | None:
    """
    Return the complete frame that continues a write-ahead log there. Its content is untrusted.
    """
    header = os.pread(file, _HEADER.size, end.pruned)
    if len(header) < _HEADER.size:
        return None
    magic, size, length, number, header_digest = _HEADER.unpack(header)
    if (magic, number) != (_MAGIC, end.number + 1) or size > os.fstat(file).st_size:
        return None
    remainder = os.pread(file, length + size, end.pruned + _HEADER.size)
    proof, content = remainder[:length], remainder[length:]
    digest = _digest(end.hash, number, content)
    if digest != header_digest or (batch := _read(content)) is None:
        return None
    size = len(header) + len(remainder)
    proof_text = proof.decode("ascii", "replace")
    return Frame(number, digest, end.pruned + size, size, batch, proof_text)


def has_more(file: int, last: ChainHead, linker: Linker, *, is_unknown: bool = False) -> bool:
    """
    Return whether the write-ahead log of a process that has ended has frames after the last one.

    Such a process was writing at most one frame, so a whole one that is not proven, or another one
    behind it that is, shows that the write-ahead log was changed, or the row that says how far it
    is merged. So does a later one before its end: the row is that of a backup. With *is_unknown*
    there is no such row, so any proven frame does.
    """
    if _next(file, last) is not None:
        return True
    content = os.pread(file, min(os.fstat(file).st_size, MAX_BYTES), 0)
    at = content.find(_MAGIC)
    while 0 <= at <= len(content) - _HEADER.size:
        _, _, length, number, digest = _HEADER.unpack_from(content, at)
        # The next one may be incomplete. In an argument of a caller, nothing is proven, and any two
        # characters are a longer length: a million of them must not cost a proof each.
        newest = last.number if is_unknown or at < last.pruned else last.number + 1
        if number > newest and length <= _LONGEST_PROOF:
            start = at + _HEADER.size
            proof = content[start : start + length].decode("ascii", "replace")
            if linker.proves(_proven(last.writer, number, digest, proof)):
                return True
        at = content.find(_MAGIC, at + 1)
    return False


def is_behind(file: int, merged: ChainHead) -> bool:
    """Return whether a write-ahead log seems to have a frame that is not merged."""
    # The row may have been changed to any value.
    header = os.pread(file, _HEADER.size, merged.pruned) if merged.pruned >= 0 else b""
    if len(header) < _HEADER.size:
        return False
    magic, _, _, number, _ = _HEADER.unpack(header)
    return (magic, number) == (_MAGIC, merged.number + 1)


def _end(merged: ChainHead, frames: list[Frame]) -> ChainHead:
    """Return the end of the last frame after the merged ones."""
    if not frames:
        return merged
    last = frames[-1]
    return ChainHead(OF_WALS, merged.writer, last.number, last.digest, last.end, "")


def _put(file: int, content: bytes, offset: int) -> None:
    """Write all of the content at an offset; OSError."""
    remaining = memoryview(content)
    while remaining:
        written = os.pwrite(file, remaining, offset)
        remaining, offset = remaining[written:], offset + written


def _head(wal: int, number: int, digest: bytes) -> ChainHead:
    """Return what the proof of a frame is of."""
    return ChainHead(OF_WALS, wal, number, digest, 0, "")


def _spelt(tenant: str) -> bytes:
    """Return a tenant's id as a write-ahead log contains it, whatever that id is."""
    return tenant.encode("utf-8", "surrogatepass")


def _proven(wal: int, number: int, digest: bytes, proof: str) -> ChainHead:
    return msgspec.structs.replace(_head(wal, number, digest), proof=proof)


def _digest(previous: bytes, number: int, content: bytes) -> bytes:
    return sha256(b"%b%d %b" % (previous, number, content)).digest()


def _read(content: bytes) -> RecordsByChain | None:
    """Return the batch that was encoded so; None if it cannot be one."""
    try:
        return {
            (tenant.decode("utf-8", "surrogatepass"), writer): [
                NewAuditRecord(record.body, record.at, record.sort, record.side)  # type: ignore[arg-type]  # a sort
                for record in new_records
            ]
            for tenant, writer, new_records in _decode(content)
        }
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def synchronise(file: int) -> None:
    """Make what was written to an open file durable; OSError."""
    if sys.platform == "darwin":
        # Synchronised data may still be in the memory of the disk.
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(file)
