"""A row of a Qwen model has the same bits whatever is computed beside it, and a state that went back is like new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from qwen4exp_models import FAMILY, HEAD, PROMPTS, beside, draft, in_parts, model, same
from torch import Tensor

from nextn.convert.pipeline import convert
from nextn.gguf_schema.architecture import Role
from nextn.runtime.model import Chunk
from nextn.runtime.models.qwen4exp import Heads, Trunk
from nextn.runtime.state import RollbackError

# Of files, and of what they are computed with if that is not the definition.
TYPES = ("f32", "q8_0", "q4_0", "f32-cpu", "q8_0-cpu")
WIDTHS = (*range(1, 10), 16, 36, 1000)
# 52 tokens with an EOS among them. From row 35 on a query sees a part of its past, and chunks part blocks of keys.
TOKENS = [*PROMPTS["eos36"], *PROMPTS["len7"], *PROMPTS["len9"]]
OTHERS = [PROMPTS["code31"], PROMPTS["sums35"], PROMPTS["len5"]]
Models = tuple[Trunk, Heads]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products are not worth waking a second thread for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory, converted: Callable[[str], dict[Role, Path]]
) -> Callable[[str], Models]:
    """The models of a combined file of a type, made once."""
    done: dict[str, Models] = {}

    def get(type_: str) -> Models:
        if type_ not in done:
            outtype, _, form = type_.partition("-")
            if outtype == "f32":
                path = converted("qwen4exp")[Role.COMBINED]
            else:
                folder = tmp_path_factory.mktemp(outtype)
                path = convert(FAMILY.checkpoint, folder, (Role.COMBINED,), outtype).outputs[0].path
            done[type_] = model(path, form=form or "reference")
        return done[type_]

    return get


@pytest.fixture(scope="module")
def alone(models: Callable[[str], Models]) -> Callable[[str], tuple[Tensor, Tensor]]:
    """The hidden rows of TOKENS, each computed alone: the trunk's and the head's."""
    done: dict[str, tuple[Tensor, Tensor]] = {}

    def get(type_: str) -> tuple[Tensor, Tensor]:
        if type_ not in done:
            trunk, heads = models(type_)
            hidden = in_parts(trunk, trunk.new_state(), TOKENS, 1)
            done[type_] = (hidden, head_in_parts(heads, hidden, 1))
        return done[type_]

    return get


def head_in_parts(heads: Heads, hidden: Tensor, size: int) -> Tensor:
    """The head's rows of TOKENS, so many in a forward; `hidden` are the trunk's."""
    state, before = heads.new_state(), beside(hidden)
    rows = []
    for start in range(0, len(TOKENS), size):
        chunk = Chunk(state, TOKENS[start : start + size], hidden=before[start : start + size])
        rows.append(heads.forward([chunk], HEAD))
        chunk.advance()
    return torch.cat(rows)


QUICK = {("f32", 3), ("f32", 16), ("q8_0", 7), ("q4_0", 1000), ("f32-cpu", 4), ("f32-cpu", 1000), ("q8_0-cpu", 9)}
GRID = [(type_, width) for type_ in TYPES for width in WIDTHS]
SAMPLE = [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.long) for case in GRID]


@pytest.mark.parametrize(("type_", "width"), SAMPLE)
def test_rows_do_not_depend_on_the_width(
    models: Callable[[str], Models], alone: Callable[[str], tuple[Tensor, Tensor]], type_: str, width: int
) -> None:
    trunk, heads = models(type_)
    hidden, drafted = alone(type_)
    assert torch.equal(in_parts(trunk, trunk.new_state(), TOKENS, width), hidden)
    assert torch.equal(head_in_parts(heads, hidden, width), drafted)
    for part, wanted in zip(hidden.split(width), drafted.split(width), strict=True):
        rows, of_head = trunk.logits(part), heads.logits(wanted, HEAD)
        assert all(torch.equal(rows[i], trunk.logits(part[i : i + 1])[0]) for i in (0, len(part) - 1))
        assert all(torch.equal(of_head[i], heads.logits(wanted[i : i + 1], HEAD)[0]) for i in (0, len(part) - 1))


@pytest.mark.long
def test_with_two_threads(models: Callable[[str], Models]) -> None:
    trunk, _ = models("f32")
    torch.set_num_threads(2)
    whole = in_parts(trunk, trunk.new_state(), TOKENS[:24], 1000)
    assert torch.equal(in_parts(trunk, trunk.new_state(), TOKENS[:24], 5), whole)


@pytest.mark.parametrize("width", [w if w == 7 else pytest.param(w, marks=pytest.mark.long) for w in WIDTHS])
def test_float64_rows_do_not_depend_on_the_width(converted: Callable[[str], dict[Role, Path]], width: int) -> None:
    trunk, heads = model(converted("qwen4exp")[Role.COMBINED], torch.float64)
    hidden = in_parts(trunk, trunk.new_state(), TOKENS, 1000)
    assert torch.equal(in_parts(trunk, trunk.new_state(), TOKENS, width), hidden)
    assert torch.equal(head_in_parts(heads, hidden, width), head_in_parts(heads, hidden, 1000))


BATCHES = [(type_, count, size) for type_ in TYPES for count in (2, 3, 4) for size in (1, 3, 16, 1000)]


@pytest.mark.parametrize(
    ("type_", "count", "size"),
    [pytest.param(*c, marks=[] if c in {("f32", 4, 3), ("q8_0", 2, 16)} else pytest.mark.long) for c in BATCHES],
)
def test_sequences_in_one_forward_do_not_see_each_other(
    models: Callable[[str], Models], alone: Callable[[str], tuple[Tensor, Tensor]], type_: str, count: int, size: int
) -> None:
    """Each sequence begins one forward later than the one before, so that their places in the batch differ."""
    trunk, heads = models(type_)
    hidden, drafted = alone(type_)
    texts = [*OTHERS[: count - 1], TOKENS]
    states, head_states = [trunk.new_state() for _ in texts], [heads.new_state() for _ in texts]
    pending = [torch.zeros(1, heads.hidden_width) for _ in texts]
    trunk_rows, head_rows = [], []
    for start in range(0, len(TOKENS) + count * size, size):
        parts = [text[max(0, start - i * size) :][:size] if start >= i * size else [] for i, text in enumerate(texts)]
        active = [i for i, part in enumerate(parts) if part]
        if not active:
            break
        rows = trunk.forward([Chunk(states[i], parts[i]) for i in active]).split([len(parts[i]) for i in active])
        before = [torch.cat((pending[i], row[:-1])) for i, row in zip(active, rows, strict=True)]
        chunks = [Chunk(head_states[i], parts[i], hidden=b) for i, b in zip(active, before, strict=True)]
        of_head = heads.forward(chunks, HEAD).split([len(chunk) for chunk in chunks])
        for i, chunk, row, head_row in zip(active, chunks, rows, of_head, strict=True):
            chunk.advance()
            pending[i] = row[-1:]
            if i == count - 1:
                trunk_rows.append(row)
                head_rows.append(head_row)
    assert torch.equal(torch.cat(trunk_rows), hidden)
    assert torch.equal(torch.cat(head_rows), drafted)


# Behind 33 rows: the next ones complete a block of keys, and pass the budget.
PREFIX, BATCH = 33, 6


@pytest.mark.parametrize(
    "kept", [k if k in (1, 4) else pytest.param(k, marks=pytest.mark.long) for k in range(BATCH + 1)]
)
def test_going_back_is_never_having_been_there(models: Callable[[str], Models], kept: int) -> None:
    """Rejected rows are other tokens than those that follow; the accepted ones are the text's."""
    trunk, _ = models("f32")
    state, fresh = trunk.new_state(BATCH), trunk.new_state(BATCH)
    in_parts(trunk, state, TOKENS[:PREFIX], 16)
    tried = [*TOKENS[PREFIX : PREFIX + kept], *PROMPTS["code31"][: BATCH - kept]]
    trunk.forward([Chunk(state, tried)])
    state.truncate(PREFIX + kept)
    in_parts(trunk, fresh, TOKENS[: PREFIX + kept], 16)
    assert same(state, fresh)
    more = TOKENS[PREFIX + kept :]
    assert torch.equal(in_parts(trunk, state, more, 3), in_parts(trunk, fresh, more, 3))


