"""Findings about a pair: does this head belong to this trunk?

llama.cpp compares only the width of the hidden rows when a head drafts; everything else it takes on trust, and a wrong
pair drafts nonsense without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, Scalar, Value
from nextn.gguf_schema.layouts import layout_of
from nextn.gguf_schema.nextn_architectures import NEXTN_ARCHITECTURES, OLD_SPELLINGS
from nextn.gguf_schema.nextn_generic import (
    BLOCK_COUNT,
    EMBEDDING,
    NEXTN_PREDICT_LAYERS,
    OUTPUT,
    TARGET_EMBEDDING_SHA256,
    TARGET_NAME,
    TOKENS,
    blocks_of,
    role_of,
)
from nextn.gguf_schema.types import FILE_TYPES, TensorType
from nextn.validators.defaults import assumed
from nextn.validators.findings import Findings
from nextn.validators.other_files import other_file
from nextn.validators.vocabularies import first_difference, only_padding, same_items
from nextn.validators.wording import FORMATS, SIDECARS, dims, loader_of

PRE, MODEL, TYPES = "tokenizer.ggml.pre", "tokenizer.ggml.model", "tokenizer.ggml.token_type"
WIDTH, STREAMS = "embedding_length", "hyper_connection.count"
UNUSED = 5  # the type of tokens that only fill a vocabulary up
REASON = "common/speculative.cpp of llama.cpp b11549 compares only the width of the hidden rows"
OTHER_HEAD = "take the head that was made for this trunk, or the trunk of this head"

# Keys that say what is in a file, or that another check compares.
_OWN_KEYS = frozenset({BLOCK_COUNT, NEXTN_PREDICT_LAYERS, WIDTH, STREAMS, "vocab_size"})
# Keys that may differ without changing what the head computes.
_HARMLESS = frozenset({"context_length"})


def examine_pair(trunk: Contents, draft: Contents, findings: Findings, *, n_max: int | None = None) -> None:
    """Judge whether the head in `draft` can draft for the model in `trunk`, up to `n_max` tokens at a time."""
    roles = _examine_roles(trunk, draft, findings)
    if trunk.architecture != draft.architecture:
        message = f"is of architecture {draft.architecture!r}, the trunk of {trunk.architecture!r}"
        remedy = None
        for old, new in ((trunk, draft), (draft, trunk)):
            if OLD_SPELLINGS.get(old.architecture) == new.architecture:
                remedy = f"nextn relayout {old.name} -o OUT.gguf --to upstream"
        findings.error("pair-architecture", draft.name, message, remedy, REASON)
        return
    if roles is None:
        return
    _examine_widths(trunk, draft, findings)
    _examine_blocks(trunk, draft, findings)
    _examine_vocabulary(trunk, draft, findings)
    _examine_keys(trunk, draft, findings)
    _examine_layouts(trunk, draft, findings)
    _examine_borrowing(trunk, draft, findings)
    _examine_target(trunk, draft, findings)
    if n_max is not None:
        _examine_length(draft, n_max, findings)


def examine_target_hash(
    draft: Contents, embedding_sha256: str, findings: Findings, type_: TensorType | None = None
) -> None:
    """Compare the hash of the trunk's embedding, of type `type_`, with what the head recorded of its target.

    The hash is of the embedding in the type that the head's run wrote: in another type other bytes are no surprise.
    """
    recorded = _text(draft, TARGET_EMBEDDING_SHA256)
    if not recorded or recorded == embedding_sha256:
        return
    message = f"was made for an embedding of sha256 {recorded[:16]}…, the trunk's is {embedding_sha256[:16]}…"
    file_type = draft.keys.get("general.file_type")
    if type_ is not None and file_type and FILE_TYPES.get(type_.name) == file_type.value:
        findings.warn("pair-target-hash", draft.name, f"{message}, of the same type", OTHER_HEAD, SIDECARS)
        return
    remedy = "of no account when the trunk was quantized otherwise; else fetch the head of this trunk"
    findings.note("pair-target-hash", draft.name, message, remedy, SIDECARS)


def examine_embeddings(trunk: Contents, draft: Contents, sha256s: Sequence[str], findings: Findings) -> None:
    """Compare the embeddings of two files that hold their own by hashes of the bytes, trunk first."""
    ours, theirs = (contents.tensors[EMBEDDING] for contents in (trunk, draft))
    if sha256s[0] == sha256s[1]:
        return
    if (ours.type, ours.ne) == (theirs.type, theirs.ne):
        message = "has other values in the head than in the trunk, in the same type: the head may be another model's"
        findings.warn("pair-embedding", EMBEDDING, message, OTHER_HEAD, SIDECARS)


def _examine_roles(trunk: Contents, draft: Contents, findings: Findings) -> tuple[Role, Role] | None:
    have, heads = (None if other_file(contents) else role_of(contents) for contents in (trunk, draft))
    if have and heads and have.has_trunk and heads.has_head:
        return have, heads
    swapped = have and heads and heads.has_trunk and have.has_head
    remedy = "the two files are the other way round" if swapped else None
    if not have or not have.has_trunk:
        is_ = f"{have}, want a file with a trunk: this is a draft head" if have else other_file(trunk) or "no model"
        findings.error("pair-no-trunk", trunk.name, f"is {is_}", remedy or "give the trunk of the head", REASON)
    if not heads or not heads.has_head:
        is_ = heads or other_file(draft) or "no model"
        message = f"is {is_}, want a file with a head: nothing in it can draft"
        findings.error("pair-no-head", draft.name, message, remedy or "give a head of the trunk", REASON)
    return None


def _examine_widths(trunk: Contents, draft: Contents, findings: Findings) -> None:
    for key, rule, what in (
        (WIDTH, "pair-width", "hidden rows of {} values"),
        (STREAMS, "pair-streams", "hidden rows of {} residual streams"),
    ):
        have, want = (_number(contents, key) for contents in (draft, trunk))
        if have != want:
            message = f"takes {what.format(_shown(have))}, the trunk gives {what.format(_shown(want))}"
            findings.error(rule, draft.name, message, OTHER_HEAD, REASON)


def _examine_blocks(trunk: Contents, draft: Contents, findings: Findings) -> None:
    (have, _), (want, _) = blocks_of(draft), blocks_of(trunk)
    known = NEXTN_ARCHITECTURES.get(draft.architecture)
    if have != want and not (known and known.whole):
        message = f"its head begins at blk.{have}, the trunk has {want} blocks, so that it belongs at blk.{want}"
        findings.error("pair-blocks", draft.name, message, OTHER_HEAD, SIDECARS)


def _examine_vocabulary(trunk: Contents, draft: Contents, findings: Findings) -> None:
    ours, theirs = (contents.keys.get(TOKENS) for contents in (trunk, draft))
    if ours and theirs and not same_items(ours.items, theirs.items):
        _examine_tokens(ours.items, theirs.items, draft, findings)
    elif bool(ours) != bool(theirs):
        message = f"{'has a' if theirs else 'has no'} vocabulary, the trunk {'has one' if ours else 'has none'}"
        findings.error("pair-vocabulary", draft.name, message, OTHER_HEAD, REASON)
    kinds = [contents.keys.get(TYPES) for contents in (trunk, draft)]
    if kinds[0] and kinds[1] and not same_items(kinds[0].items, kinds[1].items):
        index = first_difference(kinds[0].items, kinds[1].items)
        if index < min(len(kinds[0].items), len(kinds[1].items)):
            message = f"token {index} is of type {kinds[1].items[index]}, in the trunk of type {kinds[0].items[index]}"
            findings.warn("pair-token-types", TYPES, message, OTHER_HEAD, REASON)
    for key, rule, what in ((MODEL, "pair-tokenizer", "tokenizer"), (PRE, "pair-pre-tokenizer", "pre-tokenizer")):
        have, want = _text(draft, key), _text(trunk, key)
        if have != want:
            message = f"the head has {what} {_shown(have or None)}, the trunk {_shown(want or None)}"
            findings.error(rule, key, message, OTHER_HEAD, REASON)
    _examine_special_tokens(trunk, draft, findings)


def _examine_special_tokens(trunk: Contents, draft: Contents, findings: Findings) -> None:
    for key in sorted({key for contents in (trunk, draft) for key in contents.keys if _is_special(key)}):
        have, want = (contents.keys[key].value if key in contents.keys else None for contents in (draft, trunk))
        if have != want:
            message = f"is {_shown(have)} in the head, {_shown(want)} in the trunk"
            add = findings.error if key.endswith("_id") else findings.warn
            add("pair-special-token", key, message, OTHER_HEAD, REASON)


def _examine_tokens(ours: Sequence[Scalar], theirs: Sequence[Scalar], draft: Contents, findings: Findings) -> None:
    """Say where two token tables differ; one that is only filled up further is fine."""
    index = first_difference(ours, theirs)
    if index < min(len(ours), len(theirs)):
        message = f"token {index} is {theirs[index]!r}, in the trunk {ours[index]!r}: ids mean other tokens"
        findings.error("pair-tokens", TOKENS, message, OTHER_HEAD, REASON)
        return
    message = f"has {len(theirs)} tokens, the trunk {len(ours)}"
    if only_padding(ours, theirs, index):
        findings.note("pair-vocabulary-padded", draft.name, f"{message}: the rest is padding", None, REASON)
    else:
        findings.error(
            "pair-vocabulary-size", draft.name, f"{message}: not all of the rest is padding", OTHER_HEAD, REASON
        )


def _examine_keys(trunk: Contents, draft: Contents, findings: Findings) -> None:
    prefix = f"{trunk.architecture}."
    blocks, _ = blocks_of(trunk)
    for key in dict.fromkeys((*draft.keys, *trunk.keys)):
        theirs, ours, name = draft.keys.get(key), trunk.keys.get(key), key.removeprefix(prefix)
        if not key.startswith(prefix) or name in _OWN_KEYS:
            continue
        if ours is None or theirs is None:
            _examine_lone_key(trunk.architecture, name, ours, theirs, findings)
            continue
        difference = _difference(ours, theirs, blocks)
        if difference and name in _HARMLESS:
            findings.warn("pair-key-harmless", key, difference, OTHER_HEAD, REASON)
        elif difference:
            findings.error("pair-key", key, difference, OTHER_HEAD, loader_of(trunk.architecture))


def _examine_lone_key(
    architecture: str, name: str, ours: Value | None, theirs: Value | None, findings: Findings
) -> None:
    """A key that only one of the two has, where the other's loader then assumes another value."""
    present = ours or theirs
    default, matters = assumed(architecture, name)
    if present is None or not matters or present.element is not None or present.value == default:
        return
    where, other = ("the trunk", "the head") if ours else ("the head", "the trunk")
    takes = "nothing" if default is None else _shown(default)
    message = f"is {_shown(present.value)} in {where} and missing in {other}, whose loader takes {takes}"
    findings.error("pair-key", f"{architecture}.{name}", message, OTHER_HEAD, loader_of(architecture))


