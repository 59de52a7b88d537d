"""A server with billing tools that ask a person first, its people, and browsers at it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx2
import msgspec
from playwright.sync_api import Browser, BrowserContext, Page
from pydantic import BaseModel, Field

from gatepost import CallContext, FileWrite, Pack, Secret, SettingsLookup, ToolFailure
from gatepost.audit.record import search
from gatepost.config.approvals import ApprovalRule, ApprovalsSettings
from gatepost.config.limits import LimitsSettings
from gatepost.config.settings import Config, ToolsSettings
from gatepost.dev.token_command import GRANT
from gatepost.policy.approvals.approval_request import GrantScope
from gatepost.storage.audit import AuditQuery
from gatepost.storage.rate_limits import Buckets
from gatepost_authz import Network
from gatepost_authz.caller import TenantContext
from gatepost_keys.issuer.state import CLI_CLIENT
from gatepost_keys.mint import TokenSubject as User
from tests.dashboard.conftest import DashboardServer, open_dashboard_server
from tests.support.measuring import eventually
from tests.support.programs import WITHIN_MS

INVOICE = {
    "to": "lena@mueller.example",
    "lines": [
        {"item": "Consulting, October", "pieces": 12, "price": 110.0},
        {"item": "Travel", "pieces": 1, "price": 88.4},
    ],
    "text": "Dear Lena,\n\nplease find the invoice for October attached.\n\n"
    "Kind regards\nAcme\u202e\u200b",
    "mail_token": "known-to-the-agent-alone-here",
}
NOTES = "# Release notes\n\n- Faster start\n- Two bugs less\n\nThank you very much.\n"

CALLS_RUN: list[dict[str, object]] = []
"""What the tools did, in order."""

pack = Pack("billing")


class InvoicePosition(BaseModel):
    """One line of an invoice."""

    item: str
    pieces: int
    price: float


@pack.tool(
    title="Send an invoice",
    scopes={"billing:write"},
    read_only=False,
    destructive=True,
    open_world=True,
)
async def send_invoice(
    ctx: CallContext,
    to: Annotated[str, Field(description="The customer's e-mail address.")],
    lines: Annotated[list[InvoicePosition], Field(description="What is charged.")],
    text: Annotated[str, Field(description="What the e-mail says.")] = "",
    due_days: Annotated[int, Field(description="Days until it has to be paid.")] = 14,
    copy_to: Annotated[str | None, Field(description="A person who gets a copy.")] = None,
    reminder: Annotated[bool, Field(description="Remind when it is overdue.")] = False,
    mail_token: Secret = "",
) -> str:
    """Send an invoice to a customer by e-mail, from the company's own address."""
    CALLS_RUN.append({"tool": "send_invoice", "to": to, "lines": len(lines), "text": text})
    return f"sent to {to}"


@pack.tool(title="Pay back", scopes={"billing:write"}, read_only=False, destructive=True)
async def refund(
    ctx: CallContext,
    customer: Annotated[str, Field(description="The customer's number.")],
    amount: Annotated[float, Field(description="Euros.", gt=0)],
    reason: Annotated[str, Field(description="Why.")] = "",
) -> str:
    """Pay money back to a customer."""
    CALLS_RUN.append({"tool": "refund", "customer": customer, "amount": amount})
    return f"{amount:.2f} EUR paid back to {customer}"


@pack.tool(title="Close the books", scopes={"billing:close"}, read_only=False, destructive=True)
async def close_books(
    ctx: CallContext, month: Annotated[str, Field(description="As in 2026-10.")]
) -> str:
    """Close a month's books for good."""
    CALLS_RUN.append({"tool": "close_books", "month": month})
    return "closed"


@pack.tool(
    title="Find a customer",
    scopes={"billing:read"},
    read_only=True,
    idempotent=True,
    open_world=False,
)
async def find_customer(
    ctx: CallContext, name: Annotated[str, Field(description="Any part of the name.")]
) -> list[str]:
    """Look a customer up by name."""
    return [f"C-1042 {name}"]


def letter_at(name: str, settings: SettingsLookup) -> str:
    """Return the folder of a letter, which may depend on the operator's settings."""
    return f"{'outside' if settings(Network).proxy else 'letters'}/{name}"


def letter_after(old: bytes, arguments: Mapping[str, Any]) -> bytes:
    """Return a letter with one more paragraph."""
    if arguments["paragraph"] == "rubbish":
        raise ToolFailure("validation", "That is no paragraph.", field="paragraph")
    return old + b"\n" + str(arguments["paragraph"]).encode()


