"""The random cases catch what goes wrong in such kernels: each bug is planted in a copy."""

import pytest
import torch

from neuron_sched_lab.nki_emulator import NkiValidationError
from tests.kernels import cases
from tests.kernels.planted import copy_kernels

KV, SOFTMAX = "paged_kv.py", "online_softmax.py"
PREFILL, DECODE, UPDATE = (
    "segmented_attention.py",
    "paged_decode_attention.py",
    "kv_cache_update.py",
)
MASK_BEHIND = """        data=positions,
        op0=nl.greater_equal,"""
CAUSAL = "data=ahead, op0=nl.greater, operand0=0.0"
RESCALE_OUT = "dst=out, data=out, op0=nl.multiply, operand0=rescale"
RESCALE_TOTAL = "dst=total, data=total, op0=nl.multiply, operand0=rescale"
SKIP_GATHER = "        oob_mode=nisa.oob_mode.skip,\n    )\n    nisa.tensor_copy_predicated"
SKIP_SCATTER = "            oob_mode=nisa.oob_mode.skip,\n"
CLEAR = 'nisa.tensor_copy_predicated(dst=tile, src=plan["zeros"][0:rows, :], predicate=behind)'
SUBTRACT = "nisa.tensor_tensor(dst=rows, data1=all_heads, data2=back, op=nl.subtract)"
AT_LEAST_0 = "nisa.tensor_tensor(dst=rows, data1=rows, data2=_times(offsets, 0), op=nl.maximum)"
COLUMNS = "pattern=[[1, tokens], [tokens, (end - start) // tokens]]"

BOTH = ("prefill", "decode")
BUGS = {
    "mask one key too late": (KV, MASK_BEHIND, MASK_BEHIND.replace("_equal", ""), BOTH),
    "causal mask one key too early": (
        PREFILL,
        CAUSAL,
        CAUSAL.replace("greater", "greater_equal"),
        ["prefill"],
    ),
    "causal mask one key too late": (PREFILL, CAUSAL, CAUSAL.replace("0.0", "1.0"), ["prefill"]),
    "output not rescaled": (SOFTMAX, RESCALE_OUT, RESCALE_OUT.replace("rescale", "1.0"), BOTH),
    "total not rescaled": (SOFTMAX, RESCALE_TOTAL, RESCALE_TOTAL.replace("rescale", "1.0"), BOTH),
    "-1 not skipped by the gather": (
        KV,
        SKIP_GATHER,
        SKIP_GATHER.replace("skip,", "error,"),
        BOTH,
    ),
    "-1 not skipped by the scatter": (
        UPDATE,
        SKIP_SCATTER,
        SKIP_SCATTER.replace("skip,", "error,"),
        ["update"],
    ),
    "slot -1 written to block 0": (
        UPDATE,
        SUBTRACT,
        f"{SUBTRACT}\n    {AT_LEAST_0}",
        ["update"],
    ),
    "unused slots not cleared": (KV, CLEAR, "pass", BOTH),
    "columns of K^T in the order of tokens": (
        KV,
        COLUMNS,
        "pattern=[[(end - start) // tokens, tokens], [1, (end - start) // tokens]]",
        BOTH,
    ),
    "K not transposed, only reshaped": (
        KV,
        "nisa.tensor_copy(dst=dst, src=turned)",
        "nisa.tensor_copy(dst=dst, src=data if data.shape[0] == data.shape[1] else turned)",
        ["prefill"],
    ),
    "weights of the wrong keys": (
        SOFTMAX,
        "weights[:, column : column + keys]",
        "weights[:, 0:keys]",
        BOTH,
    ),
    "key heads mixed up": (
        KV,
        "value=head * rows_per_block",
        "value=(num_kv_heads - 1 - head) * rows_per_block",
        BOTH,
    ),
    "own keys of a padding row": (
        PREFILL,
        """    nisa.tensor_copy_predicated(
        dst=loaded, src=zeros[0:rows, 0:width], predicate=padding[tile][:, 0:width]
    )
""",
        "",
        ["prefill"],
    ),
    "query heads of another KV head": (
        DECODE,
        "queries[head - first_head]",
        "queries[0]",
        ["decode"],
    ),
    "slots of another head": (
        UPDATE,
        "value=head * block_size",
        "value=head * head_dim",
        ["update"],
    ),
    "offset taken twice": (
        UPDATE,
        "_times(offsets, num_kv_heads - 1)",
        "_times(offsets, num_kv_heads)",
        ["update"],
    ),
}
CHECKS = {
    "prefill": (cases.prefill_case, cases.check_prefill, "segmented_attention"),
    "decode": (cases.decode_case, cases.check_decode, "paged_decode_attention"),
    "update": (cases.update_case, cases.check_update, "kv_cache_update"),
}


def run_cases(kernels, kernel):
    make, check, name = CHECKS[kernel]
    for index in range(40):
        case = make(index, torch.float32)
        if kernel == "decode" and index % 2:
            case = case._replace(args=(*case.args, 64))
        check(case, getattr(kernels, name))


@pytest.mark.parametrize("kernel", CHECKS)
def test_a_faithful_copy_passes(tmp_path, monkeypatch, kernel):
    run_cases(copy_kernels(tmp_path, monkeypatch), kernel)


@pytest.mark.parametrize(
    ("bug", "kernel"), [(bug, kernel) for bug, (*_, kernels) in BUGS.items() for kernel in kernels]
)
def test_a_planted_bug_is_caught(tmp_path, monkeypatch, bug, kernel):
    *change, _ = BUGS[bug]
    kernels = copy_kernels(tmp_path, monkeypatch, tuple(change))
    with pytest.raises((AssertionError, NkiValidationError)):
        run_cases(kernels, kernel)
