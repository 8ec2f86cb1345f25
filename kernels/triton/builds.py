"""All kernels, in all the ways in which they are compiled ahead of time."""

from __future__ import annotations

from nextn.kernels.triton import (
    attention,
    elementwise,
    norms,
    pools,
    products,
    recurrent,
    rotation,
    routers,
    streams,
)
from nextn.kernels.triton.launch import Build

BUILDS: tuple[Build, ...] = (
    *products.BUILDS,
    *elementwise.BUILDS,
    *norms.BUILDS,
    *rotation.BUILDS,
    *attention.BUILDS,
    *recurrent.BUILDS,
    *routers.BUILDS,
    *streams.BUILDS,
    *pools.BUILDS,
)
