// Uses the tools of one upstream behind the gate, by the SDK of `sdk` ("1.x" or "2.x").
//
// The last line of stdout is {"report": ...}; tests/upstreams/across_revisions/test_real_clients.py judges it.

import process from "node:process";

import { bearer, settings, textOf } from "./features.mjs";

const { era, mode, sdk, url } = settings;
const ABOUT = { name: "typescript", version: "1.0.0" };
const capabilities = { elicitation: { form: {} } };
const asked = [];

function filledIn({ params }) {
  asked.push(params.message);
  return { action: "accept", content: { yes: true } };
}

async function first() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await import(
    "@modelcontextprotocol/sdk/client/streamableHttp.js"
  );
  const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
  const client = new Client(ABOUT, { capabilities });
  client.setRequestHandler(ElicitRequestSchema, filledIn);
  const call = (params, options) => client.callTool(params, undefined, options);
  return { client, call, Transport: StreamableHTTPClientTransport };
}

async function second() {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const versionNegotiation = { mode: mode === "legacy" ? mode : { pin: mode } };
  const client = new Client(ABOUT, { capabilities, versionNegotiation });
  client.setRequestHandler("elicitation/create", filledIn);
  const call = (params, options) => client.callTool(params, options);
  return { client, call, Transport: StreamableHTTPClientTransport };
}

const { client, call, Transport } = await (sdk === "1.x" ? first() : second());
await client.connect(new Transport(new URL(url), { requestInit: { headers: bearer } }));
const named = (name) => `mcp_${era}__${name}`;
const steps = [];
const onprogress = (step) => steps.push(step.progress);
const report = { asked, steps };
report.tools = (await client.listTools()).tools.map((tool) => tool.name);
const counted = await call({ name: named("count"), arguments: { upto: 3 } }, { onprogress });
report.counted = counted.structuredContent;
report.removed = textOf(await call({ name: named("remove"), arguments: {} }));
report.cover = (await call({ name: named("cover"), arguments: {} })).content[0].mimeType;
report.failed = (await call({ name: named("fail"), arguments: {} })).isError;
await client.close();
process.stdout.write(`${JSON.stringify({ report })}\n`);
process.exit(0);
