"""Finds the public traces that some tests and benchmarks read; they are not part of the project.

Azure LLM inference traces 2023 (Microsoft, CC-BY 4.0), from the Azure Public Dataset, as
`azure_code.csv` and `azure_conv.csv` in `shared/data` beside the repository.
"""

from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[2].parent / "shared" / "data"
MISSING = "the Azure LLM inference trace 2023 {name!r} is not in ../shared/data"


def azure_lengths(name: str) -> np.ndarray | None:
    """(ContextTokens, GeneratedTokens) of "azure_code" or "azure_conv", shape [n, 2].

    None where the file is absent.
    """
    path = DATA / f"{name}.csv"
    if not path.exists():
        return None
    return np.genfromtxt(path, delimiter=",", skip_header=1, usecols=(1, 2), dtype=np.int64)
