"""Fixtures and records that every test may use, and the list of requirements that tests name."""

import asyncio
import gc
import logging
import os
import re
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import aclosing
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from gatepost.outbound.http_client import OutboundClient
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.idempotency import IdempotencyRecord
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.records import Records
from gatepost.storage.sessions import SessionRecord
from gatepost.storage.shared_store import SharedStore
from gatepost.storage.sql.database_schema import make
from gatepost.storage.sql.records import database_of
from gatepost.storage.tasks import TaskRecord
from gatepost.telemetry.logs import OWN_LOGGERS
from tests.support.client import no_public_authorities
from tests.support.internet import Internet, small_internet
from tests.support.issuers import Idp
from tests.support.measuring import immediate_server_stop
from tests.support.stores import POOLER, PgBouncer, Postgres, Valkey, a_sql_url, pgbouncer_program

__all__ = ["immediate_server_stop", "no_public_authorities"]  # fixtures

# A busy machine makes single examples slow; the time limit of the whole test is what bounds it.
for name, examples in (("few", 25), ("many", 40)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )

# The tests' PostgreSQL has no TLS; a driver that may use it makes a context for each connection.
os.environ["PGSSLMODE"] = "disable"

SLOW_S = 1_200
"""How long a test may take that takes minutes; a busy machine gives it less time."""
SLOW_FILES = pytest.StashKey[set[Path]]()
"""The files with tests that `--slow` runs."""
NAMED_REQUIREMENTS = pytest.StashKey[dict[str, set[str]]]()
"""Ids in `requirement` marks → the folders of tests with them, those that are deselected too."""
SLOW_WORDS = re.compile(
    r"mark\.slow|hypothesis|\bPOOLER\b|\b(?:database|sql)_url\b|(?<!self, )\brecords: Records[,)]"
)
"""What stands in a file that makes some test one of `--slow`; fixtures of this file among it."""
TESTS = Path(__file__).parent
LONGEST_FILES = (TESTS / "longest_files.txt").read_text(encoding="utf-8")
"""The files that take longest: one that began last would leave the other processes idle."""
NEUTRAL_FILES = frozenset({Path(__file__), TESTS / "support" / "stores.py"})
"""Files with such a word that make no test slow: this one, and the one that defines `POOLER`."""
FROM_TESTS = re.compile(r"^(?:from|import) (tests\.[\w.]+)", re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    """Try properties with a few examples, and with --slow once more with many."""
    settings.load_profile("many" if config.option.slow else "few")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """
    Look for no garbage among the tests: a third of collecting them went into that.

    They stay to the end, so nothing looks through them later either.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # The default of 700 objects costs a twentieth of all tests.
        gc.set_threshold(50_000, 20, 100)
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    named: dict[str, set[str]] = {}
    tests = config.rootpath / "tests"
    for item in items:
        for mark in item.iter_markers("requirement"):
            for identifier in mark.args:
                named.setdefault(identifier, set()).add(item.path.relative_to(tests).parts[0])
    config.stash[NAMED_REQUIREMENTS] = named
    config.stash[SLOW_FILES] = {item.path for item in items if is_selected(item, with_slow=True)}
    wanted = [item for item in items if is_selected(item, with_slow=config.option.slow)]
    config.hook.pytest_deselected(items=[*{*items} - {*wanted}])
    items[:] = wanted
    for item in wanted:
        if config.option.slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))
    result = yield
    files = [config.rootpath / "tests" / name for name in LONGEST_FILES.split()]
    places = {path: place for place, path in enumerate(files)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    return result


def is_selected(item: pytest.Item, *, with_slow: bool) -> bool:
    """Return whether a test is among the requested ones."""
    if item.get_closest_marker("slow"):
        return with_slow
    return not with_slow or is_hypothesis_test(getattr(item, "obj", None))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files without slow tests with --slow: importing all of them takes half a minute."""
    if config.option.slow and collection_path.name.startswith("test_"):
        return None if may_have_slow_tests(collection_path) else True
    return None


def may_have_slow_tests(file: Path) -> bool:
    """Return whether the file, a conftest above it, or what they import makes a test slow."""
    folders = file.relative_to(TESTS).parents[:-1]
    read = set(NEUTRAL_FILES)
    unread = {file, *(TESTS / folder / "conftest.py" for folder in folders)}
    while unread := unread - read:
        found = [_read(one) for one in unread]
        if any(slow for slow, _ in found):
            return True
        read |= unread
        unread = {one for _, imported in found for one in imported}
    return False


@cache
def _read(file: Path) -> tuple[bool, list[Path]]:
    """Return whether such a word stands in a file, and what it imports of the tests."""
    if not file.is_file():
        return False, []
    text = file.read_text(encoding="utf-8")
    names = (name.replace(".", "/") for name in FROM_TESTS.findall(text))
    return bool(SLOW_WORDS.search(text)), [TESTS.parent / f"{name}.py" for name in names]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="only the tests that take minutes")
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails the run")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Report a skip as a failure with --no-skips, as it would hide a missing test."""
    report = (yield).get_result()
    if report.skipped and not hasattr(report, "wasxfail") and item.config.option.no_skips:
        report.outcome = "failed"


