"""How much delta rules keep of their states, on the CPU."""

from __future__ import annotations

from torch import Tensor

from nextn.kernels.cpu import functions
from nextn.kernels.cpu.memory import compiled, float32, floats, like, sized, whole
from nextn.kernels.glm5_next import Glm5NextOperations
from nextn.kernels.qwen4exp import Qwen4ExpOperations


class Decays(Qwen4ExpOperations, Glm5NextOperations):
    """Decays by head, and by channel."""

    def decays(self, x: Tensor, rates: Tensor, bias: Tensor) -> Tensor:
        """As defined."""
        x = whole(x)
        out, heads = like(x), x.shape[1]
        rates, bias = sized(rates, heads), sized(bias, heads)
        _decays(x.data_ptr(), rates.data_ptr(), bias.data_ptr(), out.data_ptr(), x.numel(), heads)
        return out

    def channel_decays(self, f: Tensor, bias: Tensor, a: Tensor, lower_bound: float | None) -> Tensor:
        """As defined."""
        f, a, bias = whole(f), whole(a), sized(bias, f.shape[1])
        rows, heads = f.shape[0], a.shape[0]
        out, n = like(f).view(rows, heads, -1), f.shape[1] // heads
        bound = 0.0 if lower_bound is None else float(lower_bound)
        addresses = (f.data_ptr(), bias.data_ptr(), a.data_ptr(), out.data_ptr())
        _channel_decays(*addresses, rows, heads, n, bound, lower_bound is not None)
        return out


@compiled
def _decays(x_at: int, rates_at: int, bias_at: int, out_at: int, count: int, heads: int) -> None:
    x, rates, bias, out = floats(x_at), floats(rates_at), floats(bias_at), floats(out_at)
    for i in range(count):
        out[i] = functions.exp(rates[i % heads] * functions.softplus(x[i] + bias[i % heads]))


@compiled
def _channel_decays(
    f_at: int,
    bias_at: int,
    a_at: int,
    out_at: int,
    rows: int,
    heads: int,
    n: int,
    lower_bound: float,
    bounded: bool,
) -> None:
    rates, bound = floats(a_at), float32(lower_bound)
    for head in range(rows * heads):
        f, out = floats(f_at + 4 * head * n), floats(out_at + 4 * head * n)
        bias, rate = floats(bias_at + 4 * (head % heads) * n), rates[head % heads]
        if bounded:
            for i in range(n):
                out[i] = functions.exp(bound * functions.sigmoid(-rate * (f[i] + bias[i])))
        else:
            for i in range(n):
                out[i] = functions.exp(rate * functions.softplus(f[i] + bias[i]))
