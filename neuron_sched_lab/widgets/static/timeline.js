// The timeline: lanes on a canvas that is as large as what one sees of them.

const [LABELS, AXIS, LANE] = [92, 30, 17];
const LEGEND = [["prefill", "prefill"], ["decode", "decode"], ["hidden", "decode hidden (stall)"],
  ["waiting", "waiting"], ["shape", "first step of a tensor shape: a graph to compile"]];
const MAX_ROWS = 5000;

/** The steps that Python has sent; `ask` requests those that are missing. */
class Steps {
  constructor() { this.clear(0); }

  clear(run) {
    Object.assign(this, { run, first: 0, rows: [], lanes: [], ends: new Map(), starts: [0] });
  }

  get end() { return this.first + this.rows.length; }

  /** Take in a message; returns false if steps before it are missing. */
  take({ run, start, rows, first_lane: firstLane, lanes }) {
    if (run !== this.run) this.clear(run);
    if (firstLane > this.lanes.length) return false;
    this.lanes.splice(firstLane, lanes.length, ...lanes);
    if (start > this.end) {
      if (this.rows.length) return false;
      this.first = start;
    }
    const fresh = rows.slice(this.end - start);
    for (const row of fresh) this.add(row);
    return true;
  }

  add(row) {
    const position = this.end;
    this.rows.push(row);
    this.starts.push(this.starts.at(-1) + Math.max(row[1], 1));
    for (const key of row[6]) this.ends.set(key, position + 1);
    for (const key of row[7]) this.ends.set(key, position);
    if (this.rows.length > MAX_ROWS) {
      const cut = MAX_ROWS / 10;
      this.rows.splice(0, cut);
      this.starts.splice(0, cut);
      this.first += cut;
    }
  }

  /** Which lanes do what in a row: [key, activity, words] each. */
  static cells(row) {
    return [
      ...row[2].map(([key, actual, padded]) => [key, "prefill",
        `prefill of ${plural(actual, "token")}${padded > actual ? `, padded to ${padded}` : ""}`]),
      ...row[3].map((key) => [key, "decode", "decode"]),
      ...row[4].map((key) => [key, "hidden", "decode hidden: it stalls while a prefill runs"]),
      ...row[5].map((key) => [key, "stalled", "running, but not scheduled"]),
    ];
  }
}

