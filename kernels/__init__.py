"""NKI kernels for Trn2, with a torch reference for each; installed as neuron_sched_lab.kernels."""
