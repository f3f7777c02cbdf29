// Why this action: bars for each dimension, arrows from mu to mu*, and a table of memories.

import { address } from "./api.js";
import { byId, h, number, signed, svg } from "./dom.js";

const PICTURES = 12;

const furthest = (answer, before) =>
  Math.max(1.1, ...answer.mean.map(Math.abs), ...(answer.anchor ?? []).map(Math.abs), ...(before ?? []).map(Math.abs));

// Names without a last word that all of them share: "thigh torque", "leg torque" -> "thigh", "leg"
export function shortNames(names) {
  const last = names[0].slice(names[0].lastIndexOf(" ") + 1);
  const shared = names.length > 1 && names.every((name) => name.endsWith(` ${last}`));
  return shared ? names.map((name) => name.slice(0, -last.length - 1)) : names;
}

const brief = (name) => (name.length > 20 ? `${name.slice(0, 19)}…` : name);

function bar(i, answer, before, reach, names) {
  // The track is the action range [-1, 1]; means may lie beyond it and are clipped when they act
  const place = (value) => `${50 + (47 * Math.max(-reach, Math.min(reach, value))) / reach}%`;
  const mean = answer.mean[i], sigma = answer.std[i];
  const left = Math.max(-reach, mean - sigma), right = Math.min(reach, mean + sigma);
  const parts = [
    svg("rect", { x: place(-1), y: 8, width: `${94 / reach}%`, height: 6, rx: 3, fill: "var(--track)" }),
    svg("line", { x1: "50%", x2: "50%", y1: 4, y2: 18, stroke: "var(--line)" }),
    svg("rect", { x: place(left), y: 6, width: `${(47 * (right - left)) / reach}%`, height: 10, rx: 3, fill: "var(--mean)", opacity: 0.3 }),
  ];
  if (answer.anchor) {
    const anchor = answer.anchor[i];
    parts.push(
      svg("line", { x1: place(anchor), x2: place(mean), y1: 11, y2: 11, stroke: "var(--mean)", "stroke-width": 2 }),
      svg("circle", { cx: place(anchor), cy: 11, r: 4, fill: "var(--panel)", stroke: "var(--muted)", "stroke-width": 2 }),
    );
  }
  if (before) parts.push(svg("line", { x1: place(before[i]), x2: place(before[i]), y1: 1, y2: 21, stroke: "var(--other)", "stroke-width": 3 }));
  parts.push(svg("circle", { cx: place(mean), cy: 11, r: 5, fill: "var(--mean)" }));
  const changed = before && Math.abs(mean - before[i]) >= 0.0005;
  return h(
    "div",
    { class: "bar" },
    h("span", { class: "muted", title: names[i] }, shortNames(names)[i]),
    svg(
      "svg", { role: "img", "aria-label": sigma > 0 ? `${names[i]}: mean ${number(mean)}, sigma ${number(sigma)}` : `${names[i]}: logit ${number(mean)}` },
      svg("svg", { y: "50%", overflow: "visible" }, svg("g", { transform: "translate(0 -11)" }, ...parts)),
    ),
    h("output", { "data-action": i }, signed(mean, 3), changed ? h("small", {}, signed(mean - before[i], 3)) : null),
  );
}

export function showBars(answer, before, beforeName, names) {
  const holder = byId("bars");
  if (!answer) {
    holder.replaceChildren(h("p", { class: "note" }, "Play the policy or choose a remembered episode to see its actions."));
    return;
  }
  const reach = furthest(answer, before);
  const item = (name, text) => h("span", {}, h("i", { class: name }), text);
  holder.replaceChildren(...answer.mean.map((_, i) => bar(i, answer, before, reach, names)));
  holder.classList.toggle("held", Boolean(before));
  holder.classList.toggle("many", answer.mean.length > 8);
  holder.style.setProperty("--bars", Math.ceil(answer.mean.length / (answer.mean.length > 8 ? 2 : 1)));
  // Discrete actions have logits, and no sigma
  const keys = answer.std.some((sigma) => sigma > 0) ? [item("mean", "mean"), item("sigma", "± σ")] : [item("mean", "logit")];
  if (answer.anchor) keys.push(item("anchor", "Σ w μ"));
  if (before) keys.push(item("other", beforeName));
  byId("action-keys").replaceChildren(...keys);
}

