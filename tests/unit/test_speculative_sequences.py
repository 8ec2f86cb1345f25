"""Several sequences at once, prompts with embedding rows, and sessions that are saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from stub_heads import Asked, StubHeads, by_chance, fails_at, right, wrong
from toy_models import WIDTH, ToyHeads, ToyTrunk, noise
from watching import Watch, assert_same

from nextn.gguf_schema.errors import InputError, UsageError
from nextn.runtime.drafting import Options
from nextn.runtime.greedy import best, greedy
from nextn.runtime.model import Chunk
from nextn.runtime.runs import Run
from nextn.runtime.segments import EmbeddingRows, Item
from nextn.runtime.session import Session
from nextn.runtime.speculative import Speculator

TRUNK = ToyTrunk()
PROMPT = [3, 1, 4, 1, 5]
PROMPTS = [PROMPT, [7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9]]
IMAGE = noise(77, 4, WIDTH)


def fared(run: Run) -> tuple[object, ...]:
    return run.tokens, run.rounds, run.stop


@pytest.mark.parametrize(
    "heads", [ToyHeads(1), ToyHeads(3), StubHeads(by_chance(TRUNK, 1)), StubHeads(by_chance(TRUNK, 2), 3)]
)
@pytest.mark.parametrize("ubatch", [2, 512])
def test_case_r14_sequences_together_are_as_alone(heads: ToyHeads | StubHeads, ubatch: int) -> None:
    """Answers drifted into another request's content (R14); only the first slot's drafts were any good (R13); two
    sequences with other drafts corrupted each other (R20); prompts longer than a micro batch (R16)."""
    options = Options(n_max=4, p_min=0.3, ubatch=ubatch)
    together = Speculator(TRUNK, heads, options, Watch(TRUNK, heads)).generate(PROMPTS, 24, {9})
    for run, prompt in zip(together, PROMPTS, strict=True):
        [alone] = Speculator(TRUNK, heads, options).generate([prompt], 24, {9})
        assert fared(run) == fared(alone)
        assert run.tokens == greedy(TRUNK, prompt, 24, {9})
    assert len({len(run.rounds) for run in together}) > 1


def test_case_r15_identical_prompts_get_one_answer() -> None:
    """Four identical prompts gave three distinct answers, and drafting was dropped without a word."""
    runs = Speculator(TRUNK, ToyHeads(2), Options(n_max=2)).generate([PROMPT] * 4, 24)
    assert len({str(fared(run)) for run in runs}) == 1
    assert runs[0].rounds


def test_case_r17_all_sequences_draft_in_the_same_steps() -> None:
    """A graph was made for another number of rows. Heads get a chunk of each sequence that drafts on, trunks of all."""
    trunk = ToyTrunk()
    stub = StubHeads(lambda asked: (1, 0.9 if len(asked.tokens) < 8 else 0.1))
    Speculator(trunk, stub, Options(n_max=3, p_min=0.5)).generate([[3, 1, 4], [1, 5, 9, 2, 6]], 3)
    assert trunk.forwards[:2] == [[3, 5], [2, 2]]
    assert [(each.step, len(each.tokens)) for each in stub.asked[:6]] == [
        (0, 4),
        (0, 6),
        (1, 5),
        (1, 7),
        (2, 6),
        (2, 8),
    ]


def test_case_r13_a_sequence_that_joins_later_is_as_alone() -> None:
    """Two sequences, of which only the second is used: it drafted from the first one's state."""
    heads = ToyHeads(3)
    speculator = Speculator(TRUNK, heads, Options(n_max=3))
    first, second = speculator.open(), speculator.open()
    runs = [Run("", 0), Run("", 0)]
    speculator.prefill([first], [PROMPTS[2]], runs[:1])
    speculator.prefill([second], [PROMPT], runs[1:])
    speculator.resume([second], 24, (), runs[1:])
    [alone] = speculator.generate([PROMPT], 24)
    assert fared(runs[1]) == fared(alone)
    speculator.resume([first], 24, (), runs[:1])
    assert runs[0].tokens == greedy(TRUNK, PROMPTS[2], 24)


def test_an_error_while_several_draft_is_counted_in_each() -> None:
    stub = StubHeads(fails_at(right(TRUNK), 2))
    runs = Speculator(TRUNK, stub, Options(n_max=2)).generate(PROMPTS, 12)
    assert [len(run.draft_errors) for run in runs] == [1, 1, 1]
    assert [run.tokens for run in runs] == [greedy(TRUNK, prompt, 12) for prompt in PROMPTS]


