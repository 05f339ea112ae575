"""`python -m neuron_sched_lab` is the `neuron-sched-lab` command."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
