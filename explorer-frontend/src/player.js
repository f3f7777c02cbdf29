// The episode: its frames, the strip of its actions, and moving along it.

import { address, arrays } from "./api.js";
import { byId, h, number, sharpen, themeColour } from "./dom.js";

const SHOWN = 240;
const BETWEEN_STEPS = 40;

export class Player {
  constructor({ onStep, onGrown, onError }) {
    Object.assign(this, { onStep, onGrown, onError });
    this.step = 0;
    this.name = null;
    this.playing = false;
    this.lines = null;
    this.before = null;
    byId("scrub").addEventListener("input", (event) => this.pauseAt(Number(event.target.value)));
    byId("toggle").addEventListener("click", () => this.toggle());
    const strip = byId("strip");
    const seek = (event) => {
      const { left, width } = strip.getBoundingClientRect();
      const [first, last] = this.window();
      this.pauseAt(first + Math.floor(((event.clientX - left) / width) * (last - first)));
    };
    strip.addEventListener("pointerdown", (event) => {
      strip.setPointerCapture(event.pointerId);
      seek(event);
    });
    strip.addEventListener("pointermove", (event) => event.buttons && seek(event));
    new ResizeObserver(() => this.drawStrip()).observe(strip);
  }

  get length() {
    return this.episode?.steps ?? 0;
  }

  async open(name, live) {
    Object.assign(this, { name, step: 0, episode: null, lines: null, playing: live });
    await this.look();
    if (name !== this.name) return;
    if (!this.episode.ended) {
      this.follow(name);
      return;
    }
    await this.moveTo(0);
    if (live) this.onGrown();
    if (!this.playing) return;
    this.playing = false;
    this.toggle().catch(this.onError); // it has been played before: from the start
  }

  async look() {
    const name = this.name;
    const episode = await arrays("episode", { episode: name });
    if (name !== this.name) return;
    this.episode = episode;
    // What it is held against may still be under way
    if (this.before && !this.before.episode.ended) this.before.episode = await arrays("episode", { episode: this.before.name });
    byId("scrub").max = Math.max(0, episode.steps - 1);
    this.drawStrip();
  }

  async follow(name) {
    // Each look lets the recording go on for a moment; scrubbing stops the watching, not the looks
    try {
      while (this.name === name && !this.episode?.ended) {
        // The recording goes on while the step that was reached is explained
        if (this.playing && this.length) this.moveTo(this.length - 1).catch(this.onError);
        await this.look();
      }
      if (this.name !== name) return;
      const reached = this.playing ? this.length - 1 : this.step;
      this.playing = false;
      await this.moveTo(reached);
      this.onGrown();
    } catch (error) {
      this.onError(error);
    }
  }

  pauseAt(step) {
    this.playing = false;
    return this.moveTo(step);
  }

  async moveTo(step) {
    if (!this.length) return this.showFrame();
    this.step = Math.max(0, Math.min(this.length - 1, step));
    byId("scrub").value = this.step;
    this.showFrame();
    this.showToggle();
    this.drawStrip();
    return this.onStep(this.step);
  }

  async toggle() {
    if (!this.length) return;
    this.playing = !this.playing;
    this.showToggle();
    if (this.playing && this.episode.ended && this.step >= this.length - 1) this.step = -1;
    while (this.playing && this.episode.ended) {
      const begun = performance.now();
      await this.moveTo(this.step + 1);
      if (this.step >= this.length - 1) this.playing = false;
      await new Promise((done) => setTimeout(done, Math.max(0, BETWEEN_STEPS - (performance.now() - begun))));
    }
    this.showToggle();
  }

  showToggle() {
    byId("toggle").textContent = this.playing ? "❚❚" : "▶";
    document.body.toggleAttribute("data-playing", this.playing);
  }

  showFrame() {
    const image = byId("frame"), note = byId("frame-note"), label = byId("step-label");
    const drawn = this.episode?.frames.findLast((step) => step <= this.step);
    image.hidden = drawn === undefined;
    byId("frame-step").textContent = image.hidden || drawn === this.step ? "" : `as of step ${drawn}`;
    if (!image.hidden) image.src = address("frame", { episode: this.name, step: drawn });
    else if (!this.episode) note.textContent = "";
    else if (!this.episode.rows.length) note.textContent = this.episode.no_frames ?? "The first frame is being drawn …";
    if (!this.length) return;
    const soFar = ({ rewards }) => rewards.subarray(0, this.step + 1).reduce((sum, reward) => sum + reward, 0);
    label.replaceChildren(`step ${this.step} / ${this.length - 1}`, h("small", {}, `return ${number(soFar(this.episode), 1)}`));
    if (this.before) label.append(h("small", { class: "before" }, `before ${number(soFar(this.before.episode), 1)}`));
    this.showBefore();
  }

  // The same step of the episode before something was forgotten, in a corner
  showBefore() {
    const image = byId("frame-before");
    const drawn = this.before?.episode.frames.findLast((step) => step <= this.step);
    image.hidden = byId("frame-before-note").hidden = drawn === undefined;
    if (drawn !== undefined) image.src = address("frame", { episode: this.before.name, step: drawn });
  }

  setLines(lines) {
    // [{values: [T * d_a], dimension count, colour, dashed}], the actions of one or two policies
    this.lines = lines;
    this.drawStrip();
  }

  drawStrip() {
    const { context, width, height } = sharpen(byId("strip"));
    context.clearRect(0, 0, width, height);
    if (!this.length) return;
    const [first, last] = this.window();
    const x = (t) => ((t - first + 0.5) / (last - first)) * width;
    this.drawRewards(context, x, width / (last - first), height);
    for (const line of this.lines ?? [this.taken()]) this.drawLine(context, line, x, height);
    context.fillStyle = themeColour("--text");
    context.fillRect(x(this.step) - 0.75, 0, 1.5, height);
  }

  window() {
    // Of a long episode the steps around the one at hand
    const shown = Math.min(this.length, SHOWN);
    const first = Math.max(0, Math.min(this.length - shown, this.step - Math.floor(shown / 2)));
    return [first, first + shown];
  }

  taken() {
    // While it is being recorded, the actions as they were taken
    const { actions, steps } = this.episode;
    return { values: actions, count: actions.length / steps, dimension: 0, colour: "--mean" };
  }

  drawRewards(context, x, wide, height) {
    const rewards = this.episode.rewards;
    let low = 0, high = 0;
    for (const reward of rewards) [low, high] = [Math.min(low, reward), Math.max(high, reward)];
    const scale = height / 2.2 / Math.max(high, -low, 1e-9);
    context.fillStyle = themeColour("--muted");
    context.globalAlpha = 0.3;
    rewards.forEach((reward, t) => context.fillRect(x(t) - wide / 2, height / 2, wide, -reward * scale));
    context.globalAlpha = 1;
  }

  drawLine(context, { values, count, dimension, colour, dashed }, x, height) {
    context.strokeStyle = themeColour(colour);
    context.lineWidth = 1.5;
    context.setLineDash(dashed ? [4, 3] : []);
    context.beginPath();
    for (let t = 0; t * count < values.length; t++) {
      const value = Math.max(-1.05, Math.min(1.05, values[t * count + dimension]));
      context.lineTo(x(t), height / 2 - value * (height / 2.3));
    }
    context.stroke();
    context.setLineDash([]);
  }
}
