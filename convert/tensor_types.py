"""Which type each tensor is stored in: the user's rules, the floors of the tables, the asked type, block lengths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nextn.convert.source_tensor import SourceTensor
from nextn.gguf_schema.architecture import ExpectedTensor
from nextn.gguf_schema.errors import UsageError, counted
from nextn.gguf_schema.types import F16, F32, OUTPUT_TYPES, Q8_0, TENSOR_TYPES, TensorType
from nextn.validators.findings import Finding, Severity


def parse_rule(text: str) -> tuple[re.Pattern[str], TensorType]:
    """A rule `REGEX=TYPE`. Raises UsageError when the pattern is not a regular expression or the type is unknown."""
    pattern, _, name = text.rpartition("=")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError("bad-pattern", f"is not a regular expression: {error}", subject=pattern) from error
    if not pattern or name.lower() not in OUTPUT_TYPES:
        what = f"{name!r} is no type that can be written" if pattern else "is not REGEX=TYPE"
        raise UsageError("bad-type-rule", what, subject=text, remedy=f"types: {', '.join(OUTPUT_TYPES)}")
    return compiled, TENSOR_TYPES[name.upper()]


@dataclass
class TypeChooser:
    """Chooses types; what is doubtful is gathered, and told once for all tensors that it concerns."""

    outtype: TensorType
    rules: tuple[tuple[re.Pattern[str], TensorType], ...] = ()
    fp8_as_q8: bool = False
    _told: dict[tuple[Severity, str, str], list[str]] = field(default_factory=dict)
    _matched: set[str] = field(default_factory=set)

    def choose(self, place: ExpectedTensor, sources: Iterable[SourceTensor]) -> TensorType:
        """The type of a tensor: the first rule that matches its name, else a floor, else the asked type.

        What runtimes compute with in F32 alone is F32 whatever rule matches, as in llama-quantize. A type whose blocks
        do not fill the rows becomes F16, as upstream does it.
        """
        type_ = self._by_rule(place) or self._by_policy(place, sources)
        if place.ne[0] % type_.block:
            message = f"rows of {place.ne[0]} are not whole blocks of {type_.name}: stored as F16"
            self._tell(Severity.WARNING, "type-fallback", message, place.name)
            return F16
        return type_

    def _by_rule(self, place: ExpectedTensor) -> TensorType | None:
        for pattern, type_ in self.rules:
            if pattern.search(place.name) and not place.spec.f32:
                self._matched.add(pattern.pattern)
                floor = self._floor(place, type_)
                if floor is not type_:
                    message = (
                        f"stored as {type_.name} because of --tensor-type; {floor.name} is the least that works well"
                    )
                    self._tell(Severity.WARNING, "below-floor", message, place.name)
                return type_
        return None

    def _by_policy(self, place: ExpectedTensor, sources: Iterable[SourceTensor]) -> TensorType:
        wanted = self.outtype
        if self.fp8_as_q8 and len(place.ne) > 1 and all(source.scale is not None for source in sources):
            wanted = Q8_0
        floor = self._floor(place, wanted)
        if floor is not wanted and floor is not F32:
            message = f"kept at {floor.name}: the tensor suffers in {wanted.name}"
            self._tell(Severity.NOTE, "type-floor", message, place.name)
        return floor

    @staticmethod
    def _floor(place: ExpectedTensor, wanted: TensorType) -> TensorType:
        """The type itself, or the floor that it falls below."""
        if place.spec.f32:
            return F32
        if place.spec.eight_bits and wanted.bits < Q8_0.bits:
            return Q8_0
        return wanted

    def _tell(self, severity: Severity, rule: str, message: str, name: str) -> None:
        self._told.setdefault((severity, rule, message), []).append(name)

    def findings(self) -> Iterator[Finding]:
        """What was doubtful, each thing once. Raises UsageError for a rule that matched no tensor."""
        for pattern, _ in self.rules:
            if pattern.pattern not in self._matched:
                raise UsageError(
                    "unused-pattern",
                    "matches no tensor whose type can be chosen and that an earlier --tensor-type leaves over",
                    subject=f"--tensor-type {pattern.pattern}",
                    remedy="patterns are searched in GGUF names such as blk.0.attn_q.weight; norms are always F32",
                )
        for (severity, rule, message), names in self._told.items():
            more = f" (and {counted(len(names) - 1, 'more tensor')})" if len(names) > 1 else ""
            yield Finding(severity, rule, names[0], message + more)
