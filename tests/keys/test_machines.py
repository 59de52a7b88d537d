"""Machine clients, and the grant behind `gatepost token`."""

import base64

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from gatepost_keys.issuer import StaticClient
from gatepost_keys.issuer.state import MINT_GRANT
from tests.support.measuring import each
from tests.support.sign_in import CLI, ORIGIN, RESOURCE, CodeFlow, code_flow, named_cases

__all__ = ["code_flow"]  # a fixture

ROBOT_CLIENT = StaticClient(client_id="robot", secret="robot-secret", tenant="globex")
PROBE = StaticClient(client_id="probe", secret="probe-secret", introspects=True)


@pytest.fixture
def machines() -> CodeFlow:
    return CodeFlow(clients=(ROBOT_CLIENT, PROBE))


def claims_of(code_flow: CodeFlow, token: str) -> dict[str, object]:
    keys = KeySet.import_key_set(code_flow.issuer.keys.document())
    return jwt.decode(token, keys, algorithms=["ES256"]).claims


async def test_a_machine_token_has_the_client_id_as_subject(machines: CodeFlow) -> None:
    """It has no claims of a sign-in and no refresh token (client credentials)."""
    answer = await machines.http.post(
        "/dev-as/token",
        data={"grant_type": "client_credentials", "scope": "files:read", "resource": RESOURCE},
        auth=("robot", "robot-secret"),
    )
    claims = claims_of(machines, answer.json()["access_token"])

    assert "refresh_token" not in answer.json()
    assert (claims["sub"], claims["client_id"], claims["org_id"]) == ("robot", "robot", "globex")
    assert {"auth_time", "acr", "email", "roles"}.isdisjoint(claims)


@pytest.mark.parametrize(
    ("fields", "auth", "status", "error"),
    named_cases([
        ("wrong secret", {}, ("robot", "wrong"), 401, "invalid_client"),
        ("no secret", {"client_id": "robot"}, None, 401, "invalid_client"),
        ("unknown", {}, ("unknown", "x"), 401, "invalid_client"),
        ("no tenant", {}, ("probe", "probe-secret"), 400, "unauthorized_client"),
        ("two ways", {"client_secret": "robot-secret"}, ("robot", "robot-secret"), 400,
         "invalid_request"),
        ("two names", {"client_id": "probe"}, ("robot", "robot-secret"), 400, "invalid_request"),
        ("other resource", {"resource": f"{ORIGIN}/x"}, ("robot", "robot-secret"), 400,
         "invalid_target"),
        ("other scope", {"scope": "nonsense"}, ("robot", "robot-secret"), 400, "invalid_scope"),
    ]),
)  # fmt: skip
async def test_an_invalid_client_credentials_request_is_refused(
    machines: CodeFlow,
    fields: dict[str, str],
    auth: tuple[str, str] | None,
    status: int,
    error: str,
) -> None:
    """The cases are wrong secrets, missing tenants, and unknown resources or scopes."""
    data = {"grant_type": "client_credentials"} | fields
    answer = await machines.http.post("/dev-as/token", data=data, auth=auth)

    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert answer.headers["cache-control"] == "no-store"


HEADERS = [
    "Bearer abc",
    "Basic",
    "Basic %%%",
    "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
    "Basic " + base64.b64encode(b"no colon").decode(),
    "Basic é",
    "Digest username=x",
    "",
]


@each("header", HEADERS)
@each("path", ["token", "revoke", "introspect", "rotate"])
async def test_an_unreadable_authorization_header_gets_401(
    machines: CodeFlow, path: str, header: str
) -> None:
    """No header leads to a 500."""
    answer = await machines.http.post(
        f"/dev-as/{path}",
        data={"grant_type": "client_credentials", "token": "x"},
        headers={"Authorization": header.encode()},
    )

    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")


async def test_two_authorization_headers_are_refused(machines: CodeFlow) -> None:
    """A proxy in front could use the other one of the two."""
    pair = [("Authorization", "Basic cm9ib3Q6cm9ib3Qtc2VjcmV0")] * 2
    answer = await machines.http.post(
        "/dev-as/token", data={"grant_type": "client_credentials"}, headers=pair
    )

    assert answer.status_code == 400