export function showState(answer, names) {
  if (answer?.depends) return byId("state").replaceChildren(h("span", {}, answer.depends));
  const values = answer?.state.slice(0, 27).map((value, i) => h("span", { title: names[i] }, signed(value))) ?? [];
  return byId("state").replaceChildren(...(values.length ? [h("b", {}, "state"), ...values] : []));
}

function arrow(x1, y1, x2, y2, share) {
  const opacity = 0.18 + 0.82 * share;
  return svg(
    "g",
    { opacity, stroke: "var(--mean)", fill: "var(--mean)" },
    svg("line", { x1, y1, x2, y2, "stroke-width": 1 + 1.6 * share }),
    svg("circle", { cx: x1, cy: y1, r: 2.4, fill: "var(--raised)" }),
    svg("circle", { cx: x2, cy: y2, r: 2 + 2.5 * share, stroke: "none" }),
  );
}

// A range around the mean that holds all values
function range(centre, values) {
  const reach = 1.15 * Math.max(0.05, ...values.map((value) => Math.abs(value - centre)));
  return [centre - reach, centre + reach];
}

export function showArrows(answer, pair, names) {
  const memories = (answer?.memories ?? []).slice(0, answer?.mean.length === 1 ? 16 : 24);
  const holder = byId("arrows");
  byId("arrows-holder").hidden = !memories.length;
  if (!memories.length) return holder.replaceChildren();
  const one = answer.mean.length === 1;
  const [width, height] = one ? [200, 30 + 9 * memories.length] : [200, 200];
  const [i, j] = one ? [0, 0] : pair, short = shortNames(names).map(brief);
  const ends = (d) => range(answer.mean[d], memories.flatMap((memory) => [memory.mean[d], memory.improved[d]]));
  const [left, right] = ends(i), [bottom, top] = ends(j);
  const x = (value) => (width * (value - left)) / (right - left);
  const y = (value) => (height * (top - value)) / (top - bottom);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "mu to improved mu of the memories behind the action" });
  const frame = { stroke: "var(--line)", "stroke-width": 1.5 };
  const mark = { stroke: "var(--text)", "stroke-width": 1.5, fill: "none" };
  drawing.append(svg("line", { x1: x(0), x2: x(0), y1: 0, y2: height, ...frame }));
  if (!one) drawing.append(svg("line", { y1: y(0), y2: y(0), x1: 0, x2: width, ...frame }));
  memories.toReversed().forEach((memory, k) => {
    const share = Math.abs(memory.weight / memories[0].weight);
    const row = 12 + 9 * (memories.length - 1 - k);
    const ys = one ? [row, row] : [y(memory.mean[j]), y(memory.improved[j])];
    drawing.append(arrow(x(memory.mean[i]), ys[0], x(memory.improved[i]), ys[1], share));
  });
  const [px, py] = [x(answer.mean[i]), y(answer.mean[j])];
  drawing.append(
    one
      ? svg("line", { x1: px, x2: px, y1: 4, y2: height - 14, "stroke-dasharray": "3 2", ...mark })
      : svg("circle", { cx: px, cy: py, r: 6, ...mark }),
  );
  const label = (text, tx, ty, anchor) => svg("text", { x: tx, y: ty, fill: "var(--muted)", "font-size": 10, "text-anchor": anchor }, text);
  drawing.append(label(signed(left), 5, height - 5, "start"), label(`${signed(right)}`, width - 5, height - 5, "end"), label(`${short[i]} →`, width / 2, height - 5, "middle"));
  if (!one) drawing.append(label(`${short[j]} ↑ ${signed(top)}`, 5, 12, "start"));
  return holder.replaceChildren(drawing);
}

// How much the state is like what is remembered; what the number means is in the title
export function showFamiliarity(answer) {
  const meter = byId("familiarity");
  const score = answer?.familiarity ?? null;
  meter.hidden = score === null;
  if (score === null) return;
  meter.textContent = score === 0 ? "unlike anything remembered" : `familiarity ${number(100 * score, 0)}\u00a0%`;
  meter.style.setProperty("--share", `${100 * score}%`);
  meter.classList.toggle("strange", score < 0.05);
}

