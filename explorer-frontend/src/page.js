// The page: which model, which map, which step; and who has to be told when one of them changes.

import { arrays, ask } from "./api.js";
import { Curve, lastStep } from "./curve.js";
import { byId, h, numbered, setOptions } from "./dom.js";
import { Edits } from "./edit.js";
import { MemoryTable, showArrows, showBars, showFamiliarity, showSentence, showState } from "./influence.js";
import { LessonCards, LessonStrip, lessonSentence } from "./lessons.js";
import { showAxes, showLegend, showMemory, showPicture } from "./legend.js";
import { MemoryMap } from "./memory-map.js";
import { fail } from "./notice.js";
import { Player } from "./player.js";

const options = (pairs) => Object.entries(pairs).map(([value, label]) => ({ value, label }));

const PROJECTIONS = {
  memories: options({ features: "learned features", states: "normalised state", dimensions: "two dimensions" }),
  lessons: options({ run: "over the run", taught: "by what they taught" }),
};
const COLOURS = {
  memories: options({ advantage: "advantage", return: "return of episode", age: "age (iteration)", reward: "reward", action: "action taken", improved: "improved mean μ*" }),
  lessons: options({ size: "size", return: "return of episode", age: "age" }),
};

// What a page shows first of a model that is made of memories or of lessons
export function first(info) {
  return { projection: info.projection, by: COLOURS[info.kind][0].value };
}

export class Page {
  constructor(run) {
    this.run = run;
    this.compared = null;
    this.answer = null;
    this.asking = null;
    this.turn = 0;
    const handlers = (which) => ({
      onSelect: (rows) => this.edits.select([...rows]),
      onHover: (row, place, holder) => showMemory(this.columns, row, place, holder),
      onView: (view) => this.alignViews(which, view),
    });
    this.map = new MemoryMap(byId("map-a"), handlers("map"));
    this.edits = new Edits({
      onModel: () => this.modelChanged(),
      onPlay: () => this.play().catch(fail),
      onSelection: (rows) => this.selectionChanged(rows),
      onError: fail,
      columns: () => this.columns,
    });
    this.player = new Player({ onStep: () => this.explain(), onGrown: () => this.loadTrail(), onError: fail });
    const onPick = (row) => this.edits.toggle(row);
    const onPoint = (row, image) => {
      this.map.pointed = row;
      this.map.drawOverlay();
      showPicture(image);
    };
    this.table = new MemoryTable({ onPoint, onPick });
    this.cards = new LessonCards({ onPick, onPoint: (row) => { onPoint(row); this.lessonStrip.pointed = row; this.lessonStrip.draw(); } });
    this.lessonStrip = new LessonStrip({ end: lastStep(run), onPick, onSelect: (rows) => this.edits.select(rows), onPoint });
    this.curve = new Curve(run, (key, compare) => this.open(compare ? this.edits.base : key, compare ? key : this.compared));
    this.otherHandlers = () => ({ ...handlers("other"), onSelect: () => {}, onHover: () => {} });
  }

  // --- models ---

  async open(base, compared = null) {
    if (compared === base) compared = null;
    const fresh = base !== this.edits.base;
    this.compared = compared;
    byId("model").value = base;
    byId("compare").value = compared ?? "";
    this.info = await ask("model", { model: base });
    if (fresh) {
      this.edits.reset(base, this.run.env !== null, this.info.kind);
      this.columns = null;
      this.describe();
      this.lessonStrip.show({ columns: null, shares: null, forgotten: new Set() });
    }
    this.edits.show(compared);
    this.curve.mark(base, compared);
    await this.loadMaps();
    await Promise.all([this.loadTrail(), this.explain(), fresh ? this.loadColumns() : null]);
  }

  describe() {
    const { policy, kind, rows, state_names, action_names, has_features } = this.info;
    byId("title").textContent = this.run.title;
    document.title = `${this.run.title} – imel explore`;
    byId("subtitle").textContent = [this.run.env, policy, `${rows.toLocaleString("en")} ${kind}`].filter(Boolean).join(" · ");
    const [x, y] = [byId("map-x").value || "0", byId("map-y").value || String(Math.min(1, state_names.length - 1))];
    setOptions(byId("map-x"), numbered(state_names), x);
    setOptions(byId("map-y"), numbered(state_names), y);
    for (const [id, first] of [["colour-dimension", 0], ["arrow-x", 0], ["arrow-y", 1]]) {
      setOptions(byId(id), numbered(action_names), byId(id).value || String(Math.min(first, action_names.length - 1)));
    }
    byId("arrow-pair").hidden = action_names.length < 2;
    if (document.body.dataset.kind === kind) return;
    document.body.dataset.kind = kind;
    byId("lasso").title = "Lasso (L), or hold Shift and drag";
    const begun = first(this.info);
    setOptions(byId("projection"), PROJECTIONS[kind].map((option) => ({ ...option, disabled: option.value === "features" && !has_features })), begun.projection);
    setOptions(byId("colour"), COLOURS[kind], begun.by);
  }

