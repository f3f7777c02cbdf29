// What explains the map: the colour scale, the axes, and the memory under the pointer.

import { scale, theme } from "./colour.js";
import { byId, compact, h, signed } from "./dom.js";

export function placeTooltip(left, top) {
  const { style } = byId("tooltip");
  style.left = `${Math.max(4, Math.min(left, window.innerWidth - 300))}px`;
  style.top = `${Math.max(4, top)}px`;
}

export function showLegend({ label, low, high, diverging }) {
  byId("legend-label").textContent = label;
  byId("legend-low").textContent = compact(low);
  byId("legend-high").textContent = compact(high);
  const canvas = byId("legend-bar"), context = canvas.getContext("2d");
  scale(diverging, theme(), canvas.width).forEach((colour, x) => {
    context.fillStyle = colour;
    context.fillRect(x, 0, 1, canvas.height);
  });
}

export function showAxes([across, up]) {
  byId("axes").textContent = `→ ${across}   ↑ ${up}`;
}

export function showMemory(columns, row, place, holder) {
  const tooltip = byId("tooltip");
  tooltip.hidden = row === null || !columns;
  if (tooltip.hidden) return;
  const { episodes, steps, iterations, advantages, rewards, ends, returns, sizes } = columns;
  const box = holder.getBoundingClientRect();
  const [head, more] = sizes
    ? [`episode ${episodes[row]}`, `until step ${compact(ends[row])} · return ${compact(returns[row])} · size ${compact(sizes[row])}`]
    : [`episode ${episodes[row]}, step ${steps[row]}`, `iteration ${iterations[row]} · advantage ${signed(advantages[row])} · reward ${compact(rewards[row])}`];
  tooltip.replaceChildren(h("b", {}, head), h("br"), more);
  placeTooltip(box.left + place[0] + 14, box.top + place[1] + 14);
}

export function showPicture(image) {
  // A remembered state, larger, beside its row of the table
  const tooltip = byId("tooltip");
  tooltip.hidden = !image?.src;
  if (tooltip.hidden) return;
  tooltip.replaceChildren(h("img", { src: image.src, alt: "", width: 240 }));
  const { left, top } = image.getBoundingClientRect();
  tooltip.style.left = `${Math.max(0, left - 276)}px`;
  tooltip.style.top = `${Math.max(0, Math.min(top - 100, window.innerHeight - 280))}px`;
}
