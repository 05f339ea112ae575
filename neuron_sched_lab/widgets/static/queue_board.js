// The queue board: chips keep their nodes while they move, so that one can follow them.

const COLUMNS = [
  ["Waiting", ["waiting"]],
  ["Held back", ["held_back"]],
  ["Running", ["prefill", "decode", "stalled"]],
  ["Hidden decodes", ["hidden"]],
  ["Finished", ["finished"]],
  ["Aborted", ["aborted"]],
];
const ACTIVITIES = {
  waiting: ["W", "waiting"], held_back: ["B", "held back"], prefill: ["P", "prefill"],
  decode: ["D", "decode"], stalled: ["S", "running, not scheduled"], hidden: ["H", "hidden decode"],
  finished: ["F", "finished"], aborted: ["A", "aborted"],
};

function makeColumn([title, names]) {
  const total = el("output", {}, "0");
  const list = el("ul", { class: "nsl-chips", tabindex: 0, "aria-label": `${title} requests` });
  const node = el("div", { class: "nsl-column", role: "group", "aria-label": title, "data-column": names[0] },
    el("div", { class: "nsl-column-head" }, el("span", {}, title), total), list);
  return { names, total, list, node, more: el("li", { class: "nsl-more" }) };
}

function makeChip(key) {
  const name = el("bdi", { class: "nsl-chip-name" });
  const count = el("div", { class: "nsl-chip-count" });
  const [prompt, answer] = [el("b"), el("b")];
  const mark = badge("", "stalled");
  const bar = el("div", { class: "nsl-bar", "aria-hidden": true }, el("i", {}, prompt), el("i", {}, answer));
  const node = el("li", { class: "nsl-chip", "data-request": key },
    el("div", { class: "nsl-chip-line" }, mark, name), count, bar);
  return { node, name, count, mark, prompt, answer };
}

function updateChip(chip, activity, [, label, computed, promptLength, generated, limit]) {
  const [letter, words] = ACTIVITIES[activity];
  setText(chip.name, label);
  setText(chip.mark, letter);
  chip.mark.title = words;
  chip.node.title = label;
  chip.node.style.setProperty("--nsl-colour", `var(--nsl-${activity})`);
  chip.mark.style.setProperty("--nsl-colour", `var(--nsl-${activity})`);
  const inPrompt = generated === 0 && computed < promptLength;
  const of = (length) => (length ? ` / ${length.toLocaleString("en")}` : "");
  setText(chip.count, inPrompt
    ? `prompt ${computed.toLocaleString("en")}${of(promptLength)}`
    : `answer ${generated.toLocaleString("en")}${of(limit)}`);
  // A long prompt must not squeeze its answer out of sight, nor the other way round.
  const share = Math.min(Math.max(promptLength / (promptLength + limit || 1), 0.25), 0.75);
  chip.prompt.parentNode.style.flex = `${share} 1 0`;
  chip.answer.parentNode.style.flex = `${1 - share} 1 0`;
  chip.prompt.style.width = `${100 * Math.min(promptLength ? computed / promptLength : 1, 1)}%`;
  chip.answer.style.width = `${100 * Math.min(limit ? generated / limit : 1, 1)}%`;
}

function render({ model, el: root }) {
  const columns = COLUMNS.map(makeColumn);
  const board = el("div", { class: "nsl-columns", role: "group", "data-testid": "board" },
    ...columns.map((column) => column.node));
  const hold = el("div", { class: "nsl-hold", "data-testid": "hold", "aria-live": "polite" });
  const note = el("span", { class: "nsl-note" });
  const chips = new Map();
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let lastStep = 0;
  let lastTime = 0;

  function placeColumn(column, frame, seen) {
    const nodes = [];
    let total = 0;
    for (const name of column.names) {
      const [groupTotal, group] = frame.groups[name];
      total += groupTotal;
      for (const data of group) {
        if (!chips.has(data[0])) chips.set(data[0], makeChip(data[0]));
        const chip = chips.get(data[0]);
        updateChip(chip, name, data);
        seen.add(data[0]);
        nodes.push(chip.node);
      }
    }
    setText(column.total, total.toLocaleString("en"));
    if (total > nodes.length) {
      setText(column.more, `${(total - nodes.length).toLocaleString("en")} more`);
      nodes.push(column.more);
    } else {
      column.more.remove();
    }
    nodes.forEach((node, index) => {
      if (column.list.children[index] !== node) column.list.insertBefore(node, column.list.children[index] ?? null);
    });
  }

  function slide(before) {
    for (const [key, box] of before) {
      const node = chips.get(key)?.node;
      if (!node?.isConnected) continue;
      const now = node.getBoundingClientRect();
      const [dx, dy] = [box.left - now.left, box.top - now.top];
      // Only from column to column: chips that move up within theirs would be unrest.
      if (Math.abs(dx) < 20 || !now.width) continue;
      node.animate([{ transform: `translate(${dx}px, ${dy}px)`, zIndex: 1 }, { transform: "none" }],
        { duration: 220, easing: "ease-out" });
    }
  }

  function draw(frame) {
    if (!frame.groups) return;
    // At full speed nobody can follow a chip's way, and measuring it costs time.
    const now = performance.now();
    const calm = !still.matches && now - lastTime > 120 && frame.step !== lastStep;
    [lastTime, lastStep] = [now, frame.step];
    const before = calm
      ? [...chips].map(([key, chip]) => [key, chip.node.getBoundingClientRect()]) : [];
    const seen = new Set();
    for (const column of columns) placeColumn(column, frame, seen);
    for (const [key, chip] of chips) {
      if (seen.has(key)) continue;
      chip.node.remove();
      chips.delete(key);
    }
    slide(before);
    setText(note, `step ${frame.step}`);
    board.dataset.step = frame.step;
    drawHold(frame);
  }

  function drawHold(frame) {
    const text = JSON.stringify([frame.hold, frame.preempted, frame.groups.waiting[0] + frame.groups.held_back[0] > 0]);
    if (hold.dataset.shown === text) return;
    hold.dataset.shown = text;
    const parts = [];
    if (frame.hold) {
      const [label, reason, why] = frame.hold;
      parts.push(badge("?", "held_back"), el("span", {}, el("bdi", {}, el("b", {}, label)),
        " is not admitted: ", el("b", {}, reason), why ? ` (${why})` : ""));
    } else {
      const waiting = frame.groups.waiting[0] + frame.groups.held_back[0];
      parts.push(el("span", { class: "nsl-words" },
        waiting ? "New requests wait for the next step." : "Every request has been admitted."));
    }
    if (frame.preempted) parts.push(el("span", {}, "Preempted: ", el("bdi", {}, frame.preempted)));
    hold.replaceChildren(...parts);
  }

  return card({ model, el: root, title: "Queues", note, body: [board, hold], figure: board, draw });
}

export default { render };
