"""A `vllm serve` on 127.0.0.1, in processes of its own that are gone when the block ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from neuron_sched_lab.tiny_model.tasks import MAX_MODEL_LEN, tiny_model_path
from tests.sockets import HOST, get_free_port, get_listening_addresses, get_processes

MODEL = "tiny"
"""The name that requests ask for."""

START_SECONDS = 240
STOP_SECONDS = 30
LOG_LINES_SHOWN = 40

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The worker in the engine's process: on a CPU, vLLM gives it one of its own otherwise, and our
    # worker's switch for async scheduling does not reach the engine from there.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The abort of each request is read from the log.
    "VLLM_LOGGING_LEVEL": "INFO",
    # Sockets have short names; everything else that is temporary goes into the test's folder.
    "VLLM_RPC_BASE_PATH": tempfile.gettempdir(),
}

SETTINGS: dict[str, Any] = {
    "served-model-name": MODEL,
    # Tokens are compared across workers, and bfloat16 rounds.
    "dtype": "float32",
    "max-model-len": MAX_MODEL_LEN,
    "max-num-seqs": 64,
    "max-num-batched-tokens": MAX_MODEL_LEN,
    "block-size": 32,
    # Room for 31 requests of the full length: the KV bound holds requests back.
    "num-gpu-blocks-override": 2048,
}

OURS: dict[str, Any] = {
    **SETTINGS,
    "worker-cls": "neuron_sched_lab.runner.NeuronWorker",
    "logits-processors": "neuron_sched_lab.runner.limits:RequestLimits",
}
ASYNC: dict[str, Any] = {
    **OURS,
    "scheduler-cls": "neuron_sched_lab.NeuronAsyncScheduler",
    "additional-config": json.dumps({"runner_config": {"async_scheduling": True}}),
}
SYNC: dict[str, Any] = {**OURS, "scheduler-cls": "neuron_sched_lab.NeuronScheduler"}
BASE: dict[str, Any] = {**SETTINGS, "enforce-eager": None}
"""vLLM's own scheduler and worker, without the minutes of compilation."""


class Server:
    """`with Server(ASYNC, folder) as server:` runs until the end of the block.

    Attributes:
        url: without a path.
        log: what the server's processes write, one file for all starts.
    """

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.settings = settings
        self.port = get_free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.log = folder / f"server-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:  # noqa: PYI034 (Self needs Python 3.11)
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if error is not None:
            print(self.tail())

    def start(self) -> float:
        """Start the server; return the seconds until it answers.

        Raises:
            RuntimeError: it ends, or does not answer in START_SECONDS; the log's end is shown.
        """
        started = time.monotonic()
        with self.log.open("ab") as log:
            # A session of its own, so that one signal reaches every process of the server.
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT, "TMPDIR": str(self.log.parent)},
                start_new_session=True,
            )
        while not self._answers():
            seconds = time.monotonic() - started
            if self._process.poll() is not None or seconds > START_SECONDS:
                self.kill()
                raise RuntimeError(f"vllm serve did not start in {seconds:.0f} s\n{self.tail()}")
            time.sleep(0.2)
        return time.monotonic() - started

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "neuron_sched_lab.vllm_command", "serve"]
        command += [str(tiny_model_path()), "--host", HOST, "--port", str(self.port)]
        command += [
            "--enable-log-requests",
            "--disable-access-log-for-endpoints",
            "/metrics,/health",
        ]
        for name, value in self.settings.items():
            command.append(f"--{name}" if value is None else f"--{name}={value}")
        return command

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:  # noqa: S310
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """End every process of the server at once, as a crash of the machine would."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the server as an operator would, and whatever is left after STOP_SECONDS."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                print(f"the server did not end within {STOP_SECONDS} s of SIGTERM; it is killed")
        self.kill()

    def _signal(self, number: int) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill_engine(self) -> None:
        """End the engine's process alone; the front end is left to notice."""
        assert self._process is not None
        processes = get_processes(self._process.pid)
        for pid, name in processes.items():
            if name.startswith("VLLM::EngineCor"):
                os.kill(pid, signal.SIGKILL)
                return
        raise RuntimeError(f"no engine among the server's processes: {processes}")

    def wait(self, seconds: float) -> bool:
        """Wait for the server to end by itself; tell whether it did."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def get_listening_addresses(self) -> set[str]:
        """Return the addresses on which the server's processes accept connections (Linux)."""
        assert self._process is not None
        return get_listening_addresses(self._process.pid)

    def get_ids_in_log(self, words: str) -> set[str]:
        """Return the ids of the requests of which the log says `words`."""
        pattern = re.compile(rf"{re.escape(words)}\s+(.*)")
        found: set[str] = set()
        for line in self.log.read_text(errors="replace").splitlines():
            if match := pattern.search(line):
                found.update(re.findall(r"cmpl-([\w-]+?)-\d+\b", match[1]))
        return found

    def tail(self) -> str:
        """Return the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(["--- end of the server's log", *lines[-LOG_LINES_SHOWN:], "---"])
