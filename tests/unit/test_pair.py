"""Pairs: good ones of each family are clean, and every mismatch has a message of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
from families import FAMILIES
from faults import Edit, edited, entry, first

from nextn.convert.pipeline import plan
from nextn.convert.planner import Options
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, Value, array, boolean, string, u32
from nextn.gguf_schema.types import ValueType
from nextn.validators.findings import Finding, Findings, Severity
from nextn.validators.pair import examine_pair, examine_target_hash

COMBINED, TRUNK, MTP, SHARED = Role
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
ERROR, WARNING, NOTE = Severity
UNCHANGED = Edit()


@cache
def good(family: str) -> dict[Role, Contents]:
    planned = plan(FAMILIES[family].checkpoint, Options(tuple(Role), "f32"))
    return {file.role: file.contents for file in planned.files}


def examined(trunk: Contents, draft: Contents, n_max: int | None = None) -> Findings:
    findings = Findings()
    examine_pair(trunk, draft, findings, n_max=n_max)
    return findings


@dataclass(frozen=True)
class Mismatch:
    """A pair that does not fit: the edits that spoil it, and the finding that is wanted."""

    name: str
    severity: Severity
    rule: str
    message: str
    family: str = "step35"
    trunk: Edit = UNCHANGED
    draft: Edit = UNCHANGED
    roles: tuple[Role, Role] = (TRUNK, MTP)
    other_family: str = ""
    n_max: int | None = None

    def findings(self) -> Findings:
        trunk, draft = self.roles
        spoilt = (
            edited(good(self.family)[trunk], self.trunk),
            edited(good(self.other_family or self.family)[draft], self.draft),
        )
        return examined(*spoilt, self.n_max)


def tokens(index: int, text: str) -> Edit:
    return Edit(keys={TOKENS: entry(index, text)})


def padded(value: Value) -> Value:
    return array(ValueType.STRING, [*value.items, "[PAD512]", "[PAD513]"])


def longer(value: Value) -> Value:
    return array(ValueType.STRING, [*value.items, "more"])


EMBEDDING_OF_64 = {"token_embd.weight": (64, 512)}

MISMATCHES = (
    Mismatch("architectures", ERROR, "pair-architecture", "is of architecture 'glm5-next', the trunk of 'step35'",
             other_family="glm5-next"),
    Mismatch("a head as trunk", ERROR, "pair-no-trunk", "is mtp, want a file with a trunk", roles=(MTP, MTP)),
    Mismatch("a trunk as head", ERROR, "pair-no-head", "is trunk, want a file with a head", roles=(TRUNK, TRUNK)),
    Mismatch("widths", ERROR, "pair-width", "takes hidden rows of 64 values, the trunk gives hidden rows of 128 values",
             draft=Edit(keys={"embedding_length": u32(64)})),
    Mismatch("streams", ERROR, "pair-streams", "hidden rows of 2 residual streams", "qwen4exp",
             draft=Edit(keys={"hyper_connection.count": u32(2)})),
    Mismatch("blocks", ERROR, "pair-blocks", "its head begins at blk.0, the trunk has 8 blocks", "qwen4exp",
             draft=Edit(rename={r"blk\.8\.": "blk.0."}, keys={"block_count": u32(1)})),
    Mismatch("one token", ERROR, "pair-tokens", "token 300 is 'other', in the trunk", draft=tokens(300, "other")),
    Mismatch("vocabulary sizes", ERROR, "pair-vocabulary-size", "has 513 tokens, the trunk 512: not all of the rest",
             draft=Edit(keys={TOKENS: longer})),
    Mismatch("padded vocabulary", NOTE, "pair-vocabulary-padded", "has 514 tokens, the trunk 512: the rest is padding",
             draft=Edit(keys={TOKENS: padded})),
    Mismatch("no vocabulary", ERROR, "pair-vocabulary", "has no vocabulary, the trunk has one",
             draft=Edit(remove_keys=TOKENS)),
    Mismatch("token types", WARNING, "pair-token-types", "token 7 is of type 4, in the trunk of type",
             draft=Edit(keys={TYPES: entry(7, 4)})),
    Mismatch("pre-tokenizers", ERROR, "pair-pre-tokenizer",
             "the head has pre-tokenizer 'glm4', the trunk 'deepseek-v3'",
             draft=Edit(keys={"tokenizer.ggml.pre": string("glm4")})),
    Mismatch("tokenizers", ERROR, "pair-tokenizer", "the head has tokenizer 'llama', the trunk 'gpt2'",
             draft=Edit(keys={"tokenizer.ggml.model": string("llama")})),
    Mismatch("end tokens", ERROR, "pair-special-token", "is 2 in the head, 503 in the trunk",
             draft=Edit(keys={"tokenizer.ggml.eos_token_id": u32(2)})),
    Mismatch("flags", WARNING, "pair-special-token", "is False in the head, True in the trunk",
             draft=Edit(keys={"tokenizer.ggml.add_bos_token": boolean(False)})),
    Mismatch("a number", ERROR, "pair-key", "is 3 in the head, 2 in the trunk",
             draft=Edit(keys={"expert_used_count": u32(3)})),
    Mismatch("an entry", ERROR, "pair-key", "entry 1 is 4 in the head, 6 in the trunk",
             draft=Edit(keys={"attention.head_count": entry(1, 4)})),
    Mismatch("a number that only the trunk has", ERROR, "pair-key",
             "is 5000000.0 in the trunk and missing in the head, whose loader takes 10000.0",
             draft=Edit(remove_keys="rope.freq_base")),
    Mismatch("a number that only the head has", ERROR, "pair-key",
             "is 3.0 in the head and missing in the trunk, whose loader takes 1.0",
             trunk=Edit(remove_keys="expert_weights_scale")),
    Mismatch("context lengths", WARNING, "pair-key-harmless", "is 8192 in the head, 4096 in the trunk",
             draft=Edit(keys={"context_length": u32(8192)})),
    Mismatch("layouts", WARNING, "pair-layout", "the trunk in layout upstream", "qwen4exp", roles=(COMBINED, MTP),
             draft=Edit(rename={r"blk\.8\.nextn\.hc_head_": "output_hc_"})),
    Mismatch("embeddings", ERROR, "pair-shape", "has dimensions [64, 512] in the head, [128, 512] in the trunk",
             draft=Edit(reshape=EMBEDDING_OF_64)),
    Mismatch("nothing to lend", ERROR, "pair-nothing-to-lend", "borrows it, and the trunk has none",
             roles=(TRUNK, SHARED), trunk=Edit(drop="token_embd.weight")),
    Mismatch("something else to lend", ERROR, "pair-lends-other-shape",
             "borrows dimensions [128, 512], the trunk has [64, 512]", roles=(TRUNK, SHARED),
             trunk=Edit(reshape=EMBEDDING_OF_64)),
    Mismatch("a tied trunk", NOTE, "pair-lends-tied", "lends the embedding instead", roles=(TRUNK, SHARED),
             trunk=Edit(drop="output.weight")),
    Mismatch("another target", NOTE, "pair-target-name", "was made for 'Other 7B', the trunk is", roles=(TRUNK, SHARED),
             draft=Edit(keys={"nextn.target.name": string("Other 7B")})),
    Mismatch("drafts too long", NOTE, "pair-draft-length", "has 3 chained heads: drafts of 5 tokens are cut to 3",
             n_max=5),
)  # fmt: skip


def same(found: Findings, wanted: Mismatch) -> list[Finding]:
    return [each for each in found if each.rule == wanted.rule and each.severity is wanted.severity]


@pytest.mark.parametrize("mismatch", MISMATCHES, ids=[each.name for each in MISMATCHES])
def test_a_mismatch_is_named(mismatch: Mismatch) -> None:
    (found,) = same(mismatch.findings(), mismatch)
    assert mismatch.message in found.message


def test_every_mismatch_has_a_message_of_its_own() -> None:
    messages = [found.message for each in MISMATCHES for found in same(each.findings(), each)]
    assert len(messages) == len(set(messages)) == len(MISMATCHES) > 12


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("trunk", [COMBINED, TRUNK])
@pytest.mark.parametrize("draft", [COMBINED, MTP, SHARED])
def test_a_good_pair_is_clean(family: str, trunk: Role, draft: Role) -> None:
    assert examined(good(family)[trunk], good(family)[draft], n_max=3) == []


def test_a_key_that_says_what_would_be_assumed_is_not_missed() -> None:
    files = good("step35")
    for key in ("rope.freq_base_swa", "moe_every_n_layers", "leading_dense_block_count"):
        assert not examined(files[TRUNK], edited(files[MTP], remove_keys=key)), key


def test_files_the_wrong_way_round_are_told_so() -> None:
    found = examined(good("step35")[MTP], good("step35")[TRUNK])
    assert {each.rule for each in found} == {"pair-no-trunk", "pair-no-head"}
    assert all("the other way round" in str(each.remedy) for each in found)


def test_an_old_spelling_has_a_remedy() -> None:
    files = good("glm5-next")
    keys = {key.replace("glm5-next.", "glm5next."): value for key, value in files[MTP].keys.items()}
    old = Contents({**keys, "general.architecture": string("glm5next")}, files[MTP].tensors, "old.gguf")
    (found,) = examined(files[TRUNK], old)
    assert found.remedy == "nextn relayout old.gguf -o OUT.gguf --to upstream"


def test_a_single_head_drafts_any_length() -> None:
    assert examined(good("glm5-next")[TRUNK], good("glm5-next")[MTP], n_max=9) == []


def test_the_hash_of_the_embedding_is_compared_with_what_was_recorded() -> None:
    shared = edited(good("step35")[SHARED], keys={"nextn.target.token_embd_sha256": string("ab" * 32)})
    findings = Findings()
    examine_target_hash(shared, "ab" * 32, findings)
    examine_target_hash(good("step35")[MTP], "cd" * 32, findings)
    assert findings == []
    examine_target_hash(shared, "cd" * 32, findings)
    (found,) = findings
    assert (found.severity, found.rule) == (NOTE, "pair-target-hash")
    assert "sha256 abababababababab…, the trunk's is cdcdcdcdcdcdcdcd…" in found.message


def test_arrays_of_the_trunk_only_are_equal_where_they_reach() -> None:
    files = good("step35")
    short = edited(files[MTP], keys={"attention.head_count": first(5)})
    assert examined(files[TRUNK], short) == []
