"""Registrations, catalogues and pins of tenants, on every backend."""

import asyncio
from typing import Any

import msgspec
import pytest

from gatepost.secrets.cache import SecretCache
from gatepost.secrets.names import SecretRefused
from gatepost.storage.entries import NO_TENANT
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.upstreams import store as store_module
from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.assembly import FetchedLists, assembled
from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.change_counter import ChangeCounter
from gatepost.upstreams.connection import ServerDescription
from gatepost.upstreams.definition_pins import Pins
from gatepost.upstreams.definitions import read_list
from gatepost.upstreams.sealed_headers import SealedHeaders, ServerSecrets
from gatepost.upstreams.store import (
    UNFINISHED_S,
    CredentialsBound,
    NameTaken,
    RegistrationChanged,
    TooManyRegistrations,
    UpstreamStore,
    configured_id,
)
from gatepost.upstreams.upstream_server import StdioProgram, UpstreamServer
from tests.support.measuring import ManualClock
from tests.upstreams.conftest import tool

KEY, HEADER_VALUE = "the-api-key-of-crm", "the-header-value"
SECRETS = ServerSecrets(api_key=KEY, headers={"X-Custom": HEADER_VALUE, "X-Version": "2"})


def new_registration(name: str = "crm", tenant: str = "acme", **settings: Any) -> UpstreamServer:
    """Return a registration that is not stored yet."""
    url = settings.pop("url", "https://crm.example.com/mcp")
    return UpstreamServer(id="", tenant=tenant, name=name, url=url, **settings)


def agent(*client_ids: str, name: str = "helper", tenant: str = "acme") -> AgentRegistration:
    """Return an agent that is not stored yet."""
    return AgentRegistration(id="", tenant=tenant, name=name, client_ids=client_ids)


async def stored_entries(records: Records, tenant: str) -> list[tuple[str, bytes]]:
    """Return all stored entries of a tenant's upstreams, and its encrypted values."""
    subjects = ["mcp_servers", "mcp_server_names", "mcp_catalogues", "mcp_pins", "secrets"]
    return [
        (f"{subject}/{entry.key}", entry.value)
        for subject in subjects
        for entry in await records.for_tenant(tenant).entries(subject).all()
    ]


@pytest.mark.requirement("E1", "E7")
async def test_a_server_is_read_as_it_was_registered(store: UpstreamStore) -> None:
    """It has an id, its times and revision 1."""
    added = await store.create(
        new_registration(
            description="CRM",
            status="disabled",
            scopes={"*": ("crm:use",)},
            tools=("get_*",),
            renames={"a": "b"},
            allow=("sampling",),
        )
    )

    assert (added.source, added.created_at, added.updated_at, added.revision) == (
        "api",
        1_000,
        1_000,
        1,
    )
    assert await store.server("acme", added.id) == added
    assert await store.servers("acme") == [added]
    assert await store.server("beta", added.id) is None
    assert await store.servers("beta") == []


async def test_a_name_is_given_once(store: UpstreamStore) -> None:
    """A tenant has each name once; another tenant may have it, too."""
    added = await store.create(new_registration())
    await store.create(new_registration(tenant="beta"))
    with pytest.raises(NameTaken):
        await store.create(new_registration())
    other = await store.create(new_registration("other"))
    with pytest.raises(NameTaken):
        await store.replace(msgspec.structs.replace(other, name="crm"))

    moved = await store.replace(msgspec.structs.replace(added, name="sales"))
    assert (moved.name, moved.revision) == ("sales", 2)
    await store.create(new_registration())


@pytest.mark.parametrize(
    "change", [{"transport": "stdio"}, {"program": StdioProgram(command="sh")}]
)
async def test_no_program_can_be_registered(in_memory: UpstreamStore, change: Any) -> None:
    """The store itself refuses it, because a program would run on this machine."""
    with pytest.raises(ValueError, match="configuration alone"):
        await in_memory.create(new_registration(**change))
    added = await in_memory.create(new_registration())
    with pytest.raises(ValueError, match="configuration alone"):
        await in_memory.replace(msgspec.structs.replace(added, **change))


