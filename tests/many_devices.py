"""Programs that need several devices, in a process of their own with as many forced ones."""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any


def run_on(count: int, program: str) -> Any:
    """What ``program`` writes to its standard output as JSON, float64, on ``count`` CPU devices."""
    preamble = f"""
import jax
jax.config.update("jax_enable_x64", True)
assert len(jax.devices()) == {count}
"""
    done = subprocess.run(
        [sys.executable, "-c", preamble + textwrap.dedent(program)],
        env=os.environ
        | {
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
            f"--xla_force_host_platform_device_count={count}",
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
