// Makes a component of a function in TypeScript or JavaScript: `node build.mjs function.ts -o function.wasm`. With `--test`, runs a test file in Node instead:
// `node build.mjs --test function.test.ts`.
//
// It needs rolldown, componentize-qjs and, for TypeScript, tsc: of the project's `node_modules`, or of the folder that WASMILL_TOOLS names. What is missing there it installs by npm.

import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const TOOLS = { "componentize-qjs": "0.4.5", rolldown: "1.3.3", typescript: "7.0.2" };
const SDK = dirname(fileURLToPath(import.meta.url));
// The engine's own initializer is called `init`, too: the export gets its name when the component is there.
const [PLACEHOLDER, NAME] = ["inix", "init"];

const scratch = mkdtempSync(join(tmpdir(), "wasmill-"));

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { output: { type: "string", short: "o" }, test: { type: "boolean", default: false } },
});
const [source] = positionals;
if (!source || positionals.length > 1 || (!options.test && !options.output)) fail("usage: build.mjs FUNCTION -o COMPONENT, or build.mjs --test TEST");
if (!existsSync(source)) fail(`${source} is not there`);
const project = dirname(resolve(source));
const modules = tools();
try {
  if (/\.m?ts$/.test(source)) checkTypes();
  if (options.test) await test();
  else await build();
} finally {
  rmSync(scratch, { recursive: true, force: true });
}

async function build() {
  const entry = join(scratch, "entry.js");
  const exported = `import Function from ${JSON.stringify(resolve(source))};
import { exportsOf } from ${JSON.stringify(join(SDK, "src/component.ts"))};
const { describe, init: ${PLACEHOLDER}, process, migration } = exportsOf(Function);
export { describe, ${PLACEHOLDER}, process, migration };
`;
  writeFileSync(entry, exported);
  const bundled = options.output.replace(/\.wasm$/, "") + ".bundle.js";
  await bundle(entry, bundled, [/^wasmill:/]);
  const contract = join(scratch, "wit");
  cpSync([join(SDK, "wit"), join(SDK, "../wit")].find(existsSync), contract, { recursive: true });
  const world = join(contract, "world.wit");
  writeFileSync(world, readFileSync(world, "utf8").replace(`export ${NAME}:`, `export ${PLACEHOLDER}:`));
  const made = ["--wit", contract, "-n", "migrating-operator", "--js", bundled, "--sync", "--stub-wasi", "-o", options.output];
  run(process.execPath, [join(modules, "componentize-qjs/bin/componentize-qjs"), ...made], "componentize-qjs");
  writeFileSync(options.output, renamed(readFileSync(options.output)));
  console.log(`${options.output} (${(statSync(options.output).size / 2 ** 20).toFixed(1)} MiB)`);
}

async function test() {
  const bundled = join(scratch, "test.mjs");
  await bundle(resolve(source), bundled, [/^node:/]);
  const ended = spawnSync(process.execPath, ["--enable-source-maps", "--test", bundled], { stdio: "inherit" });
  process.exitCode = ended.status ?? 1;
}

async function bundle(input, file, external) {
  const { rolldown } = await import(pathToFileURL(join(modules, "rolldown/dist/index.mjs")));
  const alias = { wasmill: join(SDK, "src/index.ts"), "wasmill/testing": join(SDK, "src/testing.ts") };
  const bundle = await rolldown({ input, external, resolve: { alias, extensionAlias: { ".js": [".ts", ".js"] } }, logLevel: "warn" });
  await bundle.write({ file, format: "esm", sourcemap: options.test ? "inline" : false });
}

function checkTypes() {
  if (existsSync(join(project, "tsconfig.json"))) run(process.execPath, [join(modules, "typescript/bin/tsc"), "--noEmit", "-p", project], "tsc");
}

/** The folder of the tools' packages. */
function tools() {
  const folder = process.env.WASMILL_TOOLS ? join(resolve(process.env.WASMILL_TOOLS), "node") : project;
  const installed = (name) => {
    const manifest = join(folder, "node_modules", name, "package.json");
    return existsSync(manifest) && JSON.parse(readFileSync(manifest, "utf8")).version === TOOLS[name];
  };
  const missing = Object.keys(TOOLS).filter((name) => !installed(name));
  if (missing.length > 0) {
    const packages = missing.map((name) => `${name}@${TOOLS[name]}`);
    console.error(`installing ${packages.join(", ")} into ${folder}`);
    mkdirSync(folder, { recursive: true });
    const npm = process.platform === "win32" ? "npm.cmd" : "npm";
    const ended = spawnSync(npm, ["install", "--prefix", folder, "--no-save", "--no-audit", "--no-fund", "--loglevel=error", ...packages], { encoding: "utf8" });
    const said = (ended.error?.message ?? `${ended.stderr}${ended.stdout}`).trim().split("\n")[0];
    if (ended.status !== 0) fail(`${packages.join(", ")} are needed and cannot be installed (${said}): install Node.js 20 or later with npm, and let npm reach its registry`);
  }
  return join(folder, "node_modules");
}

/** The component with its two exports of these names, the contract's and the engine's, having changed names. A component is a sequence of sections; 11 is that of its exports. */
function renamed(component) {
  let at = 8;
  let [wanted, engines] = [-1, -1];
  while (at < component.length) {
    const section = component[at++];
    let [size, shift, byte] = [0, 0, 0];
    do {
      byte = component[at++];
      size += (byte & 0x7f) * 2 ** shift;
      shift += 7;
    } while (byte & 0x80);
    if (section === 11) {
      const place = (name) => component.subarray(at, at + size).indexOf(String.fromCharCode(name.length) + name);
      if (place(PLACEHOLDER) >= 0) wanted = at + place(PLACEHOLDER) + 1;
      if (place(NAME) >= 0) engines = at + place(NAME) + 1;
    }
    at += size;
  }
  if (wanted < 0) fail(`${options.output} exports no function ${PLACEHOLDER}: this is no component of componentize-qjs ${TOOLS["componentize-qjs"]}`);
  component.write(NAME, wanted, "latin1");
  if (engines >= 0) component.write(PLACEHOLDER, engines, "latin1");
  return component;
}

function run(program, words, name) {
  const ended = spawnSync(program, words, { encoding: "utf8" });
  if (ended.status !== 0) fail(`${ended.stdout ?? ""}${ended.stderr ?? ""}${name} ended badly: see above`);
}

function fail(message) {
  console.error(message);
  rmSync(scratch, { recursive: true, force: true });
  process.exit(1);
}
