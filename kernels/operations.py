"""All operations of the models, and which forms of them a model computes with: the one place where that is decided."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import cast

import torch

from nextn.kernels.glm5_next import Glm5NextOperations
from nextn.kernels.qwen4exp import Qwen4ExpOperations
from nextn.kernels.routing import Routing

# Modules that have a class of this name, which overrides what it has a faster form of, and types it computes in.
FORMS = {
    "cpu": ("nextn.kernels.cpu", "CPUOperations", (torch.float32,)),
    "triton": ("nextn.kernels.triton", "TritonOperations", (torch.float32, torch.bfloat16)),
}
# What is computed with on a device, unless something else is asked for.
DEFAULT = {"cpu": "cpu", "cuda": "triton"}


class Operations(Qwen4ExpOperations, Glm5NextOperations, Routing):
    """Every operation, by its definition in plain torch.

    Weights of `packed_types` are read as they lie, others are decoded once and kept; when it is None, weights of any
    type are decoded block by block.
    """

    packed_types: Collection[str] | None = None


REFERENCE = Operations()


def operations(form: str, dtype: torch.dtype = torch.float32) -> Operations:
    """The operations by their definition ("reference"), or in a faster form if it computes in `dtype`.

    ImportError without what the form needs.
    """
    if computing(form, dtype) == "reference":
        return REFERENCE
    module, name, _ = FORMS[form]
    return cast(Operations, getattr(import_module(module), name)())


def computing(form: str, dtype: torch.dtype) -> str:
    """The form that computes in `dtype` when one is asked for: that, or else the definition."""
    return form if form != "reference" and dtype in FORMS[form][2] else "reference"
