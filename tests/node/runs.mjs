// Runs a program again and again in one process, since most of a run is to load its modules:
//
//   node runs.mjs PROGRAM
//
// A line of standard input has the arguments of a run, a line of standard output says how it ended.
// A run ends as it would by itself: by process.exit, or when nothing is left to do. The next one
// begins when nothing is left of it; a timer that goes on after process.exit holds it up.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const program = process.argv[2];
const ours = new Set([process.stdin, process.stdout, process.stderr]);
const answer = process.stdout.write.bind(process.stdout);
const exit = process.exit.bind(process);
let said;
let runs = 0;

function end(code) {
  if (said) answer(`${JSON.stringify({ code: Number(code ?? 0), ...said })}\n`);
  said = undefined;
}

for (const name of ["stdout", "stderr"]) {
  process[name].write = (text, ...rest) => {
    if (said) said[name] += text;
    const written = rest.find((each) => typeof each === "function");
    if (written) process.nextTick(written);
    return true;
  };
}
process.exit = (code = process.exitCode) => {
  end(code);
  // The end of a process closes its connections.
  for (const open of process._getActiveHandles()) if (!ours.has(open)) open.destroy?.();
  // Nothing after it may be run.
  throw new Error("this run has ended");
};
process.on("unhandledRejection", (reason) => {
  if (said) throw reason;
});

const lines = createInterface({ input: process.stdin });
lines.on("close", () => exit(0));
lines.on("line", (line) => {
  // Our own input must not keep the process alive, or the end of the run would not be seen.
  lines.pause();
  process.stdin.unref();
  // A run that waits for nothing must not end the process before beforeExit answers for it.
  setImmediate(() => {});
  said = { stdout: "", stderr: "" };
  process.exitCode = undefined;
  process.argv = [process.execPath, program, ...JSON.parse(line)];
  // Only the file itself is evaluated again; what it imports stays.
  import(`${pathToFileURL(program)}?run=${(runs += 1)}`);
});
process.on("beforeExit", (code) => {
  end(code);
  process.stdin.ref();
  lines.resume();
});
