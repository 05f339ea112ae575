// The controls: each button sends one word; Python decides what comes of it.

const SPEEDS = [[1, "1 step/s"], [2, "2 steps/s"], [5, "5 steps/s"], [10, "10 steps/s"], [30, "30 steps/s"], [0, "full speed"]];

function render({ model, el: root }) {
  const send = (type, more = {}) => model.send({ type, ...more });
  const button = (text, action, title) =>
    el("button", { type: "button", onclick: action, title, "data-testid": text.toLowerCase().split(" ")[0] }, text);

  const back = button("Back", () => send("back"), "One step back in what was recorded");
  const step = button("Step", () => send("step"), "One step");
  const play = button("Play", () => send(model.get("frame").playing ? "pause" : "play"), "Go on, or pause");
  play.classList.add("nsl-play");
  const change = button("Next change", () => send("change"), "Run until the scheduler's state changes");
  const speed = el("select", { "aria-label": "Speed", onchange: () => send("speed", { value: Number(speed.value) }) },
    ...SPEEDS.map(([value, text]) => el("option", { value }, text)));
  const end = button("To the end", () => send("end"), "Show the newest step");
  const reset = button("Reset", () => send("reset"), "Go back to the start");
  const live = el("span", { class: "nsl-live" });
  const name = el("b");

  const scrub = el("input", { type: "range", min: 0, class: "nsl-scrub", "aria-label": "Step shown", oninput: onScrub });
  const where = el("span", { class: "nsl-where", "data-testid": "where" });

  const kind = el("select", { "aria-label": "Kind of prompt", onchange: () => setKind(kind.value) },
    el("option", { value: "text" }, "text"), el("option", { value: "length" }, "length"));
  const prompt = el("input", { type: "text", "aria-label": "Prompt", value: "1997 1998 ", spellcheck: "false" });
  const tokens = el("input", { type: "number", "aria-label": "Prompt tokens", value: 200, min: 1, step: 1 });
  const tokensLabel = el("label", {}, tokens, "tokens");
  const limit = el("input", { type: "number", "aria-label": "Tokens to generate", value: 16, min: 1, step: 1 });
  const add = button("Add", addRequest, "Add a request to the live engine");
  const whom = el("select", { "aria-label": "Request to abort" });
  const abort = button("Abort", () => whom.value && send("abort", { value: Number(whom.value) }), "Abort the chosen request");
  const feed = el("form", { class: "nsl-row nsl-feed", onsubmit: (event) => { event.preventDefault(); addRequest(); } },
    el("label", {}, "Prompt by", kind), prompt, tokensLabel, el("label", {}, "answer up to", limit), add,
    el("div", { class: "nsl-group nsl-push" }, whom, abort));
  const message = el("div", { class: "nsl-message", role: "status", "data-testid": "message" });
  const alert = el("div", { class: "nsl-message nsl-error", role: "alert", "data-testid": "alert" });

  // JupyterLab's own keys must not act while one types here.
  feed.addEventListener("keydown", (event) => event.stopPropagation());

  function setKind(value) {
    prompt.classList.toggle("nsl-hide", value !== "text");
    tokensLabel.classList.toggle("nsl-hide", value === "text");
  }
  function addRequest() {
    const max = { max_tokens: Number(limit.value) };
    send("add", kind.value === "text" ? { prompt: prompt.value, ...max } : { num_tokens: Number(tokens.value), ...max });
  }
  // Dragging gives more positions than need to be drawn.
  let dragged = null;
  const sendScrub = eachFrame(() => { send("seek", { value: dragged }); });
  function onScrub() {
    dragged = Number(scrub.value);
    sendScrub();
  }

  function draw() {
    const frame = model.get("frame");
    if (frame.total === undefined) return;
    const atEnd = frame.position >= frame.total;
    setText(play, frame.playing ? "Pause" : "Play");
    play.dataset.testid = "play";
    scrub.max = frame.total;
    if (document.activeElement !== scrub || frame.playing) scrub.value = frame.position;
    scrub.setAttribute("aria-valuetext", `step ${frame.step} of ${frame.total}`);
    scrub.disabled = !frame.total;
    back.disabled = frame.position === 0;
    end.disabled = atEnd;
    reset.disabled = !frame.can_reset;
    reset.title = frame.can_reset ? "Go back to the start"
      : "Its requests would be lost. Run the cell that made the Lab again, or give Dashboard a "
        + "function that makes a Lab";
    where.replaceChildren("step ", el("b", {}, String(frame.step)), ` of ${frame.total}`);
    where.dataset.step = frame.step;
    where.dataset.total = frame.total;
    setText(name, frame.scheduler);
    setText(live, !frame.live ? "recorded" : atEnd ? "live" : "live, looking back");
    live.classList.toggle("nsl-past", !frame.live || !atEnd);
    if (document.activeElement !== speed) speed.value = String(frame.speed);
    feed.classList.toggle("nsl-hide", !frame.live);
    drawAbortable(frame.abortable);
    setText(message, frame.is_error ? "" : frame.message);
    setText(alert, frame.is_error ? frame.message : "");
    alert.classList.toggle("nsl-hide", !frame.is_error);
    message.classList.toggle("nsl-hide", frame.is_error);
  }

  function drawAbortable(requests) {
    const text = JSON.stringify(requests);
    // A list that is open must not change under the hand.
    if (whom.dataset.shown === text || document.activeElement === whom) return;
    whom.dataset.shown = text;
    const chosen = whom.value;
    whom.replaceChildren(...requests.map(([key, label]) => el("option", { value: key }, label)));
    if (requests.some(([key]) => String(key) === chosen)) whom.value = chosen;
    whom.disabled = abort.disabled = !requests.length;
    if (!requests.length) whom.append(el("option", { value: "" }, "nobody to abort"));
  }

  const redraw = eachFrame(draw);
  root.append(el("section", { class: "nsl nsl-controls", role: "group", "aria-label": "Controls" },
    el("div", { class: "nsl-head" }, el("span", { class: "nsl-title" }, name), live, el("span", { class: "nsl-note" }, where)),
    el("div", { class: "nsl-row" }, play, step, change, speed,
      el("div", { class: "nsl-group nsl-wide" }, back, scrub, end), reset),
    feed, message, alert));
  setKind("text");
  model.on("change:frame", redraw);
  redraw();
  return () => { model.off("change:frame", redraw); redraw.cancel(); sendScrub.cancel(); };
}

export default { render };
