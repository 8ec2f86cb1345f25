"""Forcing written data to the disk while more is written: else all of it is left for the end."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from nextn.convert.journal import Journal
from nextn.convert.output import Output
from nextn.gguf_schema.errors import InputError

# Less than this is not worth a round of the disk.
DRAIN_BYTES = 256 << 20


class Drain:
    """A thread that syncs the outputs now and then; one round at a time."""

    def __init__(self, outputs: Sequence[Output], journal: Journal) -> None:
        self._outputs = outputs
        self._journal = journal
        self._pool = ThreadPoolExecutor(1)
        self._round: Future[None] | None = None
        self._waiting = 0

    def wrote(self, count: int) -> None:
        """Note that so many bytes more are waiting; InputError when a round before failed."""
        self._waiting += count
        if self._waiting >= DRAIN_BYTES and (self._round is None or self._round.done()):
            self.finish()
            self._waiting = 0
            self._round = self._pool.submit(self._sync)

    def finish(self) -> None:
        """Wait for the round; InputError when it failed, and then nothing that was not synced before counts."""
        try:
            if self._round is not None:
                self._round.result()
        except InputError:
            self._journal.lost()
            raise

    def _sync(self) -> None:
        for output in self._outputs:
            output.sync()

    def __enter__(self) -> Drain:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