@pytest.fixture(scope="module", autouse=True)
def isolated_logging() -> Iterator[None]:
    """Restore the logging that a command in this process sets up."""
    root = logging.getLogger()
    handlers = root.handlers
    loggers = [logging.getLogger(name) for name in (None, *OWN_LOGGERS)]
    levels = [logger.level for logger in loggers]
    yield
    root.handlers = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Return asyncio, as in production; the tests never run on another loop."""
    return "asyncio"


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    """Serve one identity provider for each test module."""
    with Idp() as idp:
        yield idp


@pytest.fixture(scope="session")
def shared_internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with small_internet(tmp_path_factory.mktemp("internet")) as internet:
        yield internet


@pytest.fixture
def internet(shared_internet: Internet) -> Internet:
    """Return the small internet, with nothing remembered."""
    return shared_internet.reset()


@pytest.fixture
async def outbound_client(internet: Internet) -> AsyncIterator[OutboundClient]:
    async with aclosing(internet.client()) as client:
        yield client


@pytest.fixture(scope="module")
def working_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run the module's servers in a temporary directory, where they keep their state."""
    folder = tmp_path_factory.mktemp("gatepost")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


KEEPING_STATE = ("mcp", "policy/approvals", "telemetry", "tenancy")
"""Folders whose servers keep their state where they are started."""


@pytest.fixture(scope="module", autouse=True)
def in_working_directory(request: pytest.FixtureRequest) -> None:
    """Start the servers of those folders in a temporary directory."""
    if any(request.path.is_relative_to(TESTS / folder) for folder in KEEPING_STATE):
        request.getfixturevalue("working_directory")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """Serve one PostgreSQL for the whole run; a test takes a database of it."""
    with Postgres.running() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[str]:
    """Yield the URL of an empty PostgreSQL database that is this test's alone."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Postgres) -> Iterator[str]:
    """Yield the name of a database with our tables in it, to be copied."""

    async def made(url: str) -> None:
        async with aclosing(database_of(url)) as database:
            await make(database)

    with postgres_server.database() as url:
        asyncio.run(made(url))
        yield url.rpartition("/")[2]


@pytest.fixture
def migrated_postgres(postgres_server: Postgres, postgres_template: str) -> Iterator[str]:
    """Yield the URL of this test's own PostgreSQL database, which a server can use at once."""
    with postgres_server.database(like=postgres_template) as url:
        yield url


@pytest.fixture(scope="session")
def shared_database(postgres_server: Postgres, postgres_template: str) -> Iterator[str]:
    """Yield the name of a database with our tables, which tests use one after another."""
    with postgres_server.database(like=postgres_template) as url:
        yield url.rpartition("/")[2]


@pytest.fixture
def emptied_postgres(postgres_server: Postgres, shared_database: str) -> Iterator[str]:
    """Yield `migrated_postgres` in a fifth of the time, for tests that do not alter tables."""
    yield postgres_server.url(shared_database)
    postgres_server.empty(shared_database)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: Postgres) -> Iterator[PgBouncer]:
    """Serve one PgBouncer in transaction mode for the whole run."""
    if pgbouncer_program() is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    with PgBouncer.running(postgres_server) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    """Serve one Valkey for the whole run; a test takes a database of it."""
    with Valkey.running() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: Valkey) -> str:
    """Return the URL of an empty Valkey database that is this test's alone."""
    return valkey_server.url()


@pytest.fixture(params=["memory", "sqlite", "postgresql", POOLER])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a new database, once for each backend."""
    return "memory:" if request.param == "memory" else a_sql_url(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql", POOLER])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a new database that several processes share, once for each backend."""
    return a_sql_url(request, tmp_path)


@pytest.fixture
async def records(database_url: str) -> AsyncIterator[Records]:
    opened = await open_records(database_url)
    yield opened
    await opened.aclose()


@pytest.fixture(params=["memory", "valkey"])
async def shared_store(request: pytest.FixtureRequest) -> AsyncIterator[SharedStore]:
    """Yield the store that connects processes, once for each backend."""
    url = "" if request.param == "memory" else request.getfixturevalue("valkey")
    opened = await open_shared_store(url)
    yield opened
    await opened.aclose()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """Serve a PostgreSQL that this test may stop."""
    with Postgres.running() as server:
        yield server


HOUR = 3600.0

task = partial(
    TaskRecord,
    id="t1",
    owner=b"alice",
    tool="count",
    status="working",
    created_at=1_000.25,
    updated_at=1_000.25,
    expires_at=1_000.25 + HOUR,
    call=b'{"n":1}',
    leased_until=1_030.0,
)
"""A running task."""

idempotency_record = partial(
    IdempotencyRecord,
    key=b"k1",
    digest=b"d1",
    holder="h1",
    leased_until=1_030.0,
    expires_at=1_000.0 + HOUR,
)
"""The idempotency record of a running call."""

outbox_message = partial(
    OutboxMessage,
    id="msg_a1_requested",
    ordering_key="a1",
    sequence=0,
    body=b"\x00{}",
    created_at=1_000.25,
    due_at=1_000.25,
    expires_at=1_000.25 + HOUR,
)
"""A message that is due and that no process has leased."""


async def store_records(records: Records, tenant: str) -> None:
    """Store one record of each kind, and two entries of different subjects."""
    ours = records.for_tenant(tenant)
    await ours.tasks.create(task())
    await ours.idempotency.begin(idempotency_record(), now=0.0)
    await ours.sessions.replace(b"s", SessionRecord(ended=True), expires_at=1e9)
    await ours.entries("secrets").put("k", b"v", now=0.0)
    await ours.entries("apis").put("k", b"v", now=0.0)
    await ours.outbox.add(outbox_message())


ROWS_BY_TABLE = {
    "tasks": 1,
    "idempotency_records": 1,
    "sessions": 1,
    "entries": 2,
    "outbox_messages": 1,
}
