// What a TypeScript client does with everything that a server can offer, whichever SDK drives it.
//
// The last line of stdout is {"report": ...}; tests/clients/test_typescript_features.py judges it.

import process from "node:process";

const WATCHED = "test://watched-resource";
const FORM = { username: "ann", email: "ann@example.com", confirm: true };
const HEARD_WITHIN_MS = 10_000;

export const settings = JSON.parse(process.argv[2] ?? "{}");
export const bearer = { Authorization: `Bearer ${settings.token}` };
export const CAPABILITIES = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };

export function textOf(result) {
  return result.content.map((block) => block.text).join("");
}

// Answers what is asked, and remembers it.
export class Desk {
  asked = [];
  logged = [];
  #heard = new Set();
  #waiting = [];

  filledIn(params) {
    this.asked.push(params.url ?? params.message);
    if (params.mode === "url") return { action: "accept" };
    const fields = Object.keys(params.requestedSchema.properties);
    const value = (name) => FORM[name] ?? name[0].toUpperCase() + name.slice(1);
    return { action: "accept", content: Object.fromEntries(fields.map((n) => [n, value(n)])) };
  }

  sampled() {
    return { role: "assistant", model: "m-1", content: { type: "text", text: "Grüß Gott" } };
  }

  folders() {
    return { roots: [{ uri: "file:///work" }] };
  }

  hear(method, params) {
    if (method === "notifications/message") this.logged.push(params.level);
    this.#heard.add(method);
    for (const look of this.#waiting) look();
  }

  // Resolves once a notification has come, and fails when it does not.
  until(method) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`never heard ${method}`)), HEARD_WITHIN_MS);
      const look = () => {
        if (!this.#heard.has(method)) return;
        clearTimeout(timer);
        resolve(true);
      };
      this.#waiting.push(look);
      look();
    });
  }
}

async function offers(client, call, report) {
  report.tools = (await client.listTools()).tools.map((tool) => tool.name);
  report.weather = (await call("weather", { city: "Graz" })).structuredContent;
  report.steps = [];
  const onprogress = (step) => report.steps.push(step.progress);
  await call("test_tool_with_progress", {}, { onprogress });
  report.mirrored = textOf(await call("test_custom_headers", { message: "grüß Gott" }));
  report.failed = (await call("test_error_handling", {})).isError;
  report.resources = (await client.listResources()).resources.map((one) => one.uri);
  const { resourceTemplates } = await client.listResourceTemplates();
  report.templates = resourceTemplates.map((one) => one.uriTemplate);
  const read = async (uri) => (await client.readResource({ uri })).contents[0];
  report.document = (await read("test://template/7/data")).text;
  report.picture = typeof (await read("test://static-binary")).blob;
  report.prompts = (await client.listPrompts()).prompts.map((one) => one.name);
  const name = "test_prompt_with_arguments";
  const prompt = await client.getPrompt({ name, arguments: { arg1: "a", arg2: "b" } });
  report.prompt = prompt.messages[0].content.text;
  const completed = await client.complete({
    ref: { type: "ref/prompt", name },
    argument: { name: "arg1", value: "test" },
  });
  report.completed = completed.completion.values;
}

async function questions(client, call, report) {
  const said = async (name, args = {}) => textOf(await call(name, args));
  report.form = await said("test_elicitation", { message: "Who is there?" });
  report.page = await said("link_account");
  report.model = await said("test_sampling", { prompt: "Greet." });
  report.folders = await said("test_input_required_result_list_roots");
  report.rounds = await said("test_input_required_result_multi_round");
  const prompt = await client.getPrompt({ name: "test_input_required_result_prompt" });
  report.asking_prompt = prompt.messages[0].content.text;
}

// In an older session: a level, word of a document, word of a list, and an answer let go.
async function session(client, call, desk, report) {
  await client.setLoggingLevel("error");
  await call("test_tool_with_logging", {});
  report.unheard = desk.logged.length;
  await client.setLoggingLevel("info");
  await call("test_tool_with_logging", {});
  await client.subscribeResource({ uri: WATCHED });
  await call("touch", {});
  report.updated = await desk.until("notifications/resources/updated");
  await call("test_trigger_tool_change", {});
  report.changed = await desk.until("notifications/tools/list_changed");
  await client.unsubscribeResource({ uri: WATCHED });
  report.resumption_tokens = 0;
  const onresumptiontoken = () => (report.resumption_tokens += 1);
  report.reconnected = textOf(await call("test_reconnection", {}, { onresumptiontoken }));
}

// In the modern era: a level with a request, and a stream of changes.
async function stream(client, call, desk, report) {
  await call("test_tool_with_logging", {});
  report.unheard = desk.logged.length;
  await call("test_tool_with_logging", {}, {}, { "io.modelcontextprotocol/logLevel": "info" });
  const filter = { toolsListChanged: true, resourceSubscriptions: [WATCHED] };
  const subscription = await client.listen(filter);
  await call("touch", {});
  report.updated = await desk.until("notifications/resources/updated");
  await call("test_trigger_tool_change", {});
  report.changed = await desk.until("notifications/tools/list_changed");
  await subscription.close();
}

// `sdk` = { open(desk, headers), call(client, params, options), describe(session),
//           tasks?(session, desk) }
async function use(sdk) {
  const desk = new Desk();
  const { client, transport } = sdk.open(desk, bearer);
  await client.connect(transport);
  const report = { protocol: sdk.describe({ client, transport }), asked: desk.asked };
  const call = (name, args, options, meta) =>
    sdk.call(client, { name, arguments: args, ...(meta ? { _meta: meta } : {}) }, options);
  await offers(client, call, report);
  await questions(client, call, report);
  const isOld = report.protocol < "2026";
  await (isOld ? session : stream)(client, call, desk, report);
  report.logged = desk.logged;
  if (!isOld) Object.assign(report, await sdk.tasks(client, desk));
  else {
    report.computed = textOf(await call("slow_compute", { seconds: 0.1 }));
    report.refused = textOf(await call("failing_job", {}));
    await transport.terminateSession();
  }
  await client.close();
  report.stranger = await refusal(sdk);
  return report;
}

// The status with which a client without a token ends.
async function refusal(sdk) {
  const { client, transport } = sdk.open(new Desk(), {});
  try {
    await client.connect(transport);
    return null;
  } catch (error) {
    return error.data?.status ?? error.code;
  }
}

export async function main(sdk) {
  try {
    process.stdout.write(`${JSON.stringify({ report: await use(sdk) })}\n`);
    process.exit(0);
  } catch (error) {
    console.error(error);
    process.exit(1);
  }
}
