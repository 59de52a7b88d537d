// A second, independent authorization server for the tests: oidc-provider with configuration only.
//
// Takes one JSON argument:
//   resources   resource URL -> "jwt" | "opaque": the form of the access tokens issued for it
//   scopes      every scope that a resource knows, as a list
//   tenants     account or client id -> org_id, the claim that names the organisation
//   account     who is signed in without being asked (default "alice")
//   clients     static clients in the form of RFC 7591
//   lifetime_s  of access tokens (default 300)
//   roles       account -> roles, the claim of that name (default none)
//   passwords   account -> password: people sign in by a form instead (default none)
//   signing     the private key (JWK) that signs tokens (default: new keys)
//   tls         paths of `key` and `certificate`, and the `port`, to serve https://localhost
// Prints one line of JSON, {"issuer": ...}, when it listens on a free loopback port, and ends when
// its standard input does, so that it never outlives the test that started it.

import { generateKeyPairSync, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createTlsServer } from "node:https";
import process from "node:process";

import Provider, { errors } from "oidc-provider";

const settings = {
  account: "alice",
  clients: [],
  lifetime_s: 300,
  passwords: null,
  roles: {},
  signing: null,
  tenants: {},
  tls: null,
  ...JSON.parse(process.argv[2]),
};

function signingKey(type, options, alg) {
  const { privateKey } = generateKeyPairSync(type, options);
  return { ...privateKey.export({ format: "jwk" }), alg, kid: `${alg}-1`, use: "sig" };
}

function newKeys() {
  return [
    signingKey("rsa", { modulusLength: 2048 }, "RS256"),
    signingKey("ec", { namedCurve: "P-256" }, "ES256"),
  ];
}

function resourceServer(resource) {
  const format = settings.resources[resource];
  return {
    scope: settings.scopes.join(" "),
    audience: resource,
    accessTokenTTL: settings.lifetime_s,
    accessTokenFormat: format,
    jwt: format === "jwt" ? { sign: { alg: "RS256" } } : undefined,
  };
}

function configuration() {
  return {
    clients: settings.clients,
    claims: { openid: ["sub"] },
    cookies: { keys: [randomBytes(32).toString("hex")] },
    jwks: { keys: settings.signing ? [settings.signing] : newKeys() },
    scopes: settings.scopes,
    clientBasedCORS: () => true,
    findAccount: (_ctx, sub) => ({ accountId: sub, claims: () => ({ sub }) }),
    issueRefreshToken: (_ctx, client) => client.grantTypeAllowed("refresh_token"),
    expiresWithSession: () => false,
    extraTokenClaims: (_ctx, token) => ({
      org_id: settings.tenants[token.accountId ?? token.clientId],
      roles: settings.roles[token.accountId],
    }),
    interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: false },
      dPoP: { enabled: true },
      introspection: {
        enabled: true,
        // Only a confidential client may ask, as RFC 7662 section 2.1 wants.
        allowedPolicy: (_ctx, client) => client.clientAuthMethod !== "none",
      },
      registration: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: (_ctx, resource) => {
          if (!(resource in settings.resources)) throw new errors.InvalidTarget();
          return resourceServer(resource);
        },
      },
      revocation: { enabled: true },
    },
  };
}

async function approve(provider, { params, session, grantId }, { details }) {
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  if (details.missingOIDCScope) grant.addOIDCScope(details.missingOIDCScope.join(" "));
  for (const [resource, scopes] of Object.entries(details.missingResourceScopes ?? {})) {
    grant.addResourceScope(resource, scopes.join(" "));
  }
  return { consent: { grantId: await grant.save() } };
}

async function bodyOf(request) {
  const chunks = await request.toArray();
  return Buffer.concat(chunks).toString();
}

// The account of a posted form with the right password, or null.
async function signedIn(request) {
  if (request.method !== "POST") return null;
  const form = new URLSearchParams(await bodyOf(request));
  const account = form.get("login");
  return settings.passwords[account] === form.get("password") ? account : null;
}

const FORM = `<!doctype html><title>Sign in</title><form method="post">
<input name="login"><input name="password" type="password"><button>Sign in</button></form>`;

// Signs in the configured account, or one with its password, and consents without asking a person.
async function interact(provider, request, response) {
  const interaction = await provider.interactionDetails(request, response);
  const login = interaction.prompt.name === "login";
  const account = login && settings.passwords ? await signedIn(request) : settings.account;
  if (account === null) {
    response.writeHead(200, { "Content-Type": "text/html" }).end(FORM);
    return;
  }
  const result = login
    ? { login: { accountId: account } }
    : await approve(provider, interaction, interaction.prompt);
  await provider.interactionFinished(request, response, result, {
    mergeWithLastSubmission: interaction.prompt.name !== "login",
  });
}

// Registers clients without the scopes they name: SDKs name what the first challenge did, and this
// server would hold them to it for good, so that no client could step up.
async function withoutScopes(request) {
  const { scope: _, ...metadata } = JSON.parse(await bodyOf(request));
  request.body = metadata;
}

function serve(server) {
  const { port } = server.address();
  const origin = settings.tls ? `https://localhost:${port}` : `http://127.0.0.1:${port}`;
  const provider = new Provider(origin, configuration());
  const callback = provider.callback();
  const answer = async (request, response) => {
    if (request.url.startsWith("/interaction/")) {
      await interact(provider, request, response);
      return;
    }
    if (request.method === "POST" && request.url === "/reg") await withoutScopes(request);
    callback(request, response);
  };
  server.on("request", (request, response) => {
    answer(request, response).catch((error) => {
      console.error(error);
      response.writeHead(500).end(String(error));
    });
  });
  provider.on("server_error", (_ctx, error) => console.error(error));
  process.stdout.write(`${JSON.stringify({ issuer: provider.issuer })}\n`);
}

function listener() {
  if (settings.tls === null) return createServer();
  const { key, certificate } = settings.tls;
  return createTlsServer({ key: readFileSync(key), cert: readFileSync(certificate) });
}

const server = listener();
server.listen(settings.tls?.port ?? 0, "127.0.0.1", () => serve(server));
process.stdin.on("end", () => process.exit(0)).resume();