async def test_one_of_several_concurrent_registrations_gets_the_name(store: UpstreamStore) -> None:
    """This holds across replicas, because the database decides."""
    results = await asyncio.gather(
        *(store.create(new_registration()) for _ in range(5)), return_exceptions=True
    )

    assert [type(result).__name__ for result in results].count("NameTaken") == 4
    assert len(await store.servers("acme")) == 1


async def test_the_name_of_an_unfinished_registration_is_free_again(
    store: UpstreamStore, records: Records, clock: ManualClock
) -> None:
    """The process may have stopped between the two."""
    names = records.for_tenant("acme").entries("mcp_server_names")
    await names.put("crm", b"gone", now=clock())
    with pytest.raises(NameTaken):
        await store.create(new_registration())

    clock.now += UNFINISHED_S
    assert (await store.create(new_registration())).name == "crm"


async def test_a_change_needs_the_current_revision(store: UpstreamStore) -> None:
    """No administrator can undo another one's change without having seen it."""
    added = await store.create(new_registration())
    await store.replace(msgspec.structs.replace(added, description="one"))

    with pytest.raises(RegistrationChanged):
        await store.replace(msgspec.structs.replace(added, description="two"))
    await store.delete("acme", added.id)
    with pytest.raises(RegistrationChanged):
        await store.replace(added)


