"""Settings for running the notebooks under nbval (`make notebooks`)."""

import nbval.kernel

# nbval pretty-prints every kernel message for a log that nobody reads; a plotly widget's is 5 MB,
# which costs 0.4 s each.
nbval.kernel.pformat = lambda _message: ""
