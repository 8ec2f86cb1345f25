"""`nextn repair`: keys are set to what a file's tensors prove, each with its reason; no tensor is touched.

What may be repaired in two ways is refused, with both. What is missing is not made up, and types of tensors are for
`nextn retype`.
"""

from __future__ import annotations

from dataclasses import replace

from nextn.convert.surgery.repair_arrays import repair_arrays
from nextn.convert.surgery.repair_blocks import repair_blocks
from nextn.convert.surgery.repair_keys import repair_prefixes, repair_spelling, repair_split_keys
from nextn.convert.surgery.repair_ledger import Ledger
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.edit import Edit, unchanged
from nextn.gguf_schema.errors import VerdictError, counted
from nextn.gguf_schema.nextn_generic import declared


def repair(contents: Contents, shards: int = 1) -> Edit:
    """The edit that makes the keys of a file, or of a set of `shards` joined, say what its tensors prove.

    The tensors stay as they are. A healthy file is unchanged, to the same keys. VerdictError (ambiguous-repair) for
    what can be repaired in more than one way, all of it at once; then nothing is repaired.
    """
    ledger = Ledger(contents)
    known = repair_spelling(ledger)
    if known:
        repair_prefixes(ledger)
    repair_split_keys(ledger, shards)
    before = declared(ledger.contents)
    if known and repair_blocks(ledger):
        repair_arrays(ledger, before)
    if ledger.doubts:
        doubts = ledger.doubts
        message = f"{counted(len(doubts), 'fault')} with more than one repair: " + "; also ".join(doubts)
        raise VerdictError("ambiguous-repair", message, subject=contents.name)
    edit = unchanged(contents)
    return replace(edit, keys=ledger.contents.keys, changes=tuple(ledger.changes)) if ledger.changes else edit