async def test_the_numbers_of_servers_and_agents_are_bounded(
    store: UpstreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers and agents, in each tenant."""
    monkeypatch.setattr(store_module, "MAX_SERVERS", 2)
    monkeypatch.setattr(store_module, "MAX_AGENTS", 1)
    await store.create(new_registration("a"))
    await store.create(new_registration("b"))
    await store.create_agent(agent("one"))

    with pytest.raises(TooManyRegistrations, match="2 servers"):
        await store.create(new_registration("c"))
    with pytest.raises(TooManyRegistrations, match="1 agents"):
        await store.create_agent(agent("two"))
    await store.create(new_registration("c", tenant="beta"))


@pytest.mark.requirement("E6")
async def test_secrets_are_sealed_and_redacted(
    store: UpstreamStore, records: Records, secrets: SecretCache
) -> None:
    """Stored entries do not show them, and the tenant's answers have them redacted."""
    added = await store.create(new_registration(), SECRETS)

    assert (added.api_key_set, added.header_names) == (True, ("X-Custom", "X-Version"))
    stored = await stored_entries(records, "acme")
    assert not any(KEY.encode() in value or HEADER_VALUE.encode() in value for _, value in stored)
    redacted = (await secrets.load("acme")).values.values()
    assert {KEY, HEADER_VALUE} <= set(redacted)
    assert "2" not in redacted
    assert KEY not in (await secrets.load("beta")).values.values()
    sent = await store.sealed.secrets_for(added)
    assert (sent.api_key, sent.headers) == (KEY, {"X-Custom": HEADER_VALUE, "X-Version": "2"})
    assert KEY not in repr(sent)


async def test_a_change_replaces_only_the_given_secrets(store: UpstreamStore) -> None:
    """Secrets that a change leaves out stay, and deleted ones are gone."""
    added = await store.create(new_registration(), SECRETS)
    added = await store.replace(msgspec.structs.replace(added, description="x", api_key_set=False))
    assert (await store.sealed.secrets_for(added)).api_key == KEY

    added = await store.replace(added, ServerSecrets(api_key="another-api-key"))
    added = await store.replace(added, ServerSecrets(headers={"X-Other": "another-value"}))
    sent = await store.sealed.secrets_for(added)
    assert (sent.api_key, sent.headers) == ("another-api-key", {"X-Other": "another-value"})

    added = await store.replace(added, ServerSecrets(api_key=None, headers={}))
    assert (added.api_key_set, added.header_names) == (False, ())
    assert await store.sealed.secrets_for(added) == ServerSecrets(api_key=None, headers={})


async def test_secrets_stay_with_their_host(store: UpstreamStore) -> None:
    """A change of the URL alone would send them to another server."""
    added = await store.create(new_registration(), SECRETS)
    elsewhere = msgspec.structs.replace(added, url="https://evil.example/mcp")
    for secrets in (ServerSecrets(), ServerSecrets(api_key="x" * 20), ServerSecrets(headers={})):
        with pytest.raises(CredentialsBound):
            await store.replace(elsewhere, secrets)

    assert await store.server("acme", added.id) == added
    assert (await store.sealed.secrets_for(added)).api_key == KEY
    added = await store.replace(msgspec.structs.replace(added, url="https://crm.example.com/v2"))
    moved = await store.replace(
        msgspec.structs.replace(added, url="https://evil.example/mcp"),
        ServerSecrets(api_key="another-api-key", headers={}),
    )
    assert moved.url == "https://evil.example/mcp"


async def test_a_refused_secret_leaves_no_server_name_or_secret(
    store: UpstreamStore, records: Records
) -> None:
    """The server, its name and the secrets stored before it are all gone."""
    with pytest.raises(SecretRefused):
        await store.create(new_registration(), ServerSecrets(api_key=KEY, headers={"X-A": ""}))

    assert await stored_entries(records, "acme") == []
    await store.create(new_registration())


async def test_a_deleted_server_leaves_no_catalogue_pin_or_secret(
    store: UpstreamStore, records: Records
) -> None:
    """Those of other servers stay."""
    added = await store.create(new_registration(), SECRETS)
    other = await store.create(new_registration("other"))
    for deleted in (added, other):
        await store.catalogues.put("acme", Catalogue(server_id=deleted.id, fetched_at=1))
        await store.catalogues.put("acme", Catalogue(server_id=deleted.id, fetched_at=1), ("p",))
        assert await store.catalogues.put_pins("acme", deleted.id, Pins(), 0)

    assert not await store.delete("beta", added.id)
    assert await store.delete("acme", added.id)
    assert not await store.delete("acme", added.id)
    keys = [key for key, _ in await stored_entries(records, "acme")]
    assert len(keys) == 5
    assert not any(added.id in key or key.startswith("secrets") for key in keys)
    assert await store.servers("acme") == [other]


async def test_agents_are_read_as_they_were_registered(store: UpstreamStore) -> None:
    """A client id belongs to one agent."""
    added = await store.create_agent(agent("claude", "cursor"))
    assert await store.agents("acme") == [added]
    assert await store.agent("acme", added.id) == added
    with pytest.raises(NameTaken):
        await store.create_agent(agent("new", "cursor"))

    other = await store.create_agent(agent("new"))
    changed = await store.replace_agent(msgspec.structs.replace(added, client_ids=("claude",)))
    with pytest.raises(RegistrationChanged):
        await store.replace_agent(added)
    await store.replace_agent(msgspec.structs.replace(other, client_ids=("new", "cursor")))
    assert await store.delete_agent("acme", changed.id)
    assert not await store.delete_agent("acme", changed.id)
    assert [agent.client_ids for agent in await store.agents("acme")] == [("new", "cursor")]


class OfAcme:
    """A configuration in which one tenant has a server and an agent."""

    tenants = frozenset({"acme"})

    def __init__(self, server: UpstreamServer, agent: AgentRegistration) -> None:
        self._server, self._agent = server, agent

    def servers(self, tenant: str) -> tuple[UpstreamServer, ...]:
        return (self._server,) if tenant in self.tenants else ()

    def agents(self, tenant: str) -> tuple[AgentRegistration, ...]:
        return (self._agent,) if tenant in self.tenants else ()


@pytest.mark.requirement("E8")
async def test_servers_of_the_configuration_come_first(
    records: Records, memory_shared_store: MemorySharedStore, secrets: SecretCache
) -> None:
    """The API cannot change them, and their names are taken."""
    configured = UpstreamServer(
        id=configured_id("acme", "files"),
        tenant="acme",
        name="files",
        transport="stdio",
        program=StdioProgram(command="files"),
        source="configuration",
    )
    helper = AgentRegistration(id="a1", tenant="acme", name="helper", client_ids=("claude",))
    store = UpstreamStore(
        records,
        SealedHeaders(secrets),
        ChangeCounter(records, memory_shared_store),
        configured=OfAcme(configured, helper),
    )
    added = await store.create(new_registration())

    assert await store.servers("acme") == [configured, added]
    assert await store.server("acme", configured.id) == configured
    assert await store.servers("beta") == []
    assert await store.agents("acme") == [helper]
    assert store.configured_tenants == {"acme"}
    with pytest.raises(NameTaken):
        await store.create(new_registration("files"))
    with pytest.raises(NameTaken):
        await store.create_agent(agent("claude"))
    with pytest.raises(RegistrationChanged):
        await store.replace(msgspec.structs.replace(configured, transport="http", program=None))
    assert not await store.delete("acme", configured.id)
    assert configured.id == configured_id("acme", "files") != configured_id("beta", "files")


def fetched_lists(*tools: Any) -> FetchedLists:
    """Return the lists of a fetch."""
    definitions, left_out = read_list("tools", tools)
    server = ServerDescription(era="modern", revision="2026-07-28", capabilities={"tools": {}})
    return FetchedLists(
        description=server, definitions=definitions, left_out=left_out, whole=frozenset({"tools"})
    )


async def test_a_catalogue_is_read_as_it_was_stored(store: UpstreamStore) -> None:
    """The tenant's, and those of callers, who never see each other's."""
    server = await store.create(new_registration())
    new_catalogue, _ = assembled(server, fetched_lists(tool("a"), {}), Pins(), None, now=5.0)
    alice = msgspec.structs.replace(new_catalogue, instructions="alice")
    await store.catalogues.put("acme", new_catalogue)
    await store.catalogues.put("acme", alice, ("acme", "alice"))

    assert await store.catalogues.get("acme", server.id) == new_catalogue
    assert await store.catalogues.get("acme", server.id, ("acme", "alice")) == alice
    assert await store.catalogues.get("acme", server.id, ("acme", "bob")) is None
    assert await store.catalogues.get("beta", server.id) is None


async def test_an_accepted_definition_is_offered_at_once(store: UpstreamStore) -> None:
    """It needs no fetch; if a digest is given, only that definition is accepted."""
    server = await store.create(new_registration(pin="review"))
    new_catalogue, pins = assembled(
        server, fetched_lists(tool("a"), tool("b")), Pins(), None, now=5.0
    )
    await store.catalogues.put("acme", new_catalogue)
    before = await store.counter.count_for("acme")

    assert await store.catalogues.accept(server, [new_catalogue.changes[0].digest]) == 1
    stored = await store.catalogues.get("acme", server.id)
    assert stored is not None
    assert [definition.key for definition in stored.definitions] == ["a"]
    assert [change.key for change in stored.changes] == ["b"]
    assert await store.counter.count_for("acme") > before

    assert await store.catalogues.accept(server) == 1
    assert await store.catalogues.accept(server) == 0
    pins, _ = await store.catalogues.pins("acme", server.id)
    assert set(pins.pinned["tools"]) == {"a", "b"}


async def test_a_summary_describes_the_last_catalogue(store: UpstreamStore) -> None:
    """It has the fields that lists of servers show, and none of the definitions."""
    server = await store.create(new_registration(pin="review"))
    assert await store.catalogues.summary("acme", server.id) is None
    new_catalogue, _ = assembled(server, fetched_lists(tool("a"), tool("b")), Pins(), None, now=5.0)
    failing = msgspec.structs.replace(new_catalogue, failing_since=6.0, failure="It is down.")
    await store.catalogues.put("acme", failing)

    summary = await store.catalogues.summary("acme", server.id)
    assert summary is not None
    assert (summary.fetched_at, summary.failing_since, summary.failure) == (5.0, 6.0, "It is down.")
    assert len(summary.changes) == 2
    assert await store.catalogues.summary("globex", server.id) is None


async def test_each_change_is_counted(store: UpstreamStore) -> None:
    """The counters of its tenant and of all grow, so that replicas reload that tenant only."""
    total = await store.counter.count_for(NO_TENANT)
    added = await store.create(new_registration())
    await store.replace(added)
    await store.create_agent(agent("claude"))

    assert await store.counter.count_for("acme") == 3
    assert await store.counter.count_for("beta") == 0
    assert await store.counter.count_for(NO_TENANT) == total + 3


async def test_a_refresh_without_changes_notifies_no_replica() -> None:
    """Only the time of the fetch is stored."""
    records, shared_store = MemoryRecords(), MemorySharedStore()
    counter = ChangeCounter(records, shared_store)
    catalogues = UpstreamStore(records, None, counter).catalogues  # type: ignore[arg-type]
    await catalogues.put("acme", Catalogue(server_id="s", fetched_at=1), notify=False)

    assert await counter.count_for(NO_TENANT) == 0
