"""KV admission policies at several sizes of the KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..reports.chart import Chart, Series
from ..reports.experiment_page import Experiment
from .cell_runs import get_setting, run_cells

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..trace.metrics import SLO
    from ..workloads.workload import Workload

KV_SIZES = (2, 4, 8)
"""KV caches by default, in requests of `max_model_len`."""


def kv_policies(
    workload: Workload,
    *,
    kv_tokens: Sequence[int] | None = None,
    declared_max_tokens: int | None = None,
    slo: SLO | None = None,
    results: str | Path | None = None,
    n_jobs: int | None = None,
    progress: bool = False,
    **settings: Any,
) -> Experiment:
    """Run the three KV admission policies at several sizes of the KV cache.

    Args:
        workload: who arrives when.
        kv_tokens: sizes of the cache in tokens; by default KV_SIZES requests of `max_model_len`.
        declared_max_tokens: what every request asks for at least, however early it ends; None for
            exactly what it generates, which is more than a scheduler knows in production.
        slo: what goodput is measured by.
        results: results file of the sweep; see `sweep`.
        n_jobs: processes; see `sweep`.
        progress: whether to show a bar.
        settings: arguments of `simulate`.

    Raises:
        ValueError: a setting is wrong; it is named.
    """
    from ..scheduler.kv_policies import KV_ADMISSION_POLICIES

    block_size = get_setting("block_size", settings)
    if kv_tokens is None:
        kv_tokens = [size * get_setting("max_model_len", settings) for size in KV_SIZES]
    for tokens in kv_tokens:
        if not isinstance(tokens, int) or tokens < block_size:
            raise ValueError(
                f"kv_tokens: {tokens!r} must be a number of tokens of at least block_size = "
                f"{block_size}"
            )
    if declared_max_tokens is not None:
        settings = {"scheduler": _declaring(declared_max_tokens, settings), **settings}
    cells = [
        # One block more: vLLM keeps the null block.
        {"num_kv_blocks": size // block_size + 1, "neuron_config.kv_admission": policy}
        for size in kv_tokens
        for policy in KV_ADMISSION_POLICIES
    ]
    figures = run_cells(
        cells, workload, results=results, n_jobs=n_jobs, progress=progress, slo=slo, **settings
    )
    table = _kv_table(figures, block_size)
    if slo is not None:
        table["goodput, requests/s"] = list(figures["goodput"])
    series = tuple(
        Series(
            policy,
            tuple(rows["KV tokens"]),
            tuple(rows["output tokens/s"]),
            tuple(f"x{ratio:.2f}" for ratio in rows["ratio"]) if policy != "worst_case" else (),
        )
        for policy, rows in table.groupby("policy", sort=False)
    )
    smallest = table[table["KV tokens"] == table["KV tokens"].min()].set_index("policy")
    gains = ", ".join(
        f"{policy} {row['output tokens/s']:.4g} tokens/s (x{row['ratio']:.2f}) with "
        f"{row['running, mean']:.1f} requests at once"
        for policy, row in smallest.iterrows()
    )
    size = f"{table['KV tokens'].min():,}"
    lines = "; ".join(
        f"{s.name}: {', '.join(f'{y:.4g} at {x:,}' for x, y in zip(s.x, s.y, strict=True))}"
        for s in series
    )
    return Experiment(
        question="How much more does a KV cache serve under each admission policy?",
        answer=f"With {size} tokens of KV cache: {gains}.",
        table=table,
        chart=Chart(
            title="Throughput by size of the KV cache (x: against worst_case)",
            x_title="KV cache, tokens",
            y_title="output tokens/s",
            series=series,
            x_values=tuple(kv_tokens),
        ),
        alt_text=f"Output tokens a second by tokens of KV cache, one line a policy. {lines}.",
        notes=_kv_notes(figures, declared_max_tokens),
    )


def _declaring(declared_max_tokens: int, settings: Mapping[str, Any]) -> type:
    from ..simulation.declared_max_tokens import declaring

    if "scheduler" in settings:
        raise ValueError(
            "declared_max_tokens: is a setting of NeuronScheduler; leave out scheduler, or let "
            "your class derive from declared.declaring(max_tokens)"
        )
    return declaring(declared_max_tokens)


def _kv_table(figures: DataFrame, block_size: int) -> DataFrame:
    from pandas import DataFrame

    rates = figures.set_index(["num_kv_blocks", "neuron_config.kv_admission"])
    rates = rates["output_tokens_per_second"]
    rows = []
    for _, f in figures.iterrows():
        worst = rates[f["num_kv_blocks"], "worst_case"]
        rows.append(
            {
                "KV tokens": (f["num_kv_blocks"] - 1) * block_size,
                "policy": f["neuron_config.kv_admission"],
                "running, mean": f["running_mean"],
                "running, most": int(f["running_max"]),
                "output tokens/s": f["output_tokens_per_second"],
                "ratio": f["output_tokens_per_second"] / worst if worst else None,
                "TTFT p50, s": f["ttft_p50"],
                "TTFT p99, s": f["ttft_p99"],
                "ITL p50, s": f["itl_p50"],
                "ITL p99, s": f["itl_p99"],
                "end to end p50, s": f["e2e_p50"],
                "KV use, mean": f["kv_use_mean"],
                "preemptions": f["num_preemptions"],
            }
        )
    return DataFrame(rows)


def _kv_notes(figures: DataFrame, declared_max_tokens: int | None) -> tuple[str, ...]:
    notes = [
        "every request declares exactly the tokens that it generates, which in production nobody "
        "knows; declared_max_tokens sets what they declare"
        if declared_max_tokens is None
        else f"every request declares at least {declared_max_tokens} tokens and ends where the "
        f"workload says"
    ]
    if refused := int(figures["num_refused"].max()):
        notes.append(f"requests refused, at most: {refused}")
    return tuple(notes)
