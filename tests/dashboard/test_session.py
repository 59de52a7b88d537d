"""How long a session lasts, what ends it, and that every replica agrees."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import msgspec
import pytest

from gatepost.dashboard.dashboard_session import RENEWED_S, CookieTooLong, DashboardSessions, digest
from gatepost.secrets.keyring import KeyRing, create, rotate
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.revocations import RevocationRecord
from gatepost_authz.caller import TenantContext
from gatepost_authz.protected_resource import Target
from tests.dashboard.conftest import DashboardServer
from tests.support.client import exchange, read_answer, request
from tests.support.measuring import ManualClock, eventually

TARGET = Target("https://mcp.example.com/t/acme/mcp", "https://mcp.example.com/x", "acme")
OTHER_TARGET = Target("https://mcp.example.com/t/globex/mcp", "https://mcp.example.com/y", "globex")
CALLER = TenantContext(
    tenant_id="acme",
    issuer="https://id.example.com",
    subject="alice",
    subject_kind="user",
    resource=TARGET.url,
    expires_at=1_000_300,
    scopes=frozenset({"files:write"}),
    roles=frozenset({"approver"}),
    claims={"name": "Alice"},
)


class SessionReplica:
    """The sessions of one process; several share records and key ring."""

    def __init__(self, ring: KeyRing, records: MemoryRecords, clock: ManualClock) -> None:
        self.meaning: bytes | None = digest("settings")
        self.sessions = DashboardSessions(
            ring,
            records,
            lasts_s=8 * 3600,
            idle_s=1800,
            meaning_of=lambda caller: self.meaning,
            clock=clock,
        )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing.ephemeral()


@pytest.fixture
def replicas(ring: KeyRing, clock: ManualClock) -> tuple[SessionReplica, SessionReplica]:
    records = MemoryRecords()
    return SessionReplica(ring, records, clock), SessionReplica(ring, records, clock)


def cookie(replica: SessionReplica) -> str:
    return replica.sessions.sealed(replica.sessions.start(CALLER), TARGET)


async def test_a_session_is_good_at_every_replica(
    replicas: tuple[SessionReplica, SessionReplica],
) -> None:
    """The cookie has the roles and the name, and no scope of the token."""
    first, second = replicas
    session = await second.sessions.find(cookie(first), TARGET)

    assert session is not None
    assert session.caller.principal_key == CALLER.principal_key
    assert (session.caller.roles, session.caller.claims) == (CALLER.roles, CALLER.claims)
    assert session.caller.scopes == frozenset()
    assert session.caller.expires_at == 1_000_000 + 8 * 3600


async def test_a_session_has_the_age_of_its_token_or_sign_in(
    replicas: tuple[SessionReplica, SessionReplica],
) -> None:
    """A revocation ends tokens issued before it, so the session keeps the time of issue."""
    caller = msgspec.structs.replace(CALLER, issued_at=999_000)

    assert replicas[0].sessions.start(caller).caller.issued_at == 999_000
    assert replicas[0].sessions.start(CALLER).caller.issued_at == 1_000_000


async def test_an_ended_session_is_refused_at_every_replica(
    replicas: tuple[SessionReplica, SessionReplica],
) -> None:
    """A copy of the cookie is refused too, and ending the session twice is no error."""
    first, second = replicas
    copy = cookie(first)
    session = await first.sessions.find(copy, TARGET)
    assert session is not None
    await first.sessions.end(session)
    await second.sessions.end(session)

    assert await first.sessions.find(copy, TARGET) is None
    assert await second.sessions.find(copy, TARGET) is None


async def test_a_session_ends_after_its_maximum_age_or_idle_time(
    replicas: tuple[SessionReplica, SessionReplica], clock: ManualClock
) -> None:
    """Page requests extend the idle time but not the maximum age."""
    first, _ = replicas
    session_cookie = cookie(first)
    for _ in range(15):
        clock.now += 1799
        session = await first.sessions.find(session_cookie, TARGET)
        assert session is not None
        renewed = first.sessions.renewed(session)
        assert renewed is not None
        idle, session_cookie = session_cookie, first.sessions.sealed(renewed, TARGET)
    assert await first.sessions.find(idle, TARGET) is not None

    clock.now += 1800
    assert await first.sessions.find(session_cookie, TARGET) is None
    clock.now -= 1800 - 60
    late = await first.sessions.find(session_cookie, TARGET)
    assert late is not None
    clock.now = late.caller.expires_at
    assert await first.sessions.find(first.sessions.sealed(late, TARGET), TARGET) is None


async def test_a_session_cookie_is_renewed_after_an_interval(
    replicas: tuple[SessionReplica, SessionReplica], clock: ManualClock
) -> None:
    """It is not renewed with every page."""
    session = replicas[0].sessions.start(CALLER)
    clock.now += RENEWED_S
    assert replicas[0].sessions.renewed(session) is None
    clock.now += 1
    assert replicas[0].sessions.renewed(session) is not None


@pytest.mark.parametrize("meaning", [None, digest("other settings")], ids=["gone", "different"])
async def test_a_session_ends_when_the_rules_of_its_issuer_change(
    replicas: tuple[SessionReplica, SessionReplica], meaning: bytes | None
) -> None:
    """After an issuer is removed or changed, all its users sign in again."""
    session_cookie = cookie(replicas[0])
    replicas[0].meaning = meaning

    assert await replicas[0].sessions.find(session_cookie, TARGET) is None
    assert await replicas[1].sessions.find(session_cookie, TARGET) is not None


FORGERIES: list[tuple[str, Callable[[str], str]]] = [
    ("empty", lambda cookie: ""),
    ("cut", lambda cookie: cookie[:-1]),
    ("changed", lambda cookie: cookie[:-20] + ("A" if cookie[-20] != "A" else "B") + cookie[-19:]),
    ("unknown key", lambda cookie: "00000000" + cookie[8:]),
    ("no key", lambda cookie: cookie[8:]),
    ("not ASCII", lambda cookie: cookie + "\u00e9"),
    ("too long", lambda cookie: cookie + "A" * 4000),
    ("padded", lambda cookie: cookie + "="),
]


@pytest.mark.parametrize(("name", "forge"), FORGERIES, ids=[case[0] for case in FORGERIES])
async def test_a_forged_session_cookie_is_refused(
    replicas: tuple[SessionReplica, SessionReplica], name: str, forge: Callable[[str], str]
) -> None:
    """Only the exact value that the key ring sealed is accepted."""
    assert await replicas[0].sessions.find(forge(cookie(replicas[0])), TARGET) is None


async def test_a_session_cookie_is_valid_for_one_dashboard_and_purpose(
    replicas: tuple[SessionReplica, SessionReplica], ring: KeyRing
) -> None:
    """Another tenant's dashboard refuses it, and other sealed values are no session."""
    first, _ = replicas
    assert await first.sessions.find(cookie(first), OTHER_TARGET) is None

    payload = msgspec.msgpack.encode(first.sessions.start(CALLER))
    for purpose in ("dashboard sign-in", "dashboard form", "vault", "session"):
        sealed = ring.seal(purpose, payload, context=TARGET.url.encode())
        assert await first.sessions.find(sealed, TARGET) is None


