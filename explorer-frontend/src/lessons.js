// Lessons: cards of the largest ones behind an action, and all of them along the run.

import { address } from "./api.js";
import { LEFT, RIGHT } from "./curve.js";
import { byId, compact, h, number, sharpen, signed, themeColour } from "./dom.js";
import { placeTooltip } from "./legend.js";
import { shortNames } from "./influence.js";

const CLICK = 4;

export const percent = (share) => `${signed(100 * share, Math.abs(share) < 0.0995 ? 1 : 0)}\u00a0%`;

const named = (first, count) => (count === 1 ? `episode ${first}` : `episodes ${first} and ${count - 1} more`);

export class LessonCards {
  constructor({ onPick, onPoint }) {
    this.holder = byId("lessons");
    Object.assign(this, { onPick, onPoint, pictures: true, timer: 0, urls: new Map() });
  }

  show(answer, info, model, selected) {
    clearTimeout(this.timer);
    const lessons = answer?.lessons ?? [];
    const names = shortNames(info.action_names);
    this.holder.replaceChildren(...lessons.map((lesson) => this.card(lesson, names, model, selected)));
    if (this.reason) this.holder.append(h("p", { class: "note" }, `No pictures of lessons: ${this.reason}`));
    // Not while scrubbing or playing: a simulator may take a moment to draw each
    if (this.pictures) this.timer = setTimeout(() => this.loadPictures(model), 250);
  }

  card(lesson, names, model, selected) {
    const { row, share, moment, adds } = lesson;
    const known = this.urls.get(`${model} ${row} ${moment}`);
    const added = adds.map((value, i) => `${names[i]} ${signed(value, 3)}`).join(", ");
    return h(
      "button",
      {
        class: `lesson ${share < 0 ? "against" : "for"}${selected.has(row) ? " selected" : ""}`,
        "data-lesson": row, title: `steps ${lesson.steps} of the run, return ${compact(lesson.return)}; adds ${added}`, "aria-pressed": String(selected.has(row)),
        onclick: () => this.onPick(row), onmouseenter: () => this.onPoint(row), onmouseleave: () => this.onPoint(null),
      },
      this.pictures ? h("img", { alt: "", "data-moment": moment, src: known }) : null,
      h("b", {}, percent(share)),
      h("span", {}, `episode ${lesson.name}`),
      h("small", {}, `return ${compact(lesson.return)}`),
    );
  }

  async loadPictures(model) {
    if (document.body.hasAttribute("data-playing")) return;
    for (const card of this.holder.querySelectorAll(".lesson")) {
      const image = card.querySelector("img");
      if (!image || image.src) continue;
      const { lesson: row } = card.dataset, { moment } = image.dataset;
      const response = await fetch(address("picture", { model, row, number: moment }));
      if (!card.isConnected) return response.body?.cancel();
      if (response.status === 404) continue; // this state only
      if (!response.ok) {
        this.pictures = false;
        this.reason = (await response.json()).error;
        this.holder.querySelectorAll("img").forEach((each) => each.remove());
        this.holder.append(h("p", { class: "note" }, `No pictures of lessons: ${this.reason}`));
        return;
      }
      image.src = URL.createObjectURL(await response.blob());
      this.urls.set(`${model} ${row} ${moment}`, image.src);
      if (this.urls.size > 400) this.dropOldest();
    }
  }

  dropOldest() {
    const [oldest, url] = this.urls.entries().next().value;
    URL.revokeObjectURL(url);
    this.urls.delete(oldest);
  }
}

// A stick for each lesson under the learning curve: up if it speaks for the action, down if against
export class LessonStrip {
  constructor({ end, onPick, onSelect, onPoint }) {
    Object.assign(this, { end, onPick, onSelect, onPoint });
    Object.assign(this, { columns: null, shares: null, selected: new Set(), forgotten: new Set(), pointed: null, drag: null });
    this.canvas = byId("lesson-strip");
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.listen();
  }

