"""
Merge write-ahead logs: link the records in the logs of a SQLite file and move them into its tables.

One transaction moves many batches, so that each chain gets one segment, one head with one proof,
and one sum. Any process with the key ring can merge any write-ahead log: that of a running process,
if its records are requested, and that of a killed one.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

import msgspec
from msgspec.structs import astuple

from gatepost.storage.audit import (
    EVERY_TENANT,
    FIRST_WRITER,
    ChainHead,
    ChainKey,
    Extension,
    Linker,
    NewAuditRecord,
)
from gatepost.storage.audit_segments import Damaged, rows_of
from gatepost.storage.sql.audit_heads import OF_WALS, stored_head
from gatepost.storage.sql.database import ANSWER_S
from gatepost.storage.sql.sqlite import overwrite, wals
from gatepost.storage.sql.sqlite_audit_connection import SqliteAuditConnection
from gatepost.storage.sql.sqlite_audit_files import has_ended, keep_copy, opened
from gatepost.storage.sql.sqlite_audit_statements import (
    Execute,
    ends_of,
    heads_of,
    put,
    records_since,
    segments_since,
)
from gatepost.storage.sql.sqlite_audit_wal import (
    Busy,
    Frame,
    WriteAheadLog,
    frames_behind,
    has_more,
    is_behind,
)
from gatepost.storage.sql.tables import escaped

AT_ONCE = 8_388_608
"""The approximate bytes of frames that one transaction merges."""
PAUSE_S = 0.05
"""How long the restart of a write-ahead log waits for a batch that is being appended."""
OF_WAL = EVERY_TENANT, FIRST_WRITER
"""
The chain that records a change of a write-ahead log: the log may have contained records of any
tenant.
"""
CHANGED = "a write-ahead log was changed: records that were not in the tables yet may be missing"


class Merged(msgspec.Struct):
    """The frames that one transaction merges."""

    linker: Linker
    extension: Extension
    batch: dict[ChainKey, list[NewAuditRecord]] = {}
    ends: dict[int, ChainHead] = {}
    """The new ends of write-ahead logs."""
    size: int = 0
    first: list[Frame] = []
    """The first frame of each write-ahead log that was read."""

    @property
    def is_full(self) -> bool:
        """Return whether the rest is for another transaction."""
        return self.size >= AT_ONCE

    def take(self, wal: int, frames: Iterator[Frame]) -> list[Frame]:
        """Take frames of a write-ahead log while there is room, and return them."""
        taken_frames: list[Frame] = []
        while not self.is_full and (frame := next(frames, None)) is not None:
            _add(self.batch, frame)
            self.size += frame.size
            if frame.proof and not taken_frames:
                self.first.append(frame)
            taken_frames.append(frame)
        if taken_frames:
            self.end(wal, taken_frames[-1].number, taken_frames[-1].digest, taken_frames[-1].end)
        return taken_frames

    def end(self, wal: int, number: int, digest: bytes, offset: int) -> None:
        """Note how far a write-ahead log is merged."""
        head = ChainHead(OF_WALS, wal, number, digest, offset, "")
        self.ends[wal] = self.linker.prove(head)


class SqliteMerger(SqliteAuditConnection):
    """Merges the write-ahead logs; for one thread."""

    def open_wal(self, wal: WriteAheadLog, linker: Linker) -> None:
        """Lock a write-ahead log if need be, and continue behind its last frame."""
        self.merge(wal, linker)
        number = wal.take()
        extension = linker.begin()
        with wal.paused(ANSWER_S):
            wal.is_ready = False
            with self.transaction() as execute:
                key = OF_WALS, number
                row = heads_of(execute, [key]).get(key)
                merged = None if row is None else stored_head(row)
                is_changed = merged is not None and bool(linker.invalid_reason(merged))
                if merged is None or is_changed:
                    merged = linker.prove(_unknown(number))
                    put(execute, heads=[astuple(merged)])
                frames, is_damaged = wal.read(merged)
                if is_damaged or is_changed:
                    extension.add_break(OF_WAL, CHANGED)
                    self.extend(execute, {OF_WAL: ()}, extension.link)
            extension.committed()
            # The frames that `resume` cuts off may be merged by a transaction that is not durable.
            self.synchronise()
            # Resume only now. Without the row, a batch would belong to no write-ahead log. A
            # changed write-ahead log must look changed until that is recorded.
            with self.reading():
                wal.resume(merged, frames, is_damaged=is_damaged)

    def merge(self, wal: WriteAheadLog | None, linker: Linker, *, restart: bool = False) -> None:
        """
        Merge all write-ahead logs; *wal* is that of this process.

        With *restart*, it then continues at its beginning. Raises StoreUnavailable.
        """
        while self._is_due(wal, linker) and self._merge(wal, linker):
            pass
        if restart and wal is not None and wal.is_ready and wal.position:
            self._restart(wal, linker)
        self.copy_log()

    def _restart(self, wal: WriteAheadLog, linker: Linker) -> None:
        with suppress(Busy), wal.paused(PAUSE_S), ExitStack() as undo:
            # After a failure, the row may say the beginning already, where no process would find
            # the next batch.
            undo.callback(wal.reopen)
            self._merge(wal, linker, restart=True)
            if not wal.frames and not wal.merged.pruned:
                self.synchronise()
                wal.restart()
            undo.pop_all()

    def _is_due(self, wal: WriteAheadLog | None, linker: Linker) -> bool:
        """
        Return whether a write-ahead log seems to have a frame that is not merged.

        Or anything, if its process has ended: half a frame may be of an erased person.
        """
        if wal is not None and wal.frames:
            return True
        with self.reading() as execute:
            ends = {row[1]: row for row in ends_of(execute, OF_WALS)}
            for number, path in wals(self.path).items():
                if wal is not None and number == wal.number:
                    continue
                end = stored_head(ends[number]) if number in ends else None
                with opened(path) as file:
                    if file < 0 or not os.fstat(file).st_size:
                        continue
                    if end is not None and linker.invalid_reason(end):
                        continue
                    if (end is not None and is_behind(file, end)) or has_ended(file):
                        return True
        return False

    def _merge(self, wal: WriteAheadLog | None, linker: Linker, *, restart: bool = False) -> bool:
        """Merge in one transaction; return whether there is more."""
        merged = Merged(linker, linker.begin())
        with ExitStack() as undo:
            ended_logs: list[tuple[int, str, bool]] = []
            if wal is not None:
                undo.callback(self._reopen_if_unknown, wal)
            # A merge that a loss of power undoes is made again: its frames are durable.
            with self.transaction(durable=False) as execute:
                ends = {row[1]: stored_head(row) for row in ends_of(execute, OF_WALS)}
                own_end = None
                if wal is not None and wal.number == wal.merged.writer != 0:
                    own_end = self._merge_own(execute, wal, ends.get(wal.number), merged)
                    if restart and not merged.is_full:
                        own_end = merged.ends.get(wal.number, own_end)
                        merged.end(wal.number, own_end.number, own_end.hash, 0)
                        own_end = merged.ends[wal.number]
                for number, path in wals(self.path).items():
                    if wal is None or number != wal.number:
                        file = undo.enter_context(opened(path))
                        end = ends.get(number)
                        ended_logs += self._merge_other(path, file, number, end, merged)
                _add_breaks_for_repeats(execute, merged)
                self.extend(execute, merged.batch, merged.extension.link)
                put(execute, heads=[astuple(end) for end in merged.ends.values()])
            merged.extension.committed()
            if wal is not None and own_end is not None:
                wal.forget(merged.ends.get(wal.number, own_end))
            if ended_logs:
                self.synchronise()
            for file, path, is_damaged in ended_logs:
                with suppress(OSError):  # the next merge tries again; a restart must follow now
                    if is_damaged:
                        keep_copy(file, path)
                    overwrite(file, os.fstat(file).st_size)
                    os.ftruncate(file, 0)
        return merged.is_full

    def _reopen_if_unknown(self, wal: WriteAheadLog) -> None:
        """Have the write-ahead log opened again if a failed commit may have succeeded."""
        if self.is_commit_unknown:
            self.is_commit_unknown = False
            wal.reopen()

    def _merge_own(
        self, execute: Execute, wal: WriteAheadLog, stored_end: ChainHead | None, merged: Merged
    ) -> ChainHead:
        """Take the frames of this process; return how far they are merged."""
        merged_end, frames = wal.merged, [*wal.frames]
        if stored_end == merged_end:
            pass
        elif stored_end and wal.wrote(stored_end) and not merged.linker.invalid_reason(stored_end):
            # Another process has merged it, and this process was not told of the records. The row
            # of another database with the same key ring has a valid proof as well.
            merged_end = stored_end
        else:
            for chain in (chain for frame in frames for chain in frame.batch):
                merged.extension.add_break(chain, CHANGED)
            merged.end(wal.number, merged_end.number, merged_end.hash, merged_end.pruned)
        # This includes a frame that another process has merged while it was being synchronised.
        last = merged_end.number
        _note_linked(execute, [frame for frame in frames if frame.number <= last], merged.extension)
        merged.take(wal.number, iter([frame for frame in frames if frame.number > last]))
        return merged_end

    def _merge_other(
        self, path: str, file: int, number: int, stored_end: ChainHead | None, merged: Merged
    ) -> list[tuple[int, str, bool]]:
        """
        Take the frames of another process.

        Return the file if that has ended, its path, and whether it was changed.
        """
        is_unknown = stored_end is None
        end = merged.linker.prove(_unknown(number)) if stored_end is None else stored_end
        if file < 0 or merged.is_full or merged.linker.invalid_reason(end):
            return []  # the next process with this write-ahead log handles a changed head
        is_over = has_ended(file)  # otherwise more frames could follow
        for frame in merged.take(number, frames_behind(file, end, merged.linker)):
            for chain, new_records in () if is_over else frame.batch.items():
                merged.extension.note_reported_elsewhere(chain, new_records)
        end = merged.ends.get(number, end)
        if not is_over or merged.is_full:
            return []
        if is_damaged := has_more(file, end, merged.linker, is_unknown=is_unknown):
            merged.extension.add_break(OF_WAL, CHANGED)
            merged.batch.setdefault(OF_WAL, [])
        merged.end(number, end.number, end.hash, 0)
        return [(file, path, is_damaged)]


def _unknown(number: int) -> ChainHead:
    """Return the end of a write-ahead log that has no row."""
    # The digest is random, so that no frame continues it: the file may be of another database.
    return ChainHead(OF_WALS, number, 0, os.urandom(32), 0, "")


def _add_breaks_for_repeats(execute: Execute, merged: Merged) -> None:
    """
    Add breaks to the chains of frames that are in the tables already.

    In that case an earlier row was restored with its valid proof, so that frames are merged again.
    """
    for frame in merged.first:
        for chain, new_records in frame.batch.items():
            since = min([record.at for record in new_records], default=0)
            stored_records = records_since(execute, chain, since)
            # The salts of its details make each body unique.
            salted = [record.body.decode() for record in new_records if record.side is not None]
            if any(body in records for records in stored_records for body in salted):
                for broken_chain in (chain, OF_WAL):
                    merged.extension.add_break(broken_chain, CHANGED)
                    merged.batch.setdefault(broken_chain, [])


def _note_linked(execute: Execute, frames: Sequence[Frame], extension: Extension) -> None:
    """Tell of records of this process that another one has merged, which may have mixed them."""
    batch: dict[ChainKey, list[NewAuditRecord]] = {}
    for frame in frames:
        _add(batch, frame)
    keys = {chain: (escaped(chain[0]), chain[1]) for chain in batch}
    heads = heads_of(execute, [*keys.values()])
    for chain, new_records in batch.items():
        if not new_records or (row := heads.get(keys[chain])) is None:
            continue
        segments = segments_since(execute, chain, min([record.at for record in new_records]))
        with suppress(Damaged):
            rows = [row for segment in segments for row in rows_of(segment)]
            extension.note_linked_elsewhere(stored_head((chain[0], *row[1:])), rows, new_records)


def _add(batch: dict[ChainKey, list[NewAuditRecord]], frame: Frame) -> None:
    for chain, new_records in frame.batch.items():
        batch.setdefault(chain, []).extend(new_records)
