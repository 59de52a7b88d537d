"""The statements of the connection that audit records are written with to a SQLite file."""

from functools import cache

from gatepost.storage.sql.audit_sums import ADDED
from gatepost.storage.sql.tables import AUDIT_CHECKPOINTS, AUDIT_HEADS, AUDIT_SEGMENTS, AUDIT_SUMS

END = [column.name for column in AUDIT_HEADS.columns]
_SEGMENT = [column.name for column in AUDIT_SEGMENTS.columns]
_CHECKPOINT = [column.name for column in AUDIT_CHECKPOINTS.columns]
_MOVED = END[2:]

RECORDS = (
    "SELECT last, first FROM audit_segments WHERE tenant = ? AND writer = ? AND first < ? "
    "ORDER BY first DESC LIMIT 1"
)
RECORD = (
    f"SELECT {', '.join(_SEGMENT)} FROM audit_segments "  # noqa: S608  # our names
    "WHERE tenant = ? AND writer = ? AND first = ?"
)
ENDS = f"SELECT {', '.join(END)} FROM audit_heads WHERE tenant = ? ORDER BY writer"  # noqa: S608  # our names
NEWEST = (
    f"SELECT {', '.join(_CHECKPOINT)} FROM audit_checkpoints "  # noqa: S608  # our names
    "WHERE tenant = ? ORDER BY number DESC LIMIT 1"
)
KEEP = (
    f"INSERT OR REPLACE INTO audit_heads ({', '.join(END)}) "  # noqa: S608  # our names
    f"VALUES ({', '.join('?' * len(END))})"
)
CHECK = (
    f"INSERT OR REPLACE INTO audit_checkpoints ({', '.join(_CHECKPOINT)}) "  # noqa: S608  # our names
    f"VALUES ({', '.join('?' * len(_CHECKPOINT))})"
)

# A batch and the head of its writer's batches are one statement, which is one transaction. It fails
# if that head is not as this process has left it, or if any column of a head of a chain in the
# batch is not: then the tenant of the batch is NULL.
_ADDS = """
CREATE TEMP TRIGGER audit_batch_added AFTER INSERT ON main.audit_batches BEGIN
    UPDATE audit_heads SET number = NEW.number, hash = NEW.digest
        WHERE tenant = '' AND writer = NEW.writer
            AND number = NEW.number - 1 AND hash = NEW.previous;
    SELECT RAISE(ABORT, 'another end') WHERE changes() = 0;
END
"""
_SAME = " AND ".join(
    f"head.{name} = known.column{place}" for place, name in enumerate(END, start=1)
)


@cache
def add_batch(size: int) -> str:
    """Return the statement for a batch of *size* chains."""
    known = ", ".join([f"({', '.join('?' * len(END))})"] * size)
    return (
        "INSERT INTO audit_batches (tenant, writer, number, previous, digest, batch) VALUES ("  # noqa: S608  # places
        f"CASE (SELECT count(*) FROM (VALUES {known}) AS known CROSS JOIN audit_heads AS head "
        f"ON {_SAME}) WHEN {size} THEN '' END, ?, ?, ?, ?, ?)"
    )


_SUM = [column.name for column in AUDIT_SUMS.columns if column.name not in {"tenant", "writer"}]
_WAS = [f"was_{name}" for name in _MOVED]
_SUMMED = [f"its_{name}" for name in _SUM]
_COLUMNS = [*_SEGMENT, *_MOVED, *_WAS, *_SUMMED]

# An insert into this view moves a head, adds a segment and counts it. It fails if any column of the
# head is not as this process knows it. Then no batch of another process continues the chain: such a
# process would have moved that head before.
_VIEW = (
    f"CREATE TEMP VIEW audit_growth ({', '.join(_COLUMNS)}) "
    f"AS SELECT {', '.join('0' * len(_COLUMNS))}"
)
_GROWS = f"""
CREATE TEMP TRIGGER audit_grows INSTEAD OF INSERT ON audit_growth BEGIN
    UPDATE audit_heads SET {", ".join(f"{name} = NEW.{name}" for name in _MOVED)}
        WHERE tenant = NEW.tenant AND writer = NEW.writer
            AND {" AND ".join(f"{name} = NEW.was_{name}" for name in _MOVED)};
    SELECT RAISE(ABORT, 'another end') WHERE changes() = 0;
    INSERT INTO audit_segments ({", ".join(_SEGMENT)})
        VALUES ({", ".join(f"NEW.{name}" for name in _SEGMENT)});
    INSERT INTO audit_sums (tenant, writer, {", ".join(_SUM)})
        VALUES (NEW.tenant, NEW.writer, {", ".join(f"NEW.{name}" for name in _SUMMED)}) {ADDED};
END
"""  # noqa: S608  # our names


@cache
def grow(size: int) -> str:
    """Return the statement for *size* segments of as many chains."""
    row = f"({', '.join('?' * len(_COLUMNS))})"
    return f"INSERT INTO audit_growth VALUES {', '.join([row] * size)}"  # noqa: S608  # our names


SETUP = (_VIEW, _GROWS, _ADDS)
"""What a connection executes once, before the statements `grow` and `add_batch`."""
