"""`nki`, `nl` and `nisa` for the kernels: AWS's where they are installed, else the emulator's.

The kernels import these three from here, so that one source runs on a Trn2, under nki.simulate
and under the emulator.
"""

from __future__ import annotations

import importlib.util

HAS_NKI = importlib.util.find_spec("nki") is not None
"""Whether AWS's nki is installed."""

if HAS_NKI:
    import nki
    import nki.isa as nisa
    import nki.language as nl
else:
    from ... import nki_emulator as nki
    from ...nki_emulator import isa as nisa
    from ...nki_emulator import language as nl

__all__ = ["HAS_NKI", "nisa", "nki", "nl"]
