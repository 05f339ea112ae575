"""Attention over keys that come in pieces: the online softmax of Milakov and Gimelshein (2018).

For each query row, three numbers are kept of all keys seen so far, in float32:

    neg_max [rows, 1]      minus the largest score m
    total   [rows, 1]      sum of exp(score - m)
    out     [rows, d]      sum of exp(score - m) * value

A piece with a larger score rescales total and out by exp(old m - new m). Engines, for one piece of
n keys, in 128-key groups:

    Tensor   scores = q^T' k^T [rows, n], 512 columns a matmul; p -> p^T and p^T' v, by group
    Vector   scores out of PSUM: scale and mask; largest score; rescale and add
    Scalar   p = exp(scores - m) and its row sums, in one instruction

Helpers of a kernel: nothing here runs by itself.
"""

from .nki_or_emulator import nisa, nl
from .paged_kv import transpose_into

SCORES_IN_A_BANK = 512


def new_state(rows, head_dim):
    """(neg_max, total, out) before any key: the largest score is finite, or inf - inf follows."""
    neg_max = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    out = nl.ndarray((rows, head_dim), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=neg_max, value=1.0e30)
    nisa.memset(dst=total, value=0.0)
    nisa.memset(dst=out, value=0.0)
    return neg_max, total, out


def score(scores, q_t, k_t, scale):
    """Compute scores [rows, n] = scale * q k^T, from q_t [d, rows] and k_t [d, n]."""
    rows, n = scores.shape
    for start in range(0, n, SCORES_IN_A_BANK):
        end = min(start + SCORES_IN_A_BANK, n)
        product = nl.ndarray((rows, end - start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=q_t, moving=k_t[:, start:end], accumulate=False)
        nisa.tensor_scalar(
            dst=scores[:, start:end], data=product, op0=nl.multiply, operand0=scale
        )


def score_masked(scores, q_t, k_t, scale, mask):
    """As score, plus mask [rows, n]."""
    rows, n = scores.shape
    for start in range(0, n, SCORES_IN_A_BANK):
        end = min(start + SCORES_IN_A_BANK, n)
        product = nl.ndarray((rows, end - start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=q_t, moving=k_t[:, start:end], accumulate=False)
        nisa.scalar_tensor_tensor(
            dst=scores[:, start:end],
            data=product,
            op0=nl.multiply,
            operand0=scale,
            op1=nl.add,
            operand1=mask[:, start:end],
        )


def merge(state, scores, values):
    """Add a piece to the state, in place.

    Args:
        state: from new_state.
        scores: [rows, n] float32.
        values: list of [keys, d], n keys together, in the order of the columns of scores.
    """
    neg_max, total, out = state
    rows, head_dim = out.shape
    piece_max = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=piece_max, op=nl.maximum, data=scores, axis=1, negate=True)
    new_max = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=new_max, data1=neg_max, data2=piece_max, op=nl.minimum)
    rescale = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=rescale, op=nl.exp, data=neg_max, bias=new_max, scale=-1.0)

    weights = nl.ndarray(scores.shape, dtype=values[0].dtype, buffer=nl.sbuf)
    piece_total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=weights,
        op=nl.exp,
        data=scores,
        bias=new_max,
        scale=1.0,
        reduce_op=nl.add,
        reduce_res=piece_total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    piece_out = _weigh(weights, values, head_dim)

    nisa.tensor_copy(dst=neg_max, src=new_max)
    nisa.scalar_tensor_tensor(
        dst=total, data=total, op0=nl.multiply, operand0=rescale, op1=nl.add, operand1=piece_total
    )
    nisa.scalar_tensor_tensor(
        dst=out, data=out, op0=nl.multiply, operand0=rescale, op1=nl.add, operand1=piece_out
    )


def _weigh(weights, values, head_dim):
    """Multiply weights [rows, n] by values: [rows, d] float32 in PSUM."""
    rows = weights.shape[0]
    piece_out = nl.ndarray((rows, head_dim), dtype=nl.float32, buffer=nl.psum)
    column = 0
    for number in range(len(values)):
        keys = values[number].shape[0]
        weights_t = nl.ndarray((keys, rows), dtype=weights.dtype, buffer=nl.sbuf)
        transpose_into(weights_t, weights[:, column : column + keys])
        nisa.nc_matmul(
            dst=piece_out, stationary=weights_t, moving=values[number], accumulate=number > 0
        )
        column += keys
    return piece_out


def finish(state, dst):
    """Compute dst [rows, d] = out / total, in dst's format."""
    _, total, out = state
    inverse = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=total)
    nisa.tensor_scalar(dst=dst, data=out, op0=nl.multiply, operand0=inverse)
