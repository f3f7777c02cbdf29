// What went wrong, said where it is seen.

import { byId } from "./dom.js";

const SECONDS = 8;
let timer = 0;

export function fail(error) {
  console.error(error);
  const notice = byId("notice");
  notice.textContent = error.message;
  notice.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => (notice.hidden = true), 1000 * SECONDS);
}
