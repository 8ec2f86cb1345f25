"""Where the cells of a matrix run: in processes of this machine, or on a cluster through ray."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from nextn.gguf_schema.errors import InputError, extra

# Of what a command says on stderr, so many characters are kept.
KEPT = 2000


@dataclass(frozen=True)
class Ended:
    """How a command ended: which one it was, its exit status, the end of what it said on stderr."""

    place: int
    status: int
    said: str


Commands = Sequence[Sequence[str]]
# Runs commands, and hands on the end of each when it comes.
Executor = Callable[[Commands, int], Iterator[Ended]]


def run_command(place: int, command: Sequence[str]) -> Ended:
    """Run a command to its end; its stdout is not wanted."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
    except OSError as error:
        return Ended(place, -1, str(error))
    return Ended(place, done.returncode, done.stderr.decode(errors="replace")[-KEPT:])


def in_processes(commands: Commands, jobs: int) -> Iterator[Ended]:
    """Run commands on this machine, so many at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(run_command, place, command) for place, command in enumerate(commands)]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            # When the work is interrupted, what has not begun yet never does.
            for each in waiting:
                each.cancel()


def on_ray(commands: Commands, _: int) -> Iterator[Ended]:
    """Run commands on a ray cluster, one for each of its processors; on a new local one when there is no cluster.

    Files must be at the same paths everywhere. InputError without ray.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise InputError("ray-missing", "ray is not installed", remedy=extra("ray")) from error
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(log_to_driver=False)
    try:
        remote = ray.remote(run_command)
        waiting = {remote.remote(place, list(command)): place for place, command in enumerate(commands)}
        while waiting:
            [done], _left = ray.wait(list(waiting), num_returns=1)
            place = waiting.pop(done)
            try:
                yield ray.get(done)
            except ray.exceptions.RayError as error:
                yield Ended(place, -1, str(error)[-KEPT:])
    finally:
        if is_ours:
            ray.shutdown()


EXECUTORS: Mapping[str, Executor] = {"process": in_processes, "ray": on_ray}