  label(key) {
    return this.run.models.find((model) => model.key === key)?.label ?? key;
  }

  async modelChanged() {
    this.info = await ask("model", { model: this.edits.model });
    this.lessonStrip.show({ forgotten: this.edits.forgotten });
    await this.map.hide(this.edits.forgotten);
    await Promise.all([this.explain(), this.loadTrail()]);
  }

  selectionChanged(rows) {
    this.map.select(rows);
    const chosen = new Set(rows.map(String));
    for (const row of document.querySelectorAll("[data-memory], [data-lesson]")) row.classList.toggle("selected", chosen.has(row.dataset.memory ?? row.dataset.lesson));
    this.lessonStrip.show({ selected: new Set(rows) });
  }

  // --- maps ---

  where() {
    const chosen = byId("projection").value;
    const projection = chosen === "dimensions" ? `dimensions-${byId("map-x").value}-${byId("map-y").value}` : chosen;
    return { frame: this.edits.base, projection };
  }

  async loadMap(map, model, turn) {
    const by = byId("colour").value, dimension = byId("colour-dimension").value;
    const [points, colour] = await Promise.all([
      arrays("map", { model, ...this.where() }),
      arrays("colour", { model, frame: this.edits.base, by, dimension }),
    ]);
    if (turn !== this.turn) return null; // something else was asked for meanwhile
    const hidden = map === this.map ? this.edits.forgotten : null;
    await map.setPoints(points.points, colour.values, colour, hidden);
    return { points, colour };
  }

  async loadMaps() {
    byId("dimension-pair").hidden = byId("projection").value !== "dimensions";
    const dimensional = ["action", "improved"].includes(byId("colour").value);
    byId("colour-dimension-label").hidden = !dimensional || this.info.action_names.length < 2;
    byId("map-b").hidden = this.compared === null;
    if (this.compared !== null && !this.other) this.other = new MemoryMap(byId("map-b"), this.otherHandlers());
    const turn = (this.turn += 1);
    const [made] = await Promise.all([
      this.loadMap(this.map, this.edits.base, turn),
      this.compared === null ? null : this.loadMap(this.other, this.compared, turn),
    ]);
    if (made === null || turn !== this.turn) return;
    const { points, colour } = made;
    this.map.caption.replaceChildren(...(this.compared === null ? [] : [h("b", {}, this.label(this.edits.base))]));
    this.other?.caption.replaceChildren(h("b", {}, this.compared === null ? "" : this.label(this.compared)), ", in the same plane");
    this.legend = colour;
    showLegend(colour);
    showAxes(points.labels);
    document.body.dataset.ready = "map";
  }

  alignViews(which, view) {
    if (this.compared === null || !this.other) return;
    const follower = which === "map" ? this.other : this.map;
    follower.plot.view(view, { preventEvent: true });
    requestAnimationFrame(() => follower.drawOverlay());
  }

  async loadColumns() {
    const model = this.edits.base;
    const columns = await arrays("columns", { model });
    if (model !== this.edits.base) return;
    this.columns = columns;
    if (this.info.kind === "lessons") this.lessonStrip.show({ columns });
    const lengths = new Map();
    for (const episode of columns.remembered ?? columns.episodes) lengths.set(episode, (lengths.get(episode) ?? 0) + 1);
    const options = [...lengths].sort((a, b) => b[0] - a[0]).slice(0, 400)
      .map(([episode, steps]) => ({ value: String(episode), label: `episode ${episode} (${steps} steps)` }));
    setOptions(byId("remembered"), [{ value: "", label: "remembered episode …" }, ...options], "");
  }

  // --- the episode ---

  async play() {
    const seed = Math.max(0, Math.trunc(Number(byId("seed").value) || 0));
    const { model, base } = this.edits, noise = byId("noise").checked, start = `${base} ${seed} ${noise}`;
    if (this.shown?.model === base) this.whole = { ...this.shown, episode: this.player.episode };
    const name = `${model}-${noise ? "sampled" : "mean"}-${seed}`;
    this.shown = { model, start, name };
    this.player.before = model !== base && this.whole?.start === start ? this.whole : null;
    byId("remembered").value = "";
    this.clearTrail();
    await this.player.open(name, true);
  }

