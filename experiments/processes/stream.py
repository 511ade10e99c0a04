"""A calibration test of a folder of Parquet shards by many processes, each with its own shards.

On one machine, once for each RANK in 0 .. N - 1, all at the same time:

    python experiments/processes/stream.py FOLDER --address 127.0.0.1:9911 --processes N --rank RANK

On a cluster with Slurm or Open MPI, which tell JAX address and ranks:

    srun python experiments/processes/stream.py FOLDER
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from jaxcal import RandomFeatures
from jaxcal.streaming import Shards, StreamedTest
from jaxcal.streaming.columns import batch_of


def main(arguments: Sequence[str] | None = None) -> None:
    """The test of all shards, printed by process 0."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="shards with columns targets, probabilities")
    parser.add_argument("--states", type=Path, default=Path(), help="folder for checkpoints")
    parser.add_argument("--address", help="host:port of process 0")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--batch", type=int, default=10_000, help="rows at a time")
    chosen = parser.parse_args(arguments)
    # a process that dies ends all others after this time, where they are not told before
    jax.distributed.initialize(
        chosen.address, chosen.processes, chosen.rank, heartbeat_timeout_seconds=30
    )
    rank, count = jax.process_index(), jax.process_count()
    mine = Shards(chosen.folder, chosen.batch, share=(rank + 1, count))
    # all fit the same test, to rows that are drawn from all shards
    test = StreamedTest.skce(0, *batch_of(mine.sample(2000)), features=RandomFeatures(1, 100))
    # an interrupted pass goes on from its checkpoint
    checkpoint = chosen.states / f"state-{rank}-of-{count}.npz"
    state = test.run(mine, checkpoint=checkpoint, progress=rank == 0)
    try:
        state = state.over_processes()
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)  # without JAX, which would wait for the process that has ended
    if rank == 0:
        print(test.result(state))


if __name__ == "__main__":
    main()
