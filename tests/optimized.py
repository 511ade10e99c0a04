"""Programs that run longer than they compile: many data sets, or large sums."""

from functools import partial

import jax

# Nothing else in tests is optimized (conftest.py). XLA's first level vectorizes loops: a fifth of
# the time
optimized = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
