"""Gatepost sends a secret only to the hosts that it is bound to, whatever a caller names."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.packs.conftest import (
    HttpServer,
    PackCaller,
    PackServer,
    RecordedRequest,
    StubResponse,
    by_rest,
    open_server,
)
from tests.support.measuring import capture_logs

PLAIN_MOVED = ("plain", "moved")
TOKEN = "glpat-goes-to-one-host-only"
CYRILLIC = "\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}"
ICS = b"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nEND:VCALENDAR\r\n"


def api_description(server: str) -> dict[str, Any]:
    """Return the description of an API with two operations at this server."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "", "version": ""},
        "servers": [{"url": server}],
        "paths": {"/list": {"get": {}}, "/moved": {"get": {}}},
    }


class SecretBindingServers(NamedTuple):
    """The server that secrets are made for, and one that wants them; tools may reach both."""

    home: HttpServer
    thief: HttpServer
    server: PackServer

    def stolen(self) -> bool:
        """Return whether the thief has received a secret in any form."""
        return any(
            "private-token" in request.headers or "authorization" in request.headers
            for request in self.thief.asked
        )


@pytest.fixture(scope="module")
def secret_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretBindingServers]:
    folder = tmp_path_factory.mktemp("binding")

    def stealing(request: RecordedRequest) -> StubResponse:
        return StubResponse(200, api_description("/") if "json" in request.path else [])

    with HttpServer(stealing) as thief:

        def answered(request: RecordedRequest) -> StubResponse:
            if "moved" in request.path:
                return StubResponse(302, b"", {"location": f"{thief.url}/list"})
            if request.path == "/astray.json":
                return StubResponse(200, api_description(thief.url))
            calendar = request.path.endswith(".ics")
            return (
                StubResponse(200, ICS, {"content-type": "text/calendar"})
                if calendar
                else StubResponse(200, [])
            )

        with HttpServer(answered) as home:
            (folder / "own.json").write_text(json.dumps(api_description(home.url)))
            signed = {"user": "secret:TOKEN", "password": "secret:TOKEN"}
            calendars = {name: {"url": f"{home.url}/{name}.ics"} | signed for name in PLAIN_MOVED}
            api = {"auth": "secret:TOKEN", "auth_scheme": "Bearer"}
            apis = {
                "own": api | {"document": str(folder / "own.json"), "prefix": "own_"},
                "astray": api | {"document": f"{home.url}/astray.json", "prefix": "astray_"},
            }
            with open_server(
                folder,
                ["gitlab", "openapi", "github", "calendar"],
                network={"allow_hosts": [home.place, thief.place]},
                packs={
                    "github": {"api_url": home.url, "token": "secret:TOKEN"},
                    "calendar": {"calendars": calendars},
                    "gitlab": {"literals": True},
                    "openapi": {"apis": apis},
                },
            ) as server:
                yield SecretBindingServers(home, thief, server)


@pytest.fixture(params=["mcp", "rest"])
def agent(secret_servers: SecretBindingServers, request: pytest.FixtureRequest) -> PackCaller:
    """Return an agent whose tenant has a secret for each of two hosts and one for no host."""
    agent = secret_servers.server.agent(request.param)
    secret_servers.server.put_secrets(agent.tenant, secret_servers.home.place, BOUND=TOKEN)
    secret_servers.server.put_secrets(agent.tenant, "gitlab.com", ASTRAY=TOKEN)
    secret_servers.server.put_secrets(agent.tenant, LOOSE=TOKEN)
    secret_servers.thief.asked.clear()
    secret_servers.home.asked.clear()
    return agent


def with_hosts(text: str, secret_servers: SecretBindingServers) -> str:
    """Return the text with host and port in the place of HOME and THIEF."""
    return text.replace("HOME", secret_servers.home.place).replace(
        "THIEF", secret_servers.thief.place
    )


