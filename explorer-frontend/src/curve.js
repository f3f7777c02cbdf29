// The learning curve along the bottom, with the checkpoints to jump to.

import { byId, compact, h, svg } from "./dom.js";

export const LEFT = 58, RIGHT = 18;
const TOP = 12, BOTTOM = 34;

export function lastStep({ curve, models, newest }) {
  return Math.max(newest.last_step ?? 1, ...models.map((model) => model.timesteps ?? 0), ...(curve?.steps ?? []));
}

export class Curve {
  constructor(run, onOpen) {
    Object.assign(this, { run, onOpen, current: null, compared: null });
    new ResizeObserver(() => this.draw()).observe(byId("curve"));
  }

  mark(current, compared) {
    Object.assign(this, { current, compared });
    this.draw();
  }

  draw() {
    const holder = byId("curve");
    const { width, height } = holder.getBoundingClientRect();
    if (!width) return;
    const { curve, models } = this.run;
    const known = models.filter((model) => model.timesteps !== null);
    if (!curve && known.length < 2) {
      const text = curve === null ? "No learning curve: this is a single model without the record of its training." : "";
      holder.replaceChildren(h("p", { class: "note" }, text));
      return;
    }
    const end = lastStep(this.run);
    const x = (steps) => LEFT + (steps / end) * (width - LEFT - RIGHT);
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}` });
    if (curve) this.drawReturns(drawing, curve, x, width, height);
    const line = height - BOTTOM + 12;
    drawing.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: line, y2: line, stroke: "var(--line)" }));
    for (const model of known) drawing.append(this.checkpoint(model, x(model.timesteps), line));
    const label = (px, anchor, text) => svg("text", { x: px, y: height - 4, "text-anchor": anchor }, text);
    drawing.append(
      label(LEFT, "start", "0"),
      label((LEFT + width - RIGHT) / 2, "middle", width < 600 ? "steps · ● checkpoints" : "environment steps · ● checkpoints: click to open, Shift+click to compare"),
      label(width - RIGHT, "end", compact(end)),
    );
    holder.replaceChildren(drawing);
  }

  drawReturns(drawing, curve, x, width, height) {
    const all = [...curve.returns].sort((a, b) => a - b);
    const low = all[Math.floor(0.02 * all.length)];
    const high = Math.max(all[all.length - 1], curve.evaluation?.mean ?? -Infinity);
    const span = high - low || 1;
    const floor = height - BOTTOM;
    const y = (value) => floor - ((Math.max(low, value) - low) / span) * (floor - TOP);
    for (const value of [low, high]) {
      drawing.append(
        svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), stroke: "var(--line)", "stroke-dasharray": "2 4" }),
        svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, compact(value)),
      );
    }
    drawing.append(svg("text", { x: LEFT - 8, y: (TOP + floor) / 2 + 4, "text-anchor": "end" }, "return"));
    const dots = curve.steps.map((steps, i) => `M${x(steps).toFixed(1)} ${y(curve.returns[i]).toFixed(1)}h.01`).join("");
    drawing.append(svg("path", { d: dots, stroke: "var(--before)", "stroke-width": 3, "stroke-linecap": "round", opacity: 0.28, fill: "none" }));
    const points = (values) => values.map((value, i) => `${x(curve.places[i]).toFixed(1)},${y(value).toFixed(1)}`);
    const band = [...points(curve.low), ...points(curve.high).reverse()].join(" ");
    drawing.append(
      svg("polygon", { points: band, fill: "var(--before)", opacity: 0.18 }),
      svg("polyline", { points: points(curve.mean).join(" "), fill: "none", stroke: "var(--before)", "stroke-width": 2 }),
    );
    if (!curve.evaluation) return;
    const { steps, mean } = curve.evaluation;
    const [px, py] = [x(steps), y(mean)];
    drawing.append(svg("path", { d: `M${px} ${py - 5}l5 5l-5 5l-5 -5z`, fill: "var(--good)" }, svg("title", {}, `deterministic evaluation: ${compact(mean)}`)));
  }

  checkpoint(model, px, py) {
    const broken = model.problem !== null;
    const state = broken ? "broken" : model.key === this.current ? "current" : model.key === this.compared ? "compared" : "";
    const open = (event) => !broken && this.onOpen(model.key, event.shiftKey);
    return svg(
      "g",
      {
        class: `checkpoint ${state}`, tabindex: 0, role: "button", "aria-label": `open ${model.label}`,
        onclick: open, onkeydown: (event) => event.key === "Enter" && open(event),
      },
      svg("title", {}, broken ? model.problem : `${model.label}, ${model.timesteps.toLocaleString("en")} steps`),
      svg("circle", { cx: px, cy: py, r: 5.5 }),
    );
  }
}
