"""The experiments of lesson 09: each is one call, and shows one plot that answers one question.

    policies(MyScheduler, workload)     whose users wait least for their first token?
    ladders(workload)                   how much padding does a fitted ladder save tomorrow?
    kv_policies(workload)               how much more does a KV cache serve, by admission policy?
    pacing(workload)                    what do steadier decodes cost the first token?

Besides, for the command line: `one_run`, `fit_ladder` and `show_sweep`.

All that simulate take further arguments of `simulate`, such as `max_num_seqs` or a cost model.
"""

from .fitted_ladders import fit_ladder, ladders
from .kv_sizes import kv_policies
from .one_run import one_run
from .own_policy import policies
from .prefill_pacing import pacing
from .sweep_view import show_sweep

__all__ = ["fit_ladder", "kv_policies", "ladders", "one_run", "pacing", "policies", "show_sweep"]