def test_one_sequence_that_cannot_draft_does_not_stop_the_others() -> None:
    def guess(asked: Asked) -> int | tuple[int, float]:
        if asked.tokens[: len(PROMPTS[1])] == tuple(PROMPTS[1]):
            raise RuntimeError("no room")
        return right(TRUNK)(asked)

    runs = Speculator(TRUNK, StubHeads(guess), Options(n_max=2)).generate(PROMPTS, 12)
    assert [run.tokens for run in runs] == [greedy(TRUNK, prompt, 12) for prompt in PROMPTS]
    assert runs[0].draft_errors == runs[2].draft_errors == []
    assert set(runs[1].draft_errors) == {"RuntimeError: no room"}
    assert (runs[0].n_accepted, runs[1].n_drafted) == (7, 0)


def test_heads_that_fail_after_some_sequences_have_caught_up_are_in_step_again() -> None:
    """Rows that were counted before the error were written a second time, and that sequence drafted no more."""

    class Halfway(StubHeads):
        def catch_up(self, chunks: Sequence[Chunk]) -> None:
            if len(chunks) > 1 and len(self.asked) > 4:
                super().catch_up(chunks[:1])
                raise RuntimeError("no room for two")
            super().catch_up(chunks)

    stub = Halfway(right(TRUNK))
    speculator = Speculator(TRUNK, stub, Options(n_max=2))
    sessions = [speculator.open() for _ in PROMPTS]
    runs = [Run("", len(prompt)) for prompt in PROMPTS]
    speculator.prefill(sessions, PROMPTS, runs)
    speculator.resume(sessions, 12, (), runs)
    assert [run.tokens for run in runs] == [greedy(TRUNK, prompt, 12) for prompt in PROMPTS]
    assert {error for run in runs for error in run.draft_errors} == {"RuntimeError: no room for two"}
    for session, run in zip(sessions, runs, strict=True):
        assert session.heads is not None
        assert session.drafting
        assert session.heads.length == session.trunk.length
        # All that is drafted is right.
        assert run.n_accepted == run.n_drafted > 6


def mixed(positions: list[int] | None) -> list[Item]:
    """Three tokens, four embedding rows, two tokens."""
    return [3, 1, 4, EmbeddingRows(IMAGE, positions), 1, 5]


def by_hand(positions: list[int]) -> tuple[list[int], torch.Tensor]:
    """20 tokens behind `mixed`, one by one, and the hidden rows of the prompt."""
    state = TRUNK.new_state()
    hidden = [
        TRUNK.forward([Chunk(state, [3, 1, 4])]),
        TRUNK.forward([Chunk(state, embeddings=IMAGE, positions=positions)]),
        TRUNK.forward([Chunk(state, [1, 5])]),
    ]
    rows, said = torch.cat(hidden), []
    row = rows[-1:]
    for _ in range(20):
        said += best(TRUNK.logits(row))
        row = TRUNK.forward([Chunk(state, said[-1:])])
    return said, rows


# Four rows at four positions, and at two, as rows of an image share positions.
@pytest.mark.parametrize("positions", [[3, 4, 5, 6], [3, 3, 4, 4]])
@pytest.mark.parametrize("ubatch", [3, 512])
def test_case_r07_embedding_rows_go_into_trunk_and_heads(positions: list[int], ubatch: int) -> None:
    """Input of an image aborted as soon as there was a draft (R07); behind one, drafting was off, since the number of
    tokens was compared with a position (R09)."""
    said, rows = by_hand(positions)
    heads = ToyHeads(2)
    for drafting in (None, heads, StubHeads(lambda asked: said[len(asked.tokens) - 9])):
        options = Options(n_max=2, ubatch=ubatch, strict=True)
        [run] = Speculator(TRUNK, drafting, options).generate([mixed(positions)], 20)
        assert run.tokens == said
        assert run.prompt_tokens == 9
        assert len(run.rounds) > 0 or drafting is None
    assert run.n_accepted == run.n_drafted > 0
    # The heads have all rows, at their positions, each beside the trunk's row before.
    speculator = Speculator(TRUNK, heads, Options(ubatch=ubatch))
    session = speculator.open()
    speculator.prefill([session], [mixed(positions)], [Run("", 9)])
    caches, beside = heads.new_state(), torch.cat((torch.zeros(1, WIDTH), rows[:-1]))
    heads.catch_up([Chunk(caches, [3, 1, 4], hidden=beside[:3])])
    heads.catch_up([Chunk(caches, embeddings=IMAGE, hidden=beside[3:7], positions=positions)])
    heads.catch_up([Chunk(caches, [1, 5], hidden=beside[7:])])
    assert session.heads is not None
    assert (session.heads.length, session.heads.position) == (9, positions[-1] + 3)
    assert_same(session.heads, caches)


def test_embedding_rows_without_positions_have_the_next_ones() -> None:
    runs = [Speculator(TRUNK).generate([mixed(positions)], 8)[0].tokens for positions in (None, [3, 4, 5, 6])]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("positions", [[3, 4, 5], [1, 2, 3, 4], [3, 5, 4, 6]])
