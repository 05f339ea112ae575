"""The emulator: every limit of a Trn2 breaks with an error that names it; arithmetic; counts."""

import ast
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from neuron_sched_lab import nki_emulator as emulator
from neuron_sched_lab.nki_emulator import NkiValidationError
from neuron_sched_lab.nki_emulator import isa as nisa
from neuron_sched_lab.nki_emulator import language as nl
from neuron_sched_lab.nki_emulator.dtypes import round_to_bfloat16

F32 = nl.float32


def sbuf(*shape, dtype=F32, fill=0):
    tile = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=float(fill) if dtype.is_float else fill)
    return tile


def psum(*shape, dtype=F32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)


def hbm(*shape, dtype=F32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)


def run(body):
    """Run a kernel without arguments for its errors."""

    def kernel():
        body()
        return hbm(1)

    return emulator.simulate(kernel)()


def index(rows, value=0, dtype=nl.int32):
    return sbuf(rows, 1, dtype=dtype, fill=value)


def gather(table, rows, elements, idx):
    return table.ap(pattern=[[elements, rows], [1, elements]], vector_offset=idx, indirect_dim=0)


def matmul_onto_memset():
    out = psum(4, 4)
    nisa.memset(dst=out, value=0.0)
    nisa.nc_matmul(dst=out, stationary=sbuf(4, 4), moving=sbuf(4, 4), accumulate=True)


def two_psum(operation):
    a, b = psum(4, 4), psum(4, 4)
    if operation == "tensor_tensor":
        nisa.tensor_tensor(dst=sbuf(4, 4), data1=a, data2=b, op=nl.add)
    else:
        nisa.scalar_tensor_tensor(
            dst=sbuf(4, 4), data=a, op0=nl.multiply, operand0=1.0, op1=nl.add, operand1=b
        )


def fill_sbuf():
    tiles = [nl.ndarray((128, 14 * 1024), dtype=F32, buffer=nl.sbuf) for _ in range(4)]
    assert len(tiles) == 4  # 4 x 56 KiB are 224: full
    nl.ndarray((1, 1), dtype=nl.uint8, buffer=nl.sbuf)


def fill_psum():
    banks = [psum(128, 512) for _ in range(8)]
    assert len(banks) == 8
    psum(1, 1)


def scatter_same_row_twice():
    nisa.dma_copy(dst=gather(hbm(8, 4), 2, 4, index(2)), src=sbuf(2, 4))


def many_registers():
    for _ in range(65):
        nisa.register_alloc(0)


def mm(k=4, m=4, n=4, **change):
    dst = psum(min(m, 128), min(n, 512))
    nisa.nc_matmul(**{"dst": dst, "stationary": sbuf(k, m), "moving": sbuf(k, n)} | change)


def predicated(predicate_dtype=nl.uint8, src_dtype=F32):
    nisa.tensor_copy_predicated(
        dst=sbuf(4, 4), src=sbuf(4, 4, dtype=src_dtype), predicate=sbuf(4, 4, dtype=predicate_dtype)
    )


def start_at(first, last):
    nisa.memset(dst=sbuf(128, 4)[first:last, :], value=1.0)


def scalar_from(operand, dtype=F32):
    nisa.tensor_scalar(
        dst=sbuf(4, 4), data=sbuf(4, 4), op0=nl.add, operand0=sbuf(4, operand, dtype=dtype)
    )


def transpose(rows, columns, where):
    dst = psum(columns, rows) if where == "psum" else sbuf(columns, rows)
    nisa.nc_transpose(dst=dst, data=sbuf(rows, columns))


def dma(dst, src, **kwargs):
    nisa.dma_copy(dst=dst, src=src, **kwargs)


def activate(**change):
    sums = {
        "reduce_op": nl.add,
        "reduce_res": sbuf(4, 1),
        "reduce_cmd": nisa.reduce_cmd.reset_reduce,
    }
    nisa.activation(dst=sbuf(4, 4), op=nl.exp, data=sbuf(4, 4), **sums | change)


