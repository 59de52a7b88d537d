"""Search the records of segments."""

from collections.abc import Iterable

import msgspec

from gatepost.storage.audit import AuditQuery, AuditRow, Segment
from gatepost.storage.audit_segments import BEGIN, HASH, pieces, row_of, rows_of


def matching(segments: Iterable[Segment], query: AuditQuery) -> list[AuditRow]:
    """Return all records of these segments that match a query."""
    text = None if query.text is None else quoted(query.text).lower()
    rows: list[AuditRow] = []
    for segment in segments:
        candidates = rows_of(segment) if text is None else _candidates(text, segment)
        rows += [row for row in candidates if _matches(row, query, text)]
    return rows


def newest(rows: Iterable[AuditRow], limit: int) -> list[AuditRow]:
    """Return the newest records, the newest first."""
    return sorted(rows, key=lambda row: row.position, reverse=True)[:limit]


def quoted(text: str) -> str:
    """Return a text as JSON without the quotes; lone surrogates as records encode them."""
    return msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode())[1:-1].decode()


def _candidates(text: str, segment: Segment) -> list[AuditRow]:
    """Return the records that may contain the text; a fifth of the cost of reading all."""
    return [
        row_of(number, piece)
        for number, piece in enumerate(pieces(segment), segment.first)
        if text in piece[len(BEGIN) : piece.rfind(HASH)].lower()
    ]


def _matches(row: AuditRow, query: AuditQuery, text: str | None) -> bool:
    return (
        query.tool in (None, row.tool)
        and query.subject in (None, row.subject)
        and query.outcome in (None, row.outcome)
        and query.kind in (None, row.kind)
        and (query.since is None or row.at >= query.since)
        and (query.until is None or row.at < query.until)
        and (query.before is None or row.position < query.before)
        and (text is None or text in row.body.lower() or text in (row.side or "").lower())
    )