async def test_a_csrf_token_is_valid_for_one_session(
    replicas: tuple[SessionReplica, SessionReplica],
) -> None:
    """Each page has another token, and every replica accepts all of them."""
    first, second = replicas
    mine, other = (first.sessions.start(CALLER) for _ in range(2))
    tokens = {first.sessions.token(mine) for _ in range(3)}

    assert len(tokens) == 3
    assert all(second.sessions.minted(mine, token) for token in tokens)
    assert not any(first.sessions.minted(other, token) for token in tokens)
    for made_up in ("", ".", cookie(first), mine.id.hex(), "\u00e9"):
        assert not first.sessions.minted(mine, made_up)


def test_sessions_survive_a_key_rotation_until_their_key_is_removed(
    tmp_path, clock: ManualClock
) -> None:  # type: ignore[no-untyped-def]
    """A ring without the key cannot read the session."""
    path = tmp_path / "ring.json"
    create(path)
    records = MemoryRecords()
    before = SessionReplica(KeyRing.load(f"file:{path}"), records, clock)
    session_cookie = cookie(before)
    rotate(path, keep=1)
    after = SessionReplica(KeyRing.load(f"file:{path}"), records, clock)
    rotate(path, keep=0)
    lost = SessionReplica(KeyRing.load(f"file:{path}"), records, clock)

    assert after.sessions.read(session_cookie, TARGET) is not None
    assert lost.sessions.read(session_cookie, TARGET) is None


