// Elements made in one line. Text is always set as text: nothing here parses HTML.

export const byId = (id) => document.getElementById(id);

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, properties, ...children) =>
  fill(document.createElement(tag), properties, children);

export const svg = (tag, properties, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

export function setOptions(select, options, value) {
  select.replaceChildren(
    ...options.map((o) => h("option", { value: o.value, disabled: o.disabled }, o.label)),
  );
  if (value !== undefined) select.value = value;
}

export const numbered = (names) => names.map((label, i) => ({ value: String(i), label }));

export const themeColour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function sharpen(canvas) {
  // A canvas in device pixels that is drawn on in CSS pixels
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return { context, width, height };
}

const fixed = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const number = (value, digits = 2) => (value < 0 ? "−" : "") + fixed(Math.abs(value), digits);

export const signed = (value, digits = 2) => (value < 0 ? "−" : "+") + fixed(Math.abs(value), digits);

export function compact(value) {
  const size = Math.abs(value);
  const notation = size >= 10000 ? "compact" : "standard";
  const text = size.toLocaleString("en", { notation, maximumSignificantDigits: size >= 100 ? 4 : 3 });
  return value < 0 ? `−${text}` : text;
}
