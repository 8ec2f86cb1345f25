"""Contents of planned files, edited in memory, and what the three examinations say of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from families import FAMILIES

from nextn.convert.pipeline import plan
from nextn.convert.planner import Options
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, TensorInfo, Value, array, string, u32
from nextn.gguf_schema.types import F32, TensorType, ValueType
from nextn.validators.findings import Findings
from nextn.validators.metadata import examine_metadata
from nextn.validators.role import RoleReport, examine_role
from nextn.validators.tensors import examine_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

# Words of the tests: families, severities, keys.
STEP, QWEN, GLM = "step35", "qwen4exp", "glm5-next"
ERROR, WARNING, NOTE = "error", "warning", "note"
RATIOS, RECURRENT = "attention.compress_ratios", "attention.recurrent_layers"
PATTERN, HEADS_KV, TYPES = "attention.sliding_window_pattern", "attention.head_count_kv", "attention.indexer.types"
MODEL, VOCABULARY, MERGES = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
COMBINED, TRUNK, MTP, MTP_SHARED = Role
PLAIN_PREFIXES = ("general.", "tokenizer.", "nextn.", "split.")


@cache
def _planned(family: str, outtype: str) -> dict[Role, Contents]:
    files = plan(FAMILIES[family].checkpoint, Options(tuple(Role), outtype)).files
    return {file.role: file.contents for file in files}


def planned(family: str, role: Role = COMBINED, outtype: str = "f32") -> Contents:
    """What converting the family's fixture to a file of this role writes."""
    return _planned(family, outtype)[role]


def examine(contents: Contents) -> tuple[RoleReport, Findings]:
    """The role, and every finding about role, keys and tensors."""
    findings = Findings()
    report = examine_role(contents, findings)
    examine_metadata(contents, report, findings)
    examine_tensors(contents, report, findings)
    return report, findings


def found(contents: Contents) -> list[tuple[str, str, str]]:
    """The findings as severity, rule and subject; of a subject without the architecture."""
    prefix = f"{contents.architecture}."
    return [(str(f.severity), f.rule, f.subject.removeprefix(prefix)) for f in examine(contents)[1]]


def message(contents: Contents, rule: str) -> str:
    """The message of the only finding of this rule."""
    (text,) = (finding.message for finding in examine(contents)[1] if finding.rule == rule)
    return text


def full(contents: Contents, key: str) -> str:
    return key if key.startswith(PLAIN_PREFIXES) else f"{contents.architecture}.{key}"


def with_key(contents: Contents, key: str, value: Value) -> Contents:
    return replace(contents, keys={**contents.keys, full(contents, key): value})


def with_number(contents: Contents, key: str, value: int) -> Contents:
    return with_key(contents, key, u32(value))


def with_array(contents: Contents, key: str, items: Iterable[int | bool], element: ValueType | None = None) -> Contents:
    old = contents.keys[full(contents, key)]
    return with_key(contents, key, array(element or old.element or old.type, items))


def items(contents: Contents, key: str) -> list[int]:
    return [int(item) for item in contents.keys[full(contents, key)].items]


def without_keys(contents: Contents, *keys: str) -> Contents:
    gone = {full(contents, key) for key in keys}
    return replace(contents, keys={key: value for key, value in contents.keys.items() if key not in gone})


def without(contents: Contents, *names: str) -> Contents:
    """Without these tensors; a name that ends with a dot is a block."""
    kept = {
        name: tensor
        for name, tensor in contents.tensors.items()
        if name not in names and not name.startswith(tuple(n for n in names if n.endswith(".")))
    }
    return replace(contents, tensors=kept)


def with_tensor(contents: Contents, name: str, ne: tuple[int, ...], type_: TensorType = F32) -> Contents:
    return replace(contents, tensors={**contents.tensors, name: TensorInfo(name, ne, type_, 0)})


def with_type(contents: Contents, name: str, type_: TensorType) -> Contents:
    return with_tensor(contents, name, contents.tensors[name].ne, type_)


def renamed(contents: Contents, old: str, new: str) -> Contents:
    tensors = {name.replace(old, new): tensor for name, tensor in contents.tensors.items()}
    return replace(contents, tensors={name: replace(tensor, name=name) for name, tensor in tensors.items()})


def taking(contents: Contents, other: Contents, *prefixes: str) -> Contents:
    """With the tensors of another file whose names begin so."""
    more = {name: tensor for name, tensor in other.tensors.items() if name.startswith(prefixes)}
    return replace(contents, tensors={**contents.tensors, **more})


WIDTH, TOKENS = 8, 32


def generic(architecture: str, trunk: Iterable[int], heads: Iterable[int], **numbers: int) -> Contents:
    """A small file of an architecture without tables: blocks of a few tensors, heads with their own three."""
    heads = tuple(heads)
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (WIDTH, TOKENS), "output_norm.weight": (WIDTH,)}
    for i in (*trunk, *heads):
        tensors |= {f"blk.{i}.{name}.weight": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
        tensors |= {f"blk.{i}.{name}.weight": (WIDTH, WIDTH) for name in ("attn_q", "ffn_up", "ffn_down")}
    for i in heads:
        tensors[f"blk.{i}.nextn.eh_proj.weight"] = (2 * WIDTH, WIDTH)
        tensors |= {f"blk.{i}.nextn.{name}.weight": (WIDTH,) for name in ("enorm", "hnorm")}
    keys = {
        "general.architecture": string(architecture),
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string("gpt-2"),
        "tokenizer.ggml.tokens": array(ValueType.STRING, [f"t{i}" for i in range(TOKENS)]),
        "tokenizer.ggml.merges": array(ValueType.STRING, ["a b"]),
    }
    numbers = {"embedding_length": WIDTH, "context_length": 64} | numbers
    keys |= {f"{architecture}.{key}": u32(value) for key, value in numbers.items()}
    return Contents(keys, {name: TensorInfo(name, ne, F32, 0) for name, ne in tensors.items()})
