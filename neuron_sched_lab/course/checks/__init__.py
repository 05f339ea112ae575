"""Self-checks: is what you built the same as what is packaged, and if not, where does it differ?

    check_scheduler(MyHoldbackScheduler, HoldbackScheduler)
    check_function(my_lookup, get_bucket_for_count, cases=[(100, [128, 256]), (128, [128, 256])])
    check_value(MY_LADDER, [ValueRule("length", "it has five rungs", lambda x: len(x) == 5)])
    check_prediction(["ACTIVE_PREFILL", "ACTIVE_DECODE"], trace)

Each returns a CheckResult, says in words where the first difference is, and comes to an end
whatever it is given: an exception, an endless loop and a scheduler that stalls are findings too.
"""

from .functions_and_values import (
    ValueRule,
    check_function,
    check_prediction,
    check_value,
    compare_functions,
)
from .result import CheckResult, NotSolvedError
from .schedulers import check_scheduler, compare_schedulers, pick

__all__ = [
    "CheckResult",
    "NotSolvedError",
    "ValueRule",
    "check_function",
    "check_prediction",
    "check_scheduler",
    "check_value",
    "compare_functions",
    "compare_schedulers",
    "pick",
]
