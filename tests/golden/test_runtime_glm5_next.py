"""The runtime of glm5-next against transformers (trunk) and real llama.cpp (whole draft rounds of the head)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf
from nextn.runtime.model import Chunk
from nextn.runtime.models.glm5_next import Heads, Trunk
from nextn.runtime.weights import Weights

FAMILY = FAMILIES["glm5-next"]
NAMES = [prompt["name"] for prompt in FAMILY.prompts]
# One row, a whole pool and one more, more rows than the indexer's budget, many more.
QUICK = ("p00", "p04", "p10", "p12")
LOGIT_TOLERANCE = 1e-4
# Below this margin two programs may legitimately choose different tokens.
CLEAR_MARGIN = 1e-3
N_PREDICT = 64
END_TOKENS = (488, 495, 497)

Files = Callable[[str], dict[Role, Path]]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than they save on tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sampled(names: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in names else [pytest.mark.long]) for name in NAMES]


def golden(file: str, name: str) -> dict[str, Any]:
    (found,) = [prompt for prompt in FAMILY.read(file)["prompts"] if prompt["name"] == name]
    return dict(found)


def ids_of(name: str) -> list[int]:
    return list(golden("prompts.json", name)["ids"])


def load(path: Path, **options: Any) -> Weights:
    return Weights(open_gguf(path), **options)


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, torch.float32) for name in NAMES] + [(name, torch.float64) for name in QUICK]
)
def test_logits_are_those_of_transformers(converted: Files, name: str, dtype: torch.dtype) -> None:
    expected, ids = golden("transformers.json", name), ids_of(name)
    trunk = Trunk(load(converted(FAMILY.name)[Role.COMBINED], dtype=dtype))
    logits = trunk.logits(trunk.forward([Chunk(trunk.new_state(), ids)]))
    assert logits.dtype is dtype
    fixed = FAMILY.read("transformers.json")["fixed_ids"]
    for row in expected["rows"]:
        got = logits[row["position"]]
        wanted = torch.tensor(row["logits"], dtype=dtype)
        torch.testing.assert_close(got[fixed], wanted, atol=LOGIT_TOLERANCE, rtol=0)
        assert torch.logsumexp(got, 0).item() == pytest.approx(row["logsumexp"], abs=LOGIT_TOLERANCE)
    probabilities = torch.log_softmax(logits[-1], 0)
    for token, logprob in expected["top10"]:
        assert probabilities[token].item() == pytest.approx(logprob, abs=LOGIT_TOLERANCE)


@pytest.mark.parametrize("name", sampled(("p00", "p08")))
def test_greedy_tokens_are_those_of_transformers(converted: Files, name: str) -> None:
    expected = golden("transformers.json", name)
    trunk = Trunk(load(converted(FAMILY.name)[Role.TRUNK]))
    state = trunk.new_state()
    hidden = trunk.forward([Chunk(state, ids_of(name))])
    for step, (token, margin) in enumerate(zip(expected["greedy"], expected["margin"], strict=True)):
        best, second = trunk.logits(hidden[-1:])[0].topk(2).values.tolist()
        assert best - second == pytest.approx(margin, abs=2 * LOGIT_TOLERANCE), step
        if margin > CLEAR_MARGIN:
            assert int(trunk.logits(hidden[-1:])[0].argmax()) == token, step
        # What follows is compared on the golden's own tokens.
        hidden = trunk.forward([Chunk(state, [token])])


class Drafting:
    """Greedy generation with drafts, by the rules that the specification gives for llama.cpp's server."""

    def __init__(self, trunk: Trunk, heads: Heads, ids: list[int], n_max: int) -> None:
        self.trunk, self.heads, self.n_max = trunk, heads, n_max
        self.state, self.head_state = trunk.new_state(rollback=n_max), heads.new_state()
        self.pending = torch.zeros((1, trunk.hidden_width))
        self.tokens: list[int] = []
        self.drafts: list[list[int]] = []
        self.margins: list[list[float]] = []
        self.accepted: list[int] = []
        rows = self._verified(ids)
        self._catch_up(ids, rows)
        self.tokens.append(int(trunk.logits(rows[-1:])[0].argmax()))

    def _verified(self, tokens: list[int]) -> torch.Tensor:
        return self.trunk.forward([Chunk(self.state, tokens)])

    def _catch_up(self, tokens: list[int], rows: torch.Tensor) -> None:
        """The head sees each token beside the trunk's hidden row of the token before it."""
        before = torch.cat((self.pending, rows[: len(tokens) - 1]))
        self.heads.catch_up([Chunk(self.head_state, tokens, hidden=before)])
        self.pending = rows[len(tokens) - 1 : len(tokens)]

    def _draft(self) -> list[int]:
        token, row, drafted, margins = self.tokens[-1], self.pending, [], []
        for step in range(self.n_max):
            start = self.head_state.length + step
            row = self.heads.forward([Chunk(self.head_state, [token], hidden=row, start=start)], 0)
            (best, second), (token, _) = (part.tolist() for part in self.heads.logits(row, 0)[0].topk(2))
            drafted.append(token)
            margins.append(best - second)
        self.margins.append(margins)
        return drafted

    def round(self) -> bool:
        """One draft and its verification; whether to go on."""
        room = N_PREDICT - len(self.tokens) - 1
        draft = self._draft()[:room] if room > 0 else []
        batch = [self.tokens[-1], *draft]
        rows = self._verified(batch)
        sampled = self.trunk.logits(rows).argmax(dim=1).tolist()
        kept = 0
        while kept < len(draft) and sampled[kept] == draft[kept]:
            kept += 1
            if sampled[kept - 1] in END_TOKENS and kept < len(draft):
                kept -= 1  # an end token inside a draft ends the round: it is sent, but counts as not accepted
                break
        if draft:
            self.drafts.append(draft)
            self.accepted.append(kept)
        new = sampled[: kept + 1]
        self.state.truncate(self.state.length - (len(batch) - len(new)))
        self._catch_up(batch[: len(new)], rows)
        for token in new:
            self.tokens.append(token)
            if token in END_TOKENS or len(self.tokens) == N_PREDICT:
                return False
        return True