# (what is broken, a kernel body that breaks it, operation, operand, part of the limit)
LIMITS = [
    (
        "partitions of SBUF",
        lambda: nl.ndarray((129, 4), dtype=F32, buffer=nl.sbuf),
        "nl.ndarray",
        "buffer=nl.sbuf",
        "partitions must be at most 128",
    ),
    (
        "partitions of PSUM",
        lambda: psum(129, 4),
        "nl.ndarray",
        "buffer=nl.psum",
        "partitions must be at most 128",
    ),
    ("SBUF capacity", fill_sbuf, "nl.ndarray", "buffer=nl.sbuf", "at most 229376"),
    ("PSUM capacity", fill_psum, "nl.ndarray", "buffer=nl.psum", "at most 8"),
    (
        "on chip in one dimension",
        lambda: nl.ndarray((4,), dtype=F32, buffer=nl.sbuf),
        "nl.ndarray",
        "buffer=nl.sbuf",
        "at least 2 dimensions",
    ),
    (
        "a format that NKI lacks",
        lambda: nl.ndarray((4, 4), dtype=np.int64, buffer=nl.sbuf),
        "nl.ndarray",
        "dtype",
        "a format of nki.language",
    ),
    ("matmul K", lambda: mm(moving=sbuf(8, 4)), "nisa.nc_matmul", "moving", "K = 4 partitions"),
    ("matmul M", lambda: mm(m=129), "nisa.nc_matmul", "stationary", "(M) must be at most 128"),
    ("matmul N", lambda: mm(n=513), "nisa.nc_matmul", "moving", "(N) must be at most 512"),
    ("matmul dst shape", lambda: mm(dst=psum(4, 5)), "nisa.nc_matmul", "dst", "[M, N] = (4, 4)"),
    ("matmul into SBUF", lambda: mm(dst=sbuf(4, 4)), "nisa.nc_matmul", "dst", "in PSUM"),
    ("matmul from PSUM", lambda: mm(moving=psum(4, 4)), "nisa.nc_matmul", "moving", "in SBUF"),
    (
        "matmul stationary from PSUM",
        lambda: mm(stationary=psum(4, 4)),
        "nisa.nc_matmul",
        "stationary",
        "in SBUF",
    ),
    (
        "matmul of integers",
        lambda: mm(moving=sbuf(4, 4, dtype=nl.int32)),
        "nisa.nc_matmul",
        "moving",
        "float32 or bfloat16",
    ),
    (
        "matmul of mixed formats",
        lambda: mm(moving=sbuf(4, 4, dtype=nl.bfloat16)),
        "nisa.nc_matmul",
        "moving",
        "float32 pairs with float32 only",
    ),
    (
        "matmul into bfloat16",
        lambda: mm(dst=psum(4, 4, dtype=nl.bfloat16)),
        "nisa.nc_matmul",
        "dst",
        "must be float32",
    ),
    (
        "matmul across PSUM banks",
        lambda: mm(n=512, dst=psum(4, 1024)[:, 256:768]),
        "nisa.nc_matmul",
        "dst",
        "within one PSUM bank",
    ),
    (
        "accumulating onto a memset",
        matmul_onto_memset,
        "nisa.nc_matmul",
        "accumulate",
        "needs a matmul that has written",
    ),
    (
        "accumulating onto nothing",
        lambda: mm(accumulate=True),
        "nisa.nc_matmul",
        "accumulate",
        "needs a matmul that has written",
    ),
    ("matmul in HBM", lambda: mm(moving=hbm(4, 4)), "nisa.nc_matmul", "moving", "SBUF or PSUM"),
    (
        "Tensor transpose, columns",
        lambda: nisa.nc_transpose(dst=psum(128, 4), data=sbuf(4, 129)),
        "nisa.nc_transpose",
        "data",
        "columns (tensor engine) must be at most 128",
    ),
    (
        "Vector transpose, partitions",
        lambda: transpose(33, 4, "sbuf"),
        "nisa.nc_transpose",
        "data",
        "partitions (vector engine) must be at most 32",
    ),
    (
        "Vector transpose, columns",
        lambda: transpose(4, 33, "sbuf"),
        "nisa.nc_transpose",
        "data",
        "columns (vector engine) must be at most 32",
    ),
    (
        "Tensor transpose from PSUM",
        lambda: nisa.nc_transpose(dst=psum(4, 4), data=psum(4, 4)),
        "nisa.nc_transpose",
        "data",
        "reads SBUF",
    ),
    (
        "transpose to another format",
        lambda: nisa.nc_transpose(dst=psum(4, 4, dtype=nl.bfloat16), data=sbuf(4, 4)),
        "nisa.nc_transpose",
        "dst",
        "must be float32",
    ),
    (
        "DMA to PSUM",
        lambda: dma(psum(4, 4), hbm(4, 4)),
        "nisa.dma_copy",
        "dst",
        "cannot reach PSUM",
    ),
    (
        "DMA from PSUM",
        lambda: dma(hbm(4, 4), psum(4, 4)),
        "nisa.dma_copy",
        "src",
        "cannot reach PSUM",
    ),
    (
        "DMA of other sizes",
        lambda: dma(sbuf(4, 4), hbm(4, 5)),
        "nisa.dma_copy",
        "dst",
        "as many elements as src",
    ),
    (
        "gather out of bounds",
        lambda: dma(sbuf(2, 4), gather(hbm(8, 4), 2, 4, index(2, 8))),
        "nisa.dma_copy",
        "src",
        "below 8 (oob_mode.error)",
    ),
    (
        "gather of -1",
        lambda: dma(sbuf(2, 4), gather(hbm(8, 4), 2, 4, index(2, -1))),
        "nisa.dma_copy",
        "src",
        "below 8 (oob_mode.error)",
    ),
    (
        "scatter out of bounds",
        lambda: dma(gather(hbm(8, 4), 2, 4, index(2, -1)), sbuf(2, 4)),
        "nisa.dma_copy",
        "dst",
        "below 8 (oob_mode.error)",
    ),
    ("scatter to a row twice", scatter_same_row_twice, "nisa.dma_copy", "dst", "must differ"),
    (
        "scatter from HBM",
        lambda: dma(gather(hbm(8, 4), 1, 4, index(1)), hbm(1, 4)),
        "nisa.dma_copy",
        "src",
        "from SBUF",
    ),
    (
        "gather to HBM",
        lambda: dma(hbm(1, 4), gather(hbm(8, 4), 1, 4, index(1))),
        "nisa.dma_copy",
        "dst",
        "to SBUF",
    ),
    (
        "index of 129 rows",
        lambda: gather(hbm(200, 4), 129, 4, index(128)),
        "ap",
        "vector_offset",
        "rows must be at most 128",
    ),
    (
        "index in a row",
        lambda: gather(hbm(8, 4), 2, 4, sbuf(1, 2, dtype=nl.int32)),
        "ap",
        "vector_offset",
        "(2, 1)",
    ),
    (
        "index of floats",
        lambda: gather(hbm(8, 4), 2, 4, sbuf(2, 1)),
        "ap",
        "vector_offset",
        "int32 or uint32",
    ),
    (
        "index in HBM",
        lambda: gather(hbm(8, 4), 2, 4, hbm(2, 1, dtype=nl.int32)),
        "ap",
        "vector_offset",
        "in SBUF",
    ),
    (
        "indirect dimension 1",
        lambda: hbm(8, 4).ap([[4, 2], [1, 4]], vector_offset=index(2), indirect_dim=1),
        "ap",
        "vector_offset",
        "indirect_dim must be 0",
    ),
    (
        "gather from SBUF",
        lambda: gather(sbuf(8, 4), 2, 4, index(2)),
        "ap",
        "sbuf tensor",
        "on HBM tensors only",
    ),
    (
        "pattern on a slice",
        lambda: hbm(8, 4)[0:4, :].ap([[4, 2], [1, 4]]),
        "ap",
        "shared_hbm tensor",
        "a whole tensor, not on a slice",
    ),
    (
        "pattern past the end",
        lambda: hbm(8, 4).ap([[4, 9], [1, 4]]),
        "ap",
        "shared_hbm tensor",
        "within 0..31",
    ),
    (
        "row longer than a row",
        lambda: gather(hbm(8, 4), 2, 5, index(2)),
        "ap",
        "shared_hbm tensor",
        "a row has 4 elements",
    ),
    (
        "scalar offset by a number",
        lambda: hbm(8, 4).ap([[4, 1], [1, 4]], scalar_offset=1),
        "ap",
        "scalar_offset",
        "a VirtualRegister",
    ),
    (
        "64 partitions from 32",
        lambda: start_at(32, 96),
        "nisa.memset",
        "dst",
        "64 partitions must start at one of (0, 64)",
    ),
    (
        "32 partitions from 16",
        lambda: start_at(16, 48),
        "nisa.memset",
        "dst",
        "32 partitions must start at one of (0, 32, 64, 96)",
    ),
    (
        "96 partitions from 32",
        lambda: start_at(32, 128),
        "nisa.memset",
        "dst",
        "96 partitions must start at one of (0,)",
    ),
    (
        "a stride over partitions",
        lambda: sbuf(8, 4)[0:8:2, :],
        "slice",
        "sbuf tensor",
        "step over partitions must be 1",
    ),
    ("a slice past the end", lambda: sbuf(8, 4)[:, 0:5], "slice", "sbuf tensor", "within 0..4"),
    (
        "reshape of the partitions",
        lambda: sbuf(8, 4).reshape((4, 8)),
        "reshape",
        "sbuf tensor",
        "dimension 0 must stay 8",
    ),
    (
        "five free dimensions",
        lambda: nisa.memset(dst=sbuf(2, 1).reshape((2, 1, 1, 1, 1, 1)), value=0.0),
        "nisa.memset",
        "dst",
        "free dimensions must be at most 4",
    ),
    (
        "two operands in PSUM",
        lambda: two_psum("tensor_tensor"),
        "nisa.tensor_tensor",
        "data1 and data2",
        "not both may be in PSUM",
    ),
    (
        "data and operand1 in PSUM",
        lambda: two_psum("scalar_tensor_tensor"),
        "nisa.scalar_tensor_tensor",
        "data and operand1",
        "not both may be in PSUM",
    ),
    (
        "GpSimd and PSUM",
        lambda: nisa.iota(dst=psum(4, 4), pattern=[[1, 4]]),
        "nisa.iota",
        "dst",
        "cannot reach PSUM",
    ),
    (
        "iota of another size",
        lambda: nisa.iota(dst=sbuf(4, 4), pattern=[[1, 5]]),
        "nisa.iota",
        "pattern",
        "4 elements a partition",
    ),
    (
        "iota of five pairs",
        lambda: nisa.iota(dst=sbuf(4, 4), pattern=[[1, 4]] + [[0, 1]] * 4),
        "nisa.iota",
        "pattern",
        "pairs must be at most 4",
    ),
    (
        "an engine and HBM",
        lambda: nisa.tensor_copy(dst=sbuf(4, 4), src=hbm(4, 4)),
        "nisa.tensor_copy",
        "src",
        "SBUF or PSUM",
    ),
    (
        "other elements per partition",
        lambda: nisa.tensor_copy(dst=sbuf(4, 4), src=sbuf(4, 5)),
        "nisa.tensor_copy",
        "src",
        "4 partitions of 4 elements",
    ),
    (
        "a float into integers",
        lambda: nisa.memset(dst=sbuf(4, 4, dtype=nl.int32), value=1.0),
        "nisa.memset",
        "value",
        "takes an int",
    ),
    (
        "bitwise on floats",
        lambda: nisa.tensor_scalar(dst=sbuf(4, 4), data=sbuf(4, 4), op0=nl.bitwise_and, operand0=1),
        "nisa.tensor_scalar",
        "op0",
        "needs integers",
    ),
    (
        "bitwise and arithmetic",
        lambda: nisa.tensor_scalar(
            dst=sbuf(4, 4),
            data=sbuf(4, 4, dtype=nl.int32),
            op0=nl.bitwise_and,
            operand0=1,
            op1=nl.add,
            operand1=1,
        ),
        "nisa.tensor_scalar",
        "op1",
        "both must be bitwise or both arithmetic",
    ),
    ("operand of two columns", lambda: scalar_from(2), "nisa.tensor_scalar", "operand0", "(4, 1)"),
    (
        "operand of integers",
        lambda: scalar_from(1, nl.int32),
        "nisa.tensor_scalar",
        "operand0",
        "must be float32",
    ),
    (
        "predicate of int32",
        lambda: predicated(nl.int32),
        "nisa.tensor_copy_predicated",
        "predicate",
        "uint8 or uint32",
    ),
    (
        "predicated copy to another format",
        lambda: predicated(src_dtype=nl.bfloat16),
        "nisa.tensor_copy_predicated",
        "src",
        "must be float32",
    ),
    (
        "reduce of the partitions",
        lambda: nisa.tensor_reduce(dst=sbuf(4, 1), op=nl.add, data=sbuf(4, 4), axis=0),
        "nisa.tensor_reduce",
        "axis",
        "reduces axis 1",
    ),
    (
        "reduce into other shapes",
        lambda: nisa.tensor_reduce(dst=sbuf(4, 2), op=nl.add, data=sbuf(4, 4), axis=1),
        "nisa.tensor_reduce",
        "dst",
        "(4, 1)",
    ),
    (
        "activation reduces by maximum",
        lambda: activate(reduce_op=nl.maximum),
        "nisa.activation",
        "reduce_op",
        "nl.add",
    ),
    (
        "activation keeps old sums",
        lambda: activate(reduce_cmd=nisa.reduce_cmd.idle),
        "nisa.activation",
        "reduce_cmd",
        "reset_reduce",
    ),
    (
        "activation reduces into two columns",
        lambda: activate(reduce_res=sbuf(4, 2)),
        "nisa.activation",
        "reduce_res",
        "(4, 1)",
    ),
    ("registers", many_registers, "nisa.register_alloc", "x", "registers must be at most 64"),
    (
        "register from two numbers",
        lambda: nisa.register_load(nisa.register_alloc(), sbuf(1, 2, dtype=nl.int32)),
        "nisa.register_load",
        "src",
        "one element",
    ),
    (
        "loop step",
        lambda: nl.fori_loop(0, 4, lambda i: None, step=0),
        "nl.fori_loop",
        "step",
        "positive int",
    ),
    ("loop result", lambda: nl.fori_loop(0, 4, lambda i: i), "nl.fori_loop", "body_fun", "None"),
    ("grid axis", lambda: nl.program_id(1), "nl.program_id", "axis", "one axis 0"),
    ("grid axis of the count", lambda: nl.num_programs(1), "nl.num_programs", "axis", "one axis 0"),
    (
        "a number as tensor",
        lambda: nisa.tensor_copy(dst=sbuf(4, 4), src=1.0),
        "nisa.tensor_copy",
        "src",
        "must be a tensor",
    ),
    (
        "transpose into another shape",
        lambda: nisa.nc_transpose(dst=psum(4, 8), data=sbuf(4, 8)),
        "nisa.nc_transpose",
        "dst",
        "(8, 4)",
    ),
    (
        "bitwise on tensors of floats",
        lambda: nisa.scalar_tensor_tensor(
            dst=sbuf(4, 4),
            data=sbuf(4, 4),
            op0=nl.bitwise_and,
            operand0=1,
            op1=nl.add,
            operand1=sbuf(4, 4),
        ),
        "nisa.scalar_tensor_tensor",
        "op0",
        "must be arithmetic",
    ),
    (
        "reduce by subtraction",
        lambda: nisa.tensor_reduce(dst=sbuf(4, 1), op=nl.subtract, data=sbuf(4, 4), axis=1),
        "nisa.tensor_reduce",
        "op",
        "add, maximum or minimum",
    ),
    (
        "register from a float",
        lambda: nisa.register_load(nisa.register_alloc(), sbuf(1, 1)),
        "nisa.register_load",
        "src",
        "int32 or uint32",
    ),
    ("an index too many", lambda: sbuf(8, 4)[0, 0, 0], "slice", "sbuf tensor", "2 dimensions"),
    ("an index at the end", lambda: sbuf(8, 4)[:, 4], "slice", "sbuf tensor", "within 0..4"),
    (
        "reshape to another size",
        lambda: sbuf(8, 4).reshape((8, 5)),
        "reshape",
        "sbuf tensor",
        "it has 32 numbers",
    ),
    (
        "reshape across a slice",
        lambda: sbuf(8, 4, 4)[:, :, 0:2].reshape((8, 8)),
        "reshape",
        "sbuf tensor",
        "no view",
    ),
    (
        "floats viewed as integers",
        lambda: sbuf(8, 4).view(nl.uint32),
        "view",
        "sbuf tensor",
        "int32 as uint32",
    ),
    (
        "a pattern of triples",
        lambda: hbm(8, 4).ap([[4, 2, 1]]),
        "ap",
        "shared_hbm tensor",
        "[step, count] pairs",
    ),
    (
        "both kinds of offset",
        lambda: hbm(8, 4).ap(
            [[4, 2], [1, 4]], vector_offset=index(2), scalar_offset=nisa.register_alloc(0)
        ),
        "ap",
        "scalar_offset, vector_offset",
        "exclude each other",
    ),
    (
        "an offset beside an index",
        lambda: hbm(8, 4).ap([[4, 2], [1, 4]], offset=4, vector_offset=index(2)),
        "ap",
        "vector_offset",
        "must not be combined",
    ),
]


