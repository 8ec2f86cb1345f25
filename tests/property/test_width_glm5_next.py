"""A row of glm5-next has the same bits whatever is computed beside it, and after whatever was taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from torch import Tensor

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf
from nextn.kernels.operations import operations
from nextn.runtime.model import Chunk
from nextn.runtime.models.glm5_next import Heads, Trunk
from nextn.runtime.state import RollbackError, State
from nextn.runtime.weights import Weights

FAMILY = FAMILIES["glm5-next"]
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 36)
# Of files, and of what they are computed with if that is not the definition.
TYPES = ("f32", "q8_0", "q4_0", "f32-cpu", "q8_0-cpu")
# Pools of 4, a budget of 32 rows: the last of 48 rows choose among 11 or 12 pools.
TEXT = [ids for prompt in FAMILY.prompts if prompt["name"] == "p13" for ids in prompt["ids"]]
LENGTH = 48
ROLLBACK = 40


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than they save on tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The combined file of a type, converted once."""
    done: dict[str, Path] = {}

    def get(outtype: str) -> Path:
        if outtype not in done:
            folder = tmp_path_factory.mktemp(outtype)
            done[outtype] = convert(FAMILY.checkpoint, folder, (Role.COMBINED,), outtype).outputs[0].path
        return done[outtype]

    return get


