"""What the application behind the gate reads of its caller in headers (A6)."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz import IdentityHeaders
from gatepost_authz.caller import TenantContext
from gatepost_authz.headers import ImpersonationFilter
from gatepost_authz.middleware import BearerMiddleware
from tests.authz.test_middleware import ALICE, OneTokenVerifier, RecordingApp, bearer_gate, call
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


async def headers_behind_gate(
    caller: TenantContext, *fields: tuple[bytes, bytes], **more: Any
) -> list[tuple[bytes, bytes]]:
    """Return the headers that reach the application, without the credentials."""
    app_behind = RecordingApp()
    headers = [(b"authorization", b"Bearer good"), *fields]
    scope = {"type": "http", "path": "/mcp", "query_string": b"", "headers": headers}
    await call(bearer_gate(OneTokenVerifier(caller), app_behind, **more), scope)
    first, *rest = app_behind.reached[0]["headers"]
    assert first == (b"authorization", b"Bearer good")
    assert scope["headers"] is headers
    return rest


async def test_the_application_gets_the_proved_identity_in_headers() -> None:
    """Tenant, subject and scopes have headers; missing claims have none."""
    full = await headers_behind_gate(BOB)
    plain = await headers_behind_gate(ALICE)

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
async def test_identity_headers_of_the_caller_are_removed(name: bytes) -> None:
    """Every notation that a framework treats as the same name is removed."""
    rest = await headers_behind_gate(BOB, (name, b"globex"), (b"x-a", b"1"), (name, b"globex"))

    assert rest == [(b"x-a", b"1"), *IDENTITY_FIELDS.items()]


@pytest.mark.parametrize(
    "name",
    [b"accept", b"User-Agent", b"cookie", b"traceparent", b"mcp-param-tenant-id", b"x-origin-time",
     b"x-request-id", b"borg"],
)  # fmt: skip
async def test_other_headers_are_passed_on_unchanged(name: bytes) -> None:
    """The name and the value stay as the client sent them."""
    assert (name, b"1") in await headers_behind_gate(ALICE, (name, b"1"))


async def test_the_names_of_the_identity_headers_are_configurable() -> None:
    """A caller cannot send a configured header for which the token has no value either."""
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

    assert await headers_behind_gate(BOB, *sent, identity=names) == [
        (b"x-account", b"acme"),
        (b"who", b"alice"),
    ]


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
def test_an_invalid_identity_header_name_is_refused(names: dict[str, str]) -> None:
    """Reserved names, duplicates and names with line breaks or spaces are invalid."""
    with pytest.raises(ValueError, match="identity header"):
        IdentityHeaders(**names)


@given(st.text(min_size=1), st.lists(st.text(min_size=1), max_size=3))
def test_identity_header_values_are_unambiguous_visible_ascii(
    subject: str, scopes: list[str]
) -> None:
    """One space separates scopes, and different subjects have different values."""
    caller = msgspec.structs.replace(ALICE, subject=subject, scopes=frozenset(scopes))
    other = msgspec.structs.replace(ALICE, subject=subject + " ")
    headers = dict(IdentityHeaders().headers_of(caller))

    assert all(0x20 <= byte <= 0x7E for value in headers.values() for byte in value)
    assert b" " not in headers[b"x-gatepost-subject"]
    assert len(headers.get(b"x-gatepost-scopes", b"").split()) == len(set(scopes))
    assert (
        headers[b"x-gatepost-subject"]
        != dict(IdentityHeaders().headers_of(other))[b"x-gatepost-subject"]
    )


async def test_identity_headers_can_be_turned_off() -> None:
    """With None the gate removes no header and adds none."""
    assert await headers_behind_gate(ALICE, (b"x-tenant", b"1"), identity=None) == [
        (b"x-tenant", b"1")
    ]


async def test_the_lifespan_scope_is_passed_on_unchanged() -> None:
    """A lifespan scope has no caller."""
    app_behind = RecordingApp()
    app: BearerMiddleware = bearer_gate(OneTokenVerifier(ALICE), app_behind)
    await call(app, {"type": "lifespan"})

    assert app_behind.reached == [{"type": "lifespan"}]


def test_the_cache_of_header_names_is_bounded() -> None:
    """A caller that sends many different names cannot fill the memory."""
    impersonates = ImpersonationFilter()
    for number in range(10_000):
        impersonates(b"x-%d" % number)
        impersonates(b"x-" + b"y" * 100 + b"%d" % number)

    assert len(impersonates._verdicts) <= 4096
