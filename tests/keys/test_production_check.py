"""What keeps the development issuer out of production, lock by lock."""

import ast
import os
from pathlib import Path

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from gatepost_keys.generate import GenerationRefused
from gatepost_keys.issuer import DevelopmentIssuer, IssuerSettings, production_check, routes
from tests.support.measuring import each
from tests.support.sign_in import ORIGIN, PATHS, RESOURCE, CodeFlow, code_flow

__all__ = ["code_flow"]  # a fixture

LAPTOP = {
    "issuer_url": f"{ORIGIN}/dev-as",
    "resource": RESOURCE,
    "bind_host": "127.0.0.1",
    "production": False,
    "tls": False,
    "trusted_proxies": (),
    "other_issuers": (),
    "environ": {"GATEPOST_MODE": "development", "HOME": "/home/alice"},
}


def test_lock_1_the_package_imports_no_other_package_of_gatepost() -> None:
    """A production installation can leave the package out."""
    root = Path(production_check.__file__).parents[1]
    names = {
        name
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in imports(node)
    }

    assert not {name for name in names if name.split(".")[0] in {"gatepost", "gatepost_authz"}}


def imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_locks_2_and_3_accept_a_development_machine() -> None:
    """Every address is loopback, and there is no sign of production."""
    assert production_check.problems(**LAPTOP) == []
    ipv6 = {"issuer_url": "http://[::1]:8000/dev-as", "resource": "http://localhost:8000/mcp"}
    assert production_check.problems(**{**LAPTOP, **ipv6, "bind_host": "::1"}) == []


REFUSED_SETTINGS = [
    ("bind_host", "0.0.0.0"),
    ("bind_host", "::"),
    ("bind_host", ""),
    ("bind_host", "192.168.1.5"),
    ("bind_host", "127.0.0.1.evil.example"),
    ("issuer_url", "https://id.example.com/dev-as"),
    ("issuer_url", "http://127.0.0.1@evil.example/dev-as"),
    ("issuer_url", "http://127.0.0.1:8000/"),
    ("resource", "https://mcp.example.com/mcp"),
    ("resource", "http://10.0.0.1/mcp"),
    ("resource", "http://["),
    ("production", True),
    ("tls", True),
    ("trusted_proxies", ("10.0.0.0/8",)),
    ("other_issuers", ("https://id.example.com",)),
    ("environ", {"GATEPOST_MODE": "production"}),
    ("environ", {"APP_ENV": " Production "}),
    ("environ", {"ENVIRONMENT": "prod"}),
]


@each(("name", "value"), REFUSED_SETTINGS)
def test_locks_2_and_3_refuse_each_single_sign_of_production(name: str, value: object) -> None:
    """A sentence names the sign."""
    (sentence,) = production_check.problems(**{**LAPTOP, name: value})

    assert len(sentence) > 20


def test_locks_2_and_3_name_everything_at_once() -> None:
    """The refusal lists all reasons at once."""
    wrong = {name: value for name, value in REFUSED_SETTINGS if name != "environ"}

    assert len(production_check.problems(**{**LAPTOP, **wrong, "environ": {"ENV": "live"}})) == 8


@pytest.mark.parametrize(
    "settings",
    [
        {"issuer": "https://id.example.com/dev-as"},
        {"issuer": "http://127.0.0.1:8000"},
        {"issuer": "http://127.0.0.1:8000/as"},
        {"issuer": "http://127.0.0.1:8000/dev-as/"},
        {"issuer": "http://127.0.0.1:8000/dev-as?x"},
        {"issuer": "http://evil.example\\@127.0.0.1/dev-as"},
        {"resources": (RESOURCE, "https://mcp.example.com/mcp")},
    ],
)
def test_lock_2_the_issuer_itself_works_on_loopback_only(settings: dict[str, object]) -> None:
    """Its settings refuse another host or path."""
    with pytest.raises(GenerationRefused):
        IssuerSettings(**settings)


