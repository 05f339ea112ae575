"""What a Trn2 NeuronCore cannot do, and the error that says so.

Numbers: "Trainium2 architecture" and the reference of nki.isa, Neuron SDK 2.32 and 2.33.
"""

from __future__ import annotations

NUM_PARTITIONS = 128
SBUF_BYTES = 224 * 1024
"""For each partition."""

PSUM_BANK_BYTES = 2048
"""For each partition: 512 float32 numbers."""

PSUM_BANKS = 8
MATMUL_STATIONARY_COLUMNS = 128
MATMUL_MOVING_COLUMNS = 512
VECTOR_TRANSPOSE = 32
FREE_DIMENSIONS = 4
IOTA_DIMENSIONS = 4
REGISTERS = 64


class NkiValidationError(Exception):
    """A limit of the hardware, or a rule of its interface, was broken.

    Attributes:
        operation: such as "nisa.nc_matmul".
        operand: such as "moving".
        limit: what is allowed.
        value: what was found.
    """

    def __init__(self, operation: str, operand: str, limit: str, value: object) -> None:
        super().__init__(f"{operation}: {operand}: found {value}; {limit}")
        self.operation, self.operand, self.limit, self.value = operation, operand, limit, value


def require(condition: bool, operation: str, operand: str, limit: str, value: object) -> None:
    """Raise NkiValidationError unless the condition holds."""
    if not condition:
        raise NkiValidationError(operation, operand, limit, value)


def require_at_most(operation: str, operand: str, what: str, value: int, limit: int) -> None:
    """Raise NkiValidationError if the value is above the limit."""
    require(value <= limit, operation, operand, f"{what} must be at most {limit}", value)


def require_partition_start(operation: str, operand: str, start: int, count: int) -> None:
    """Check where the partitions of an engine's operand begin.

    An engine reads 128 partitions from 0, 64 from 0 or 64, 32 from 0, 32, 64 or 96.
    """
    half, quarter = NUM_PARTITIONS // 2, NUM_PARTITIONS // 4
    step = NUM_PARTITIONS if count > half else half if count > quarter else quarter
    allowed = tuple(range(0, NUM_PARTITIONS, step))
    limit = f"{count} partitions must start at one of {allowed}"
    require(start in allowed, operation, operand, limit, f"start partition {start}")
