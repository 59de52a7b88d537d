// The official TypeScript client starts a server and talks to it over its pipes; the argument says
// how, and the report goes to standard output as one line.

import process from "node:process";

import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const { mode, ...server } = JSON.parse(process.argv[2]);
const negotiation = { mode: mode === "legacy" ? mode : { pin: mode } };
const about = { name: "typescript-v2", version: "1.0.0" };
const client = new Client(about, { versionNegotiation: negotiation });

await client.connect(new StdioClientTransport(server));
const steps = [];
const report = {
  protocol: client.getNegotiatedProtocolVersion(),
  tools: (await client.listTools()).tools.map((tool) => tool.name),
};
const call = async (name, args, options) =>
  (await client.callTool({ name, arguments: args }, options)).content[0].text;
report.echo = await call("echo", { text: "grüß Gott" });
// Slowly: of reports that come together with their answer this client drops some.
const onprogress = ({ progress }) => steps.push(progress);
// This client forgets its callback as the result comes in, so a report that is read together with
// the result may be lost to it: the last of four is not looked at.
await call("count_slowly", { steps: 4, delay_s: 0.1 }, { onprogress });
report.progress = steps.slice(0, 3);
await client.close();
console.log(JSON.stringify(report));