  listen() {
    const at = (event) => event.clientX - this.canvas.getBoundingClientRect().left;
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = [at(event), at(event)];
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.drag) this.drag[1] = at(event);
      else this.point(this.nearest(at(event)), event);
      this.draw();
    });
    this.canvas.addEventListener("pointerup", () => {
      const [from, to] = this.drag ?? [0, 0];
      this.drag = null;
      if (Math.abs(to - from) >= CLICK) this.onSelect(this.between(Math.min(from, to), Math.max(from, to)));
      else this.pickAt(to);
      this.draw();
    });
    this.canvas.addEventListener("pointerleave", () => this.point(null));
  }

  pickAt(place) {
    const row = this.nearest(place);
    if (row !== null) this.onPick(row);
  }

  x(row, width) {
    return LEFT + (this.columns.places[row] / this.end) * (width - LEFT - RIGHT);
  }

  between(left, right) {
    const { width } = this.canvas.getBoundingClientRect();
    const rows = [];
    this.columns?.places.forEach((_, row) => {
      const place = this.x(row, width);
      if (place >= left && place <= right && !this.forgotten.has(row)) rows.push(row);
    });
    return rows;
  }

  // Of the lessons within a few pixels the one with the largest share
  nearest(place) {
    const size = (row) => Math.abs(this.shares?.[row] ?? 0);
    return this.between(place - 6, place + 6).reduce((best, row) => (best === null || size(row) > size(best) ? row : best), null);
  }

  point(row, event) {
    if (row !== this.pointed) this.onPoint(row);
    this.pointed = row;
    const tooltip = byId("tooltip");
    tooltip.hidden = row === null;
    if (row === null) return this.draw();
    const { episodes, counts, ends, returns } = this.columns;
    const share = this.shares ? ` · ${percent(this.shares[row])} of what speaks for the action` : "";
    tooltip.replaceChildren(h("b", {}, named(episodes[row], counts[row])), h("br"), `until step ${compact(ends[row])} · return ${compact(returns[row])}${share}`);
    return placeTooltip(event.clientX, event.clientY - 60);
  }

  show({ columns = this.columns, shares = this.shares, selected = this.selected, forgotten = this.forgotten }) {
    Object.assign(this, { columns, shares, selected, forgotten });
    this.draw();
  }

  draw() {
    const { context, width, height } = sharpen(this.canvas);
    context.clearRect(0, 0, width, height);
    if (!this.columns || !width) return;
    const middle = height * 0.6;
    context.fillStyle = themeColour("--muted");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillText("for", LEFT - 8, 14);
    context.fillText("against", LEFT - 8, height - 6);
    context.fillStyle = themeColour("--line");
    context.fillRect(LEFT, middle - 0.5, width - LEFT - RIGHT, 1);
    const largest = Math.max(1e-9, ...(this.shares ?? []).map(Math.abs));
    this.columns.places.forEach((_, row) => this.stick(context, row, this.x(row, width), middle, largest, height));
    if (!this.drag) return;
    context.globalAlpha = 0.2;
    context.fillStyle = themeColour("--accent");
    context.fillRect(Math.min(...this.drag), 0, Math.abs(this.drag[1] - this.drag[0]), height);
    context.globalAlpha = 1;
  }

  stick(context, row, x, middle, largest, height) {
    const share = this.shares?.[row] ?? 0, chosen = this.selected.has(row) || row === this.pointed;
    const reach = share < 0 ? height - middle - 3 : middle - 4;
    const tall = Math.max(1.5, (reach * Math.abs(share)) / largest);
    context.globalAlpha = this.forgotten.has(row) ? 0.15 : chosen ? 1 : 0.25 + 0.75 * Math.sqrt(Math.abs(share) / largest);
    context.fillStyle = themeColour(chosen ? "--text" : share < 0 ? "--against" : "--mean");
    const wide = chosen ? 3 : 2;
    context.fillRect(x - wide / 2, share < 0 ? middle : middle - tall, wide, tall);
    context.globalAlpha = 1;
  }
}

// What is said above the cards
export function lessonSentence(answer, lost) {
  const { sentence } = answer;
  const gone = lost ? ` ${number(lost, 0)} ${lost === 1 ? "lesson is" : "lessons are"} taken back.` : "";
  return `${sentence[0].toUpperCase()}${sentence.slice(1)}.${gone}`;
}
