// The official TypeScript client, @modelcontextprotocol/client 2.x, which speaks both eras: the
// argument's `mode` is "legacy", "auto" or a revision to insist on.

import process from "node:process";

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

import { main } from "./walk.mjs";

const { mode = "auto" } = JSON.parse(process.argv[2]);
const negotiation = { mode: mode === "legacy" || mode === "auto" ? mode : { pin: mode } };

await main({
  open(url, wallet, wire) {
    const about = { name: "typescript-v2", version: "1.0.0" };
    const client = new Client(about, { versionNegotiation: negotiation });
    const options = { authProvider: wallet, fetch: wire.fetch };
    return { client, transport: new StreamableHTTPClientTransport(new URL(url), options) };
  },
  finish: (transport, callback) => transport.finishAuth(callback.searchParams),
  call: (client, params, onprogress) => client.callTool(params, { onprogress }),
  describe: ({ client }) => ({
    protocol: client.getNegotiatedProtocolVersion(),
    era: client.getProtocolEra(),
    server: client.getServerVersion(),
  }),
});
