// Make a call that waits for an approval, with either generation of the TypeScript SDK.
//
// The last line of stdout is {"report": ...}; tests/clients/test_approval_wait.py judges it.

import process from "node:process";

import { Client as Client2, StreamableHTTPClientTransport as Http2 } from "@modelcontextprotocol/client";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as Http1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const { mode, url, token, labels, pages } = JSON.parse(process.argv[2]);
const ABOUT = { name: "typescript-waiting", version: "1.0.0" };
const capabilities = pages ? { elicitation: { form: {}, url: {} } } : {};
const requestInit = { headers: { Authorization: `Bearer ${token}` } };
const asked = [];

function accept(params) {
  asked.push(params.url);
  return { action: "accept" };
}

function first() {
  const client = new Client1(ABOUT, { capabilities });
  if (pages) client.setRequestHandler(ElicitRequestSchema, ({ params }) => accept(params));
  const call = (params, options) => client.callTool(params, undefined, options);
  return { client, call, transport: new Http1(new URL(url), { requestInit }) };
}

function second() {
  const versionNegotiation = { mode: mode === "2.x legacy" ? "legacy" : "auto" };
  const client = new Client2(ABOUT, { capabilities, versionNegotiation });
  if (pages) client.setRequestHandler("elicitation/create", ({ params }) => accept(params));
  const call = (params, options) => client.callTool(params, options);
  return { client, call, transport: new Http2(new URL(url), { requestInit }) };
}

const { client, call, transport } = mode === "1.x" ? first() : second();
try {
  await client.connect(transport);
  const report = { asked, told: [], said: [] };
  const onprogress = ({ message }) => report.told.push(message);
  for (const label of labels) {
    const options = { onprogress, resetTimeoutOnProgress: true };
    const { content, isError } = await call({ name: "sign", arguments: { label } }, options);
    report.said.push([isError ?? false, content.map((block) => block.text).join("")]);
  }
  await client.close();
  process.stdout.write(`${JSON.stringify({ report })}\n`);
  process.exit(0);
} catch (error) {
  console.error(error);
  process.exit(1);
}
