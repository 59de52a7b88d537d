// Everything a server can offer, used by @modelcontextprotocol/sdk 1.x.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  LoggingMessageNotificationSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";

import { CAPABILITIES, main, settings } from "./features.mjs";

const NOTIFICATIONS = [
  LoggingMessageNotificationSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
];

await main({
  open(desk, headers) {
    const about = { name: "typescript-v1", version: "1.0.0" };
    const client = new Client(about, { capabilities: CAPABILITIES });
    client.setRequestHandler(ElicitRequestSchema, ({ params }) => desk.filledIn(params));
    client.setRequestHandler(CreateMessageRequestSchema, () => desk.sampled());
    client.setRequestHandler(ListRootsRequestSchema, () => desk.folders());
    for (const schema of NOTIFICATIONS) {
      client.setNotificationHandler(schema, ({ method, params }) => desk.hear(method, params));
    }
    const options = { requestInit: { headers } };
    return { client, transport: new StreamableHTTPClientTransport(new URL(settings.url), options) };
  },
  call: (client, params, options) => client.callTool(params, undefined, options),
  describe: ({ transport }) => transport.protocolVersion,
});
