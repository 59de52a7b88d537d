"""
A FastAPI app that adopts the gate alone: one protected route, and nothing of MCP.

Run it with `python examples/fastapi_app.py`, after naming your own resource and issuer below.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Header, Request

from gatepost_authz import (
    BearerMiddleware,
    Challenge,
    Fetcher,
    IdentityHeaders,
    Issuer,
    IssuerKeySets,
    IssuerRegistry,
    JwtVerifier,
    MetadataRoutes,
    Policy,
    Resource,
    TenantContext,
    TenantRule,
    VerdictCache,
    caller_of,
    problems,
)

RESOURCE = "https://api.example.com/invoices"
ISSUER = Issuer(
    issuer="https://id.example.com",
    tenant=TenantRule(claim="org_id"),
    tenants={"org_8Xa2": "acme"},
)


def caller(request: Request) -> TenantContext:
    """Return the caller, as the token proved it."""
    return caller_of(request.scope)


Caller = Annotated[TenantContext, Depends(caller)]

invoices = FastAPI(title="Invoices")


@invoices.get("/")
async def list_invoices(who: Caller) -> dict[str, Any]:
    """List the invoices of the caller's own tenant."""
    return {"tenant": who.tenant_id, "subject": who.subject, "invoices": []}


@invoices.get("/archive")
async def list_archive(x_account: Annotated[str, Header()]) -> dict[str, Any]:
    """List archived invoices: an older part that does not know the gate and trusts a header."""
    return {"account": x_account, "invoices": []}


def create_app(resource: Resource, issuer: Issuer, *, development: bool = False) -> FastAPI:
    """Create the app: metadata for every client, invoices for clients with a token."""
    registry = IssuerRegistry([issuer])
    keys = IssuerKeySets(Fetcher(development=development))
    verifier = JwtVerifier(registry, keys, VerdictCache(), policy=Policy(development=development))
    metadata = MetadataRoutes(
        resource,
        authorization_servers=registry.for_tenant,
        scopes=("invoices:read",),
        name="Invoices",
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await keys.aclose()

    app = FastAPI(lifespan=lifespan)
    # Before the protected part: one location of the document lies below the resource itself.
    app.router.routes.extend(metadata.routes())
    app.mount(
        resource.path,
        BearerMiddleware(
            invoices,
            resource=resource,
            verifier=verifier,
            challenge=Challenge(baseline=("invoices:read",)),
            baseline=frozenset({"invoices:read"}),
            # Whatever callers send under such names is gone; the tenant's is the token's.
            identity=IdentityHeaders(tenant="x-account"),
        ),
    )
    return app


def main() -> None:
    """Serve, unless the settings have a problem; then say all of them."""
    found = list(problems(resource=RESOURCE, issuers=[ISSUER]))
    for problem in found:
        print(f"{problem.id} {problem.setting}: {problem.message}; {problem.hint}")
    if not any(problem.level == "error" for problem in found):
        uvicorn.run(create_app(Resource(RESOURCE), ISSUER))


if __name__ == "__main__":
    main()
