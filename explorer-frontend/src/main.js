// Starts the page, and ties its controls and keys to what they do.

import { ServerError, ask, begin } from "./api.js";
import { theme } from "./colour.js";
import { byId, h, setOptions } from "./dom.js";
import { listenToKeys, prepareHelp } from "./help.js";
import { showBars } from "./influence.js";
import { showLegend } from "./legend.js";
import { fail } from "./notice.js";
import { Page, first } from "./page.js";

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

function switchTheme(page) {
  setTheme(theme() === "dark" ? "light" : "dark");
  page.map.recolour();
  page.other?.recolour();
  showLegend(page.legend);
  page.placeOnMaps();
  page.player.drawStrip();
  page.lessonStrip.draw();
}

function listen(page) {
  const on = (id, event, action) => byId(id).addEventListener(event, () => Promise.resolve(action()).catch(fail));
  const compare = () => byId("compare").value || null;
  on("model", "change", () => page.open(byId("model").value, page.compared));
  on("compare", "change", () => page.open(page.edits.base, compare()));
  for (const id of ["projection", "map-x", "map-y"]) on(id, "change", async () => { await page.loadMaps(); await Promise.all([page.loadTrail(), page.explain()]); });
  for (const id of ["colour", "colour-dimension"]) on(id, "change", () => page.loadMaps());
  for (const id of ["arrow-x", "arrow-y"]) on(id, "change", () => { page.showAnswer(page.answer, page.held); page.showStrip(); });
  on("play-policy", "click", () => page.play());
  on("remembered", "change", () => byId("remembered").value && page.remember(Number(byId("remembered").value)));
  const lasso = () => {
    const active = byId("lasso").getAttribute("aria-pressed") !== "true";
    byId("lasso").setAttribute("aria-pressed", active);
    page.map.setLasso(active);
  };
  const fit = () => page.map.plot.reset();
  const besides = (offset) => {
    const usable = page.run.models.filter((model) => !model.problem);
    return usable[usable.findIndex((model) => model.key === page.edits.base) + offset]?.key;
  };
  const jump = (offset) => besides(offset) && page.open(besides(offset), page.compared).catch(fail);
  on("lasso", "click", lasso);
  on("fit", "click", fit);
  on("theme", "click", () => switchTheme(page));
  const { player, edits } = page;
  listenToKeys({
    ArrowLeft: (event) => player.pauseAt(player.step - (event.shiftKey ? 10 : 1)),
    ArrowRight: (event) => player.pauseAt(player.step + (event.shiftKey ? 10 : 1)),
    Home: () => player.pauseAt(0),
    End: () => player.pauseAt(player.length - 1),
    " ": () => player.toggle(),
    Escape: () => edits.select([]),
    f: () => edits.forget(),
    z: () => edits.undo(),
    p: () => page.run.env !== null && page.play().catch(fail),
    e: () => edits.evaluate(page.compared),
    a: () => edits.selectEpisodes(),
    l: lasso,
    0: fit,
    "[": () => jump(-1),
    "]": () => jump(1),
    c: () => page.open(page.edits.base, page.compared === null ? besides(-1) ?? null : null).catch(fail),
    t: () => switchTheme(page),
    "?": () => byId("help").showModal(),
    "/": () => byId("help").showModal(),
  });
}

// What Page.open will ask first
function beginMap(model, info) {
  const { projection, by } = first(info);
  begin("model", { model });
  begin("map", { model, frame: model, projection });
  begin("colour", { model, frame: model, by, dimension: 0 });
}

async function start() {
  setTheme(window.matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
  prepareHelp();
  const run = await ask("run");
  const options = run.models.map((model, i) => ({
    value: model.key,
    label: model.label + (i === run.models.length - 1 ? " (last)" : "") + (model.problem ? " – damaged" : ""),
    disabled: model.problem !== null,
  }));
  setOptions(byId("model"), options);
  setOptions(byId("compare"), [{ value: "", label: "nothing" }, ...options], "");
  byId("play-policy").disabled = run.env === null;
  const newest = run.models.findLast((model) => !model.problem);
  beginMap(newest.key, run.newest);
  const page = new Page(run); // which makes a WebGL context: the answers come meanwhile
  window.imelExplorer = page; // for the console, and for tests
  listen(page);
  showBars(null);
  await page.open(newest.key);
  if (run.env !== null) await page.play().catch(fail);
}

start().catch((error) => {
  console.error(error);
  const hint = error instanceof ServerError ? "" : "The map needs a browser with WebGL.";
  byId("map-a").replaceChildren(h("div", { class: "empty" }, h("p", {}, error.message), h("p", {}, hint)));
  fail(error);
});
