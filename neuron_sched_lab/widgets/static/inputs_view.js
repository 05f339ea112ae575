// The step's padded tensors as heat strips: darker is a larger number, hatched is padding.

const ROWS = ["input_ids", "positions", "slot_mapping"];
const [LABEL_WIDTH, ROW_HEIGHT, ROW_GAP] = [92, 22, 6];

function render({ model, el: root }) {
  const canvas = el("canvas", { class: "nsl-inputs", role: "img", "data-testid": "inputs" });
  const place = el("div", {}, canvas);
  const words = el("p", { class: "nsl-words" });
  const note = el("span", { class: "nsl-note" });

  const cellWidth = (frame) => (place.clientWidth - LABEL_WIDTH - 1) / Math.max(frame.input_ids.length, 1);

  function draw(frame) {
    const missing = frame.missing != null;
    place.style.display = missing ? "none" : "";
    setText(words, missing ? frame.missing : "Hatched is padding: its slot is -1, so nothing of it is kept.");
    setText(note, missing ? "" : `step ${frame.step}: ${frame.padding} of ${plural(frame.size, "number")} are padding`);
    if (missing || !frame.input_ids || !place.clientWidth) return;
    const look = colours(canvas, ["paper", "ink", "dim", "line", "edge", "prefill", "decode"]);
    const context = prepare(canvas, place.clientWidth, ROWS.length * (ROW_HEIGHT + ROW_GAP));
    ROWS.forEach((name, row) => drawRow(context, look, frame, name, row * (ROW_HEIGHT + ROW_GAP)));
  }

  function drawRow(context, look, frame, name, y) {
    const width = cellWidth(frame);
    const values = frame[name];
    const real = values.filter((_, index) => frame.slot_mapping[index] !== -1);
    const [low, high] = [Math.min(...real), Math.max(...real)];
    context.font = "11px sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = look.dim;
    context.fillText(name, 0, y + ROW_HEIGHT / 2);
    context.textAlign = "center";
    values.forEach((value, index) => {
      const x = LABEL_WIDTH + index * width;
      const padding = frame.slot_mapping[index] === -1;
      const depth = padding ? 0 : 0.2 + 0.8 * (high > low ? (value - low) / (high - low) : 0.5);
      if (padding) {
        hatch(context, x, y, width, ROW_HEIGHT, look.edge);
      } else {
        context.globalAlpha = depth;
        context.fillStyle = look[frame.phase === "decode" ? "decode" : "prefill"];
        context.fillRect(x, y, width, ROW_HEIGHT);
        context.globalAlpha = 1;
      }
      if (width > 5) {
        context.strokeStyle = look.line;
        context.strokeRect(x + 0.5, y + 0.5, width - 1, ROW_HEIGHT - 1);
      }
      if (width >= 26) drawNumber(context, look, value, x, y, width, padding, depth);
    });
  }

  function drawNumber(context, look, value, x, y, width, padding, depth) {
    const half = Math.min(context.measureText(value).width, width - 4) / 2 + 2;
    context.fillStyle = look.paper;
    if (padding) context.fillRect(x + width / 2 - half, y + 4, 2 * half, ROW_HEIGHT - 8);
    // The theme's ink is white where it is dark, and cannot be read on a bright cell.
    context.fillStyle = depth > 0.6 ? "#000" : look.ink;
    context.fillText(value, x + width / 2, y + ROW_HEIGHT / 2, width - 2);
  }

  function describe(x) {
    const frame = model.get("frame");
    const index = Math.floor((x - LABEL_WIDTH) / cellWidth(frame));
    if (x < LABEL_WIDTH || !(index < frame.input_ids.length)) return null;
    const padding = frame.slot_mapping[index] === -1 ? " (padding)" : "";
    return [`number ${index}${padding}`, ...ROWS.map((name) => `${name} ${frame[name][index]}`)].join("\n");
  }

  const hide = hover(canvas, (x) => (model.get("frame").missing != null ? null : describe(x)));
  const gone = card({ model, el: root, title: "Inputs", note, body: [place, words], figure: canvas, draw });
  return () => { hide(); gone(); };
}

export default { render };
