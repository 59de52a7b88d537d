// Everything a server can offer, used by @modelcontextprotocol/client 2.x, in the era of `mode`.
//
// Tasks are not in that package: @modelcontextprotocol/ext-tasks drives them, over the requests
// that its host makes, since the SDK itself refuses the result of a call that became a task.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import {
  createApplicationInputHandler,
  createTaskSessionFromClient,
  resultFromTaskOutcome,
} from "@modelcontextprotocol/ext-tasks/client";

import { bearer, CAPABILITIES, main, settings, textOf } from "./features.mjs";

const { mode, url } = settings;
const REVISION = "2026-07-28";
const ABOUT = { name: "typescript-v2", version: "1.0.0" };
const NOTIFICATIONS = ["message", "resources/updated", "tools/list_changed"];
const negotiation = { mode: mode === "legacy" || mode === "auto" ? mode : { pin: mode } };

let requests = 0;

function eventOf(text) {
  const data = text.split("\n").filter((line) => line.startsWith("data: {"));
  return data.map((line) => JSON.parse(line.slice(6))).find((message) => message.id !== undefined);
}

// One request as the host of ext-tasks makes it.
async function dispatch(request, options) {
  requests += 1;
  const { method, params } = request;
  const response = await fetch(url, {
    method: "POST",
    headers: {
      ...bearer,
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": REVISION,
      "Mcp-Method": method,
      "Mcp-Name": params.name ?? params.taskId,
    },
    body: JSON.stringify({ ...request, jsonrpc: "2.0", id: `task-${requests}` }),
    signal: options?.signal,
  });
  const isStream = response.headers.get("content-type").startsWith("text/event-stream");
  const message = isStream ? eventOf(await response.text()) : await response.json();
  if (message.error) return { kind: "error", error: message.error };
  return { kind: "result", result: message.result };
}

async function settled(session, name, args) {
  const execution = await session.callTool(name, args);
  const { outcome } = await execution.settle();
  return { kind: execution.kind, outcome };
}

async function tasks(client, desk) {
  const session = createTaskSessionFromClient(client, {
    endpointId: "gatepost",
    rawDispatch: dispatch,
    v2RequestFraming: {
      protocolVersion: REVISION,
      clientInfo: ABOUT,
      clientCapabilities: CAPABILITIES,
    },
    tools: { currentTool: () => undefined },
    onInputRequest: createApplicationInputHandler({
      elicitation: ({ params }) => desk.filledIn(params),
      sampling: () => desk.sampled(),
      roots: () => desk.folders(),
    }),
  });
  const deleted = await settled(session, "confirm_delete", { filename: "a.txt" });
  const short = await settled(session, "greet", { name: "Bo" });
  const failed = await settled(session, "failing_job", {});
  const long = await session.callTool("slow_compute", { seconds: 60 });
  await long.cancel();
  const { outcome } = await long.settle();
  await session.close();
  return {
    deleted: [deleted.kind, textOf(resultFromTaskOutcome(deleted.outcome))],
    short: [short.kind, textOf(resultFromTaskOutcome(short.outcome))],
    failed_job: [failed.kind, resultFromTaskOutcome(failed.outcome).isError],
    cancelled: [long.kind, outcome.status],
  };
}

await main({
  open(desk, headers) {
    const options = { capabilities: CAPABILITIES, versionNegotiation: negotiation };
    const client = new Client(ABOUT, options);
    client.setRequestHandler("elicitation/create", ({ params }) => desk.filledIn(params));
    client.setRequestHandler("sampling/createMessage", () => desk.sampled());
    client.setRequestHandler("roots/list", () => desk.folders());
    for (const name of NOTIFICATIONS) {
      const method = `notifications/${name}`;
      client.setNotificationHandler(method, ({ params }) => desk.hear(method, params));
    }
    const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
    return { client, transport };
  },
  call: (client, params, options) => client.callTool(params, options),
  describe: ({ client }) => client.getNegotiatedProtocolVersion(),
  tasks,
});
