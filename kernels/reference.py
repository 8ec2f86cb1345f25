"""The operations that models share, in plain torch: what each of them means, one row at a time.

Width invariance: row i of a result has the same bits whatever the number of rows beside it, since every reduction is
done for each row by itself, over its own values alone, and what is left is done value by value. A row of a matrix
product is one product of the matrix and a vector; a query attends to exactly the keys that it sees. Faster forms of an
operation must give the same bits for a row at every width, but not these bits.

Two things make a row's bits depend on its place even so, and `_rows` takes both away. Libraries sum a vector with gaps
in another order than one without, and a tensor of one row has no gaps where one of several has. And a function that
torch computes for vectors of values (exp, sigmoid, cos) has another last bit in the scalar form for what is left over,
so that each row is given to it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nextn.kernels.weight import Weight

# Where math libraries want vectors to begin, in bytes: elsewhere they need not sum in the same order.
ALIGNMENT = 64
# Values that no library shares among threads, which it would do in another way for another number of them.
ALONE = 2048


class Reference:
    """Products, norms, rotation, activations, attention and recurrences."""

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """x [rows, in] times the transpose of weight [out, in]: [rows, out]."""
        rows = _rows(x)
        columns = [torch.stack([torch.mv(block, row) for row in rows]) for block in weight.blocks()]
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def linears(self, x: Tensor, weights: Sequence[Weight]) -> tuple[Tensor, ...]:
        """The same rows x [rows, in] times the transpose of each weight [out, in]: [rows, out] each, as by `linear`."""
        return tuple(self.linear(x, weight) for weight in weights)

    def linear_by_head(self, x: Tensor, weight: Weight) -> Tensor:
        """x [rows, heads, in] times the transposes of weight [heads, out, in]: [rows, heads, out]."""
        return torch.stack([self.linear(x[:, head], weight[head]) for head in range(x.shape[1])], dim=1)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """The products over the last dimension [..., n], summed: [...]."""
        left = _rows(a)
        right = left if b is a else _rows(b)
        return torch.stack([_dot(x, y) for x, y in zip(left, right, strict=True)]).reshape(a.shape[:-1])

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """x [..., n] over the root of its mean square, times weight [n] or [m, n] (x [..., m, n]) if there is one.

        `eps` is added to the mean square.
        """
        normed = x * (self.dot(x, x) / x.shape[-1] + eps).sqrt().reciprocal()[..., None]
        return normed if weight is None else normed * weight

    def l2_norm(self, x: Tensor, eps: float) -> Tensor:
        """x [..., n] over the root of its sum of squares, to which `eps` is added."""
        return x * (self.dot(x, x) + eps).sqrt().reciprocal()[..., None]

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """x [..., n] less its mean, over its standard deviation, times weight [n], plus bias [n].

        The variance is that of the values themselves (over n, not n - 1); `eps` is added to it.
        """
        centred = x - (self.dot(x, torch.ones_like(x)) / x.shape[-1])[..., None]
        return self.rms_norm(centred, weight, eps) + bias

    def added_and_normed(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The sum of rows x and y [rows, n], and its `rms_norm`."""
        added = x + y
        return added, self.rms_norm(added, weight, eps)

    def normed_gated_heads(self, x: Tensor, weight: Tensor, eps: float, gates: Tensor) -> Tensor:
        """Heads x [rows, heads, n], each normed with weight [n], times sigmoid of gates [rows, heads*n].

        The result is of the gates' shape.
        """
        return self.gated_heads(self.rms_norm(x, weight, eps), gates)

    def gated_heads(self, x: Tensor, gates: Tensor) -> Tensor:
        """Heads x [rows, heads, n] times sigmoid of gates [rows, heads] or [rows, heads*n]: [rows, heads*n]."""
        return (x * self.sigmoid(gates).reshape(*x.shape[:2], -1)).flatten(1)

    def add_gated(self, x: Tensor, y: Tensor, inputs: Tensor, gate: Tensor) -> Tensor:
        """x + y sigmoid(inputs · gate) for rows x, y and inputs [rows, n], and gate [n]: [rows, n]."""
        return x + self.sigmoid(self.dot(inputs, gate.expand_as(inputs))[:, None]) * y

    def softmax(self, x: Tensor) -> Tensor:
        """Over the last dimension [..., n], for each row by itself."""
        return torch.stack([torch.softmax(row, dim=-1) for row in _rows(x)]).reshape(x.shape)

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x)) of x [..., n], for each row by itself."""
        return by_row(torch.sigmoid, x)

    def silu(self, x: Tensor) -> Tensor:
        """x * sigmoid(x) of x [..., n], for each row by itself."""
        return by_row(torch.nn.functional.silu, x)

    def exp(self, x: Tensor) -> Tensor:
        """e to the power of x [..., n], for each row by itself."""
        return by_row(torch.exp, x)

    def softplus(self, x: Tensor) -> Tensor:
        """ln(1 + e^x) of x [..., n], for each row by itself.

        Above 50 it is x, to the last bit of either precision; torch's own threshold of 20 is too low for float64.
        """
        return by_row(lambda row: torch.nn.functional.softplus(row, threshold=50.0), x)

    def rope(self, x: Tensor, positions: Tensor, dims: int, base: float, factors: Tensor | None = None) -> Tensor:
        """Rotate the first `dims` values of x [rows, heads, n] by their rows' positions.

        Pairs are half of `dims` apart. Frequency m is base^(-2m/dims) over factors[m]. `positions` is [rows], or [rows,
        dims/2] when each frequency has a position of its own. Angles are computed in float64, since float32 loses
        places at far positions. ValueError unless `dims` is even and no more than n. Source: GGML_ROPE_TYPE_NEOX of
        ggml.
        """
        turns = frequencies(dims, x.shape[-1], base, factors).to(x.device)
        half = dims // 2
        angles = (positions.double() if positions.dim() > 1 else positions.double()[:, None]) * turns
        cos, sin = (by_row(function, angles).to(x.dtype)[:, None] for function in (torch.cos, torch.sin))
        first, second, rest = x[..., :half], x[..., half:dims], x[..., dims:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)

    def normed_and_rotated(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        positions: Tensor,
        dims: int,
        base: float,
        factors: Tensor | None = None,
    ) -> Tensor:
        """Heads x [rows, heads, n], each normed with weight [n], then rotated by `rope`."""
        return self.rope(self.rms_norm(x, weight, eps), positions, dims, base, factors)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, begins: Sequence[int], ends: Sequence[int], scale: float
    ) -> Tensor:
        """Queries [rows, heads, d] over keys [n, kv_heads, d] and values [n, kv_heads, dv]: [rows, heads, dv].

        Row i sees keys begins[i] … ends[i] - 1, and nothing is a row of zeros. Query head h uses key head
        h // (heads / kv_heads).
        """
        rows = []
        for row, begin, end in zip(query, begins, ends, strict=True):
            seen = _attended(row, keys[begin:end], values[begin:end], scale) if begin < end else None
            rows.append(row.new_zeros(row.shape[0], values.shape[-1]) if seen is None else seen)
        return torch.stack(rows)

    def causal_conv(self, x: Tensor, past: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
        """Depthwise convolution of rows x [rows, channels] behind past [(taps-1)*dilation, channels], oldest first.

        weight is [channels, taps]; its last tap meets the row itself. The result is [rows, channels].
        """
        taps = weight.shape[1]
        held = torch.cat((past, x))
        total = x * weight[:, taps - 1]
        for j in range(taps - 1):
            total = total + held[j * dilation : j * dilation + len(x)] * weight[:, j]
        return total

    def short_convolution(
        self, x: Tensor, past: Tensor, weight: Tensor, dilation: int, keep: int
    ) -> tuple[Tensor, Tensor]:
        """silu of `causal_conv`, [rows, channels], and the past behind each of the last `keep` rows.

        The pasts are [kept, (taps-1)*dilation, channels], of memory of their own; of all rows if there are fewer.
        """
        convolved = self.silu(self.causal_conv(x, past, weight, dilation))
        held, kept = torch.cat((past, x)), min(keep, len(x))
        firsts = range(len(x) - kept + 1, len(x) + 1)
        return convolved, torch.stack([held[first : first + len(past)] for first in firsts])

    def delta_attention(
        self, state: Tensor, mixed: Tensor, decay: Tensor, beta: Tensor, key_heads: int, eps: float, keep: int
    ) -> tuple[Tensor, Tensor]:
        """`delta_rule` of what a convolution gives: rows `mixed`, first queries, then keys, then values.

        Queries and keys [key_heads, dk] are normed by `l2_norm`, queries then divided by the root of dk; value head h
        takes those of head h mod key_heads. `beta` [rows, heads] goes through sigmoid.
        """
        rows, (heads, dk, dv) = len(mixed), state.shape
        width = key_heads * dk
        query, key = (mixed[:, i * width : (i + 1) * width].reshape(rows, key_heads, dk) for i in (0, 1))
        copies = (1, heads // key_heads, 1)
        return self.delta_rule(
            state,
            self.l2_norm(query, eps).repeat(copies) * inverse_sqrt(dk),
            self.l2_norm(key, eps).repeat(copies),
            mixed[:, 2 * width :].reshape(rows, heads, dv),
            decay,
            self.sigmoid(beta),
            keep,
        )

    def delta_rule(
        self, state: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, keep: int
    ) -> tuple[Tensor, Tensor]:
        """Steps of a gated delta rule over rows one after the other.

        Gives what each row reads [rows, heads, dv], and the states [kept, heads, dk, dv] behind the last `keep` rows,
        or all if there are fewer. From `state` [heads, dk, dv] on it decays in each step by `decay` [rows, heads, dk or
        1] first; then it is corrected along key [rows, heads, dk] towards value [rows, heads, dv] by beta [rows,
        heads], and read by query [rows, heads, dk].
        """
        read, states = [], []
        # As those behind rows lie: libraries multiply what lies otherwise in another order.
        state = state.contiguous()
        for row in range(len(query)):
            state, result = _delta_step(state, query[row], key[row], value[row], decay[row], beta[row])
            read.append(result)
            if row >= len(query) - keep:
                states.append(state)
        return torch.stack(read), torch.stack(states)


def _attended(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One query [heads, d] over the keys [n, kv_heads, d] and values [n, kv_heads, dv] that it sees: [heads, dv]."""
    heads, kv_heads = query.shape[0], keys.shape[1]
    grouped = aligned(query).reshape(kv_heads, heads // kv_heads, -1)
    weights = torch.softmax(torch.bmm(grouped, keys.permute(1, 2, 0)) * scale, dim=-1)
    return torch.bmm(weights, values.transpose(0, 1)).reshape(heads, -1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The products of two vectors [n], summed."""
    if len(a) <= ALONE:
        return torch.dot(a, b)
    first, *others = (torch.dot(x, y) for x, y in zip(torch.split(a, ALONE), torch.split(b, ALONE), strict=True))
    return sum(others, first)


def _delta_step(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    query, key = aligned(query), aligned(key)
    state = decay[..., None] * state
    missed = beta[:, None] * (value - torch.bmm(key[:, None], state)[:, 0])
    state = state + key[..., None] * missed[:, None]
    return state, torch.bmm(query[:, None], state)[:, 0]


def frequencies(dims: int, width: int, base: float, factors: Tensor | None) -> Tensor:
    """By how much each of the pairs of `dims` rotated values of `width` turns from position to position: [dims/2].

    In float64. ValueError unless `dims` is even and no more than `width`.
    """
    if dims % 2 or dims > width:
        raise ValueError(f"{dims} of {width} values cannot be rotated in pairs")
    device = None if factors is None else factors.device
    turns: Tensor = base ** (-2.0 * torch.arange(dims // 2, dtype=torch.float64, device=device) / dims)
    return turns if factors is None else turns / factors[: dims // 2].double()


def top(scores: Tensor, count: int) -> list[int]:
    """Indices of the `count` largest of scores [n], ascending; of equal ones those of the lower indices."""
    return sorted(torch.argsort(scores, descending=True, stable=True)[:count].tolist())


def mean_of(rows: Sequence[Tensor]) -> Tensor:
    """The arithmetic mean of tensors of one shape, added in their order."""
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total / len(rows)


def inverse_sqrt(n: int) -> float:
    """1/√n in double precision."""
    return 1.0 / math.sqrt(n)


def by_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of values, such as torch.tanh, of each row of x [..., n] by itself."""
    if x.shape[-1] <= ALONE:
        return torch.stack([function(row) for row in _rows(x)]).reshape(x.shape)
    return torch.cat([by_row(function, part) for part in torch.split(x, ALONE, dim=-1)], dim=-1)


def aligned(x: Tensor) -> Tensor:
    """A copy without gaps that begins where a vector should: for what goes into products of a math library."""
    return x.clone(memory_format=torch.contiguous_format)


def _rows(x: Tensor) -> tuple[Tensor, ...]:
    """The rows [n] of x [..., n], each without gaps and beginning where a vector should."""
    n = x.shape[-1]
    flat = x.reshape(-1, n)
    if len(flat) == 1:
        return (aligned(flat[0]),)
    step = ALIGNMENT // x.element_size()
    padded = flat.new_empty((len(flat), -(-n // step) * step))[:, :n]
    return padded.copy_(flat).unbind()
