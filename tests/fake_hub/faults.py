"""Faults on demand: which requests fail, and how."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class How(StrEnum):
    """What happens to a request that a fault strikes."""

    STATUS = "answered with an error"
    STALL = "answered after a long time, or never"
    TRUNCATE = "ends within the body"
    CORRUPT = "a byte of the body is another one"
    DISCONNECT = "the connection ends before the answer"
    DISCONNECT_AFTER = "the request is done, and the connection ends before the answer"
    REDIRECT = "sent round in a circle"


@dataclass
class Fault:
    """Strikes requests whose `METHOD path` matches a pattern: after `skip`, each `every`th, some `times`."""

    how: How
    pattern: str = ".*"
    every: int = 1
    skip: int = 0
    times: int | None = None
    status: int = 500
    message: str = "a fault was asked for"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 60.0
    after_bytes: int = 1000
    matched: int = 0
    struck: int = 0

    def strikes(self, method: str, path: str) -> bool:
        """Count a request; whether the fault strikes it."""
        if not re.search(self.pattern, f"{method} {path}"):
            return False
        self.matched += 1
        late = self.matched - self.skip
        if late <= 0 or late % self.every or (self.times is not None and self.struck >= self.times):
            return False
        self.struck += 1
        return True


class Faults:
    """The faults of a hub."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Fault:
        """Let a fault strike from now on; it counts how often it did."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Let nothing fail any more."""
        with self._lock:
            self._faults.clear()

    def striking(self, method: str, path: str) -> Fault | None:
        """The first fault that strikes a request."""
        with self._lock:
            return next((fault for fault in self._faults if fault.strikes(method, path)), None)


def status(number: int, pattern: str = ".*", **options: object) -> Fault:
    """An answer with an error status; `every=3` lets each third request fail."""
    return Fault(How.STATUS, pattern, status=number, **options)  # type: ignore[arg-type]


def rate_limit(pattern: str = ".*", seconds: str = "1", **options: object) -> Fault:
    """429 with Retry-After."""
    return status(429, pattern, message="Too many requests", headers={"Retry-After": seconds}, **options)
