"""Approvals of tools that a tenant has beside the configuration."""

from typing import Any

import pytest

from gatepost.policy.approvals.approval_request import GrantScope, Operator, Undecidable
from gatepost.tools.offers.offer import Annotations, Effects, Tool
from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.runners import (
    ACME,
    BOB,
    ApprovalDeployment,
    ApprovalReplica,
    failure_kind,
    text_of,
)
from tests.support.server import check_problems, issuer_settings
from tests.support.tools import MemorySource, ToolUpstream

TOOL = "mcp_crm__delete"
SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}}
READ_ONLY_EFFECTS = Effects(read_only=True, open_world=True)


class TenantDeployment(ApprovalDeployment):
    """Replicas of a server whose tenants have tools of their own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.upstream = ToolUpstream()
        self.source = self.tenants = MemorySource()
        self.define("Delete somebody.")

    def define(self, description: str, **changes: Any) -> Tool:
        """Set the definition that counts from now on."""
        tool = self.upstream.tool("delete", description, schema=SCHEMA, **changes)
        self.tenants.put(ACME, tool)
        return tool

    @property
    def ran(self) -> int:
        return len(self.upstream.calls)


async def pending_request_id(replica: ApprovalReplica) -> str:
    """Make a call; return the id of its request."""
    return (await replica.asked(TOOL)).id


@pytest.mark.requirement("A7")
@each("pattern", [TOOL, "mcp_crm__*", "pack:mcp_crm", "*"])
async def test_patterns_match_the_served_name_and_the_servers_pack(pattern: str) -> None:
    """Patterns in `require` and in `auto_approve` match both names."""
    required = TenantDeployment(require=[pattern], destructive="run")
    assert failure_kind(await required.replica().call(TOOL)) == "approval_pending"
    assert required.ran == 0

    freed = TenantDeployment(require=["*"], auto_approve=[pattern])
    assert text_of(await freed.replica().call(TOOL)) == "crm delete"
    other = TenantDeployment(require=["mcp_wiki__*", "pack:mcp_wiki"], destructive="run")
    assert text_of(await other.replica().call(TOOL)) == "crm delete"


async def test_hints_of_an_upstream_do_not_avoid_approval() -> None:
    """Effects decide, and hints of the upstream do not."""
    deployment = TenantDeployment()
    claims = Annotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
    deployment.define("Delete somebody.", annotations=claims)
    assert failure_kind(await deployment.replica().call(TOOL)) == "approval_pending"

    deployment.define(
        "Look.", annotations=Annotations(destructive_hint=True), effects=READ_ONLY_EFFECTS
    )
    assert text_of(await deployment.replica().call(TOOL)) == "crm delete"


async def test_rules_apply_to_a_tenants_tool() -> None:
    """Their conditions can use its arguments."""
    rule = {"tools": ["pack:mcp_crm"], "when": "arguments.what == 'all'", "by": ["role:dpo"]}
    deployment = TenantDeployment(rules=[rule], destructive="run")
    replica = deployment.replica()

    assert text_of(await replica.call(TOOL, what="one")) == "crm delete"
    request = await replica.asked(TOOL, what="all")
    assert request.by == (("role:dpo",),)


@pytest.mark.requirement("A7")
async def test_an_approval_is_for_one_definition() -> None:
    """A changed definition needs another approval, as changed arguments do."""
    deployment = TenantDeployment()
    replica = deployment.replica()
    await replica.service.approve(ACME, await pending_request_id(replica), BOB)
    deployment.define("Delete everybody.")

    assert failure_kind(await replica.call(TOOL)) == "approval_pending"
    assert deployment.ran == 0
    deployment.define("Delete somebody.")
    assert text_of(await replica.call(TOOL)) == "crm delete"
    assert deployment.ran == 1


async def test_a_request_for_another_definition_is_not_approved() -> None:
    """The approver has not seen the new definition."""
    deployment = TenantDeployment()
    replica = deployment.replica()
    request_id = await pending_request_id(replica)
    deployment.define("Delete everybody.")

    with pytest.raises(Undecidable, match="definition of this tool has changed"):
        await replica.service.approve(ACME, request_id, BOB)
    request = await replica.service.get(ACME, request_id)
    assert request is not None
    assert "has changed" in (replica.service.objection(request, BOB) or "")


async def test_a_grant_is_for_one_definition() -> None:
    """A tool whose definition changes needs a new grant."""
    deployment = TenantDeployment()
    replica = deployment.replica()
    anything = GrantScope(uses=10, when="true")
    await replica.service.approve(ACME, await pending_request_id(replica), BOB, grant=anything)
    for what in ("a", "b", "c"):
        assert text_of(await replica.call(TOOL, what=what)) == "crm delete"
    deployment.define("Delete everybody.")

    assert failure_kind(await replica.call(TOOL, what="d")) == "approval_pending"
    assert deployment.ran == 3


async def test_a_replica_that_does_not_know_the_tool_can_decide() -> None:
    """A command line as well, which knows no tenant's tools; editing needs the tool."""
    deployment = TenantDeployment()
    replica = deployment.replica()
    first, second = await pending_request_id(replica), (await replica.asked(TOOL, what="b")).id
    deployment.tenants.drop()
    other = deployment.replica()
    await other.service.approve(ACME, first, BOB, edited=b'{"what":"c"}')
    deployment.source = None
    command = deployment.replica()
    with pytest.raises(Undecidable, match="cannot be edited"):
        await command.service.approve(ACME, second, Operator("root"), edited=b'{"what":"d"}')
    await command.service.approve(ACME, second, Operator("root"))

    await replica.call(TOOL)
    await replica.call(TOOL, what="b")
    assert deployment.upstream.calls == [(ACME, {"what": "c"}), (ACME, {"what": "b"})]


async def test_a_retried_call_of_an_untrusted_tool_runs_once() -> None:
    """The tool's own hints make no difference."""
    deployment = TenantDeployment(destructive="run")
    deployment.define("Delete somebody.", annotations=Annotations(read_only_hint=True))
    replica = deployment.replica()

    assert text_of(await replica.call(TOOL, key="k")) == "crm delete"
    assert text_of(await replica.call(TOOL, key="k")) == "crm delete"
    assert deployment.ran == 1


async def test_a_configured_tool_of_the_same_name_invalidates_the_request() -> None:
    """A configured tool is another tool, although it has the same name."""
    deployment = TenantDeployment()
    replica = deployment.replica()
    request_id = await pending_request_id(replica)
    tool = deployment.define("Delete somebody.")
    deployment.pack.tools[TOOL] = tool

    with pytest.raises(Undecidable, match="no longer needs approval or is not served"):
        await deployment.replica().service.approve(ACME, request_id, BOB)


def test_approval_and_limit_settings_may_name_tools_of_tenants(idp: Idp) -> None:
    """`gatepost check` cannot know these names; a mistake in any other is found as before."""
    patterns = ["mcp_crm__*", "pack:mcp_crm", "crm__*", "pack:crm"]
    limits = {"tools": {"mcp_crm__find": {"concurrency": 1}, "find": {"concurrency": 1}}}
    reported_problems = check_problems(
        [issuer_settings(idp)], approvals={"require": patterns}, limits=limits
    )

    named = {
        problem.setting
        for problem in reported_problems
        if problem.id in {"config.W080", "config.E089"}
    }
    assert named == {"approvals.require[2]", "approvals.require[3]", "limits.tools.find"}
