"""Programs that need several devices or processes, in processes of their own."""

import json
import os
import socket
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


def run_processes(count: int, program: str) -> list[subprocess.CompletedProcess[str]]:
    """The program in ``count`` processes of one JAX runtime, each with a CPU and a RANK."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    preamble = f"""
import os
RANK = int(os.environ["RANK"])
import jax
jax.config.update("jax_enable_x64", True)
jax.distributed.initialize("{address}", {count}, RANK, heartbeat_timeout_seconds=20)
assert len(jax.devices()) == jax.process_count() == {count}
"""
    command = [sys.executable, "-c", preamble + textwrap.dedent(program)]
    running = [
        subprocess.Popen(
            command,
            env=os.environ | {"RANK": str(rank), "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        ends = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    return [
        subprocess.CompletedProcess(command, process.returncode, *end)
        for process, end in zip(running, ends, strict=True)
    ]
