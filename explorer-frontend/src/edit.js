// Forgetting: what is selected, what is forgotten, and what that does to the return.

import { ask, post } from "./api.js";
import { byId, h, number, signed } from "./dom.js";

const EPISODES = 8;

const NOUNS = { memories: ["memory", "memories"], lessons: ["lesson", "lessons"] };

function summary(returns) {
  const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const mean = average(returns);
  return { mean, std: Math.sqrt(average(returns.map((value) => (value - mean) ** 2))) };
}

export class Edits {
  constructor({ onModel, onSelection, onPlay, onError, columns }) {
    Object.assign(this, { onModel, onSelection, onPlay, onError, columns });
    this.reset(null, true);
  }

  reset(base, playable, kind = "memories") {
    Object.assign(this, { base, playable, kind, stack: [], selection: [], returns: new Map(), working: null });
    this.show();
  }

  plural(count) {
    return `${count.toLocaleString("en")} ${NOUNS[this.kind][count === 1 ? 0 : 1]}`;
  }

  get model() {
    return this.stack.at(-1)?.model ?? this.base;
  }

  get forgotten() {
    return new Set(this.stack.flatMap((edit) => edit.rows));
  }

  select(rows) {
    const gone = this.forgotten;
    this.selection = rows.filter((row) => !gone.has(row));
    this.show();
    this.onSelection(this.selection);
  }

  toggle(row) {
    const others = this.selection.filter((other) => other !== row);
    this.select(others.length === this.selection.length ? [...others, row] : others);
  }

  selectEpisodes() {
    const { episodes, sizes } = this.columns() ?? {};
    if (!episodes || sizes || !this.selection.length) return;
    const wanted = new Set(this.selection.map((row) => episodes[row]));
    const rows = [];
    episodes.forEach((episode, row) => wanted.has(episode) && rows.push(row));
    this.select(rows);
  }

  async forget() {
    if (!this.selection.length) return;
    const rows = this.selection;
    try {
      const made = await post("forget", { model: this.model, rows });
      this.stack.push({ model: made.model, rows });
      this.selection = [];
      this.onSelection([]);
      await this.onModel();
    } catch (error) {
      this.onError(error);
    }
    this.show();
  }

  async undo() {
    if (!this.stack.length) return;
    const { rows } = this.stack.pop();
    this.selection = rows;
    await this.onModel();
    this.onSelection(this.selection); // which may have been cleared meanwhile
    this.show();
  }

  async restore() {
    this.stack = [];
    await this.onModel();
    this.show();
  }

  async evaluate(other) {
    // The returns of the model at hand, and of the one it is held against
    if (this.working || !this.playable) return;
    const keys = [...new Set([other ?? this.base, this.model])];
    const run = (this.working = { share: 0 });
    try {
      for (const [i, model] of keys.entries()) {
        while (run === this.working && !this.returns.has(model)) {
          // Each question plays on for a moment
          const found = await ask("evaluation", { model, episodes: EPISODES });
          if (run !== this.working) break;
          const { length } = found.returns;
          run.share = (i + length / EPISODES) / keys.length;
          if (length === EPISODES) this.returns.set(model, summary(found.returns));
          this.show();
        }
      }
    } catch (error) {
      this.onError(error);
    }
    if (run === this.working) this.working = null;
    this.show();
  }

  show(compared) {
    this.compared = compared === undefined ? this.compared : compared;
    const button = (text, key, action, options = {}) => h("button", { onclick: action, ...options }, text, " ", h("kbd", {}, key));
    const parts = [];
    const count = this.selection.length;
    if (count) {
      parts.push(
        h("span", {}, h("b", {}, this.plural(count)), " selected"),
        button("Forget", "F", () => this.forget(), { class: "primary", id: "forget" }),
        this.kind === "lessons" ? null : button("Whole episode", "A", () => this.selectEpisodes()),
        button("Clear", "Esc", () => this.select([])),
      );
    } else if (!this.stack.length && !this.returns.size) {
      parts.push(h("span", { class: "muted" }, `Click a ${NOUNS[this.kind][0]} or lasso some (Shift and drag) to see the policy without them.`));
    }
    if (this.stack.length) {
      parts.push(
        h("span", { class: "chip" }, "without ", h("b", {}, this.plural(this.forgotten.size))),
        button("Undo", "Z", () => this.undo(), { id: "undo" }),
        button("Play", "P", () => this.onPlay(), { id: "play-without", disabled: !this.playable, title: "Play the same episode without them" }),
      );
      if (this.stack.length > 1) parts.push(h("button", { onclick: () => this.restore() }, "Restore all"));
    }
    parts.push(h("span", { class: "spring" }), ...this.evaluation(button));
    byId("edit-bar").replaceChildren(...parts.filter(Boolean));
  }

  evaluation(button) {
    if (this.working) {
      const stop = () => {
        this.working = null;
        this.show();
      };
      return [
        h("span", { class: "muted" }, `playing ${EPISODES} episodes`),
        h("progress", { value: this.working.share, max: 1 }),
        h("button", { onclick: stop }, "Stop"),
      ];
    }
    const digits = (value) => (Math.abs(value) < 100 ? 1 : 0);
    const shown = ({ mean, std }) => `${number(mean, digits(mean))} ± ${number(std, digits(mean))}`;
    const now = this.returns.get(this.model), held = this.returns.get(this.compared ?? this.base);
    const parts = [];
    if (now) {
      parts.push(h("span", { class: "muted" }, "return "));
      if (held && held !== now) {
        const change = now.mean - held.mean;
        parts.push(h("span", { id: "return" }, `${shown(held)} → `, h("b", {}, shown(now))));
        parts.push(h("span", { class: `change ${change < 0 ? "down" : "up"}` }, signed(change, digits(change))));
      } else parts.push(h("b", { id: "return" }, shown(now)));
    }
    const options = { id: "evaluate", disabled: !this.playable, title: this.playable ? "Play episodes with the mean action, the same seeds before and after" : "The environment is not known: start with --env" };
    if (!now || !held) parts.push(button("Evaluate", "E", () => this.evaluate(this.compared), options));
    return parts;
  }
}
