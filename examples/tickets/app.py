"""A small help desk with an HTTP API: what openapi.json beside it describes."""

import json
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

DESCRIPTION = json.loads((Path(__file__).parent / "openapi.json").read_text(encoding="utf-8"))
TOKENS = {"demo-token-of-acme": "acme", "demo-token-of-globex": "globex"}
"""The customer whose tickets a token opens."""
PRIORITIES = ("low", "normal", "high", "urgent")
HOST, PORT = "127.0.0.1", 8090


class TicketServer:
    """The tickets of every customer, as long as the process runs."""

    def __init__(self) -> None:
        self.tickets: dict[str, list[dict[str, object]]] = {name: [] for name in TOKENS.values()}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/openapi.json", lambda _: JSONResponse(DESCRIPTION)),
                Route("/tickets", self.tickets_of, methods=["GET", "POST"]),
                Route("/tickets/{ticket_id:int}", self.delete, methods=["DELETE"]),
            ]
        )

    async def tickets_of(self, request: Request) -> Response:
        customer = customer_of(request)
        if customer is None:
            return refusal(401, "unauthorized", "Send a token of your company.")
        if request.method == "POST":
            return self.create(customer, await request.json())
        return self.search(customer, request)

    def create(self, customer: str, given: dict[str, object]) -> Response:
        subject = str(given.get("subject", "")).strip()
        if not subject:
            return refusal(422, "validation_error", "A ticket needs a subject.", "subject")
        kept = self.tickets[customer]
        number = 12345 + len(kept)
        url = f"https://{customer}.example.com/tickets/{number}"
        ticket = {"ticket_id": number, "ticket_url": url, "status": "open"}
        priority = given.get("priority", "normal")
        kept.append({**ticket, "priority": priority, **given})
        return JSONResponse(ticket, 201)

    def search(self, customer: str, request: Request) -> Response:
        words = request.query_params.get("query", "").lower().split()
        status = request.query_params.get("status")
        found = [
            ticket
            for ticket in reversed(self.tickets[customer])
            if status in (None, ticket["status"])
            and all(
                word in f"{ticket['subject']} {ticket['description']}".lower() for word in words
            )
        ]
        return JSONResponse({"count": len(found), "tickets": found})

    async def delete(self, request: Request) -> Response:
        customer = customer_of(request)
        if customer is None:
            return refusal(401, "unauthorized", "Send a token of your company.")
        number = request.path_params["ticket_id"]
        kept = self.tickets[customer]
        self.tickets[customer] = [one for one in kept if one["ticket_id"] != number]
        return Response(status_code=204)


def customer_of(request: Request) -> str | None:
    """Return the customer whose token the request carries."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return TOKENS.get(token) if scheme == "Bearer" else None


def refusal(status: int, word: str, message: str, field: str | None = None) -> Response:
    """Return an answer that says what is wrong."""
    told = {"error": word, "message": message}
    return JSONResponse(told | ({"field": field} if field else {}), status)


if __name__ == "__main__":
    uvicorn.run(TicketServer().app(), host=HOST, port=PORT)