async def minted(
    code_flow: CodeFlow, auth: object = CLI, **fields: str
) -> tuple[int, dict[str, object]]:
    data = {"grant_type": MINT_GRANT} | fields
    answer = await code_flow.http.post("/dev-as/token", data=data, auth=auth)
    return answer.status_code, answer.json()


async def test_the_command_line_can_mint_a_token_for_any_subject(code_flow: CodeFlow) -> None:
    """A known subject has roles and a name; an unknown one has neither."""
    _, alice = await minted(code_flow, tenant="acme", subject="alice", scope="files:write")
    _, eve = await minted(code_flow, tenant="umbrella", subject="eve")
    _, first = await minted(code_flow, tenant="globex", resource=RESOURCE)
    person, unknown = (claims_of(code_flow, str(a["access_token"])) for a in (alice, eve))

    assert (person["sub"], person["org_id"], person["scope"]) == ("alice", "acme", "files:write")
    assert person["roles"] == ["approver", "admin", "operator"]
    assert (unknown["sub"], unknown["org_id"]) == ("eve", "umbrella")
    assert "roles" not in unknown
    assert claims_of(code_flow, str(first["access_token"]))["sub"] == "bob"


async def test_roles_of_a_user_are_not_given_to_the_same_subject_elsewhere(
    code_flow: CodeFlow,
) -> None:
    """Alice has roles at acme; a token for `alice` at globex has none."""
    _, answer = await minted(code_flow, tenant="globex", subject="alice")

    assert "roles" not in claims_of(code_flow, str(answer["access_token"]))


async def test_the_command_line_can_request_an_opaque_token(code_flow: CodeFlow) -> None:
    """Other requests to the same issuer still get JWTs."""
    _, answer = await minted(code_flow, tenant="acme", access_token_format="opaque")

    assert "." not in str(answer["access_token"])
    assert (await code_flow.introspect(str(answer["access_token"])))["org_id"] == "acme"


@pytest.mark.parametrize(
    ("fields", "error"),
    named_cases([
        ("no tenant", {}, "invalid_request"),
        ("capital tenant", {"tenant": "ACME"}, "invalid_request"),
        ("tenant with path", {"tenant": "../acme"}, "invalid_request"),
        ("tenant with newline", {"tenant": "acme\n"}, "invalid_request"),
        ("odd subject", {"tenant": "acme", "subject": "a\x00b"}, "invalid_request"),
        ("endless subject", {"tenant": "acme", "subject": "a" * 300}, "invalid_request"),
        ("unknown scope", {"tenant": "acme", "scope": "files:write nön\"sense"}, "invalid_scope"),
        ("resource", {"tenant": "acme", "resource": "https://mcp.example.com"}, "invalid_target"),
        ("format", {"tenant": "acme", "access_token_format": "xml"}, "invalid_request"),
    ]),
)  # fmt: skip
async def test_invalid_requests_of_the_command_line_get_a_description(
    code_flow: CodeFlow, fields: dict[str, str], error: str
) -> None:
    """The sentence can be understood without an RFC."""
    status, answer = await minted(code_flow, **fields)

    assert (status, answer["error"]) == (400, error)
    assert answer["error_description"]


async def test_only_the_command_line_client_can_mint_tokens(machines: CodeFlow) -> None:
    """Other clients, wrong secrets and an issuer without a secret are refused."""
    closed = CodeFlow(cli_secret="")

    assert (await minted(machines, ("robot", "robot-secret"), tenant="acme"))[0] == 400
    assert (await minted(machines, (CLI[0], "wrong"), tenant="acme"))[0] == 401
    assert (await minted(closed, tenant="acme"))[0] == 401
    assert (await minted(closed, (CLI[0], ""), tenant="acme"))[0] == 401


async def test_only_the_command_line_rotates_keys(machines: CodeFlow) -> None:
    """Otherwise any client on the machine could sign all users out."""
    answer = await machines.http.post("/dev-as/rotate", auth=("robot", "robot-secret"))

    assert answer.status_code == 403
    assert len(machines.issuer.keys.ids) == 1
