"""Operations on a GPU: Triton kernels in the place of the definitions that they have a faster form of."""

from __future__ import annotations

from nextn.kernels.operations import Operations
from nextn.kernels.triton.attention import Attention
from nextn.kernels.triton.blocks import FORMATS
from nextn.kernels.triton.elementwise import Elementwise
from nextn.kernels.triton.norms import Norms
from nextn.kernels.triton.plain_products import PLAIN
from nextn.kernels.triton.pools import Pools
from nextn.kernels.triton.products import Products
from nextn.kernels.triton.recurrent import Recurrent
from nextn.kernels.triton.rotation import Rotation
from nextn.kernels.triton.routers import Routers
from nextn.kernels.triton.streams import GatedStreams, SinkhornStreams


class TritonOperations(
    Products,
    Elementwise,
    Norms,
    Rotation,
    Attention,
    Recurrent,
    Routers,
    SinkhornStreams,
    GatedStreams,
    Pools,
    Operations,
):
    """Every operation; those without a kernel by their definition."""

    packed_types = frozenset((*PLAIN, *FORMATS))
