// Padding: a bar a step. Solid is what was computed, hatched is what the bucket added.

const [LEFT, SLOT_GAP, HEIGHT] = [46, 1.5, 184];
const CHARTS = [
  { phase: "prefill", unit: "token", title: "prefill tokens", ladder: "tokens_ladder", top: "max_tokens", y: 14, height: 84 },
  { phase: "decode", unit: "row", title: "decode rows", ladder: "seqs_ladder", top: "max_seqs", y: 122, height: 52 },
];

function render({ model, el: root }) {
  const tile = (words) => {
    const [figure, of] = [el("b"), el("span")];
    return { figure, of, node: el("div", { class: "nsl-tile" }, el("div", {}, words), figure, of) };
  };
  const [waste, fillTile] = [tile("padding so far"), tile("decode batches filled")];
  const bars = svg("g");
  const pattern = svg("pattern", { id: `nsl-hatch-${model.model_id ?? Math.random()}`, width: 5, height: 5,
    patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 1.6, height: 5, style: "fill: var(--nsl-edge)" }));
  const chart = svg("svg", { class: "nsl-padding", height: HEIGHT, role: "img", "data-testid": "padding" },
    svg("defs", {}, pattern), bars);
  const note = el("span", { class: "nsl-note" });

  function isOf(chartSpec, phase) {
    return phase !== "empty" && (phase === "decode") === (chartSpec.phase === "decode");
  }

  function drawChart(spec, frame, width) {
    const slot = (width - LEFT) / frame.window;
    const own = frame.bars.map((bar, index) => [bar, index]).filter(([bar]) => isOf(spec, bar[1]));
    const ladder = frame[spec.ladder];
    const top = Math.max(ladder.at(-1) ?? frame[spec.top], ...own.map(([bar]) => bar[3]), 1);
    const base = spec.y + spec.height;
    const up = (value) => spec.height * value / top;
    const last = frame.bars.at(-1);
    const rung = last && isOf(spec, last[1]) ? last[3] : null;
    let lastLabel = Infinity;
    for (const value of ladder.length ? ladder : [top]) {
      const y = base - up(value);
      const lit = value === rung ? " nsl-lit" : "";
      bars.append(svg("line", { class: `nsl-rung${lit}`, x1: LEFT, x2: width, y1: y, y2: y }));
      // Rungs close together share a label, and the one just used has precedence.
      if (!lit && (lastLabel - y < 11 || (rung && Math.abs(base - up(rung) - y) < 11))) continue;
      lastLabel = y;
      bars.append(svg("text", { class: lit, x: LEFT - 5, y: y + 4, "text-anchor": "end" }, value.toLocaleString("en")));
    }
    bars.append(svg("line", { class: "nsl-axis", x1: LEFT, x2: width, y1: base, y2: base }),
      svg("text", { x: width, y: spec.y - 4, "text-anchor": "end" }, spec.title));
    for (const [[step, phase, actual, padded], index] of own) {
      const [x, wide] = [LEFT + index * slot + SLOT_GAP / 2, slot - SLOT_GAP];
      const words = `step ${step}, ${phase}: ${plural(actual, spec.unit)}, padded to ${padded.toLocaleString("en")}`;
      bars.append(svg("g", {}, svg("title", {}, words),
        svg("rect", { class: "nsl-waste", x, width: wide, y: base - up(padded), height: up(padded - actual),
          fill: `url(#${pattern.id})` }),
        svg("rect", { class: "nsl-used", x, width: wide, y: base - up(actual), height: up(actual),
          style: `fill: var(--nsl-${phase === "mixed" ? "hidden" : phase})` })));
    }
  }

  function draw(frame) {
    const width = chart.parentNode.clientWidth;
    if (!frame.bars || !width) return;
    bars.replaceChildren();
    for (const spec of CHARTS) drawChart(spec, frame, width);
    setText(waste.figure, frame.waste);
    setText(waste.of, frame.padded);
    setText(fillTile.figure, frame.fill);
    setText(fillTile.of, frame.rows);
    const [first, last] = [frame.bars[0], frame.bars.at(-1)];
    setText(note, first ? `steps ${first[0]} to ${last[0]}` : "no step yet");
  }

  return card({ model, el: root, title: "Padding", note, figure: chart, draw,
    body: [el("div", { class: "nsl-tiles" }, waste.node, fillTile.node), chart] });
}

export default { render };
