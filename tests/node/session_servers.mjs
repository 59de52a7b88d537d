// Servers of both TypeScript SDKs, with sessions and without; POST /restart makes them forget all.

import { createServer } from "node:http";

import { McpServer as Server1 } from "@modelcontextprotocol/sdk/server/mcp.js";
import { WebStandardStreamableHTTPServerTransport as Transport1 } from "@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js";
import {
  McpServer as Server2,
  WebStandardStreamableHTTPServerTransport as Transport2,
} from "@modelcontextprotocol/server";

const ABOUT = { name: "sessions", version: "1.0.0" };
const SDKS = { v1: [Server1, Transport1], v2: [Server2, Transport2] };
const kept = new Map();

async function opened(sdk, sessionIdGenerator) {
  const [Server, Transport] = SDKS[sdk];
  const server = new Server(ABOUT);
  server.registerTool("act", {}, () => ({ content: [{ type: "text", text: "done" }] }));
  const transport = new Transport({ sessionIdGenerator, enableJsonResponse: true });
  await server.connect(transport);
  return transport;
}

async function transportOf(path) {
  const [, sdk, kind] = path.split("/");
  if (kind === "stateless") return opened(sdk, undefined);
  if (!kept.has(sdk)) kept.set(sdk, await opened(sdk, () => crypto.randomUUID()));
  return kept.get(sdk);
}

const http = createServer(async (asked, answer) => {
  const parts = [];
  for await (const part of asked) parts.push(part);
  if (asked.url === "/restart") {
    kept.clear();
    answer.end();
    return;
  }
  const transport = await transportOf(asked.url);
  const body = parts.length ? Buffer.concat(parts) : undefined;
  const { method, headers } = asked;
  const url = `http://${headers.host}${asked.url}`;
  const given = await transport.handleRequest(new Request(url, { method, headers, body }));
  answer.writeHead(given.status, Object.fromEntries(given.headers));
  for await (const part of given.body ?? []) answer.write(part);
  answer.end();
});
http.listen(0, "127.0.0.1", () => console.log(`port ${http.address().port}`));
