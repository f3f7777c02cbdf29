// Bundles the page's modules and regl-scatterplot into one file, with the licences of what is in it.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const target = "../src/imel/explorer/static";

const POLYLINE = `The normals of lines in regl-line are computed by code under the MIT licence,
Copyright (c) 2015 Matt DesLauriers.
`;

// What it was built from stands at its beginning; a test compares it with the sources
const sources = readdirSync("src").sort().map((name) => join("src", name));
const digest = createHash("sha256");
for (const file of [...sources, "package-lock.json"]) digest.update(readFileSync(file));

await build({
  entryPoints: ["src/main.js"],
  outfile: join(target, "explorer.js"),
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  banner: { js: `// sources: sha256 ${digest.digest("hex")}; licences: /licences.txt` },
});

// regl-scatterplot comes with what it needs already in it: all that is not for building only.
const { packages } = JSON.parse(readFileSync("package-lock.json"));
const shipped = Object.keys(packages).filter((path) => path && !packages[path].dev);
const names = new Set(shipped.map((path) => path.split("node_modules/").at(-1)));
names.add("kdbush"); // copied into regl-scatterplot's source
const texts = [...names].sort().map((name) => {
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
  `explorer.js contains the following packages.\n${rule}${texts.join(rule)}${rule}${POLYLINE}`,
);
console.log(`bundled ${names.size} packages: ${[...names].sort().join(", ")}`);
