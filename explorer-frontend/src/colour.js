// Colour scales: one that runs from low to high, one that parts at zero; each for both themes.

const STOPS = {
  sequential: {
    dark: ["#3b2a78", "#3a5a9c", "#2f8e95", "#57bb7a", "#c9dd4b", "#fff3a0"],
    light: ["#e2c34a", "#86b84f", "#36997c", "#2c7590", "#3b4d8f", "#3a1f66"],
  },
  diverging: {
    dark: ["#4aa8ff", "#3f77b8", "#465364", "#b3605a", "#ff7d66"],
    light: ["#0b4fa0", "#6a9fd6", "#b9c0c8", "#dd8b74", "#a81b1b"],
  },
};

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const hex = (rgb) => "#" + rgb.map((c) => Math.round(c).toString(16).padStart(2, "0")).join("");

export function scale(diverging, theme, size = 128) {
  const stops = STOPS[diverging ? "diverging" : "sequential"][theme].map(channels);
  return Array.from({ length: size }, (_, i) => {
    const place = (i / (size - 1)) * (stops.length - 1);
    const left = Math.min(Math.floor(place), stops.length - 2);
    return hex(stops[left].map((c, k) => c + (place - left) * (stops[left + 1][k] - c)));
  });
}

export const theme = () => document.documentElement.dataset.theme;