@pytest.mark.parametrize("n_max", [1, 2, 3, 5])
@pytest.mark.parametrize("name", sampled(("p06", "p08")))
def test_draft_rounds_are_those_of_llama_cpp(converted: Files, name: str, n_max: int) -> None:
    """Every drafted token and every count, until one where the head's two best logits are nearly equal."""
    expected = golden("llama_cpp.json", name)
    files = converted(FAMILY.name)
    trunk = Trunk(load(files[Role.TRUNK]))
    drafting = Drafting(trunk, Heads(load(files[Role.MTP])), ids_of(name), n_max)
    while drafting.round():
        pass
    assert drafting.tokens == expected["tokens"]
    rounds = expected["draft"][f"combined n_max={n_max}"]["rounds"]
    for i, (got, wanted) in enumerate(zip(drafting.drafts, rounds, strict=True)):
        submitted = wanted["submitted_ids"]
        if got != submitted:
            parted = next(j for j, (a, b) in enumerate(zip(got, submitted, strict=True)) if a != b)
            assert drafting.margins[i][parted] < CLEAR_MARGIN, (i, parted)
            pytest.skip("the head's two best logits are nearly equal: what follows cannot be compared")
        assert drafting.accepted[i] == wanted["accepted"], i


@pytest.mark.parametrize("role", [Role.COMBINED, Role.MTP, Role.MTP_SHARED])
def test_every_file_with_a_head_has_the_same_head(converted: Files, role: Role) -> None:
    files = converted(FAMILY.name)
    trunk_weights = load(files[Role.TRUNK])
    trunk = Trunk(trunk_weights)
    ids = ids_of("p10")
    hidden = torch.cat((torch.zeros((1, trunk.hidden_width)), trunk.forward([Chunk(trunk.new_state(), ids)])[:-1]))

    def logits(heads: Heads) -> torch.Tensor:
        return heads.logits(heads.forward([Chunk(heads.new_state(), ids, hidden=hidden)], 0), 0)

    heads = Heads(load(files[role], lender=trunk_weights if role is Role.MTP_SHARED else None))
    assert torch.equal(logits(heads), logits(Heads(load(files[Role.COMBINED]))))
