// The KV map: a cell a block, in the order of the block ids.

const OWNERS = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#9ab1c7"];
const [FREE, SHARED] = [0xffff, 0xfffe];

/** A bar of two parts: what is taken, and, hatched, what the next admission would take. */
function makeBar() {
  const [taken, next] = [el("i"), el("i")];
  return { taken, next, node: el("div", { class: "nsl-kv-bar" }, taken, next) };
}

function drawBar(bar, taken, next, total) {
  const share = (blocks) => `${100 * Math.min(blocks / total, 1)}%`;
  bar.taken.style.width = share(taken);
  bar.next.style.width = share(next);
  bar.next.style.display = next ? "" : "none";
  bar.node.title = `${taken} of ${plural(total, "block")}${next ? `, the next admission takes ${next}` : ""}`;
}

function render({ model, el: root }) {
  const canvas = el("canvas", { class: "nsl-kv-map", role: "img", "data-testid": "kv" });
  const place = el("div", {}, canvas);
  const [inUse, worstCase] = [makeBar(), makeBar()];
  const bars = el("div", { class: "nsl-kv-bars" }, el("span", {}, "in use"), inUse.node,
    el("span", {}, "worst case"), worstCase.node,
    el("span", {}), el("span", {}, "solid: taken; hatched: what the next admission adds"));
  const owners = el("ul", { class: "nsl-owners", "aria-label": "Requests that hold blocks" });
  const bound = el("p", { class: "nsl-words" });
  const admission = el("p", { class: "nsl-words" });
  const note = el("span", { class: "nsl-note" });
  let grid = { columns: 1, size: 1 };
  let labels = new Map();

  function readCells() {
    const view = model.get("cells");
    // Bytes arrive as a DataView that may start at an odd address.
    return new Uint16Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  }

  function layOut(number, width) {
    const size = Math.max(Math.min(Math.floor(Math.sqrt(width * 96 / number)), 20), 4);
    return { columns: Math.floor(width / size), size };
  }

  function drawMap() {
    const cells = readCells();
    const width = place.clientWidth;
    if (!width || !cells.length) return;
    grid = layOut(cells.length, width);
    const { columns, size } = grid;
    const context = prepare(canvas, width, Math.ceil(cells.length / columns) * size);
    const { edge, line, ink } = colours(canvas, ["edge", "line", "ink"]);
    context.font = `600 ${Math.min(size * 0.55, 10)}px sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    cells.forEach((owner, index) => {
      const [x, y] = [(index % columns) * size, Math.floor(index / columns) * size];
      if (owner !== FREE && owner !== SHARED) {
        context.fillStyle = OWNERS[owner % OWNERS.length];
        context.fillRect(x, y, size - 1, size - 1);
        if (size >= 14) {
          context.fillStyle = "#000";
          context.fillText(owner, x + (size - 1) / 2, y + size / 2, size - 2);
        }
      }
      if (owner === SHARED) hatch(context, x, y, size - 1, size - 1, ink);
      context.strokeStyle = owner === FREE ? line : edge;
      context.lineWidth = 1;
      if (size > 5 || owner === FREE) context.strokeRect(x + 0.5, y + 0.5, size - 2, size - 2);
    });
  }

  function describe(x, y) {
    const frame = model.get("frame");
    const column = Math.floor(x / grid.size);
    const index = Math.floor(y / grid.size) * grid.columns + column;
    const owner = column < grid.columns ? readCells()[index] : undefined;
    if (owner === undefined) return null;
    const blocks = frame.group > 1
      ? `blocks ${index * frame.group + 1} to ${(index + 1) * frame.group}` : `block ${index + 1}`;
    if (owner === FREE) return `${blocks}: free`;
    if (owner === SHARED) return `${blocks}: a prefix shared by several requests`;
    return `${blocks}: ${labels.get(owner) ?? `request ${owner}`}`;
  }

  function draw(frame) {
    if (!frame.total) return;
    drawMap();
    labels = new Map(frame.owners.map(([key, label]) => [key % 60000, label]));
    drawBar(inUse, frame.used, frame.prompt_blocks, frame.total);
    drawBar(worstCase, frame.num_running * frame.worst_case, frame.prompt_blocks && frame.worst_case, frame.total);
    owners.replaceChildren(...frame.owners.map(([key, label, blocks]) => {
      const mark = el("span", { class: "nsl-badge" }, String(key));
      mark.style.setProperty("--nsl-colour", OWNERS[(key % 60000) % OWNERS.length]);
      return el("li", { title: label }, mark, el("bdi", {}, label), el("span", {}, String(blocks)));
    }), frame.more ? el("li", {}, `${frame.more} more`) : "");
    setText(bound, frame.bound_words);
    setText(admission, frame.admission_words);
    const shared = frame.shared ? `, ${frame.shared.toLocaleString("en")} shared` : "";
    const cell = frame.group > 1 ? `; a cell is ${frame.group} blocks` : "";
    setText(note, `${frame.used.toLocaleString("en")} of ${plural(frame.total, "block")} used${shared}${cell}`);
  }

  const hide = hover(canvas, describe);
  const gone = card({ model, el: root, title: "KV cache", note, figure: canvas, draw,
    body: [bars, place, owners, bound, admission] });
  return () => { hide(); gone(); };
}

export default { render };