async def test_lock_4_every_token_is_marked_as_a_development_token() -> None:
    """A production verifier refuses the key id, the claim and the issuer path."""
    walk = CodeFlow()
    token = jwt.decode(
        (await walk.tokens())["access_token"],
        KeySet.import_key_set(walk.issuer.keys.document()),
        algorithms=["ES256"],
    )

    assert token.header["kid"].startswith("dev-")
    assert token.claims["dev"] is True
    assert str(token.claims["iss"]).endswith("/dev-as")


def test_lock_4_keys_are_new_at_every_start() -> None:
    """Tokens of an earlier process are refused."""
    settings = IssuerSettings(algorithm="ES256")

    assert DevelopmentIssuer(settings).keys.ids != DevelopmentIssuer(settings).keys.ids


@pytest.mark.parametrize(
    "settings",
    [
        {"token_lifetime_s": 601},
        {"token_lifetime_s": 0},
        {"refresh_lifetime_s": 8 * 3600 + 1},
        {"refresh_lifetime_s": -1},
    ],
)
def test_lock_5_lifetimes_are_short(settings: dict[str, int]) -> None:
    """Access tokens last ten minutes, sign-ins eight hours, and no setting extends them."""
    with pytest.raises(GenerationRefused):
        IssuerSettings(**settings)


async def test_lock_5_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, clients and tokens are in memory only."""
    monkeypatch.chdir(tmp_path)
    walk = CodeFlow()
    await walk.refresh((await walk.tokens())["refresh_token"])
    walk.issuer.rotate()

    assert os.listdir(tmp_path) == []


def every_path() -> list[str]:
    return [route.path for route in routes(IssuerSettings(algorithm="ES256"))]


@each("path", every_path())
@each("method", ["GET", "POST", "OPTIONS", "DELETE"])
async def test_lock_6_every_answer_has_the_x_dev_auth_header(
    code_flow: CodeFlow, path: str, method: str
) -> None:
    """Errors have it too, so a scanner finds the issuer."""
    answer = await code_flow.http.request(method, path)

    assert answer.headers["x-dev-auth"] == "1"
    assert answer.status_code < 500


def test_lock_6_there_is_a_banner_and_a_name_for_readyz() -> None:
    """Programs that start the issuer print the banner and report the name."""
    assert "Never expose" in production_check.BANNER
    assert production_check.INSECURE == "insecure_dev_auth"


HOSTS = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1",
    "127.0.0.1:8001",
    "127.0.0.1:8000.evil.example",
    "127.0.0.1:8000@evil.example",
    "localhost.:8000",
    "0.0.0.0:8000",
    "",
]


@each("host", HOSTS)
@each("path", every_path())
async def test_lock_7_a_foreign_host_name_is_refused(
    code_flow: CodeFlow, host: str, path: str
) -> None:
    """A host name that resolves to 127.0.0.1 must not reach the issuer (DNS rebinding)."""
    answer = await code_flow.http.get(path, headers={"Host": host})

    assert answer.status_code == 421


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000"]
)
async def test_lock_7_this_machine_has_three_names(code_flow: CodeFlow, host: str) -> None:
    """They are accepted with the issuer's own port."""
    answer = await code_flow.http.get(PATHS[0], headers={"Host": host})

    assert answer.status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:6274"])
@pytest.mark.parametrize("path", ["authorize", "sign-in", "consent", ""])
async def test_lock_7_pages_accept_no_requests_of_other_origins(
    code_flow: CodeFlow, path: str, origin: str
) -> None:
    """Pages on other ports of this machine are refused, too."""
    method = "POST" if path in {"sign-in", "consent"} else "GET"
    address = f"/dev-as/{path}".rstrip("/")
    answer = await code_flow.http.request(method, address, headers={"Origin": origin})

    assert answer.status_code == 403


@pytest.mark.parametrize("destination", ["iframe", "empty", "image", "script", "object"])
async def test_lock_7_pages_cannot_be_embedded_by_other_sites(
    code_flow: CodeFlow, destination: str
) -> None:
    """With `auto_approve` a hidden frame would sign in without a click."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": destination}
    answer = await code_flow.http.get("/dev-as/authorize", headers=headers)

    assert answer.status_code == 403