@pack.tool(
    scopes={"files:write"},
    approval=True,
    writes=FileWrite(path="name", text="paragraph", locate=letter_at, after=letter_after),
)
async def extend_letter(ctx: CallContext, name: str, paragraph: str) -> str:
    """Add a paragraph to a letter."""
    return await ctx.workspace.write(name, paragraph.encode())


CLI_SECRET = "the-secret-of-this-test-run"
USERS = (
    User(username="alice", name="Alice Archer", tenant="acme", roles=("approver", "admin")),
    User(username="dave", name="Dave Dunn", tenant="acme", roles=("approver",)),
    User(username="carol", name="Carol Chen", tenant="acme", roles=("approver",)),
    User(username="erin", name="Erin Ek", tenant="acme"),
    User(username="bob", name="Bob Bright", tenant="globex", roles=("approver",)),
    User(username="olga", name="Olga Ortiz", tenant="globex", roles=("operator",)),
)
SCOPES = "billing:read billing:write files:read files:write vault:write"
RULES = (
    ApprovalRule(tools=("send_invoice",), reason="Invoices leave the company in its name."),
    ApprovalRule(tools=("refund",), reason="Money leaves the company."),
    ApprovalRule(
        tools=("refund",),
        when="arguments.amount > 500.0",
        approvals=2,
        reason="Above 500 EUR it takes two people.",
    ),
    ApprovalRule(tools=("close_books",), by=("role:admin",)),
)


class BillingServer:
    """The running server with its people."""

    def __init__(self, running: DashboardServer) -> None:
        self.server = running
        self.resource = running.config.resource
        self._tokens: dict[tuple[str, str, str], str] = {}

    def token(self, subject: str = "erin", *, tenant: str = "acme", scopes: str = SCOPES) -> str:
        """Return the token of an agent of that person."""
        key = (subject, tenant, scopes)
        if key not in self._tokens:
            self._tokens[key] = self._issued(*key)
        return self._tokens[key]

    def _issued(self, subject: str, tenant: str, scopes: str) -> str:
        form = {
            "grant_type": GRANT,
            "tenant": tenant,
            "subject": subject,
            "scope": scopes,
            "resource": self.resource,
        }
        endpoint = self.server.config.issuers[0].issuer + "/token"
        answer = httpx2.post(endpoint, data=form, auth=(CLI_CLIENT, CLI_SECRET))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    def call(
        self, tool: str, arguments: Mapping[str, Any], subject: str = "erin", **token: str
    ) -> httpx2.Response:
        """Call over REST and return at once, also where a person has to decide."""
        return httpx2.post(
            f"{self.server.origin}/tool/{tool}/call",
            content=msgspec.json.encode(arguments),
            headers={
                "authorization": f"Bearer {self.token(subject, **token)}",
                "content-type": "application/json",
            },
            timeout=10,
        )

    def request_approval(
        self, tool: str, arguments: Mapping[str, Any], subject: str = "erin"
    ) -> str:
        """Call over REST where a person has to decide; return the id of the request."""
        answer = self.call(tool, arguments, subject)
        assert answer.status_code == 503, answer.text
        waiting = self.server.run(self.server.services.approvals.waiting("acme"))
        return str(waiting[-1].id)

    def request_approval_over_mcp(
        self, client: Any, tool: str, arguments: Mapping[str, Any]
    ) -> str:
        """Call over MCP, with *client* as `clientInfo`; return the id of the approval request."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": client,
            # The answer is a page to open, which ends this request.
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}},
        }
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        answer = httpx2.post(
            self.resource,
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
            headers={
                "authorization": f"Bearer {self.token()}",
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": "2026-07-28",
                "mcp-method": "tools/call",
                "mcp-name": tool,
            },
            timeout=60,
        )
        assert answer.json()["result"]["resultType"] == "input_required", answer.text
        waiting = self.server.run(self.server.services.approvals.waiting("acme"))
        return str(waiting[-1].id)

    def write(self, path: str, text: str) -> None:
        """Write a file to the workspace."""
        self.server.run(
            self.server.services.workspaces.for_tenant("acme").write(path, text.encode())
        )

    def decides(
        self,
        name: str,
        request: str,
        *,
        reason: str = "",
        comment: str = "",
        grant: GrantScope | None = None,
    ) -> None:
        """Decide in another session: reject with a reason, else approve."""
        service = self.server.services.approvals
        person = self._person(name)
        if reason:
            self.server.run(service.reject("acme", request, person, reason))
        else:
            yes = service.approve("acme", request, person, grant=grant, reason=comment)
            self.server.run(yes)

    def _person(self, name: str) -> TenantContext:
        """Return a person as a sign-in to the dashboard makes them known."""
        (user,) = [one for one in USERS if one.username == name]
        return TenantContext(
            tenant_id=user.tenant,
            issuer=self.server.config.issuers[0].issuer,
            subject=name,
            subject_kind="user",
            resource=self.resource,
            expires_at=0,
            roles=frozenset(user.roles),
            claims={"name": user.name},
        )

    def record(self, kind: str, tool: str) -> int:
        """Return the number of the newest record of that kind about the tool."""
        audit_store = self.server.services.audit_writer.store
        found = self.server.run(
            search(audit_store, "acme", AuditQuery(kind=kind, tool=tool, limit=1))
        )
        return int(found[0].number)

    def state_of(self, request: str) -> str:
        """Return the state of a request."""
        found = self.server.run(self.server.services.approvals.get("acme", request))
        return str(found.state)

    def forget_limits(self) -> None:
        """Let the agent call as if it had paused."""
        counts = self.server.services.limits.counters
        counts.call_limits.clear()
        counts.buckets = Buckets(forgetting=counts.call_limits.clear)

    def now(self) -> float:
        """Return the service's time."""
        return self.server.services.approvals.clock()

    def until_waiting(self, count: int) -> None:
        """Return once so many requests wait."""
        service = self.server.services.approvals
        eventually(lambda: len(self.server.run(service.waiting("acme"))) == count, within=20)

    @contextmanager
    def later(self, by_s: float) -> Iterator[None]:
        """Move the service's clock forward inside the block."""
        service = self.server.services.approvals
        before = service.clock
        service.clock = service.requests.clock = lambda: before() + by_s
        yield
        service.clock = service.requests.clock = before


