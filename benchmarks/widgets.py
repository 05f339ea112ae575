"""What the dashboard costs the kernel beside the step it shows, in a real Jupyter kernel.

    python -m benchmarks.widgets [--requests 64] [--steps 200] [--quick]

The baseline is `Lab.step()` of the same Lab in the same run: decode steps of the shipped model
with all requests running. A redraw is everything the dashboard does for one step: all views
computed, serialised, signed and handed to the kernel's sockets. Sizes are of the messages as
they left the kernel.
"""

from __future__ import annotations

import argparse
import json
from queue import Empty
from typing import Any

from jupyter_client.manager import start_new_kernel

TARGET_RATIO, TARGET_APPEAR_SECONDS = 1.0, 1.0
TIMEOUT = 300

SET_UP = """
import json, time
from statistics import median
from neuron_sched_lab import Lab
lab = Lab(max_num_seqs={requests}, max_num_batched_tokens=512, max_model_len=1024)
for i in range({requests}):
    lab.add([5 + i % 10] * 24, max_tokens=900, ignore_eos=True)
for i in range(20):
    lab.add([5 + i % 10] * 100, max_tokens=900, ignore_eos=True)
while lab.step().phase != "decode":
    pass
"""

APPEAR = """
start = time.perf_counter()
from neuron_sched_lab.widgets import Dashboard
imported = time.perf_counter()
dashboard = Dashboard(lab)
bundle = dashboard._repr_mimebundle_()
made = time.perf_counter()
for view in dashboard.views.values():
    view._receive(view, {{"type": "hello"}}, [])
timeline = dashboard.views["timeline"]
timeline._receive(timeline, {{"type": "ask", "have": 0, "run": 0}}, [])
print(json.dumps({{"import": imported - start, "make": made - imported}}))
"""

COMPARE = """
steps, redraws, walls = [], [], []
for _ in range({steps}):
    start = time.thread_time()
    lab.step()
    stepped = time.thread_time()
    wall = time.perf_counter()
    dashboard.player._throttle._last = 0  # a redraw for every step, though 30/s would do
    dashboard.player.changed()
    walls.append(time.perf_counter() - wall)
    steps.append(stepped - start)
    redraws.append(time.thread_time() - stepped)
print(json.dumps({{"step": median(steps), "redraw": median(redraws), "wall": median(walls)}}))
"""


def run(client: Any, code: str) -> tuple[dict[str, float], list[int]]:
    """Run `code` in the kernel; return what it printed as JSON, and the sizes of widget messages.

    Raises:
        RuntimeError: the code failed.
    """
    printed: dict[str, float] = {}
    sizes: list[int] = []
    request = client.execute(code)
    while True:
        try:
            message = client.get_iopub_msg(timeout=TIMEOUT)
        except Empty:
            raise RuntimeError(f"no answer within {TIMEOUT} s") from None
        kind, content = message["msg_type"], message["content"]
        if kind == "stream" and content["name"] == "stdout":
            printed = json.loads(content["text"])
        elif kind.startswith("comm_"):
            parts = [message[part] for part in ("header", "parent_header", "metadata", "content")]
            sizes.append(len(json.dumps(parts, default=str)) + sum(map(len, message["buffers"])))
        elif kind == "error":
            raise RuntimeError(f"{content['ename']}: {content['evalue']}")
        elif content.get("execution_state") == "idle" and _is_answer(message, request):
            return printed, sizes


def _is_answer(message: dict[str, Any], request: str) -> bool:
    return message["parent_header"].get("msg_id") == request


def main() -> None:
    """Print the figures and whether they are within the targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64, help="running at once (%(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps compared (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="only 30 steps")
    args = parser.parse_args()
    steps = 30 if args.quick else args.steps
    manager, client = start_new_kernel()
    try:
        run(client, SET_UP.format(requests=args.requests))
        appear, opening = run(client, APPEAR.format())
        cost, sizes = run(client, COMPARE.format(steps=steps))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    seconds, ratio = appear["import"] + appear["make"], cost["redraw"] / cost["step"]
    print(
        f"dashboard: import {appear['import']:.2f} s, make {appear['make']:.2f} s, "
        f"{len(opening)} messages, {sum(opening) / 1e3:.0f} kB; "
        f"within {TARGET_APPEAR_SECONDS} s: {yes(seconds <= TARGET_APPEAR_SECONDS)}"
    )
    print(
        f"step {cost['step'] * 1e3:.2f} ms CPU, redraw {cost['redraw'] * 1e3:.2f} ms CPU "
        f"({cost['wall'] * 1e3:.2f} ms wall), ratio {ratio:.2f}; "
        f"below {TARGET_RATIO}: {yes(ratio < TARGET_RATIO)}"
    )
    print(
        f"a redraw: {len(sizes) / steps:.1f} messages, {sum(sizes) / steps / 1e3:.1f} kB in all, "
        f"largest {max(sizes, default=0) / 1e3:.1f} kB"
    )


def yes(is_true: bool) -> str:
    """Return `yes`, or `NO` to be noticed."""
    return "yes" if is_true else "NO"


if __name__ == "__main__":
    main()
