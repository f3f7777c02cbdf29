// Bundles the page's modules and regl-scatterplot into one file, with the licences of what is in it.
import { build } from "esbuild";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const target = "../src/imel/explorer/static";

const result = await build({
  entryPoints: ["src/main.js"],
  outfile: join(target, "explorer.js"),
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  metafile: true,
});

// node_modules/name/... or node_modules/@scope/name/...
const packages = new Set();
for (const file of Object.keys(result.metafile.inputs)) {
  const match = file.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (match) packages.add(match[1]);
}
const texts = [...packages].sort().map((name) => {
  const folder = join("node_modules", name);
  const { version, license, author } = JSON.parse(readFileSync(join(folder, "package.json")));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  const holder = typeof author === "string" ? author : author?.name;
  const text = file
    ? readFileSync(join(folder, file), "utf8").trim()
    : `${license} licence, by ${holder ?? "its authors"}`;
  return `${name} ${version} (${license})\n\n${text}\n`;
});
const rule = `\n${"-".repeat(78)}\n\n`;
writeFileSync(
  join(target, "licences.txt"),
  `explorer.js contains the following packages.\n${rule}${texts.join(rule)}`,
);
console.log(`bundled ${packages.size} packages: ${[...packages].sort().join(", ")}`);
