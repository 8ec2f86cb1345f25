"""The operations on the CPU: compiled on their first call, by numba, and kept in its cache.

They compute in float32 alone; for other types `operations` gives the definition.
"""

from __future__ import annotations

from nextn.kernels.cpu.attention import Attention
from nextn.kernels.cpu.blocks import FORMS
from nextn.kernels.cpu.decays import Decays
from nextn.kernels.cpu.elementwise import Elementwise
from nextn.kernels.cpu.norms import Norms
from nextn.kernels.cpu.products import Products
from nextn.kernels.cpu.recurrent import Recurrent
from nextn.kernels.cpu.rotation import Rotation
from nextn.kernels.cpu.routing import Routers
from nextn.kernels.cpu.streams import GatedStreams, SinkhornStreams
from nextn.kernels.operations import Operations


class CPUOperations(
    Products,
    Elementwise,
    Norms,
    Rotation,
    Attention,
    Recurrent,
    Routers,
    Decays,
    SinkhornStreams,
    GatedStreams,
    Operations,
):
    """Every operation in float32, in a compiled form where there is one."""

    packed_types = frozenset(FORMS)