def test_case_r08_bad_positions_are_one_error(positions: list[int]) -> None:
    """The search for a slot looped until memory was gone."""
    with pytest.raises(UsageError, match="positions"):
        Speculator(TRUNK, ToyHeads(1)).generate([mixed(positions)], 8)
    with pytest.raises(UsageError, match="not consecutive"):
        TRUNK.forward([Chunk(TRUNK.new_state(), [1, 2, 3], positions=[0, 1, 1])])


def continued(speculator: Speculator, session: Session, count: int) -> Run:
    run = Run("", 0)
    speculator.resume([session], count, (), [run])
    return run


@pytest.mark.parametrize("heads", [None, ToyHeads(1), ToyHeads(3), StubHeads(by_chance(TRUNK, 5))])
@pytest.mark.parametrize("count", [1, 7, 8])
def test_case_r11_a_saved_session_goes_on(tmp_path: Path, heads: ToyHeads | StubHeads | None, count: int) -> None:
    """Both caches came back from a prompt cache, but not the hidden row between them."""
    speculator = Speculator(TRUNK, heads, Options(n_max=3), Watch(TRUNK, heads))
    session, run = speculator.open(), Run("", 0)
    speculator.prefill([session], [PROMPT], [run])
    speculator.resume([session], count, (), [run])
    session.save(tmp_path / "session", TRUNK, speculator.heads)
    loaded = Speculator(TRUNK, heads, Options(n_max=5)).load(tmp_path / "session")
    assert (loaded.last, loaded.tokens) == (session.last, session.tokens)
    assert torch.equal(loaded.pending, session.pending)
    more = continued(Speculator(TRUNK, heads, Options(n_max=5), Watch(TRUNK, heads)), loaded, 16 - count)
    assert [*run.tokens, *more.tokens] == greedy(TRUNK, PROMPT, 16)
    assert more.rounds or heads is None


def test_a_session_saved_before_anything_was_said(tmp_path: Path) -> None:
    speculator = Speculator(TRUNK, ToyHeads(1))
    session = speculator.open()
    speculator.prefill([session], [PROMPT], [Run("", 0)])
    session.save(tmp_path / "session", TRUNK, speculator.heads)
    assert continued(speculator, speculator.load(tmp_path / "session"), 8).tokens == greedy(TRUNK, PROMPT, 8)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_session_reads_what_it_said_before_the_next_prompt(count: int) -> None:
    speculator = Speculator(TRUNK, ToyHeads(2), Options(n_max=2), Watch(TRUNK, ToyHeads(2)))
    session, run = speculator.open(), Run("", 0)
    speculator.prefill([session], [PROMPT], [run])
    speculator.resume([session], count, (), [run])
    speculator.prefill([session], [[7, 7]], [run])
    assert continued(speculator, session, 8).tokens == greedy(TRUNK, [*PROMPT, *run.tokens, 7, 7], 8)


def test_a_session_goes_on_behind_an_end_token() -> None:
    """The end may be the last drafted token: then the token behind it is known, and not said yet."""
    said = greedy(TRUNK, PROMPT, 12)
    for n_max in (1, 2, 3, 4, 5):
        speculator = Speculator(TRUNK, StubHeads(right(TRUNK)), Options(n_max=n_max))
        session, run = speculator.open(), Run("", 0)
        speculator.prefill([session], [PROMPT], [run])
        speculator.resume([session], 12, {said[3]}, [run])
        assert run.tokens == said[:4]
        assert continued(speculator, session, 8).tokens == said[4:]


def test_forks_do_not_touch_each_other() -> None:
    speculator = Speculator(TRUNK, StubHeads(wrong(TRUNK)), Options(n_max=4), Watch(TRUNK, StubHeads(wrong(TRUNK))))
    session, run = speculator.open(), Run("", 0)
    speculator.prefill([session], [PROMPT], [run])
    speculator.resume([session], 3, (), [run])
    fork = session.fork()
    assert continued(speculator, fork, 9).tokens == continued(speculator, session, 9).tokens


@pytest.mark.parametrize("prompt", [[], [EmbeddingRows(IMAGE[:0])]])
def test_an_empty_prompt_is_refused(prompt: list[Item]) -> None:
    with pytest.raises(InputError, match="at least one"):
        Speculator(TRUNK).generate([PROMPT, prompt], 4)


def test_heads_are_asked_about_one_sequence_at_a_time() -> None:
    """Nothing of one sequence is in what they see of another."""
    stub = StubHeads(lambda asked: asked.tokens[-1])
    Speculator(TRUNK, stub, Options(n_max=2)).generate([[1, 1, 1], [2, 2]], 8)
    assert {each.tokens[:2] for each in stub.asked} == {(1, 1), (2, 2)}