ATTEMPTS = {
    # name: (secret, base URL, what is told; None: it is sent)
    "where it belongs": ("BOUND", "http://HOME/api/v4", None),
    "as some write it": ("BOUND", "HTTP://HOME", None),
    "none at all": ("MISSING", "http://THIEF", "secrets set MISSING --tenant TENANT --host HOST"),
    "another host": ("BOUND", "http://THIEF/api/v4", "is bound to HOME and is not sent to THIEF"),
    "bound to another": ("ASTRAY", "http://HOME", "is bound to gitlab.com and is not sent to HOME"),
    "bound to none": ("LOOSE", "http://HOME", "bind LOOSE --tenant TENANT --host HOME"),
    "bound to none, stolen": ("LOOSE", "http://THIEF", "to one that a caller chooses"),
    "encrypted, elsewhere": ("BOUND", "https://THIEF", "is not sent to THIEF"),
    "a user": ("BOUND", "http://HOME@THIEF", "."),
    "a password": ("BOUND", "http://gitlab.com:x@THIEF", "."),
    "a backslash": ("BOUND", "http://THIEF\\@HOME", "."),
    "a path": ("BOUND", "http://THIEF/HOME", "is not sent to THIEF"),
    "a query": ("BOUND", "http://THIEF?HOME", "."),
    "a fragment": ("BOUND", "http://THIEF#HOME", "."),
    "a dot at the end": ("BOUND", "http://127.0.0.1.", "not sent to that URL"),
    "without the port": ("BOUND", "https://127.0.0.1", "is not sent to 127.0.0.1"),
    "unencrypted": ("BOUND", "http://127.0.0.1", "it is unencrypted"),
    "as a number": ("BOUND", "http://2130706433", "not sent to that URL"),
    "another name of it": ("BOUND", "https://localhost:8443", "is not sent to localhost:8443"),
    "other letters": ("ASTRAY", f"https://g{CYRILLIC}tlab.com", "."),
    "other letters, encoded": ("ASTRAY", "https://xn--gtlab-lvf.com", "is not sent to xn--"),
    "another top": ("ASTRAY", "https://gitlab.com.evil.example", "is not sent to gitlab.com.evil"),
    "below it": ("ASTRAY", "https://evil.gitlab.com", "is not sent to evil.gitlab.com"),
    "another port": ("ASTRAY", "https://gitlab.com:8443", "is not sent to gitlab.com:8443"),
    "a percent sign": ("ASTRAY", "https://gitlab%2ecom", "."),
}  # fmt: skip


@pytest.mark.requirement("X4")
@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
@by_rest
def test_a_gitlab_request_gets_only_a_secret_bound_to_its_host(
    secret_servers: SecretBindingServers, agent: PackCaller, attempt: tuple[str, str, str | None]
) -> None:
    """The caller chooses the endpoint, and the operator the hosts of a secret."""
    name, base, says = attempt
    reply = agent.call(
        "gitlab_request",
        endpoint=with_hosts(base, secret_servers),
        token=f"secret:{name}",
        path="/list",
    )

    assert_bound(secret_servers, agent, reply.failure, reply.kind, says)
    assert [request.headers.get("private-token") for request in secret_servers.home.asked] == [
        TOKEN
    ] * (not says)


@pytest.mark.requirement("X7")
@pytest.mark.parametrize("how", ["override", "server", "operation"])
@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
@by_rest
def test_a_loaded_api_gets_only_a_secret_bound_to_its_host(
    secret_servers: SecretBindingServers,
    agent: PackCaller,
    attempt: tuple[str, str, str | None],
    how: str,
) -> None:
    """An attacker may have written the description, and the caller may name another host."""
    name, base, says = attempt
    document = api_description(
        "http://unused.example" if how == "override" else with_hosts(base, secret_servers)
    )
    reply = agent.call(
        "openapi_load",
        name="api",
        spec_content=json.dumps(document),
        auth_header=f"Bearer secret:{name}",
        **({"base_url_override": with_hosts(base, secret_servers)} if how == "override" else {}),
    )
    if reply.failure is None:
        reply = agent.call("openapi_call", name="api", path="/list", method="GET")

    assert_bound(secret_servers, agent, reply.failure, reply.kind, says)
    sent = [request.headers.get("authorization") for request in secret_servers.home.asked]
    assert sent == [f"Bearer {TOKEN}"] * (not says)


def assert_bound(
    secret_servers: SecretBindingServers,
    agent: PackCaller,
    failure: str | None,
    kind: str | None,
    says: str | None,
) -> None:
    """Assert that the failure says what helps and that no other host got the secret."""
    if says is None:
        assert failure is None
    else:
        assert with_hosts(says, secret_servers).replace("TENANT", agent.tenant) in str(failure)
        assert kind in (None, "denied", "validation", "not_found")
        assert TOKEN not in str(failure)
    assert secret_servers.thief.asked == []


def load_failure(
    secret_servers: SecretBindingServers, agent: PackCaller, secret: str, **more: Any
) -> str | None:
    """Return the failure of loading an API with a secret."""
    arguments = {"spec_content": json.dumps(api_description(secret_servers.home.url))} | more
    reply = agent.call("openapi_load", name="api", auth_header=f"secret:{secret}", **arguments)
    return reply.failure


def test_a_relative_server_url_means_the_host_of_the_description(
    secret_servers: SecretBindingServers, agent: PackCaller
) -> None:
    """Redirects of the description count."""
    failure = load_failure(
        secret_servers,
        agent,
        "BOUND",
        spec_content=None,
        spec_url=f"{secret_servers.thief.url}/api.json",
    )

    assert f"is not sent to {secret_servers.thief.place}" in str(failure)
    assert not secret_servers.stolen()


