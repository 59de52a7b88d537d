// What a TypeScript client does from the first 401 to a refreshed token, whichever SDK drives it.
//
// The person with the browser sits on the other side of stdin and stdout: a line
// {"authorize": URL} asks them to open it, and the next line of stdin is where they were sent back
// to. The last line of stdout is {"report": ...}.

import process from "node:process";
import readline from "node:readline";

const REDIRECT = "http://127.0.0.1:33418/callback";

const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

function say(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

async function openBrowser(url) {
  say({ authorize: String(url) });
  const { value } = await answers.next();
  return new URL(value);
}

// Keeps what a client must remember; the SDKs call it an OAuthClientProvider.
export class Wallet {
  #client;
  #tokens;
  #verifier;
  #state;
  pending;
  callbacks = 0;

  get redirectUrl() {
    return REDIRECT;
  }

  get clientMetadata() {
    return {
      client_name: "Gatepost's TypeScript test client",
      redirect_uris: [REDIRECT],
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
      token_endpoint_auth_method: "none",
      application_type: "native",
    };
  }

  state() {
    this.#state = crypto.randomUUID();
    return this.#state;
  }

  clientInformation() {
    return this.#client;
  }

  saveClientInformation(client) {
    this.#client = client;
  }

  tokens() {
    return this.#tokens;
  }

  saveTokens(tokens) {
    this.#tokens = tokens;
  }

  forgetTokens() {
    this.#tokens = undefined;
  }

  // The access token stops working while the refresh token still does.
  spoilAccessToken() {
    const [head, ...rest] = this.#tokens.access_token;
    const spoilt = (head === "A" ? "B" : "A") + rest.join("");
    this.#tokens = { ...this.#tokens, access_token: spoilt };
  }

  redirectToAuthorization(url) {
    this.pending = url;
  }

  saveCodeVerifier(verifier) {
    this.#verifier = verifier;
  }

  codeVerifier() {
    return this.#verifier;
  }

  // Where the person came back to, after the check of `state` that the SDKs leave to their host.
  async callback() {
    const asked = this.pending;
    this.pending = undefined;
    this.callbacks += 1;
    const back = await openBrowser(asked);
    if (back.searchParams.get("state") !== this.#state) throw new Error("state differs");
    return back;
  }
}

function formOf(body) {
  if (!(body instanceof URLSearchParams) && typeof body !== "string") return {};
  const text = String(body);
  return text.startsWith("{") ? {} : Object.fromEntries(new URLSearchParams(text));
}

// Every request as it went over the wire, secrets left out.
export class Wire {
  exchanges = [];
  challenge;

  fetch = async (url, init) => {
    const response = await fetch(url, init);
    const form = formOf(init?.body);
    this.exchanges.push({
      method: init?.method ?? "GET",
      url: String(url),
      status: response.status,
      grant_type: form.grant_type,
      resource: form.resource,
      challenge: response.headers.get("www-authenticate") ?? undefined,
    });
    if (response.status === 403) this.challenge = response.clone();
    return response;
  };
}

function textOf(result) {
  return result.content.map((block) => block.text).join("");
}

// `sdk` = { connect(url, wallet, wire), UnauthorizedError, finish(transport, callback),
//           call(client, params, onprogress), stepUp(error, session), describe(session) }
export async function walk(sdk, { url, csv }) {
  const wallet = new Wallet();
  const wire = new Wire();
  const session = { sdk, url, wallet, wire, ...(await connect(sdk, url, wallet, wire)) };

  const call = async (name, args, onprogress) =>
    sdk.call(session.client, { name, arguments: args }, onprogress);
  const report = { ...sdk.describe(session) };
  report.tools = (await session.client.listTools()).tools.map((tool) => tool.name);
  report.echo = textOf(await call("echo", { text: "grüß Gott" }));
  report.whoami = (await call("whoami", {})).structuredContent;
  report.progress = [];
  await call("count_slowly", { steps: 3, delay_s: 0.02 }, (step) => report.progress.push(step));
  report.saved = textOf(await steppingUp(session, () => call("save_csv", csv)));
  wallet.spoilAccessToken();
  report.after_refresh = textOf(await call("echo", { text: "again" }));
  report.callbacks = wallet.callbacks;
  report.granted = wallet.tokens().scope;
  report.exchanges = wire.exchanges;
  await session.client.close();
  return report;
}

async function connect(sdk, url, wallet, wire) {
  const first = sdk.open(url, wallet, wire);
  try {
    await first.client.connect(first.transport);
    return first;
  } catch (error) {
    if (!wallet.pending) throw error;
  }
  await sdk.finish(first.transport, await wallet.callback());
  const second = sdk.open(url, wallet, wire);
  await second.client.connect(second.transport);
  return second;
}

async function steppingUp(session, action) {
  try {
    return await action();
  } catch (error) {
    await session.sdk.askForMore?.(session, error);
    if (!session.wallet.pending) throw error;
  }
  await session.sdk.finish(session.transport, await session.wallet.callback());
  return action();
}

export async function main(sdk) {
  try {
    say({ report: await walk(sdk, JSON.parse(process.argv[2])) });
    process.exit(0);
  } catch (error) {
    console.error(error);
    process.exit(1);
  }
}
