"""All operations of the models, and which forms of them a model computes with: the one place where that is decided."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from nextn.kernels.glm5_next import Glm5NextOperations
from nextn.kernels.qwen4exp import Qwen4ExpOperations
from nextn.kernels.routing import Routing

# Modules that have a class of this name, which overrides what it has a faster form of.
FORMS = {"cpu": ("nextn.kernels.cpu", "CPUOperations"), "triton": ("nextn.kernels.triton", "TritonOperations")}


class Operations(Qwen4ExpOperations, Glm5NextOperations, Routing):
    """Every operation, by its definition in plain torch."""


REFERENCE = Operations()


def operations(form: str) -> Operations:
    """The operations by their definition ("reference"), or in a faster form. ImportError without what that needs."""
    if form == "reference":
        return REFERENCE
    module, name = FORMS[form]
    return cast(Operations, getattr(import_module(module), name)())
