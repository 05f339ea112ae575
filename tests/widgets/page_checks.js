// Run in the page by test_browser.py; each returns what is wrong, as text.

({
  /** Cards wider than their place, text that is cut without saying so, labels outside a drawing. */
  findClipped() {
    const place = document.querySelector(".nsl-dashboard").getBoundingClientRect();
    const bad = [];
    for (const node of document.querySelectorAll(".nsl, .nsl *")) {
      const box = node.getBoundingClientRect();
      if (!box.width || node.closest(".nsl-timeline-scroll") || node.closest("svg")) continue;
      const name = node.className || node.tagName;
      if (box.right > place.right + 1 || box.left < place.left - 1) bad.push(`${name} sticks out`);
      const style = getComputedStyle(node);
      const cut = node.scrollWidth > node.clientWidth + 1 && style.overflowX === "hidden";
      if (cut && style.textOverflow !== "ellipsis") bad.push(`${name} is cut`);
    }
    for (const text of document.querySelectorAll(".nsl svg text")) {
      const inner = text.getBoundingClientRect();
      const outer = text.ownerSVGElement.getBoundingClientRect();
      const outside = inner.right > outer.right + 1 || inner.left < outer.left - 1
        || inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2;
      const box = text.closest(".nsl-state")?.querySelector("rect").getBoundingClientRect();
      if (box && inner.width > box.width) bad.push(`label wider than its box: ${text.textContent}`);
      if (inner.width && outside) bad.push(`label outside: ${text.textContent}`);
    }
    return bad;
  },

  /** Cards, or labels of one drawing, that lie upon each other. */
  findOverlaps() {
    const bad = [];
    const check = (nodes, slack) => nodes.forEach((a, index) => nodes.slice(index + 1).forEach((b) => {
      const [p, q] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
      const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (p.width && q.width && across > slack && down > slack) {
        bad.push(`${a.textContent.slice(0, 40)} / ${b.textContent.slice(0, 40)}`);
      }
    }));
    check([...document.querySelectorAll(".nsl")], 1);
    document.querySelectorAll(".nsl svg")
      .forEach((drawing) => check([...drawing.querySelectorAll("text")], 3));
    return bad;
  },

  /** Note the time of each step that reaches the queue board, in `window.seen`. */
  watchSteps() {
    window.seen = [];
    const board = document.querySelector("[data-testid=board]");
    new MutationObserver(() => window.seen.push([performance.now(), Number(board.dataset.step)]))
      .observe(board, { attributeFilter: ["data-step"] });
  },
})