function render({ model, el: root }) {
  const steps = new Steps();
  const canvas = el("canvas");
  const sheet = el("div", { class: "nsl-sheet" });
  const scroller = el("div", { class: "nsl-timeline-scroll", tabindex: 0, role: "img", "data-testid": "timeline" }, sheet, canvas);
  const box = el("div", { class: "nsl-timeline" }, scroller);
  const button = (text, label, action) =>
    el("button", { class: "nsl-small", type: "button", "aria-label": label, title: label, onclick: action }, text);
  const follow = button("Follow", "Follow the newest step", () => setFollow(true));
  const byTime = button("Time", "Measured or simulated time instead of steps", () => setByTime(!timed));
  const tools = el("div", { class: "nsl-tools nsl-note" }, follow, byTime,
    button("−", "Zoom out", () => zoom(1 / 1.5)), button("+", "Zoom in", () => zoom(1.5)),
    button("Fit", "Fit all steps", fitAll));
  const legend = el("ul", { class: "nsl-legend" }, ...LEGEND.map(([name, words]) =>
    el("li", {}, el("i", { class: `nsl-${name}`, style: `--nsl-colour: var(--nsl-${name})` }), words)));
  let pixels = 14; // a step, or a mean step's time
  let scrolled = { left: 0, top: 0 }; // read once a drawing: asking the page each time is slow
  let [following, timed] = [true, false];

  const request = eachFrame(() => draw(model.get("frame")));
  // Where a position begins, in pixels from the first; and the position at a pixel.
  const meanTime = () => steps.starts.at(-1) - steps.starts[0] || 1;
  const xOf = (index) => (timed
    ? (steps.starts[index] - steps.starts[0]) / meanTime() * steps.rows.length : index) * pixels;
  function indexAt(x) {
    if (!timed) return Math.floor(x / pixels);
    let [low, high] = [0, steps.rows.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (xOf(middle) <= x) low = middle; else high = middle - 1;
    }
    return low;
  }

  function setFollow(value) {
    following = value;
    follow.setAttribute("aria-pressed", value);
    request();
  }
  function setByTime(value) {
    timed = value;
    byTime.setAttribute("aria-pressed", value);
    request();
  }
  function zoom(factor) {
    const middle = indexAt(scroller.scrollLeft + viewWidth() / 2);
    pixels = Math.min(Math.max(pixels * factor, 0.5), 80);
    resize();
    if (!following) scroller.scrollLeft = xOf(Math.min(middle, steps.rows.length)) - viewWidth() / 2;
    request();
  }
  function fitAll() {
    pixels = Math.min(Math.max(viewWidth() / Math.max(steps.rows.length, 1), 0.5), 80);
    request();
  }
  const viewWidth = () => scroller.clientWidth - LABELS;
  function resize() {
    sheet.style.width = `${LABELS + xOf(steps.rows.length) + 8}px`;
    sheet.style.height = `${AXIS + steps.lanes.length * LANE + 4}px`;
  }

  /** Keep the playhead in sight, and the oldest request that still runs. */
  function followPlayhead(index) {
    const x = xOf(index);
    const left = scroller.scrollLeft;
    if (x > left + viewWidth() - 4 || x < left + 4) {
      scroller.scrollLeft = Math.max(x - viewWidth() + 4, 0);
    }
    const row = steps.rows[index - 1];
    const active = row ? Steps.cells(row).map(([key]) => key) : [];
    if (!active.length) return;
    const [top, bottom] = [Math.min(...active) * LANE, (Math.max(...active) + 1) * LANE];
    const height = scroller.clientHeight - AXIS;
    if (bottom - scroller.scrollTop > height) scroller.scrollTop = Math.min(bottom - height, top);
    if (top < scroller.scrollTop) scroller.scrollTop = top;
  }

  function draw(frame) {
    if (frame.position === undefined || !scroller.clientWidth) return;
    if (frame.run !== steps.run && steps.rows.length) steps.clear(frame.run);
    resize();
    const playhead = Math.min(Math.max(frame.position - steps.first, 0), steps.rows.length);
    if (following) followPlayhead(playhead);
    scrolled = { left: scroller.scrollLeft, top: scroller.scrollTop };
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    const context = prepare(canvas, width, height);
    const look = colours(canvas, ["ink", "dim", "line", "edge", "accent", "prefill", "decode", "hidden"]);
    drawLanes(context, look, width, height);
    drawAxis(context, look, width, playhead);
    drawLabels(context, look, height);
    box.dataset.rows = steps.rows.length;
  }

  function visibleLanes(height) {
    const first = Math.floor(scrolled.top / LANE);
    return [first, Math.min(first + Math.ceil(height / LANE) + 1, steps.lanes.length)];
  }
  const laneTop = (key) => AXIS + key * LANE - scrolled.top;
  const left = (index) => LABELS + xOf(index) - scrolled.left;

  function drawLanes(context, look, width, height) {
    const [from, to] = visibleLanes(height);
    const first = Math.max(indexAt(scrolled.left), 0);
    const last = Math.min(indexAt(scrolled.left + width) + 1, steps.rows.length);
    drawWaits(context, look, from, to, width);
    for (let index = first; index < last; index++) {
      const [x, w] = [left(index), Math.max(left(index + 1) - left(index), 0.6)];
      const gap = w > 5 ? 1 : 0;
      for (const [key, activity] of Steps.cells(steps.rows[index])) {
        if (key < from || key >= to) continue;
        const y = laneTop(key) + 2;
        context.clearRect(x, y, w, LANE - 4);
        context.fillStyle = look[activity] ?? look.edge;
        if (activity === "prefill") context.fillRect(x, y, w - gap, 13);
        else if (activity === "decode") context.fillRect(x, y + 3, w - gap, 7);
        else if (activity === "hidden") context.fillRect(x, y + 5, w, 3);
        else context.fillRect(x, y + 6, w, 1);
        if (activity === "prefill" && w > 5) {
          context.strokeStyle = look.edge;
          context.strokeRect(x + 0.5, y + 0.5, w - gap - 1, 12);
        }
      }
    }
    drawMarks(context, look, from, to, first, last);
  }

  /** Dots from a request's arrival until it ends; what it does then is drawn over them. */
  function drawWaits(context, look, from, to, width) {
    const firstStep = steps.rows[0]?.[0] ?? 1;
    context.strokeStyle = look.edge;
    context.lineWidth = 1;
    context.setLineDash([1, 3]);
    for (let key = from; key < to; key++) {
      const start = Math.max(steps.lanes[key][1] - firstStep, 0);
      const end = Math.min((steps.ends.get(key) ?? steps.end) - steps.first, steps.rows.length);
      const y = laneTop(key) + 8.5;
      if (start >= end) continue;
      context.beginPath();
      context.moveTo(Math.max(left(start), LABELS), y);
      context.lineTo(Math.min(left(end), width), y);
      context.stroke();
    }
    context.setLineDash([]);
  }

  function drawMarks(context, look, from, to, first, last) {
    context.font = "10px sans-serif";
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = look.ink;
    for (let index = first; index < last; index++) {
      const row = steps.rows[index];
      for (const [keys, mark] of [[row[6], "✓"], [row[7], "✕"], [row[8], "↺"]]) {
        for (const key of keys) {
          if (key >= from && key < to) context.fillText(mark, left(index + (mark === "✕" ? 0 : 1)) + 1, laneTop(key) + 9);
        }
      }
    }
  }

  function drawAxis(context, look, width, playhead) {
    context.clearRect(0, 0, width, AXIS);
    context.font = "11px sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "center";
    const every = Math.max(1, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * pixels >= 42) ?? 2000);
    steps.rows.forEach((row, index) => {
      const x = left(index);
      if (x < LABELS - 1 || x > width) return;
      const wide = left(index + 1) - x;
      context.fillStyle = look.dim;
      if (!timed && row[0] % every === 0) context.fillText(String(row[0]), x + wide / 2, 9);
      if (row[9]) drawShape(context, look, x + wide / 2);
    });
    if (timed) drawClock(context, look, width);
    context.strokeStyle = look.line;
    context.beginPath();
    context.moveTo(0, AXIS - 0.5);
    context.lineTo(width, AXIS - 0.5);
    context.stroke();
    const x = Math.round(left(playhead)) - 0.5;
    if (x < LABELS) return;
    context.strokeStyle = look.accent;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, scroller.clientHeight);
    context.stroke();
    context.lineWidth = 1;
  }

  function drawShape(context, look, x) {
    context.fillStyle = look.ink;
    context.beginPath();
    context.moveTo(x, 17);
    context.lineTo(x + 5, 22);
    context.lineTo(x, 27);
    context.lineTo(x - 5, 22);
    context.fill();
  }

  function drawClock(context, look, width) {
    const perPixel = meanTime() / 1000 / Math.max(xOf(steps.rows.length), 1);
    const unit = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]
      .find((ms) => ms / perPixel >= 70) ?? 60000;
    context.fillStyle = look.dim;
    for (let ms = 0; ms / perPixel < xOf(steps.rows.length); ms += unit) {
      const x = LABELS + ms / perPixel - scrolled.left;
      if (x >= LABELS - 1 && x < width) context.fillText(ms >= 1000 ? `${ms / 1000} s` : `${+ms.toFixed(1)} ms`, x + 16, 9);
    }
  }

  function drawLabels(context, look, height) {
    const [from, to] = visibleLanes(height);
    context.clearRect(0, 0, LABELS - 2, height);
    context.font = "11px sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = look.ink;
    for (let key = from; key < to; key++) {
      if (laneTop(key) < AXIS - LANE / 2) continue;
      context.fillText(fit(context, steps.lanes[key][0], LABELS - 12), LABELS - 8, laneTop(key) + 9);
    }
    context.clearRect(0, 0, LABELS - 2, AXIS);
    context.fillStyle = look.dim;
    context.fillText(timed ? "time" : "step", LABELS - 8, 9);
    context.strokeStyle = look.line;
    context.strokeRect(LABELS - 2.5, -1, 0.01, height + 2);
  }

  function describe(x, y) {
    const index = indexAt(x - LABELS + scrolled.left);
    const row = steps.rows[index];
    if (x < LABELS || !row) return null;
    const time = row[1] >= 1000 ? `${(row[1] / 1000).toFixed(1)} ms` : `${row[1]} µs`;
    const head = `step ${row[0]}, ${time}`;
    const shape = row[9] ? `\nnew shape: ${row[9]}` : "";
    const key = Math.floor((y - AXIS + scrolled.top) / LANE);
    if (y < AXIS || !steps.lanes[key]) return head + shape;
    const doing = Steps.cells(row).find(([who]) => who === key)?.[2] ?? waitingWords(key, index, row);
    return `${steps.lanes[key][0]}\n${head}\n${doing}${shape}`;
  }

  function waitingWords(key, index, row) {
    if (steps.lanes[key][1] > row[0]) return "not yet arrived";
    return (steps.ends.get(key) ?? Infinity) - steps.first <= index ? "ended" : "waiting";
  }

  const receive = (message) => {
    if (message.type !== "rows") return;
    if (!steps.take(message)) ask();
    request();
  };
  const ask = () => model.send({ type: "ask", have: steps.end, run: steps.run });
  const onScroll = () => request();
  const onWheel = (event) => {
    if (!event.ctrlKey) return setFollow(following && !event.deltaX && !event.deltaY);
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2);
  };
  const onKey = (event) => {
    const action = { "+": () => zoom(1.5), "-": () => zoom(1 / 1.5), ArrowLeft: () => pan(-60), ArrowRight: () => pan(60) }[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  };
  const pan = (distance) => { setFollow(false); scroller.scrollLeft += distance; };
  scroller.addEventListener("scroll", onScroll);
  scroller.addEventListener("wheel", onWheel, { passive: false });
  scroller.addEventListener("keydown", onKey);
  scroller.addEventListener("mousedown", () => setFollow(false));
  model.on("msg:custom", receive);
  const hide = hover(scroller, describe);
  setFollow(true);
  setByTime(false);
  const gone = card({ model, el: root, title: "Timeline", tools: [tools], body: [box, legend], figure: scroller, draw });
  ask();
  return () => { hide(); gone(); request.cancel(); model.off("msg:custom", receive); };
}

export default { render };