def _difference(ours: Value, theirs: Value, blocks: int) -> str | None:
    """How two values of a key differ; of arrays over blocks the trunk's entries count, one value is for all."""
    if ours.element is None and theirs.element is None:
        same = ours.value == theirs.value
        return None if same else f"is {_shown(theirs.value)} in the head, {_shown(ours.value)} in the trunk"
    have, want = (_entries(value, blocks) for value in (theirs, ours))
    for index, (their, our) in enumerate(zip(have, want, strict=False)):
        if their != our:
            return f"entry {index} is {_shown(their)} in the head, {_shown(our)} in the trunk"
    return None


def _entries(value: Value, blocks: int) -> Sequence[Scalar]:
    return [*value.items] * blocks if value.element is None else value.items[:blocks]


def _examine_layouts(trunk: Contents, draft: Contents, findings: Findings) -> None:
    have, want = layout_of(draft).id, layout_of(trunk).id
    # A trunk names nothing that forks name otherwise.
    if have != want and role_of(trunk) is Role.COMBINED:
        message = f"is in layout {have}, the trunk in layout {want}: a runtime that knows one may not know the other"
        remedy = f"nextn relayout {draft.name} -o OUT.gguf --to {want}"
        findings.warn("pair-layout", draft.name, message, remedy, FORMATS)