def test_going_back_further_than_asked_for_is_refused(models: Callable[[str], Models]) -> None:
    trunk, _ = models("f32")
    state = trunk.new_state(2)
    trunk.forward([Chunk(state, TOKENS[:6])])
    state.truncate(4)
    with pytest.raises(RollbackError):
        state.truncate(3)


def test_a_fork_goes_its_own_way(models: Callable[[str], Models]) -> None:
    trunk, _ = models("f32")
    state, fresh = trunk.new_state(), trunk.new_state()
    in_parts(trunk, state, TOKENS[:PREFIX], 16)
    fork = state.fork()
    trunk.forward([Chunk(fork, PROMPTS["code31"][:8])])
    rest = trunk.forward([Chunk(state, TOKENS[PREFIX:])])
    assert torch.equal(in_parts(trunk, fresh, TOKENS, 16)[PREFIX:], rest)
    assert same(state, fresh)
    again = trunk.new_state()
    in_parts(trunk, again, [*TOKENS[:PREFIX], *PROMPTS["code31"][:8]], 16)
    assert same(fork, again)


def test_a_saved_state_goes_on(models: Callable[[str], Models]) -> None:
    trunk, _ = models("f32")
    state, loaded = trunk.new_state(), trunk.new_state()
    in_parts(trunk, state, TOKENS[:PREFIX], 16)
    loaded.load_tensors({name: tensor.clone() for name, tensor in state.tensors().items()})
    rest = TOKENS[PREFIX:]
    assert torch.equal(trunk.forward([Chunk(state, rest)]), trunk.forward([Chunk(loaded, rest)]))


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_catching_up_writes_what_the_whole_computation_writes(
    models: Callable[[str], Models], alone: Callable[[str], tuple[Tensor, Tensor]], size: int
) -> None:
    _, heads = models("f32")
    before = beside(alone("f32")[0])
    state, whole = heads.new_state(), heads.new_state()
    for start in range(0, len(TOKENS), size):
        heads.catch_up([Chunk(state, TOKENS[start : start + size], hidden=before[start : start + size])])
    chunk = Chunk(whole, TOKENS, hidden=before)
    heads.forward([chunk], HEAD)
    assert whole.length == 0
    chunk.advance()
    assert same(state, whole)
    assert {name for name, held in state.tensors().items() if held.numel() and not held.any()} == set()


