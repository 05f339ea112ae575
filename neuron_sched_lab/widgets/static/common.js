// What all views share: building elements, the card around a view, its table, themes, hovering.
// Text from outside goes into text nodes and attributes only, never into markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** An HTML element; strings among the children become text. */
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Change a node's text only if it is another: a selection in it lives longer. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function plural(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function badge(letter, activity) {
  return el("span", { class: "nsl-badge", style: `--nsl-colour: var(--nsl-${activity})` }, letter);
}

/** Call `draw` at most once for each frame of the screen. */
function eachFrame(draw) {
  let asked = 0;
  const request = () => { asked ||= requestAnimationFrame(() => { asked = 0; draw(); }); };
  request.cancel = () => cancelAnimationFrame(asked);
  return request;
}

function renderTable(rows) {
  if (!rows.length) return el("p", {}, "…");
  const [head, ...body] = rows;
  return el("table", {},
    el("thead", {}, el("tr", {}, ...head.map((cell) => el("th", { scope: "col" }, cell)))),
    el("tbody", {}, ...body.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, cell))))));
}

/**
 * Put a view's card into `root`, and keep it drawn.
 *
 * `draw(frame)` is called when the frame, the size or the theme has changed; `figure` is the node
 * that the text alternative describes. Returns what to call when the card goes.
 */
function card({ model, el: root, title, body, note, tools = [], figure, draw }) {
  const table = el("div", { tabindex: 0, role: "region", "aria-label": `${title}: table` });
  const details = el("details", { class: "nsl-data", ontoggle: openTable },
    el("summary", {}, "Table"), table);
  details.open = model.get("table_open");
  root.append(el("section", { class: "nsl", role: "group", "aria-label": title },
    el("div", { class: "nsl-head" },
      el("span", { class: "nsl-title", role: "heading", "aria-level": 4 }, title), note, ...tools),
    el("div", { class: "nsl-body" }, ...body), details));

  function openTable() {
    if (details.open === model.get("table_open")) return;
    model.set("table_open", details.open);
    model.save_changes();
  }
  const drawTable = () => details.open && table.replaceChildren(renderTable(model.get("table")));
  let inSight = true;
  const redraw = eachFrame(() => {
    figure?.setAttribute("aria-label", model.get("alt"));
    if (inSight) draw(model.get("frame")); // else it is drawn when it is scrolled to
  });
  model.on("change:frame", redraw);
  model.on("change:table", drawTable);
  const sizes = new ResizeObserver(redraw);
  sizes.observe(root);
  const sight = new IntersectionObserver((entries) => {
    inSight = entries.at(-1).isIntersecting;
    redraw();
  }, { rootMargin: "200px" });
  sight.observe(root);
  // Again a little later: while a theme's style sheet loads, nothing has a size.
  const theme = new MutationObserver(() => { redraw(); setTimeout(redraw, 250); });
  theme.observe(document.body, { attributeFilter: ["data-jp-theme-name", "data-jp-theme-light"] });
  model.send({ type: "hello" });
  redraw();
  drawTable();
  return () => {
    model.send({ type: "bye" });
    model.off("change:frame", redraw);
    model.off("change:table", drawTable);
    sizes.disconnect();
    sight.disconnect();
    theme.disconnect();
    redraw.cancel();
  };
}

/** The present theme's colours of these names, for a canvas, looked up at `node`. */
function colours(node, names) {
  const probe = el("span", { style: "display: none" });
  node.parentNode.append(probe);
  const entries = names.map((name) => {
    // Through `color`, because a canvas knows neither variables nor color-mix().
    probe.style.color = `var(--nsl-${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(entries);
}

/** Give a canvas the size of its place, in the screen's own pixels; return its context. */
function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Slanted lines over a rectangle of a canvas: padding, or what nobody alone owns. */
function hatch(context, x, y, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.beginPath();
  const first = Math.floor((x - height) / 5) * 5;
  for (let at = first; at < x + width; at += 5) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.stroke();
  context.restore();
}

/** Cut a text to a width of a canvas. */
function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  while (text && context.measureText(`${text}…`).width > width) text = text.slice(0, -1);
  return `${text}…`;
}

/** Show `describe(x, y)`, a text or null, beside the mouse while it is over `node`. */
function hover(node, describe) {
  const tip = el("div", { class: "nsl-tip" });
  const hide = () => tip.remove();
  const move = (event) => {
    const box = node.getBoundingClientRect();
    const text = describe(event.clientX - box.left, event.clientY - box.top);
    if (!text) return hide();
    setText(tip, text);
    document.body.append(tip);
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 16 + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 8}px`;
  };
  node.addEventListener("mousemove", move);
  node.addEventListener("mouseleave", hide);
  return hide;
}