  async remember(number) {
    this.shown = this.player.before = null;
    this.clearTrail();
    await this.player.open(`${this.edits.base}-remembered-${number}`, false);
    await this.loadTrail();
  }

  clearTrail() {
    for (const map of [this.map, this.other]) if (map) Object.assign(map, { trail: null, current: null });
    Object.assign(this, { trail: null, strip: null });
  }

  async loadTrail() {
    const episode = this.player.name;
    if (!episode || !this.player.episode?.ended) return;
    const { model, base } = this.edits;
    const heldAgainst = this.compared ?? (model === base ? null : base);
    const [trail, held] = await Promise.all([
      arrays("trail", { episode, model, ...this.where() }),
      heldAgainst ? arrays("trail", { episode, model: heldAgainst, ...this.where() }) : null,
    ]);
    if (episode !== this.player.name) return;
    this.trail = trail;
    this.strip = [[trail, "--mean", false], [held, "--other", true]];
    this.showStrip();
    this.placeOnMaps();
  }

  showStrip() {
    const line = ([trail, colour, dashed]) => ({ values: trail.means, count: this.info.action_names.length, dimension: Number(byId("arrow-x").value), colour, dashed });
    this.player.setLines((this.strip ?? []).filter(([trail]) => trail?.means).map(line));
  }

  placeOnMaps() {
    const points = this.trail?.points;
    for (const map of [this.map, this.compared === null ? null : this.other]) {
      if (!map) continue;
      Object.assign(map, { trail: points?.length ? points : null, step: this.player.step });
      map.current = this.answer?.position ?? null;
      map.drawOverlay();
    }
  }

  async explain() {
    // Steps may come faster than answers: only the last one asked for is answered next
    if (this.asking) {
      this.again = true;
      return this.asking;
    }
    this.asking = this.explainNow().catch(fail);
    await this.asking;
    this.asking = null;
    if (this.again) {
      this.again = false;
      return this.explain();
    }
    return undefined;
  }

  async explainNow() {
    if (!this.player.length) return this.showAnswer(null, null);
    const query = { episode: this.player.name, step: this.player.step, ...this.where() };
    const { model, base } = this.edits;
    const heldAgainst = this.compared ?? (model === base ? null : base);
    const [answer, held] = await Promise.all([
      arrays("step", { ...query, model }),
      heldAgainst ? arrays("step", { ...query, model: heldAgainst }) : null,
    ]);
    this.showRemembered();
    this.showAnswer(answer, held);
    document.body.dataset.answered = `${query.step} ${model}`;
    return undefined;
  }

  showRemembered() {
    // A remembered episode has no frames, but the states in it may be drawn
    const rows = this.player.episode.rows;
    if (!rows.length) return;
    const image = byId("frame"), note = byId("frame-note");
    note.textContent = this.table.reason ? `No pictures of remembered states: ${this.table.reason}` : "";
    image.hidden = Boolean(this.table.reason);
    image.onerror = () => { image.hidden = true; note.textContent = "No picture of this remembered state."; };
    if (!image.hidden) image.src = `/api/picture?model=${this.edits.base}&row=${rows[this.player.step]}`;
  }

  showAnswer(answer, held) {
    this.answer = answer;
    this.held = held;
    const name = this.compared === null ? "before forgetting" : this.label(this.compared);
    const { action_names, state_names, kind, forgotten } = this.info, chosen = new Set(this.edits.selection);
    showBars(answer, held?.mean, name, action_names);
    showState(answer, state_names);
    showFamiliarity(answer);
    if (kind === "lessons") {
      byId("why-text").textContent = answer ? lessonSentence(answer, forgotten) : "";
      this.cards.show(answer, this.info, this.edits.base, chosen);
      this.lessonStrip.show({ shares: answer?.shares ?? null, forgotten: this.edits.forgotten });
    } else {
      showSentence(answer, this.info);
      showArrows(answer, [Number(byId("arrow-x").value), Number(byId("arrow-y").value)], action_names);
      this.table.show(answer, this.info, this.edits.base, chosen);
    }
    this.map.light(answer?.rows ?? [], answer?.weights ?? []);
    if (this.compared !== null) this.other?.light(held?.rows ?? [], held?.weights ?? []);
    this.placeOnMaps();
  }
}