def test_binding_is_judged_at_each_call(
    secret_servers: SecretBindingServers, agent: PackCaller
) -> None:
    """A loaded API no longer gets a secret that was bound to other hosts since."""
    assert load_failure(secret_servers, agent, "BOUND") is None
    secret_servers.server.put_secrets(agent.tenant, "gitlab.com", BOUND=TOKEN)
    reply = agent.call("openapi_call", name="api", path="/list", method="GET")

    assert "is bound to gitlab.com and is not sent to" in str(reply.failure)
    assert secret_servers.home.asked == []


MARCH = {"start": "2026-03-01", "end": "2026-04-01"}
FIXED_HOSTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "github": ("github_list_issues", {"repo": "octo/plain"}),
    "a configured API": ("own_get_list", {}),
    "calendar": ("calendar_read", MARCH | {"calendar": "plain"}),
}
MOVED_HOSTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "github": ("github_list_issues", {"repo": "octo/moved"}),
    "a configured API": ("own_get_moved", {}),
    "calendar": ("calendar_read", MARCH | {"calendar": "moved"}),
}


@pytest.mark.parametrize(("tool", "arguments"), FIXED_HOSTS.values(), ids=FIXED_HOSTS)
def test_a_configured_host_gets_secrets_that_are_not_bound_elsewhere(
    secret_servers: SecretBindingServers, agent: PackCaller, tool: str, arguments: Mapping[str, Any]
) -> None:
    """An unbound secret is sent to the configured host; one bound elsewhere is not."""
    hosts: tuple[tuple[str, ...], ...] = ((), (secret_servers.home.place,), ("gitlab.com",))
    failures = []
    for bound in hosts:
        secret_servers.server.put_secrets(agent.tenant, *bound, TOKEN=TOKEN)
        failures.append(agent.call(tool, **arguments).failure)
    sent = [request for request in secret_servers.home.asked if "authorization" in request.headers]

    assert failures[:2] == [None, None]
    assert f"is bound to gitlab.com and is not sent to {secret_servers.home.place}" in str(
        failures[2]
    )
    assert len(sent) == len(secret_servers.home.asked) == 2


def test_a_description_that_was_fetched_does_not_say_the_host(
    secret_servers: SecretBindingServers, agent: PackCaller
) -> None:
    """Its server could otherwise direct the secrets of all tenants to any host."""
    secret_servers.server.put_secrets(agent.tenant, TOKEN=TOKEN)
    refused = agent.call("astray_get_list")
    secret_servers.server.put_secrets(agent.tenant, secret_servers.thief.place, TOKEN=TOKEN)
    bound = agent.call("astray_get_list")

    assert "is bound to no host" in str(refused.failure)
    assert bound.failure is None
    assert len(secret_servers.thief.asked) == 1


@pytest.mark.parametrize(("tool", "arguments"), MOVED_HOSTS.values(), ids=MOVED_HOSTS)
def test_a_redirect_takes_no_configured_secret_along(
    secret_servers: SecretBindingServers, agent: PackCaller, tool: str, arguments: Mapping[str, Any]
) -> None:
    """The redirect is followed to another host without any data of the caller."""
    secret_servers.server.put_secrets(agent.tenant, secret_servers.home.place, TOKEN=TOKEN)
    agent.call(tool, **arguments)

    assert "authorization" in secret_servers.home.asked[0].headers
    assert len(secret_servers.thief.asked) == 1
    assert not secret_servers.stolen()


def test_a_redirect_takes_no_named_secret_along(
    secret_servers: SecretBindingServers, agent: PackCaller
) -> None:
    """This holds also if the caller chose the first host."""
    agent.call(
        "gitlab_request", endpoint=secret_servers.home.url, token="secret:BOUND", path="/moved"
    )
    assert load_failure(secret_servers, agent, "BOUND") is None
    agent.call("openapi_call", name="api", path="/moved", method="GET")

    assert len(secret_servers.home.asked) == len(secret_servers.thief.asked) == 2
    assert not secret_servers.stolen()


def test_a_literal_credential_is_sent_to_any_host(
    secret_servers: SecretBindingServers, agent: PackCaller
) -> None:
    """It belongs to the caller."""
    reply = agent.call(
        "gitlab_request",
        endpoint=secret_servers.thief.url,
        token="glpat-mine-and-nobody-elses",
        path="/list",
    )

    assert reply.failure is None
    assert secret_servers.stolen()


def test_a_withheld_secret_is_logged(
    secret_servers: SecretBindingServers, agent: PackCaller
) -> None:
    """The log line has the host that the caller wanted."""
    with capture_logs() as logs:
        agent.call(
            "gitlab_request", endpoint=secret_servers.thief.url, token="secret:BOUND", path="/list"
        )
    text = str(logs)

    assert re.search(f"secret_withheld.*{secret_servers.thief.place}", text)
    assert TOKEN not in text