def test_a_session_that_is_too_long_for_a_cookie_is_an_error(
    replicas: tuple[SessionReplica, SessionReplica],
) -> None:
    """Browsers would drop such a cookie without a message."""
    wordy = msgspec.structs.replace(CALLER, client_id="x" * 4000)
    with pytest.raises(CookieTooLong):
        replicas[0].sessions.sealed(replicas[0].sessions.start(wordy), TARGET)


@contextmanager
def revoke(server: DashboardServer, subject: str) -> Iterator[None]:
    """Revoke the tokens of a user until the block ends."""
    now = time.time()
    revocation = RevocationRecord(
        id="cut-1", subject=subject, before=now + 1, created_at=now, created_by="test"
    )
    server.run(server.services.records.revocations.put(revocation))
    try:
        yield
    finally:
        server.run(server.services.records.revocations.delete("", "cut-1"))
        server.run(server.services.revocations.read_changes())


def test_a_revocation_ends_sessions_and_their_live_pages(shared_dashboard: DashboardServer) -> None:
    """The next page asks for a sign-in, and an open stream ends with an event."""
    with (
        shared_dashboard.user_browser("bob", fresh=True) as user_browser,
        user_browser.stream("/test/live") as lines,
        revoke(shared_dashboard, "bob"),
    ):
        eventually(lambda: user_browser.get("/test/open").status_code == 303, within=30)
        assert "event: over" in list(lines)


def test_a_form_of_a_user_revoked_during_its_upload_is_refused(
    shared_dashboard: DashboardServer,
) -> None:
    """The user is revoked before the last byte of the form arrives."""
    with shared_dashboard.user_browser("bob", fresh=True) as user_browser:
        body = urlencode({"csrf": user_browser.token(), "one": "more"}).encode()
        head = [
            ("Host", shared_dashboard.origin.removeprefix("http://")),
            ("Origin", shared_dashboard.origin),
            (
                "Cookie",
                "; ".join(
                    f"{cookie.name}={cookie.value}" for cookie in user_browser.http.cookies.jar
                ),
            ),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Content-Length", str(len(body))),
        ]
        sent = request("POST", f"{shared_dashboard.base}/test/echo", head, body)
        location = ("127.0.0.1", int(shared_dashboard.origin.rpartition(":")[2]))
        whole = exchange(location[1], sent)
        assert (whole.status, b"more" in whole.body) == (200, True)

        with socket.create_connection(location, timeout=30) as connection:
            connection.sendall(sent[:-1])
            with revoke(shared_dashboard, "bob"):
                eventually(lambda: user_browser.get("/test/open").status_code == 303, within=30)
                connection.sendall(sent[-1:])
                answer = read_answer(connection)
    assert answer.status == 401
    assert b"Your last action was not carried out" in answer.body


def test_signing_out_ends_live_pages_in_other_windows(shared_dashboard: DashboardServer) -> None:
    """The streams in all windows of the session end."""
    with (
        shared_dashboard.user_browser("dave", fresh=True) as user_browser,
        user_browser.stream("/test/live") as lines,
    ):
        with shared_dashboard.user_browser() as same:
            same.http.cookies.update(user_browser.http.cookies)
            assert same.post("/sign-out").status_code == 303
        assert "event: over" in list(lines)


def test_a_live_page_does_not_renew_a_session(shared_dashboard: DashboardServer) -> None:
    """Automatic requests are no activity; page requests of a person renew the cookie."""
    with shared_dashboard.user_browser("alice") as user_browser:
        around = shared_dashboard.around
        paths = around.location.locate("/dashboard")
        assert paths is not None
        session = around.sessions.read(user_browser.cookie(), paths.target)
        assert session is not None
        aged = msgspec.structs.replace(session, seen=time.time() - 100)
        user_browser.http.cookies.clear()
        name = around.cookies.name("session", paths.target)
        user_browser.http.cookies.set(name, around.sessions.sealed(aged, paths.target))

        assert "set-cookie" not in user_browser.get("/test/poll").headers
        assert "set-cookie" in user_browser.get("/test/echo").headers