class Model:
    """Trunk and head of one file, and what they make of texts that are computed in one way or another."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32, form: str = "reference") -> None:
        weights = Weights(open_gguf(path), dtype, ops=operations(form))
        self.trunk, self.heads = Trunk(weights), Heads(weights)

    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """What stands beside each token in the head: hidden rows that depend on tokens only."""
        generator = torch.Generator().manual_seed(sum(tokens))
        return torch.randn((len(tokens), self.heads.hidden_width), generator=generator).to(self.heads.dtype)

    def run(self, states: tuple[State, State], tokens: Sequence[int], hidden: Tensor) -> tuple[Tensor, ...]:
        """Hidden rows and logits of both, for rows of one sequence."""
        return self.run_all([(states, tokens, hidden)])

    def run_all(self, sequences: Sequence[tuple[tuple[State, State], Sequence[int], Tensor]]) -> tuple[Tensor, ...]:
        """Hidden rows and logits of both, for rows of several sequences in one forward."""
        trunk_chunks = [Chunk(states[0], tokens) for states, tokens, _ in sequences]
        head_chunks = [Chunk(states[1], tokens, hidden=hidden) for states, tokens, hidden in sequences]
        rows = self.trunk.forward(trunk_chunks)
        drafted = self.heads.forward(head_chunks, 0)
        for chunk in head_chunks:
            chunk.advance()
        return rows, self.trunk.logits(rows), drafted, self.heads.logits(drafted, 0)

    def states(self) -> tuple[State, State]:
        return self.trunk.new_state(ROLLBACK), self.heads.new_state()

    def in_chunks(self, tokens: Sequence[int], hidden: Tensor, size: int) -> tuple[Tensor, ...]:
        """A whole text, so many rows at a time."""
        states = self.states()
        cuts = [*range(0, len(tokens), size), len(tokens)]
        parts = [self.run(states, tokens[a:b], hidden[a:b]) for a, b in pairwise(cuts)]
        return joined(parts)


def model_of(file_of: Callable[[str], Path], type_: str) -> Model:
    outtype, _, form = type_.partition("-")
    return Model(file_of(outtype), form=form or "reference")


def joined(parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def grid(sample: set[tuple[str, int]], sizes: Sequence[int]) -> list[object]:
    return [
        pytest.param(type_, size, marks=[] if (type_, size) in sample else [pytest.mark.long])
        for type_ in TYPES
        for size in sizes
    ]


@pytest.mark.parametrize(
    ("type_", "width"), grid({("f32", 36), ("q8_0", 9), ("q4_0", 3), ("f32-cpu", 36), ("q8_0-cpu", 7)}, WIDTHS)
)
def test_a_row_does_not_depend_on_the_width(file_of: Callable[[str], Path], type_: str, width: int) -> None:
    """A verification of so many rows behind a prefill, beside the same rows one at a time."""
    model = model_of(file_of, type_)
    tokens, hidden = TEXT[:LENGTH], model.hidden(TEXT[:LENGTH])
    start = LENGTH - width
    states = model.states()
    model.run(states, tokens[:start], hidden[:start])
    wide = model.run(states, tokens[start:], hidden[start:])
    single = model.in_chunks(tokens, hidden, 1)
    assert equal(wide, [part[start:] for part in single])


@pytest.mark.parametrize(("type_", "size"), grid({("q4_0", 16), ("f32-cpu", 16)}, (1, 3, 16)))
def test_a_row_does_not_depend_on_the_chunks_of_a_prefill(
    file_of: Callable[[str], Path], type_: str, size: int
) -> None:
    model = model_of(file_of, type_)
    tokens, hidden = TEXT[: LENGTH + 3], model.hidden(TEXT[: LENGTH + 3])
    assert equal(model.in_chunks(tokens, hidden, size), model.in_chunks(tokens, hidden, len(tokens)))


@pytest.mark.parametrize(("type_", "count"), grid({("f32", 3), ("q8_0-cpu", 4)}, (1, 2, 3, 4)))
def test_sequences_do_not_see_each_other(file_of: Callable[[str], Path], type_: str, count: int) -> None:
    """Prefill and a step of 1 to 4 sequences of different lengths in one forward, beside each of them alone."""
    model = model_of(file_of, type_)
    lengths = (37, 3, 8, 41)[:count]
    texts = [TEXT[7 * i : 7 * i + n + 2 + i] for i, n in enumerate(lengths)]
    hidden = [model.hidden(text) for text in texts]
    states = [model.states() for _ in texts]
    first = [(s, t[:n], h[:n]) for s, t, h, n in zip(states, texts, hidden, lengths, strict=True)]
    then = [(s, t[n:], h[n:]) for s, t, h, n in zip(states, texts, hidden, lengths, strict=True)]
    prefilled, stepped = model.run_all(first), model.run_all(then)

    for i, (text, beside, n) in enumerate(zip(texts, hidden, lengths, strict=True)):
        alone = model.in_chunks(text, beside, len(text))
        at = [sum(lengths[:i]), sum(len(t) - m for t, m in zip(texts[:i], lengths[:i], strict=True))]
        assert equal([part[at[0] : at[0] + n] for part in prefilled], [part[:n] for part in alone])
        assert equal([part[at[1] : at[1] + len(text) - n] for part in stepped], [part[n:] for part in alone])


@pytest.mark.long
@pytest.mark.parametrize("width", [2, 16, 36])
def test_a_row_does_not_depend_on_the_width_in_double_precision(file_of: Callable[[str], Path], width: int) -> None:
    model = Model(file_of("q8_0"), torch.float64)
    tokens, hidden = TEXT[:LENGTH], model.hidden(TEXT[:LENGTH])
    assert equal(model.in_chunks(tokens, hidden, width), model.in_chunks(tokens, hidden, 1))


@pytest.mark.parametrize("back", [1, 2, 3, 4, 5, *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 17))])
def test_rows_that_were_taken_back_leave_no_trace(file_of: Callable[[str], Path], back: int) -> None:
    """A rejected draft, whichever pools it completed, and what follows, beside a sequence that never saw it."""
    model = Model(file_of("f32"))
    kept = LENGTH - back
    tokens, other = TEXT[:LENGTH], TEXT[100 : 100 + LENGTH]
    hidden, strange = model.hidden(tokens), model.hidden(other)
    states = model.states()
    model.run(states, tokens[:kept], hidden[:kept])
    model.run(states, other[:back], strange[:back])
    for state in states:
        state.truncate(kept)
    again = model.run(states, tokens[kept:], hidden[kept:])
    assert equal(again, [part[kept:] for part in model.in_chunks(tokens, hidden, LENGTH)])


def test_a_state_goes_back_no_further_than_it_was_made_to(file_of: Callable[[str], Path]) -> None:
    model = Model(file_of("f32"))
    state = model.trunk.new_state(rollback=2)
    model.trunk.forward([Chunk(state, TEXT[:6])])
    with pytest.raises(RollbackError):
        state.truncate(3)
    state.truncate(4)
    fresh = model.trunk.new_state()
    model.trunk.forward([Chunk(fresh, TEXT[:4])])
    assert torch.equal(model.trunk.forward([Chunk(state, [5])]), model.trunk.forward([Chunk(fresh, [5])]))


@pytest.mark.parametrize("place", [35, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4, 5, 33, 34, 36))])
def test_forks_go_their_own_ways(file_of: Callable[[str], Path], place: int) -> None:
    model = Model(file_of("f32"))
    tokens = TEXT[: place + 6]
    ways = [[*tokens[:place], *tail] for tail in (TEXT[50:56], TEXT[60:66])]
    hidden = model.hidden(tokens)
    states = model.states()
    model.run(states, tokens[:place], hidden[:place])
    forks = (states[0].fork(), states[1].fork())
    # In turns, so that one writes while the other still needs what they share.
    got: list[list[tuple[Tensor, ...]]] = [[], []]
    for a in (place, place + 3):
        for way, (held, tail) in enumerate(zip((states, forks), ways, strict=True)):
            got[way].append(model.run(held, tail[a : a + 3], hidden[a : a + 3]))
    for parts, tail in zip(got, ways, strict=True):
        assert equal(joined(parts), [part[place:] for part in model.in_chunks(tail, hidden, len(tail))])


@pytest.mark.parametrize("first", [1, 33])
def test_catching_up_leaves_what_a_whole_forward_leaves(file_of: Callable[[str], Path], first: int) -> None:
    """Latents, indexer keys and gates and pooled keys, behind rows of a draft that are written over."""
    model = Model(file_of("f32"))
    tokens, hidden = TEXT[:LENGTH], model.hidden(TEXT[:LENGTH])
    caught, computed = model.heads.new_state(), model.heads.new_state()
    draft = Chunk(caught, TEXT[70:80], hidden=model.hidden(TEXT[70:80]))
    for part in (slice(0, first), slice(first, LENGTH)):
        model.heads.forward([draft], 0)
        model.heads.catch_up([Chunk(caught, tokens[part], hidden=hidden[part])])
        chunk = Chunk(computed, tokens[part], hidden=hidden[part])
        model.heads.forward([chunk], 0)
        chunk.advance()
    a, b = caught.tensors(), computed.tensors()
    assert a.keys() == b.keys()
    assert len(a) == 5  # with the place
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_looped_draft_is_one_forward_of_its_rows(file_of: Callable[[str], Path]) -> None:
    """Each step's row stands behind the uncounted ones of the steps before it."""
    model = Model(file_of("f32"))
    tokens, hidden = TEXT[:LENGTH], model.hidden(TEXT[:LENGTH])
    looped, whole = model.heads.new_state(), model.heads.new_state()
    for state in (looped, whole):
        model.heads.catch_up([Chunk(state, tokens[:38], hidden=hidden[:38])])
    rows = [
        model.heads.forward([Chunk(looped, [tokens[i]], hidden=hidden[i : i + 1], start=i)], 0)
        for i in range(38, LENGTH)
    ]
    assert looped.length == 38
    assert torch.equal(torch.cat(rows), model.heads.forward([Chunk(whole, tokens[38:], hidden=hidden[38:])], 0))


