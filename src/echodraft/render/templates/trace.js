"use strict";
// Texts of a trace are hostile: they only ever become text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const panel = document.getElementById("panel");
const tokens = [...document.querySelectorAll(".token")];

function make(tag, kind, ...inside) {
  const made = document.createElement(tag);
  made.className = kind;
  made.append(...inside);
  return made;
}

function chip(kind, text, note, title) {
  const made = make("span", "chip " + kind, make("span", "", text));
  if (note) made.append(make("small", "", note));
  if (title) made.title = title;
  return made;
}

const MARKS = { kept: "✓ ", refused: "✗ ", moot: "" };

function tree(step) {
  // Parents come before their children, so one pass hangs every node.
  const root = make("div", "node", chip("anchor", step.anchor, "", "the anchor: the last token before the step"), make("div", "kids"));
  const boxes = [root];
  const box = (node) => boxes[node + 1];
  for (const [parent, name, prob, source, hue, probe, fate] of step.nodes) {
    const title = `${source}, estimate ${prob}${probe ? ", a probe" : ""}, ${fate === "moot" ? "behind a refused token" : fate}`;
    const made = make("div", "node", chip(`${fate} hue${hue}`, MARKS[fate] + name, prob.toFixed(2), title), make("div", "kids"));
    boxes.push(made);
    box(parent).lastChild.append(made);
  }
  if (step.own !== null) box(step.end).lastChild.prepend(make("div", "node", chip("own", step.own, "model", "what the model said here")));
  return make("div", "tree", root);
}

function turn(request, index) {
  const go = (to, text) => {
    const button = make("button", "", text);
    button.disabled = !data[request][to];
    button.addEventListener("click", () => show(request, to));
    return button;
  };
  const at = make("span", "faint", `step ${data[request][index].step} of ${data[request].at(-1).step}`);
  return make("div", "turn", go(index - 1, "←"), go(index + 1, "→"), at);
}

function show(request, index) {
  const step = data[request][index];
  const facts = make("dl", "facts", ...step.facts.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
  panel.replaceChildren(turn(request, index), make("p", "why", step.ended), facts, tree(step));
  const key = `${request} ${index}`;
  for (const token of tokens) token.classList.toggle("current", token.dataset.at === key);
  history.replaceState(null, "", `#${request}.${index}`);
}

function at(token) {
  return token.dataset.at.split(" ").map(Number);
}

document.addEventListener("click", (event) => {
  const token = event.target.closest(".token");
  if (token) show(...at(token));
});
document.addEventListener("keydown", (event) => {
  const current = document.querySelector(".token.current");
  if (event.key === "Enter" && event.target.closest(".token")) return show(...at(event.target));
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!way || !current) return;
  const [request, index] = at(current);
  if (data[request][index + way]) {
    show(request, index + way);
    document.querySelector(".token.current")?.scrollIntoView({ block: "nearest" });
    event.preventDefault();
  }
});

// A link may name a step: #request.step. Without one, the step that kept most is shown.
const asked = location.hash.slice(1).split(".").map(Number);
if (data[asked[0]]?.[asked[1]]) show(...asked);
else if (data.length && data[0].length) {
  const kept = data[0].map((step) => step.nodes.filter((node) => node[6] === "kept").length);
  show(0, kept.indexOf(Math.max(...kept)));
}