def settings(config: Config, root: Path) -> Config:
    """Return the configuration of the company."""
    return msgspec.structs.replace(
        config,
        tools=ToolsSettings(packs=("workspace", "demo", "vault"), load=(__name__,)),
        workspace=msgspec.structs.replace(config.workspace, root=str(root / "workspaces")),
        approvals=ApprovalsSettings(require=("workspace_write", "vault_write"), rules=RULES),
        limits=LimitsSettings(requests_per_second=50, burst=100),
        scopes=msgspec.structs.replace(config.scopes, admin="gatepost:admin"),
    )


@contextmanager
def open_billing_server(
    root: Path,
    *,
    proxies: tuple[str, ...] = (),
    change: Callable[[Config], Config] = lambda config: config,
) -> Iterator[BillingServer]:
    """Serve the company until the block ends; *proxies* are trusted."""

    def changed(config: Config) -> Config:
        listen = msgspec.structs.replace(config.listen, trusted_proxies=proxies)
        return change(settings(msgspec.structs.replace(config, listen=listen), root))

    opened = open_dashboard_server(
        root,
        change=changed,
        users=USERS,
        cli_secret=CLI_SECRET,
        scopes=(*SCOPES.split(), "billing:close"),
    )
    with opened as running:
        yield BillingServer(running)


class WebUser:
    """One person at a browser; whatever the browser complains about is kept."""

    def __init__(self, server: BillingServer, context: BrowserContext, name: str) -> None:
        self.home = server.server.home
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self._hear(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        if name:
            self.sign_in(name)

    def sign_in(self, name: str) -> None:
        """Sign in through the identity provider, as that person."""
        self.page.goto(self.home)
        self.page.get_by_role("link", name="Continue").click()
        self.page.locator(f'button[value="{name}"]').click()
        self.page.get_by_role("button", name="Allow").click()
        self.page.wait_for_url(f"{self.home}**")

    def open(self, below: str = "") -> Page:
        """Open a page of the dashboard."""
        self.page.goto(self.home + below)
        return self.page

    def _hear(self, kind: str, text: str) -> None:
        # A page that is refused on purpose is an error to the browser's own log.
        if kind in {"error", "warning"} and "the server responded with a status of" not in text:
            self.complaints.append(text)


@contextmanager
def signed_in(
    server: BillingServer, browser: Browser, name: str = "", **context: Any
) -> Iterator[WebUser]:
    """Yield a new browser with that person signed in; assert that it ends without complaints."""
    opened = browser.new_context(**context)
    opened.set_default_timeout(WITHIN_MS)
    user = WebUser(server, opened, name)
    try:
        yield user
    finally:
        opened.close()
    assert not user.complaints, user.complaints
