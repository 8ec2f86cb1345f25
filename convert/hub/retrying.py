"""Asking again: how often, after how long, and what is final."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nextn.convert.hub.errors import hub_error, is_transient, seconds_asked, status_of
from nextn.convert.output import write_error
from nextn.gguf_schema.errors import NextnError

T = TypeVar("T")
LOGGER = logging.getLogger(__name__)
# Seconds of waiting that somebody who watches wants to be told of.
LONG_WAIT = 5.0


@dataclass
class Patience:
    """What is left of it: after each failure in a row the wait is twice as long, in seconds.

    A server that asks for a longer wait gets it, up to `longest_asked`.
    """

    failures_allowed: int = 5
    first_wait: float = 0.5
    longest_wait: float = 30.0
    longest_asked: float = 300.0
    sleep: Callable[[float], object] = time.sleep
    failures: int = 0

    def progressed(self) -> None:
        """Something came: failures are counted anew."""
        self.failures = 0

    def wait_after(self, error: Exception, subject: str) -> None:
        """Wait before the next try; HubError when the failure is final, or one too many."""
        self.failures += 1
        if not is_transient(error) or self.failures > self.failures_allowed:
            raise hub_error(error, subject) from error
        wait = min(self.first_wait * 2 ** (self.failures - 1), self.longest_wait)
        wait = max(wait, min(seconds_asked(error) or 0.0, self.longest_asked))
        if wait >= LONG_WAIT:
            LOGGER.warning("%s: %s; asked again in %.0f s", subject, hub_error(error, subject).message, wait)
        self.sleep(wait)


def asking(subject: str, call: Callable[[], T], patience: Patience | None = None) -> T:
    """What a call to the hub returns, made again when it fails in a way that may pass; HubError when it fails.

    InputError when it is the disk that fails: huggingface_hub keeps what it fetches.
    """
    patience = patience or Patience()
    while True:
        try:
            return call()
        except NextnError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None and status_of(error) is None:
                raise write_error(Path(error.filename or subject), error) from error
            patience.wait_after(error, subject)
