"""What the application behind the gate reads of its caller in headers (A6)."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz import IdentityHeaders
from gatepost_authz.caller import TenantContext
from gatepost_authz.headers import Impersonating
from gatepost_authz.middleware import BearerMiddleware
from tests.authz.test_middleware import ALICE, OneTokenVerifier, RecordingApp, call, gate
from tests.support.measuring import each

pytestmark = pytest.mark.requirement("A6", "W12")

BOB = msgspec.structs.replace(
    ALICE, client_id="agents", scopes=frozenset({"b:write", "a:read"}), roles=frozenset({"admin"})
)
IDENTITY_FIELDS = {
    b"x-gatepost-tenant": b"acme",
    b"x-gatepost-issuer": b"https://id.example",
    b"x-gatepost-subject": b"alice",
    b"x-gatepost-subject-kind": b"user",
    b"x-gatepost-client": b"agents",
    b"x-gatepost-scopes": b"a:read b:write",
    b"x-gatepost-roles": b"admin",
}


async def behind(
    caller: TenantContext, *fields: tuple[bytes, bytes], **more: Any
) -> list[tuple[bytes, bytes]]:
    """The headers that reach the application, but for the credentials."""
    app_behind = RecordingApp()
    headers = [(b"authorization", b"Bearer good"), *fields]
    scope = {"type": "http", "path": "/mcp", "query_string": b"", "headers": headers}
    await call(gate(OneTokenVerifier(caller), app_behind, **more), scope)
    first, *rest = app_behind.reached[0]["headers"]
    assert first == (b"authorization", b"Bearer good")
    assert scope["headers"] is headers
    return rest


async def test_the_application_is_told_what_the_token_proved() -> None:
    """Tenant, subject and what it may; what a token does not say has no header."""
    full = await behind(BOB)
    plain = await behind(ALICE)

    assert dict(full) == IDENTITY_FIELDS
    assert len(full) == len(IDENTITY_FIELDS)
    assert b"x-gatepost-client" not in dict(plain)
    assert b"x-gatepost-actor" not in dict(plain)


FORGED_NAMES = [
    b"x-tenant-id", b"X-Tenant-Id", b"x_tenant_id", b"x-tenant_id", b"x.tenant.id", b"X_ORG",
    b"x-org-id", b"tenant", b"tenant-id", b"tenantid", b"org-id", b"organization", b"x-acme-tenant",
    b"x-ms-tenant-id", b"x-user", b"x-user-email", b"x-scopes", b"x-roles", b"x-forwarded-user",
    b"remote_user", b"remote-user", b"x-octopus-tenant-id", b"x_octopus_tenant_id",
    b"x-gatepost-tenant", b"x-gatepost-anything", b"gatepost-caller", b"x_gatepost_tenant",
    b"user_agent", b"x-http-method-override", b"x-auth-request-email", b"x-tenant-id ",
]  # fmt: skip


@each("name", FORGED_NAMES, ids=repr)
async def test_what_a_caller_says_of_itself_does_not_arrive(name: bytes) -> None:
    """In no spelling that some framework takes for the same, once or twice."""
    rest = await behind(BOB, (name, b"globex"), (b"x-a", b"1"), (name, b"globex"))

    assert rest == [(b"x-a", b"1"), *IDENTITY_FIELDS.items()]


@pytest.mark.parametrize(
    "name",
    [b"accept", b"User-Agent", b"cookie", b"traceparent", b"mcp-param-tenant-id", b"x-origin-time",
     b"x-request-id", b"borg"],
)  # fmt: skip
async def test_other_headers_arrive(name: bytes) -> None:
    """As they came."""
    assert (name, b"1") in await behind(ALICE, (name, b"1"))


async def test_the_operator_names_the_headers() -> None:
    """A header name without an identity cannot be sent by a caller either."""
    names = IdentityHeaders(
        tenant="X-Account", subject="who", issuer="", subject_kind="", client="", actor="",
        scopes="", roles="",
    )  # fmt: skip
    sent = [
        (b"who", b"root"),
        (b"WHO", b"root"),
        (b"x_account", b"1"),
        (b"x-gatepost-tenant", b"2"),
    ]

    assert await behind(BOB, *sent, identity=names) == [(b"x-account", b"acme"), (b"who", b"alice")]


@pytest.mark.parametrize(
    "names",
    [
        {"tenant": "authorization"},
        {"tenant": "Host"},
        {"tenant": "x tenant"},
        {"tenant": "x-tenant\r\nx-evil"},
        {"tenant": "x_tenant"},
        {"tenant": "x-tenänt"},
        {"tenant": "x-same", "subject": "X-Same"},
    ],
)
def test_a_name_that_is_none_is_refused(names: dict[str, str]) -> None:
    """What HTTP itself uses, two alike, and what could end a line."""
    with pytest.raises(ValueError, match="identity header"):
        IdentityHeaders(**names)


@given(st.text(min_size=1), st.lists(st.text(min_size=1), max_size=3))
def test_no_value_can_leave_its_line_or_be_read_as_another(subject: str, scopes: list[str]) -> None:
    """Visible ASCII, one space between two scopes, and different subjects stay different."""
    caller = msgspec.structs.replace(ALICE, subject=subject, scopes=frozenset(scopes))
    other = msgspec.structs.replace(ALICE, subject=subject + " ")
    headers = dict(IdentityHeaders().of(caller))

    assert all(0x20 <= byte <= 0x7E for value in headers.values() for byte in value)
    assert b" " not in headers[b"x-gatepost-subject"]
    assert len(headers.get(b"x-gatepost-scopes", b"").split()) == len(set(scopes))
    assert (
        headers[b"x-gatepost-subject"] != dict(IdentityHeaders().of(other))[b"x-gatepost-subject"]
    )


async def test_a_front_that_has_stripped_them_may_keep_the_headers() -> None:
    """With None nothing is taken and nothing is added."""
    assert await behind(ALICE, (b"x-tenant", b"1"), identity=None) == [(b"x-tenant", b"1")]


async def test_the_lifespan_passes_as_it_is() -> None:
    """There is no caller in it."""
    app_behind = RecordingApp()
    app: BearerMiddleware = gate(OneTokenVerifier(ALICE), app_behind)
    await call(app, {"type": "lifespan"})

    assert app_behind.reached == [{"type": "lifespan"}]


def test_what_is_remembered_of_names_is_bounded() -> None:
    """A caller who sends a million names fills no memory."""
    impersonates = Impersonating()
    for number in range(10_000):
        impersonates(b"x-%d" % number)
        impersonates(b"x-" + b"y" * 100 + b"%d" % number)

    assert len(impersonates._verdicts) <= 4096