@pytest.mark.parametrize(
    ("body", "operation", "operand", "limit"),
    [row[1:] for row in LIMITS],
    ids=[row[0] for row in LIMITS],
)
def test_a_broken_limit_is_named(body, operation, operand, limit):
    with pytest.raises(NkiValidationError) as error:
        run(body)
    found = error.value
    assert found.operation == operation
    assert found.operand.startswith(operand)
    assert limit in found.limit
    assert all(str(part) in str(found) for part in (operation, operand, found.limit, found.value))


CHECKS = ("require", "require_at_most", "NkiValidationError")
FOLDER = Path(emulator.__file__).parent


def check_sites():
    """(file, line) of each check in the emulator's source, limits.py itself left out."""
    sites = set()
    for path in FOLDER.glob("*.py"):
        if path.name != "limits.py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CHECKS:
                    sites.add((path.name, node.lineno))
    return sites


def broken_site(error):
    """(file, line) of the check that raised."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent == FOLDER and Path(frame.filename).name != "limits.py"
    ]
    return Path(frames[-1].filename).name, frames[-1].lineno


def test_every_check_of_the_emulator_is_broken_by_a_row_above():
    broken = set()
    for _, body, *_ in LIMITS:
        with pytest.raises(NkiValidationError) as error:
            run(body)
        broken.add(broken_site(error.value))
    # Those of arguments, grids and results have tests of their own, below.
    unbroken = {site for site in check_sites() - broken if site[0] != "run.py"}
    lines = (FOLDER / "tensor.py").read_text(encoding="utf-8").splitlines()
    ((file, line),) = unbroken
    assert file == "tensor.py" and "storage.shape, storage.dtype" in lines[line]


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.float16])
def test_formats_that_nki_lacks_or_the_kernels_do_not_use(dtype):
    with pytest.raises(NkiValidationError, match="argument: found .*64-bit"):
        emulator.simulate(lambda x: x)(np.zeros(3, dtype=dtype))
    with pytest.raises(NkiValidationError, match="int64"):
        emulator.simulate(lambda x: x)(torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("name", ["exponential", "activate2"])
def test_instructions_of_trn3_are_refused(name):
    with pytest.raises(AttributeError, match=f"nisa.{name} exists on Trn3 only"):
        getattr(nisa, name)


def test_what_is_not_emulated_says_so():
    with pytest.raises(AttributeError, match="nisa.dma_transpose is not in the emulator"):
        _ = nisa.dma_transpose


def test_registers_have_no_value_while_tracing():
    def body(i):
        if i:
            pass

    with pytest.raises(TypeError, match="not known when the kernel is traced"):
        run(lambda: nl.fori_loop(0, 1, body))
    with pytest.raises(TypeError, match="not known"):
        range(nisa.VirtualRegister(3))


def test_no_kernel_no_memory():
    with pytest.raises(RuntimeError, match="no kernel is running"):
        nl.ndarray((4, 4), dtype=F32, buffer=nl.sbuf)


def test_a_kernel_needs_simulate_here_and_a_grid_that_exists():
    kernel = emulator.jit(lambda x: x)
    with pytest.raises(RuntimeError, match="nki.simulate"):
        kernel(np.zeros(3, dtype=np.float32))
    with pytest.raises(NkiValidationError, match="grids of 1 or 2"):
        kernel[4]


def test_results_must_be_in_shared_hbm():
    with pytest.raises(NkiValidationError, match="shared_hbm"):
        emulator.simulate(lambda: nl.ndarray((4, 4), dtype=F32, buffer=nl.hbm))()


def test_the_programs_of_a_grid_must_allocate_alike():
    kernel = emulator.jit(lambda: hbm(1 + nl.program_id(0)))
    with pytest.raises(NkiValidationError, match="all programs must allocate alike"):
        emulator.simulate(kernel[2])()


def test_fresh_memory_is_nan_and_4():
    def kernel():
        out, number = hbm(2, 3), hbm(1, 1, dtype=nl.int32)
        nisa.dma_copy(dst=out, src=nl.ndarray((2, 3), dtype=F32, buffer=nl.sbuf))
        nisa.dma_copy(dst=number, src=nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf))
        return out, number

    floats, integers = emulator.simulate(kernel)()
    assert np.isnan(floats).all()
    assert integers.tolist() == [[4]]


def test_memory_is_free_again_when_nobody_refers_to_it():
    def body():
        for _ in range(20):
            nl.ndarray((128, 14 * 1024), dtype=F32, buffer=nl.sbuf)
            psum(128, 2048)

    run(body)


def test_a_skipped_row_stays_what_it_was():
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows = np.array([[2], [-1], [0]], dtype=np.int32)

    def kernel(table, rows):
        out, idx, tile = hbm(3, 3), sbuf(3, 1, dtype=nl.int32), sbuf(3, 3, fill=7)
        nisa.dma_copy(dst=idx, src=rows)
        source = gather(table, 3, 3, idx.view(nl.uint32))
        nisa.dma_copy(dst=tile, src=source, oob_mode=nisa.oob_mode.skip)
        nisa.dma_copy(dst=out, src=tile)
        return out

    with emulator.counting() as counts:
        out = emulator.simulate(kernel)(table, rows)
    assert out.tolist() == [[6, 7, 8], [7, 7, 7], [0, 1, 2]]
    assert [(dma.route, dma.bytes, dma.skipped_rows) for dma in counts.dmas] == [
        ("hbm to sbuf", 12, 0),
        ("hbm to sbuf", 24, 1),
        ("sbuf to hbm", 36, 0),
    ]


def test_matmul_accumulates_where_a_matmul_has_written():
    def kernel(a, b, accumulate):
        out, product = hbm(2, 2), psum(2, 2)
        left, right = sbuf(3, 2), sbuf(3, 2)
        nisa.dma_copy(dst=left, src=a)
        nisa.dma_copy(dst=right, src=b)
        for _ in range(3):
            nisa.nc_matmul(dst=product, stationary=left, moving=right, accumulate=accumulate)
        tile = sbuf(2, 2)
        nisa.tensor_copy(dst=tile, src=product)
        nisa.dma_copy(dst=out, src=tile)
        return out

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((3, 2), dtype=np.float32) for _ in "ab")
    with emulator.counting() as counts:
        total = emulator.simulate(lambda a, b: kernel(a, b, None))(a, b)
    assert np.allclose(total, 3 * a.T @ b)
    assert np.allclose(emulator.simulate(lambda a, b: kernel(a, b, False))(a, b), a.T @ b)
    assert counts.matmul_flops == 3 * 2 * 3 * 2 * 2
    assert counts.per_engine == {"dma": 3, "tensor": 3, "vector": 4}
    for text in ("nc_matmul", "hbm to sbuf: 48 bytes in 2 DMAs", "72 flops"):
        assert text in str(counts)


def test_integers_are_exact_on_gpsimd_and_float32_elsewhere():
    big = np.array([[2**24 + 1]], dtype=np.int32)

    def kernel(x):
        exact, rounded, tile = hbm(1, 1, dtype=nl.int32), hbm(1, 1, dtype=nl.int32), index(1)
        nisa.dma_copy(dst=tile, src=x)
        result = index(1)
        nisa.tensor_tensor(dst=result, data1=tile, data2=index(1), op=nl.add)
        nisa.dma_copy(dst=exact, src=result)
        nisa.tensor_scalar(dst=result, data=tile, op0=nl.add, operand0=0.0)
        nisa.dma_copy(dst=rounded, src=result)
        return exact, rounded

    exact, rounded = emulator.simulate(kernel)(big)
    assert exact.item() == 2**24 + 1
    assert rounded.item() == 2**24


def test_floats_become_integers_half_to_even_and_saturate():
    values = np.array([[0.5, 1.5, 2.5, -0.6, 300.0, -5.0, 1e20]], dtype=np.float32)

    def kernel(x):
        out, tile = hbm(1, 7, dtype=nl.uint8), sbuf(1, 7)
        nisa.dma_copy(dst=tile, src=x)
        small = sbuf(1, 7, dtype=nl.uint8)
        nisa.tensor_copy(dst=small, src=tile)
        nisa.dma_copy(dst=out, src=small)
        return out

    assert emulator.simulate(kernel)(values).tolist() == [[0, 2, 2, 0, 255, 0, 255]]


def test_bfloat16_rounds_as_torch_does():
    bits = torch.randint(-(2**31), 2**31, (100_000,), dtype=torch.int64)
    values = bits.to(torch.int32).view(torch.float32)
    ours = torch.from_numpy(round_to_bfloat16(values.numpy()))
    theirs = values.bfloat16().float()
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_mutated_arguments_change_in_place_and_come_back_as_themselves():
    def kernel(x, y):
        tile = sbuf(2, 3, fill=5, dtype=x.dtype)
        nisa.dma_copy(dst=x, src=tile)
        return x, y

    for dtype in (torch.float32, torch.bfloat16):
        x, y = torch.zeros(2, 3, dtype=dtype), torch.zeros(2, 3, dtype=dtype)
        outputs = emulator.simulate(kernel)(x, y)
        assert outputs[0] is x and outputs[1] is y
        assert x.tolist() == [[5] * 3] * 2
        assert not y.any()
    strided = torch.zeros(3, 2).T
    emulator.simulate(kernel)(strided, torch.zeros(2, 3))
    assert strided.tolist() == [[5] * 3] * 2
