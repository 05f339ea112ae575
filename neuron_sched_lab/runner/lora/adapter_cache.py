"""AdapterCache: the LoRA adapters on the host, and which of them are in the graphs' slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..inputs import NO_ADAPTER, Int32Array
from .adapter_files import Adapter, read_adapter
from .adapter_weights import PARTS

if TYPE_CHECKING:
    from vllm.config.lora import LoRAConfig
    from vllm.lora.request import LoRARequest

    from ..llama import Llama


class AdapterCache:
    """The adapters that a worker knows: `max_cpu_loras` on the host, `max_loras` in slots.

    Of both, the one that was used longest ago makes room. An adapter that a batch uses keeps its
    slot; the scheduler never puts more than `max_loras` into one.
    """

    def __init__(self, model: Llama, lora_config: LoRAConfig) -> None:
        self._model, self._config = model, lora_config
        self._on_host: OrderedDict[int, Adapter] = OrderedDict()
        self._slots: OrderedDict[int, int] = OrderedDict()  # slot by adapter, oldest use first
        self.num_loads = 0

    @property
    def ids(self) -> set[int]:
        """The adapters on the host."""
        return set(self._on_host)

    def add(self, request: LoRARequest) -> None:
        """Read an adapter, unless it is here; `load_inplace` reads it in any case.

        Raises:
            ValueError: its directory has a fault; see `read_adapter`.
        """
        if request.lora_int_id in self._on_host and not request.load_inplace:
            self._on_host.move_to_end(request.lora_int_id)
            return
        adapter = read_adapter(request.lora_path, self._model.config, self._config)
        self.remove(request.lora_int_id)
        while len(self._on_host) >= self._config.max_cpu_loras:
            # vLLM keeps max_cpu_loras >= max_loras, so those of the running batch stay.
            self.remove(next(iter(self._on_host)))
        self._on_host[request.lora_int_id] = adapter

    def remove(self, adapter_id: int) -> bool:
        """Forget an adapter; tell whether it was here."""
        self._slots.pop(adapter_id, None)
        return self._on_host.pop(adapter_id, None) is not None

    def get_slots(self, requests: Sequence[LoRARequest | None]) -> Int32Array:
        """Return the slot of each request's adapter, loading what is not yet in one.

        Raises:
            RuntimeError: the requests use more adapters than there are slots.
        """
        wanted = {r.lora_int_id: r for r in requests if r is not None}
        if len(wanted) > self._config.max_loras:
            raise RuntimeError(
                f"max_loras: {self._config.max_loras} adapters fit a batch; the scheduler sent one "
                f"with {len(wanted)}: {sorted(wanted)}; the Neuron schedulers count hidden "
                f"requests' adapters, vLLM's run every request in every step"
            )
        for adapter_id in wanted:
            if adapter_id in self._slots:
                self._slots.move_to_end(adapter_id)
            if adapter_id in self._on_host:
                self._on_host.move_to_end(adapter_id)
        for adapter_id, request in wanted.items():
            if adapter_id not in self._on_host:
                self.add(request)
            if adapter_id not in self._slots:
                self._load(adapter_id)
        slots = [NO_ADAPTER if r is None else self._slots[r.lora_int_id] for r in requests]
        return np.array(slots, dtype=np.int32)

    def _load(self, adapter_id: int) -> None:
        """Copy an adapter from the host into a free slot, or the one unused for longest."""
        free = set(range(self._config.max_loras)) - set(self._slots.values())
        slot = min(free) if free else self._slots.popitem(last=False)[1]
        adapter = self._on_host[adapter_id]
        for index, layer in enumerate(self._model.layers):
            for name, parts in PARTS.items():
                layer.adapters[name].fill(slot, [adapter.get((index, part)) for part in parts])
        self._slots[adapter_id] = slot
        self.num_loads += 1
