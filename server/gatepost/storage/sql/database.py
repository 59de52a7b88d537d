"""A database: statements with a deadline, and its errors as StoreUnavailable."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from sqlalchemy import Connection, Executable, Row
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.types import TypeDecorator, TypeEngine

from gatepost.storage.errors import StoreUnavailable

ANSWER_S = 6.0
"""The deadline of a statement, including the wait for a connection."""
STATEMENT_MS = 5_000
"""The deadline of the database server or of SQLite's lock; shorter than `ANSWER_S`."""
OVER_S = 8.0
"""How long a close waits for statements: `ANSWER_S` and the driver's cancellation."""

UNKNOWN_STATEMENT = "26000"
"""The SQLSTATE after a pooler has lost a prepared statement."""

TIMED_OUT = "the database does not answer in time"

Values = Mapping[str, Any]
SqlStatement = tuple[Executable, Values]
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class PreparedChange:
    """
    A statement that changes rows, with the names of its values, compiled once.

    SQLAlchemy looks a statement up, takes its values apart and prepares a result each time: 53 µs
    for a change of SQLite, of which 20 are left.
    """

    def __init__(self, statement: Any, dialect: Dialect, names: Sequence[str]) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=names)
        self._statement = statement
        self._text = str(compiled)
        self._is_fixed = not (
            compiled.post_compile_params or compiled.insert_prefetch or compiled.update_prefetch
        )
        """Whether the text is the same for all values; that of `IN` depends on their number."""
        parameters = [compiled.binds[name] for name in compiled.positiontup or ()]
        self._constants = {each.key: each.value for each in parameters if not each.required}
        self._processors = [(each.key, _processor(each.type, dialect)) for each in parameters]

    def run(self, connection: Connection, values: Values) -> int:
        """Change the rows and return their number."""
        if not self._is_fixed:
            return connection.execute(self._statement, values).rowcount
        all_values = {**self._constants, **values} if self._constants else values
        try:
            parameters = [
                all_values[name] if process is None else process(all_values[name])
                for name, process in self._processors
            ]
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # The text of this error may contain the value; that of SQLAlchemy does not.
            return connection.execute(self._statement, values).rowcount
        return connection.exec_driver_sql(self._text, tuple(parameters)).rowcount


def _processor(kind: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """Return what makes the driver's value of a value of this type; None: it is the same."""
    form = kind if isinstance(kind, TypeDecorator) else kind.dialect_impl(dialect)
    return form.bind_processor(dialect)


class Database(ABC):
    """
    Runs statements, and functions that get a connection; raises StoreUnavailable.

    A change continues if its caller leaves. A caller gets an error after `ANSWER_S` at the latest.
    """

    dialect: str

    def __init__(self) -> None:
        self._prepared: dict[tuple[Executable, tuple[str, ...]], PreparedChange] = {}

    async def rows(self, statement: Executable, values: Values) -> Sequence[Row[Any]]:
        """Return the rows of a SELECT, or of a change with RETURNING."""
        run = partial(_rows, statement, values)
        return await self._run(run, within_s=ANSWER_S, is_change=statement.is_dml)

    async def change(self, statement: Executable, values: Values) -> int:
        """Change rows durably and return their number."""
        run = partial(self._changed, statement, values)
        return await self._run(run, within_s=ANSWER_S, is_change=True)

    async def change_both(self, first: SqlStatement, second: SqlStatement) -> int:
        """
        Execute *first* and, if it changed any rows, *second*, durably in one transaction.

        Return the number of rows that *first* changed.
        """
        return await self.transaction(partial(self._changed_both, first, second))

    async def run_sync(self, at: Callable[[Connection], T]) -> T:
        """Call *at*, which reads, with a connection and return its result."""
        return await self._run(at, within_s=ANSWER_S)

    @abstractmethod
    async def transaction(
        self, at: Callable[[Connection], T], *, within_s: float | None = None
    ) -> T:
        """
        Call *at* with a connection in a transaction; return its result once that is durable.

        If it raises an error, nothing is changed.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Wait for running statements, then close the connections, both within a deadline."""

    @abstractmethod
    def compute(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call a function that takes long, within `transaction`, beside the event loop."""

    @abstractmethod
    async def _run(
        self, at: Callable[[Connection], T], *, within_s: float, is_change: bool = False
    ) -> T:
        """Call *at*, which reads, or executes one statement as `transaction` does."""

    def _changed(self, statement: Executable, values: Values, connection: Connection) -> int:
        key = (statement, tuple(values))
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = PreparedChange(statement, connection.dialect, key[1])
        return prepared.run(connection, values)

    def _changed_both(
        self, first: SqlStatement, second: SqlStatement, connection: Connection
    ) -> int:
        changed = self._changed(*first, connection)
        if changed:
            self._changed(*second, connection)
        return changed


def _rows(statement: Executable, values: Values, connection: Connection) -> Sequence[Row[Any]]:
    return connection.execute(statement, values).all()


def engine_options() -> dict[str, Any]:
    """Return the options of an engine in autocommit mode; its errors and logs contain no values."""
    return {
        "isolation_level": "AUTOCOMMIT",
        "skip_autocommit_rollback": True,
        "pool_reset_on_return": None,
        "max_overflow": 0,
        "pool_timeout": ANSWER_S,
        "hide_parameters": True,
    }


def deadline_s(within_s: float | None) -> float:
    """Return the deadline of a statement: *within_s*, or by default `ANSWER_S`."""
    return ANSWER_S if within_s is None else within_s


@contextlib.contextmanager
def answering(errors: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """
    Raise StoreUnavailable for an error of SQLAlchemy, of the connection, or among *errors*.

    Its message holds no secret.
    """
    # This includes SQLAlchemy's error for a connection that was lost within a transaction.
    error_types: tuple[type[Exception], ...] = (SQLAlchemyError, *errors)
    try:
        yield
    except IntegrityError:
        # This is no outage: our statement violates a constraint.
        raise
    except DBAPIError as error:
        raise StoreUnavailable(error_summary(error.orig or error)) from None
    except PoolExhausted:
        raise StoreUnavailable("the database is busy: no connection was free in time") from None
    except TimeoutError:
        raise StoreUnavailable(TIMED_OUT) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreUnavailable(f"the database cannot be reached: {reason}") from None
    except error_types as error:
        raise StoreUnavailable(error_summary(error)) from None


def error_summary(error: BaseException) -> str:
    """Describe an error by its name and code, because its text may contain values."""
    cause = error.__cause__ or error
    code = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None)
    name = type(cause).__name__
    hint = ": set pool_mode=transaction in its URL" if code == UNKNOWN_STATEMENT else ""
    return f"the database does not serve: {name}" + (f" ({code})" if code else "") + hint
