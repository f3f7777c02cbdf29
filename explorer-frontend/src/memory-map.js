// The map: memories drawn by regl-scatterplot, and above them the ones that make the action at hand.

import createScatterplot from "regl-scatterplot";
import { scale, theme } from "./colour.js";
import { h, sharpen, themeColour } from "./dom.js";

const TRAIL = 30;

const pointSize = (count) => Math.max(2.2, Math.min(6, 260 / Math.sqrt(count)));

export class MemoryMap {
  constructor(holder, { onSelect, onHover, onView }) {
    this.holder = holder;
    this.canvas = h("canvas", {});
    this.overlay = h("canvas", { class: "overlay" });
    this.caption = h("div", { class: "caption" });
    holder.replaceChildren(this.canvas, this.overlay, this.caption);
    this.lit = { rows: [], weights: [] };
    this.trail = null;
    this.step = 0;
    this.drawn = Promise.resolve();
    this.current = null;
    this.pointed = null;
    const { width, height } = holder.getBoundingClientRect();
    this.plot = createScatterplot({
      canvas: this.canvas, width, height, aspectRatio: width / height,
      pointSizeSelected: 3, pointOutlineWidth: 2, deselectOnEscape: false, deselectOnDblClick: false,
      lassoMinDelay: 8, lassoMinDist: 3, opacityInactiveMax: 0.5, opacityInactiveScale: 0.6,
    });
    this.plot.subscribe("select", ({ points }) => onSelect(points));
    this.plot.subscribe("deselect", () => onSelect([]));
    this.plot.subscribe("pointOver", (row) => onHover(row, this.plot.getScreenPosition(row), holder));
    this.plot.subscribe("pointOut", () => onHover(null));
    this.plot.subscribe("view", ({ view }) => {
      this.drawOverlay();
      onView(view);
    });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(holder);
  }

  resize() {
    const { width, height } = this.holder.getBoundingClientRect();
    if (!width || !height) return;
    this.plot.set({ width, height, aspectRatio: width / height });
    this.drawOverlay();
  }

  setPoints(...what) {
    // The plot refuses to be drawn while it is being drawn: one after the other
    this.drawn = this.drawn.catch(() => {}).then(() => this.drawPoints(...what));
    return this.drawn;
  }

  async drawPoints(points, values, { diverging }, hidden) {
    // points: x and y in turn; values: what colours them; hidden: rows that are forgotten
    const count = values.length;
    const x = new Float32Array(count), y = new Float32Array(count);
    for (let i = 0; i < count; i++) [x[i], y[i]] = [points[2 * i], points[2 * i + 1]];
    Object.assign(this, { x, y, diverging });
    this.recolour();
    await this.plot.draw({ x, y, valueA: values }, { zDataType: "continuous" });
    await this.hide(hidden);
    this.drawOverlay();
  }

  recolour() {
    this.plot.set({
      backgroundColor: themeColour("--map"),
      pointColor: scale(this.diverging, theme()), colorBy: "valueA",
      pointColorActive: themeColour("--accent"), pointColorHover: themeColour("--text"),
      pointSize: pointSize(this.x?.length ?? 1), lassoColor: themeColour("--accent"),
      opacity: this.x?.length > 20000 ? 0.55 : 0.85,
    });
  }

  async hide(rows) {
    if (!rows?.size) return this.plot.get("isPointsFiltered") && this.plot.unfilter({ preventEvent: true });
    const kept = [];
    for (let row = 0; row < this.x.length; row++) if (!rows.has(row)) kept.push(row);
    return this.plot.filter(kept, { preventEvent: true });
  }

  select(rows) {
    if (rows.length) this.plot.select(rows, { preventEvent: true });
    else this.plot.deselect({ preventEvent: true });
  }

  setLasso(on) {
    this.plot.set({ mouseMode: on ? "lasso" : "panZoom" });
  }

  light(rows, weights) {
    this.lit = { rows, weights };
    this.drawOverlay();
  }

  toScreen(x, y, width, height) {
    // The data's square is stretched to the canvas, so its aspect cancels the view's
    const view = this.plot.get("camera").view;
    const aspect = width / height;
    const clipX = (view[0] * x * aspect + view[4] * y + view[12]) / aspect;
    const clipY = view[1] * x * aspect + view[5] * y + view[13];
    return [((clipX + 1) / 2) * width, ((1 - clipY) / 2) * height];
  }

  drawOverlay() {
    const { context, width, height } = sharpen(this.overlay);
    context.clearRect(0, 0, width, height);
    if (!this.x) return;
    const at = (x, y) => this.toScreen(x, y, width, height);
    this.drawTrail(context, at);
    this.drawLit(context, at);
    if (this.current) this.drawCurrent(context, at(...this.current));
  }

  drawTrail(context, at) {
    // Where the episode comes from and where it goes next, the nearer the clearer
    if (!this.trail) return;
    const steps = this.trail.length / 2;
    const place = (t) => at(this.trail[2 * t], this.trail[2 * t + 1]);
    context.strokeStyle = themeColour("--text");
    context.lineWidth = 1.3;
    for (let t = Math.max(1, this.step - TRAIL); t < Math.min(steps, this.step + TRAIL); t++) {
      context.globalAlpha = 0.75 * (1 - Math.abs(t - this.step) / TRAIL);
      context.beginPath();
      context.moveTo(...place(t - 1));
      context.lineTo(...place(t));
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  drawLit(context, at) {
    const { rows, weights } = this.lit;
    const largest = weights[0] ?? 1;
    // A ring's area is the memory's weight, at any step
    const colours = [themeColour("--mean"), themeColour("--against")];
    for (let k = rows.length - 1; k >= 0; k--) {
      const share = Math.abs(weights[k] / largest);
      context.fillStyle = context.strokeStyle = colours[weights[k] < 0 ? 1 : 0];
      const [px, py] = at(this.x[rows[k]], this.y[rows[k]]);
      context.beginPath();
      context.arc(px, py, 2 + 26 * Math.sqrt(Math.abs(weights[k])), 0, 7);
      context.globalAlpha = 0.05 + 0.17 * share;
      context.fill();
      context.globalAlpha = 0.35 + 0.65 * share;
      context.lineWidth = 1.5;
      context.stroke();
    }
    context.globalAlpha = 1;
    if (this.pointed === null || this.pointed === undefined) return;
    context.beginPath();
    context.arc(...at(this.x[this.pointed], this.y[this.pointed]), 17, 0, 7);
    context.strokeStyle = themeColour("--text");
    context.lineWidth = 2.5;
    context.stroke();
  }

  drawCurrent(context, [px, py]) {
    for (const [colour, width] of [[themeColour("--map"), 5], [themeColour("--text"), 2]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      context.moveTo(px - 9, py); context.lineTo(px - 3, py);
      context.moveTo(px + 3, py); context.lineTo(px + 9, py);
      context.moveTo(px, py - 9); context.lineTo(px, py - 3);
      context.moveTo(px, py + 3); context.lineTo(px, py + 9);
      context.stroke();
    }
  }
}
