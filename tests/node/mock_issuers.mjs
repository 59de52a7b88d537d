// Issuers that are not ours, by oauth2-mock-server: each signs exactly the claims it is told.
//
// Takes one JSON argument: a name -> {"header": {...}, "claims": {...}, "algorithm": "RS256"}. The
// header has no "typ" if "typ" is null. Every issuer puts its own address into "iss".
// Prints one line of JSON, a name -> the issuer, when all listen on free loopback ports, and ends
// when its standard input does, so that it never outlives the test that started it.

import process from "node:process";

import { OAuth2Server } from "oauth2-mock-server";

async function start({ header, claims, algorithm }) {
  const server = new OAuth2Server();
  await server.issuer.keys.generate(algorithm);
  await server.start(0, "127.0.0.1");
  const issuer = server.issuer.url.replace("localhost", "127.0.0.1");
  server.issuer.url = issuer;
  server.service.on("beforeTokenSigning", (token) => {
    token.payload = { ...claims, iss: issuer };
    // A member without a value is left out of the header as it is written.
    Object.assign(token.header, header, header.typ === null ? { typ: undefined } : {});
  });
  return issuer;
}

const wanted = Object.entries(JSON.parse(process.argv[2]));
const started = await Promise.all(wanted.map(async ([name, one]) => [name, await start(one)]));
process.stdout.write(`${JSON.stringify(Object.fromEntries(started))}\n`);
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
