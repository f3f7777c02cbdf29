// The help overlay, and the keys themselves.

import { byId, h } from "./dom.js";

const KEYS = [
  ["←  →", "one step back or on; with Shift ten"],
  ["Home  End", "first and last step"],
  ["Space", "play and pause"],
  ["Esc", "clear the selection, close this"],
  ["F", "forget the selected memories or lessons"],
  ["Z", "undo the last forgetting"],
  ["P", "play the policy, with the same start"],
  ["E", "evaluate: play episodes before and after"],
  ["L", "lasso on and off (or Shift and drag)"],
  ["A", "select the whole episode of the selected memory"],
  ["0", "show all memories"],
  ["[  ]", "the checkpoint before, the one after"],
  ["C", "compare with the checkpoint before"],
  ["T", "light or dark"],
  ["?  /", "this help"],
];

const READING = [
  "A RidgePolicy is a sum of lessons: a point of the map, and a stick under the learning curve, is what one episode taught. A stick points up if the lesson speaks for the action at this step, down if against it.",
  "For the paper's policies every point is a memory: a state, what the policy did there (μ), and what it should rather have done (μ*).",
  "Rings are what makes the action at this step, each as large as its share; blue ones speak against it. On a map of memories the cross is the state itself, the line its episode.",
  "The action's mean is the sum of what all lessons add, with MKI of what the memories add: nothing else goes into it.",
  "Forget some, and the action changes at once; play the same episode without them, and evaluate. What later episodes taught on top of them stays. Files are never changed.",
  "μ and μ* are in policy units: −1 to 1 is the environment's action range.",
];

export function prepareHelp() {
  const dialog = byId("help");
  const keys = KEYS.flatMap(([key, text]) => [
    h("dt", {}, ...key.split("  ").flatMap((k) => [h("kbd", {}, k), " "])),
    h("dd", {}, text),
  ]);
  dialog.replaceChildren(
    h("button", { class: "quiet close", autofocus: true, "aria-label": "Close", onclick: () => dialog.close() }, "✕"),
    h(
      "div",
      { class: "columns" },
      h("div", {}, h("h2", {}, "Keys"), h("dl", {}, keys)),
      h("div", {}, h("h2", {}, "How to read it"), h("ul", {}, READING.map((text) => h("li", {}, text))),
        h("p", { class: "muted" }, h("a", { href: "/licences.txt", target: "_blank", rel: "noreferrer" }, "Licences of what this page is built from"))),
    ),
  );
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  byId("help-button").addEventListener("click", () => dialog.showModal());
}

export function listenToKeys(actions) {
  document.addEventListener("keydown", (event) => {
    const target = event.target;
    const typing = target.matches("select, input:not([type=range]):not([type=checkbox])");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (byId("help").open) return;
    if (event.key === " " && target.matches("button, input")) return; // presses what has the focus
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const action = actions[key];
    if (!action) return;
    event.preventDefault();
    action(event);
  });
}