export function showSentence(answer, info) {
  const text = byId("why-text");
  if (!answer) return (text.textContent = "");
  if (!info.weighted) {
    text.textContent = `A ${info.policy} has no per-memory weights: its network answers for all memories at once.`;
    return undefined;
  }
  const about = number(answer.effective_neighbours, answer.effective_neighbours < 10 ? 1 : 0);
  const kind = answer.exact ? "It is the sum of what memories add, and rests on" : "Its attention rests on";
  text.textContent = `${kind} about ${about} of ${(info.rows - info.forgotten).toLocaleString("en")}; those shown sum to ${number(100 * answer.memories.reduce((sum, m) => sum + m.weight, 0), 0)}\u00a0%.`;
  return undefined;
}

export class MemoryTable {
  constructor({ onPoint, onPick }) {
    this.holder = byId("memories");
    Object.assign(this, { onPoint, onPick, pictures: true, timer: 0, urls: [] });
  }

  show(answer, info, model, selected) {
    clearTimeout(this.timer);
    if (!answer || !info.weighted) {
      const text = answer ? "The map, the episode and the action are all there is to see of this policy. MKI, nearest-neighbour and attentive policies show their memories here." : "";
      this.holder.replaceChildren(h("p", { class: "note" }, text));
      return;
    }
    this.names = shortNames(info.action_names).map(brief);
    const largest = answer.memories[0]?.weight ?? 1;
    const rows = answer.memories.map((memory, k) => this.row(memory, k, largest, selected, answer.exact));
    const picture = this.pictures ? h("th", {}, "state") : null;
    const head = h("tr", {}, picture, ...["share", "ep. · step", "iter.", "adv.", "μ → μ*", ...(answer.exact ? ["adds"] : [])].map((name) => h("th", { class: ["iter.", "adds"].includes(name) ? "wide" : null }, name)));
    this.holder.replaceChildren(h("table", {}, h("thead", {}, head), h("tbody", {}, rows)), this.note());
    // Not while scrubbing or playing: a simulator may take a moment to draw each
    if (this.pictures) this.timer = setTimeout(() => this.loadPictures(model), 300);
  }

  row(memory, k, largest, selected, exact) {
    const share = h("span", { class: "share" });
    share.style.width = `${Math.max(1, 34 * Math.abs(memory.weight / largest))}px`;
    const picture = this.pictures ? h("td", {}, k < PICTURES ? h("img", { alt: "", "data-row": memory.row }) : null) : null;
    const pick = () => this.onPick(memory.row);
    return h(
      "tr",
      {
        tabindex: 0, "data-memory": memory.row, class: selected.has(memory.row) ? "selected" : null,
        onclick: pick,
        onkeydown: (event) => event.key === "Enter" && pick(),
        onmouseenter: (event) => this.onPoint(memory.row, event.currentTarget.querySelector("img")),
        onmouseleave: () => this.onPoint(null),
      },
      picture,
      h("td", {}, share, `${number(100 * memory.weight, 1)} %`),
      h("td", {}, `${memory.episode} · ${memory.step}`),
      h("td", { class: "wide" }, String(memory.iteration)),
      h("td", {}, signed(memory.advantage)),
      h("td", {}, ...this.step(memory)),
      exact ? h("td", { class: "wide" }, signed(memory.adds[this.moved(memory)], 3)) : null,
    );
  }

  // Of many dimensions, the one that was improved most
  moved({ mean, improved }) {
    const moved = mean.map((value, i) => Math.abs(improved[i] - value));
    return moved.indexOf(Math.max(...moved));
  }

  step(memory) {
    const { mean, improved } = memory, i = this.moved(memory);
    const step = `${signed(mean[i])} → ${signed(improved[i])}`;
    return mean.length === 1 ? [step] : [h("small", { class: "muted" }, this.names[i]), h("br"), step];
  }

  note() {
    return this.reason ? h("p", { class: "note" }, `No pictures of remembered states: ${this.reason}`) : "";
  }

  keep(url) {
    this.urls.push(url);
    if (this.urls.length > 200) URL.revokeObjectURL(this.urls.shift());
    return url;
  }

  async loadPictures(model) {
    if (document.body.hasAttribute("data-playing")) return;
    for (const image of this.holder.querySelectorAll("img")) {
      const response = await fetch(address("picture", { model, row: image.dataset.row }));
      if (!image.isConnected) return response.body?.cancel();
      if (response.status === 404) continue; // this state only
      if (!response.ok) {
        this.pictures = false;
        this.reason = (await response.json()).error;
        this.holder.querySelectorAll("tr > :first-child").forEach((cell) => cell.remove());
        this.holder.append(this.note());
        return;
      }
      image.src = this.keep(URL.createObjectURL(await response.blob()));
    }
  }
}
