// An MCP server behind @cloudflare/workers-oauth-provider, in the runtime of Cloudflare Workers.
//
// Takes one JSON argument:
//   origin   the server (http) to which requests with a valid token go
//   port     where the worker listens on loopback; its resource is http://127.0.0.1:PORT/mcp
// The page /authorize consents at once for the person `alice`, as a test's person would.
// Prints one line of JSON, {"issuer": ...}, when it listens, and ends on SIGTERM or when its standard
// input ends.

import { readFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";

import { Miniflare } from "miniflare";

const { origin, port } = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const provider = fileURLToPath(import.meta.resolve("@cloudflare/workers-oauth-provider"));

const worker = `
import { OAuthProvider } from "./provider.js";

const apiHandler = {
  async fetch(request, env) {
    const { pathname, search } = new URL(request.url);
    const headers = new Headers(request.headers);
    headers.delete("authorization");
    return fetch(env.ORIGIN + pathname + search, {
      method: request.method, headers, body: request.body, redirect: "manual",
    });
  },
};

const defaultHandler = {
  async fetch(request, env) {
    if (new URL(request.url).pathname !== "/authorize") return new Response(null, { status: 404 });
    const asked = await env.OAUTH_PROVIDER.parseAuthRequest(request);
    const { redirectTo } = await env.OAUTH_PROVIDER.completeAuthorization({
      request: asked, userId: "alice", metadata: {}, scope: asked.scope, props: { user: "alice" },
    });
    return Response.redirect(redirectTo, 302);
  },
};

export default new OAuthProvider({
  apiRoute: "/mcp",
  apiHandler,
  defaultHandler,
  authorizeEndpoint: "/authorize",
  tokenEndpoint: "/token",
  clientRegistrationEndpoint: "/register",
  scopesSupported: ["crm:use"],
  requiredScopes: ["crm:use"],
  resourceMetadata: { resource: "${issuer}/mcp", authorization_servers: ["${issuer}"] },
});
`;

const server = new Miniflare({
  host: "127.0.0.1",
  port,
  modules: [
    { type: "ESModule", path: "worker.js", contents: worker },
    { type: "ESModule", path: "provider.js", contents: readFileSync(provider, "utf8") },
  ],
  bindings: { ORIGIN: origin },
  kvNamespaces: ["OAUTH_KV"],
  compatibilityDate: "2026-07-01",
});
await server.ready;
process.stdout.write(`${JSON.stringify({ issuer })}\n`);

// The runtime is a process of its own, which would outlive this one.
const end = () => server.dispose().then(() => process.exit());
process.on("SIGTERM", end);
process.stdin.resume();
process.stdin.on("end", end);
