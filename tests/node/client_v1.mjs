// The official TypeScript client, @modelcontextprotocol/sdk 1.x, which speaks the handshake era.

import { auth, extractWWWAuthenticateParams } from "@modelcontextprotocol/sdk/client/auth.js";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

import { main } from "./walk.mjs";

await main({
  open(url, wallet, wire) {
    const client = new Client({ name: "typescript-v1", version: "1.0.0" });
    const options = { authProvider: wallet, fetch: wire.fetch };
    return { client, transport: new StreamableHTTPClientTransport(new URL(url), options) };
  },
  finish: (transport, callback) => transport.finishAuth(callback.searchParams.get("code")),
  call: (client, params, onprogress) => client.callTool(params, undefined, { onprogress }),
  describe: ({ client, transport }) => ({
    protocol: transport.protocolVersion,
    server: client.getServerVersion(),
  }),
  // On 403 this SDK refreshes first, which cannot widen a grant (RFC 6749 section 6), and then gives
  // up: it is its host that drops the tokens and asks the person for the scopes of the challenge.
  async askForMore({ url, wallet, wire }, error) {
    if (error.code !== 403) throw error;
    const { scope, resourceMetadataUrl } = extractWWWAuthenticateParams(wire.challenge);
    const held = wallet.tokens().scope ?? "";
    const wanted = [...new Set([...held.split(" "), ...scope.split(" ")])].filter(Boolean).join(" ");
    wallet.forgetTokens();
    await auth(wallet, { serverUrl: url, scope: wanted, resourceMetadataUrl, fetchFn: wire.fetch });
  },
});
