// The state machine: the seed's diagram, drawn once; afterwards only what is lit changes.

const NODES = {
  IDLE: { x: 72, y: 110, colour: "finished" },
  ACTIVE_PREFILL: { x: 305, y: 45, colour: "prefill" },
  ACTIVE_DECODE: { x: 305, y: 175, colour: "decode" },
  MIXED: { x: 305, y: 110, colour: "hidden" },
};
const [HALF_WIDTH, HALF_HEIGHT] = [68, 22];

// Each arrow's line, and where and which way (in degrees) its head points.
const ARROWS = {
  "IDLE>ACTIVE_PREFILL": ["M110 88C140 55 190 45 231 45", 237, 45, 0],
  "ACTIVE_PREFILL>IDLE": ["M237 57C200 60 165 72 141 96", 138, 100, 128],
  "ACTIVE_DECODE>IDLE": ["M237 175C190 175 140 165 113 138", 108, 132, 230],
  "IDLE>ACTIVE_DECODE": ["M141 122C165 148 200 160 231 163", 237, 164, 5],
  "ACTIVE_PREFILL>ACTIVE_DECODE": ["M335 67L335 147", 335, 153, 90],
  "ACTIVE_DECODE>ACTIVE_PREFILL": ["M275 153L275 73", 275, 67, 270],
  "ACTIVE_PREFILL>ACTIVE_PREFILL": ["M373 35C415 20 415 70 380 55", 373, 53, 200],
  "ACTIVE_DECODE>ACTIVE_DECODE": ["M373 165C415 150 415 200 380 185", 373, 183, 200],
  "IDLE>IDLE": ["M57 88C42 50 102 50 87 82", 87, 88, 95],
};
// The seed's arrows, with its words; the others are rare, and shown only when they are taken.
const SEED = {
  "IDLE>ACTIVE_PREFILL": "prefill in waiting queue",
  "ACTIVE_PREFILL>ACTIVE_PREFILL":
    "prefill has more segments, or decode has capacity and new prefill is waiting",
  "ACTIVE_PREFILL>ACTIVE_DECODE": "prefill completes",
  "ACTIVE_DECODE>ACTIVE_DECODE": "decode not finished",
  "ACTIVE_DECODE>ACTIVE_PREFILL": "decode has capacity and prefill is waiting",
  "ACTIVE_DECODE>IDLE": "all decode complete and no prefill waiting",
};
const PHASES = { EMPTY: "IDLE", PREFILL: "ACTIVE_PREFILL", DECODE: "ACTIVE_DECODE", MIXED: "MIXED" };

function makeArrow(name, [d, x, y, angle]) {
  const other = name in SEED ? "" : " nsl-other";
  return svg("g", { class: `nsl-arrow${other}`, "data-arrow": name },
    svg("title", {}, SEED[name] ?? name.replace(">", " → ")), svg("path", { d }),
    svg("polygon", { points: "0,0 -9,-4.5 -9,4.5", transform: `translate(${x} ${y}) rotate(${angle})` }));
}

function makeNode(name, { x, y, colour }) {
  const [title, sub] = [svg("text", { x, y: y - 2 }, name), svg("text", { class: "nsl-sub", x, y: y + 13 })];
  const node = svg("g", { class: "nsl-state", "data-state": name, style: `--nsl-colour: var(--nsl-${colour})` },
    svg("rect", { x: x - HALF_WIDTH, y: y - HALF_HEIGHT, width: 2 * HALF_WIDTH, height: 2 * HALF_HEIGHT, rx: 9 }),
    title, sub);
  return { node, title, sub };
}

function render({ model, el: root }) {
  const arrows = Object.fromEntries(Object.entries(ARROWS).map(([name, shape]) => [name, makeArrow(name, shape)]));
  const nodes = Object.fromEntries(Object.entries(NODES).map(([name, place]) => [name, makeNode(name, place)]));
  const diagram = svg("svg", { class: "nsl-states", viewBox: "0 18 420 186", role: "img", "data-testid": "states" },
    ...Object.values(arrows), ...Object.values(nodes).map((node) => node.node));
  const cause = el("p", { class: "nsl-words nsl-cause", "data-testid": "cause", "aria-live": "polite" });
  const row = el("p", { class: "nsl-words nsl-row-count" }); // not read out at each step
  const note = el("span", { class: "nsl-note" });

  function draw(frame) {
    if (!frame.after) return;
    const place = (name) => PHASES[name] ?? name;
    const [before, after] = [place(frame.before), place(frame.after)];
    for (const [name, arrow] of Object.entries(arrows)) {
      arrow.classList.toggle("nsl-lit", frame.step > 0 && name === `${before}>${after}`);
    }
    for (const [name, { node, title, sub }] of Object.entries(nodes)) {
      const shown = frame.has_states ? name
        : Object.keys(PHASES).find((phase) => PHASES[phase] === name);
      const steps = frame.dwell[shown] ?? 0;
      node.classList.toggle("nsl-lit", name === after);
      node.style.display = name === "MIXED" && frame.has_states ? "none" : "";
      setText(title, shown);
      setText(sub, plural(steps, "step"));
    }
    const way = frame.before === frame.after ? frame.after : `${frame.before} → ${frame.after}`;
    const key = `${way}: ${frame.cause}`;
    if (cause.dataset.shown !== key) {
      cause.dataset.shown = key;
      cause.replaceChildren(el("b", {}, way), el("br"), frame.cause);
    }
    setText(row, frame.in_a_row > 1 ? `${frame.in_a_row} steps in a row` : "");
    setText(note, frame.has_states ? `after step ${frame.step}` : "phases: this scheduler has no states");
  }

  return card({ model, el: root, title: "State machine", note, body: [diagram, cause, row], figure: diagram, draw });
}

export default { render };
