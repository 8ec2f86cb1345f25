"""The families that can be converted, by the architecture names of their hub configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nextn.convert import glm5_next, qwen4exp, step35
from nextn.convert.family import Family
from nextn.gguf_schema.errors import InputError

FAMILIES: tuple[Family, ...] = (step35.FAMILY, qwen4exp.FAMILY, glm5_next.FAMILY)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a checkpoint by `architectures` in its configuration, or in the text configuration.

    Raises InputError when it is none of the known ones.
    """
    text = config.get("text_config")
    names = [*_names(config), *(_names(text) if isinstance(text, Mapping) else ())]
    for name in names:
        for family in FAMILIES:
            if name in family.hub_architectures:
                return family
    known = ", ".join(name for family in FAMILIES for name in family.hub_architectures)
    raise InputError(
        "unknown-architecture",
        f"architecture {', '.join(names) or '(none given)'} is not one that nextn converts",
        subject="config.json",
        remedy=f"known: {known}",
    )


def _names(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