@pytest.mark.parametrize("accepted", range(5))
def test_a_draft_leaves_nothing_behind(
    models: Callable[[str], Models], alone: Callable[[str], tuple[Tensor, Tensor]], accepted: int
) -> None:
    """A draft of four, of which so many are accepted; the next draft has the bits of one behind a fresh catch-up."""
    _, heads = models("f32")
    hidden = alone("f32")[0]
    before = beside(hidden)
    state, fresh = heads.new_state(), heads.new_state()
    heads.catch_up([Chunk(state, TOKENS[:PREFIX], hidden=before[:PREFIX])])
    draft(heads, state, TOKENS[PREFIX], hidden[PREFIX - 1 : PREFIX], 4)
    assert (state.length, state.position) == (PREFIX, PREFIX)
    end = PREFIX + 1 + accepted
    heads.catch_up([Chunk(state, TOKENS[PREFIX:end], hidden=before[PREFIX:end])])
    heads.catch_up([Chunk(fresh, TOKENS[:end], hidden=before[:end])])
    assert same(state, fresh)
    one, other = (draft(heads, s, TOKENS[end], hidden[end - 1 : end], 5) for s in (state, fresh))
    assert one[0] == other[0]
    assert torch.equal(one[1], other[1])


def test_a_draft_has_the_bits_of_its_rows_in_one_forward(
    models: Callable[[str], Models], alone: Callable[[str], tuple[Tensor, Tensor]]
) -> None:
    """Step by step behind uncounted rows, or all rows at once with the same hidden rows."""
    _, heads = models("f32")
    hidden = alone("f32")[0]
    state = heads.new_state()
    heads.catch_up([Chunk(state, TOKENS[:PREFIX], hidden=beside(hidden)[:PREFIX])])
    tokens, beside_them, rows = TOKENS[PREFIX : PREFIX + 4], [hidden[PREFIX - 1 : PREFIX]], []
    for step, token in enumerate(tokens):
        chunk = Chunk(state, [token], hidden=beside_them[-1], start=PREFIX + step)
        rows.append(heads.forward([chunk], HEAD))
        beside_them.append(rows[-1])
    at_once = heads.forward([Chunk(state, tokens, hidden=torch.cat(beside_them[:-1]))], HEAD)
    assert torch.equal(torch.cat(rows), at_once)
