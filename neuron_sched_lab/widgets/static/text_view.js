// The generated text: a line a request, kept while the request is shown.

function render({ model, el: root }) {
  const list = el("ul", { class: "nsl-texts", tabindex: 0, "aria-label": "Text by request", "data-testid": "text" });
  const note = el("span", { class: "nsl-note" });
  const lines = new Map();

  function makeLine() {
    const [mark, name, text] = [badge("", "finished"), el("bdi", { class: "nsl-name" }), el("bdi", { class: "nsl-text" })];
    return { mark, name, text, node: el("li", {}, mark, name, text) };
  }

  function draw(frame) {
    if (!frame.lines) return;
    for (const [key, line] of lines) {
      if (!frame.lines.some((data) => data[0] === key)) { line.node.remove(); lines.delete(key); }
    }
    frame.lines.forEach(([key, label, letter, activity, text], index) => {
      if (!lines.has(key)) lines.set(key, makeLine());
      const line = lines.get(key);
      setText(line.mark, letter);
      line.mark.style.setProperty("--nsl-colour", `var(--nsl-${activity})`);
      setText(line.name, label);
      line.name.title = label;
      setText(line.text, text);
      if (list.children[index] !== line.node) list.insertBefore(line.node, list.children[index] ?? null);
    });
    setText(note, frame.lines.length ? `after step ${frame.step}` : "no text yet");
  }

  return card({ model, el: root, title: "Generated text", note, body: [list], draw });
}

export default { render };
