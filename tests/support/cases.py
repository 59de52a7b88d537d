"""Many cases in one test, where a fixture of its own for each would show nothing more."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., Any]
Row = tuple[str, dict[str, Any]]


def each(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Any = None
) -> Callable[[Test], Test]:
    """
    Try every row in one test, with the arguments of `pytest.mark.parametrize`.

    A row that fails does not keep the others from being tried; all that failed are told by name.
    Fixtures are made once for all rows.
    """
    rows = list(rows)
    told = list(_rows(names, rows, ids if ids is None or callable(ids) else list(ids)))
    marks = [mark for row in rows for mark in getattr(row, "marks", ())]
    assert told
    assert {mark.name for mark in marks} <= {"requirement"}, "such a row needs a test of its own"

    def decorate(test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            @wraps(test)
            async def run(**fixtures: Any) -> None:
                failures = _Failures()
                for name, values in told:
                    with failures.of(name):
                        await test(**fixtures, **values)
                failures.tell(len(told))
        else:

            @wraps(test)
            def run(**fixtures: Any) -> None:
                failures = _Failures()
                for name, values in told:
                    with failures.of(name):
                        test(**fixtures, **values)
                failures.tell(len(told))

        signature = inspect.signature(test)
        given = told[0][1]
        left = [one for name, one in signature.parameters.items() if name not in given]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        for mark in marks:
            pytest.mark.requirement(*mark.args)(run)
        return run

    return decorate


class _Failures:
    def __init__(self) -> None:
        self._found: list[BaseException] = []
        self._name = ""

    def of(self, name: str) -> "_Failures":
        self._name = name
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> bool:
        if not isinstance(failure, (Exception, pytest.fail.Exception)):
            return False
        failure.add_note(f"in the case {self._name}")
        self._found.append(failure)
        return True

    def tell(self, of: int) -> None:
        if self._found:
            names = [one.__notes__[-1].removeprefix("in the case ") for one in self._found]
            message = f"{len(names)} of {of} cases failed: {'; '.join(names)}"
            raise BaseExceptionGroup(message, self._found)


def _rows(names: str | tuple[str, ...], rows: list[Any], ids: Any) -> Iterator[Row]:
    keys = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    for place, row in enumerate(rows):
        name: Any = None
        if hasattr(row, "marks"):  # a pytest.param
            name, row = row.id, row.values if len(keys) > 1 else row.values[0]
        values = list(row) if len(keys) > 1 else [row]
        if name is None:
            told = ids(values[0]) if callable(ids) and len(values) == 1 else None
            name = ids[place] if ids and not callable(ids) else told or repr(row)
        yield str(name)[:120], dict(zip(keys, values, strict=True))