def _examine_borrowing(trunk: Contents, draft: Contents, findings: Findings) -> None:
    for name in (EMBEDDING, OUTPUT):
        lent, own = trunk.tensors.get(name), draft.tensors.get(name)
        if own is not None:
            if lent is not None and lent.ne != own.ne:
                message = f"has dimensions {dims(own.ne)} in the head, {dims(lent.ne)} in the trunk"
                findings.error("pair-shape", name, message, OTHER_HEAD, REASON)
        elif role_of(draft) is Role.MTP_SHARED:
            _examine_loan(trunk, draft, name, findings)


def _examine_loan(trunk: Contents, draft: Contents, name: str, findings: Findings) -> None:
    """Whether the trunk has a tensor that the head borrows, and of the right dimensions."""
    lent = trunk.tensors.get(name)
    if lent is None:
        if name == OUTPUT and EMBEDDING in trunk.tensors:
            message = "the head borrows it and the trunk has none: it lends the embedding instead"
            findings.note("pair-lends-tied", name, message, OTHER_HEAD, SIDECARS)
            return
        message = f"{draft.name} borrows it, and the trunk has none"
        findings.error("pair-nothing-to-lend", name, message, "give the trunk that the head was cut from", SIDECARS)
        return
    tokens, width = draft.keys.get(TOKENS), _number(draft, WIDTH)
    if width is not None and tokens is not None and lent.ne != (width, len(tokens.items)):
        want = dims((width, len(tokens.items)))
        message = f"the head borrows dimensions {want}, the trunk has {dims(lent.ne)}"
        findings.error("pair-lends-other-shape", name, message, OTHER_HEAD, SIDECARS)


def _examine_target(trunk: Contents, draft: Contents, findings: Findings) -> None:
    recorded, name = _text(draft, TARGET_NAME), _text(trunk, "general.name")
    if recorded and recorded != name:
        message = f"was made for {recorded!r}, the trunk is {_shown(name or None)}"
        findings.note("pair-target-name", draft.name, message, OTHER_HEAD, SIDECARS)


def _examine_length(draft: Contents, n_max: int, findings: Findings) -> None:
    """Chained heads draft one token each; a single head is used again for every token."""
    _, heads = blocks_of(draft)
    if 1 < heads < n_max:
        message = f"has {heads} chained heads: drafts of {n_max} tokens are cut to {heads}"
        findings.note("pair-draft-length", draft.name, message, f"ask for drafts of at most {heads}", REASON)


def _is_special(key: str) -> bool:
    return key.startswith("tokenizer.ggml.") and (key.endswith("_token_id") or key.startswith("tokenizer.ggml.add_"))


def _number(contents: Contents, key: str) -> int | None:
    value = contents.get(key)
    return value.value if value and isinstance(value.value, int) else None


def _text(contents: Contents, key: str) -> str:
    value = contents.keys.get(key)
    return value.value if value and isinstance(value.value, str) else ""


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)