def test_embedding_rows_are_taken_in_place_of_tokens(file_of: Callable[[str], Path]) -> None:
    """With explicit positions, in the trunk and in the head; the next row stands behind the last position."""
    weights = Weights(open_gguf(file_of("q8_0")))
    trunk, heads = Trunk(weights), Heads(weights)
    tokens = TEXT[:7]
    rows = weights.matrix("token_embd.weight").gather(tokens)
    hidden = torch.randn((7, trunk.hidden_width), generator=torch.Generator().manual_seed(1))
    by_token, by_row, head_by_token, head_by_row = (m.new_state() for m in (trunk, trunk, heads, heads))
    positions = [0, 0, 0, 0, 1, 1, 1]
    assert torch.equal(
        trunk.forward([Chunk(by_token, tokens)]),
        trunk.forward([Chunk(by_row, embeddings=rows, positions=positions)]),
    )
    assert torch.equal(
        heads.forward([Chunk(head_by_token, tokens, hidden=hidden)], 0),
        heads.forward([Chunk(head_by_row, embeddings=rows, hidden=hidden, positions=positions)], 0),
    )
    heads.catch_up([Chunk(head_by_row, embeddings=rows, hidden=hidden, positions=positions)])
    assert (by_token.length, by_token.position) == (7, 7)
    assert [(s.length, s.position) for s in (by_row, head_by_row)] == [(7, 2)] * 2
    assert torch.equal(trunk.forward([Chunk(by_token, [9])]), trunk.forward([Chunk(by_row, [9])]))
