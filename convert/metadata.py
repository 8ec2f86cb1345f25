"""`general.*` keys and file names: from the model card, the configurations, the folder's name and the user's wishes.

Source of the rules: gguf-py/gguf/metadata.py and utility.py and conversion/base.py (`prepare_metadata`) of llama.cpp
b11549; the card and the names are read by the `gguf` package itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, cast

from nextn.convert.checkpoint import CONFIG, read_json, shown
from nextn.gguf_schema.contents import TensorInfo, Value, array
from nextn.gguf_schema.errors import InputError, UsageError
from nextn.gguf_schema.types import ValueType
from nextn.validators.findings import Finding, Findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gguf import Metadata

CARD = "README.md"
GENERATION = "generation_config.json"
# Names in generation_config.json, by the key they give; the first one present counts.
SAMPLING: dict[str, tuple[str, ...]] = {
    "sequence": ("sequence",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc_probability": ("xtc_probability",),
    "xtc_threshold": ("xtc_threshold",),
    "temp": ("temperature",),
    "penalty_last_n": ("penalty_last_n",),
    "penalty_repeat": ("penalty_repeat", "repetition_penalty"),
    "mirostat": ("mirostat",),
    "mirostat_tau": ("mirostat_tau",),
    "mirostat_eta": ("mirostat_eta",),
}
# Fields of `gguf.Metadata` whose names stand for dotted keys, by their first word.
NESTED = ("sampling", "source", "license")
# Fields that hold lists, with the type of their entries.
LISTS = {"license": str, "base_models": dict, "datasets": dict, "tags": str, "languages": str}
TEXT_OR_LIST = ("license",)
LIMITS = {ValueType.INT32: (-(2**31), 2**31 - 1), ValueType.UINT32: (0, 2**32 - 1)}
FLOAT32_LIMIT = 3.4e38
WORDS = {
    ValueType.STRING: "a text",
    ValueType.INT32: "an integer",
    ValueType.UINT32: "an integer",
    ValueType.FLOAT32: "a number",
}
FILE_NAMES = {
    "combined": "{name}-{outtype}.gguf",
    "trunk": "{name}-trunk-{outtype}.gguf",
    "mtp": "mtp-{name}-{outtype}.gguf",
    "mtp-shared": "shared/mtp-{name}-shared-{outtype}.gguf",
}


@dataclass(frozen=True)
class ModelDescription:
    """What is known of a model besides its tensors; read once, asked once per output.

    `name` is the folder's or repository's name; `card`, `generation` and `overrides` are README.md's front matter,
    generation_config.json and the file given with --metadata, each empty when absent. `model_name` replaces
    `general.name` alone.
    """

    name: str
    card: Mapping[str, Any]
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    overrides: Mapping[str, Any]
    model_name: str | None = None
    findings: tuple[Finding, ...] = ()

    def general_keys(self, architecture: str, tensors: Iterable[TensorInfo]) -> dict[str, Value]:
        """The `general.*` keys at the head of an output with these tensors, in file order.

        `general.file_type` and `general.quantization_version` stand further down and are not among them.
        Raises InputError when the card, the generation configuration or an override holds a value of another type.
        """
        from gguf import GGUFWriter

        writer = GGUFWriter(None, architecture)
        writer.add_type("model")
        self._metadata(tensors).set_gguf_meta_model(writer)
        return {key: _typed(key, kept.value, ValueType(kept.type)) for key, kept in writer.kv_data[0].items()}

    def stem(self) -> str:
        """The `<Name>` in the names of files: name, finetune and version joined by `-`, and a declared size.

        The computed size is left out: it is another for each file, and the names of a pair should match. What separates
        folders or cannot be seen becomes `-`. Raises InputError like `general_keys`, and for a part that is blank.
        """
        from gguf import naming_convention

        found = self._metadata(())
        for part in ("name", "basename", "finetune", "version", "size_label"):
            if (value := getattr(found, part)) is not None:
                _typed(f"general.{part}", value, ValueType.STRING)
                if not value.strip():
                    raise _wrong_type(f"general.{part}", value, "a text that is not blank")
        stem = naming_convention(found.name, found.basename, found.finetune, found.version, found.size_label, None)
        return "".join(c if c.isprintable() and c not in "/\\" else "-" for c in stem)

    def _metadata(self, tensors: Iterable[TensorInfo]) -> Metadata:
        from gguf import Metadata

        tensors = tuple(tensors)
        path = self.config.get("_name_or_path")
        found = Metadata.apply_metadata_heuristic(
            Metadata(),
            dict(self.card),
            {"_name_or_path": path} if isinstance(path, str) else {},
            Path(self.name),
            sum(tensor.elements for tensor in tensors),
        )
        for key, names in SAMPLING.items():
            given = next((self.generation[name] for name in names if name in self.generation), None)
            setattr(found, f"sampling_{key}", given)
        settable = _settable_keys()
        for key, value in self.overrides.items():
            setattr(found, settable[key], value)
        if self.model_name is not None:
            found.name = self.model_name
        if found.name is None:
            found.name = self.name
        if found.size_label is None and tensors:
            found.size_label = size_label(tensors)
        _check_lists(found)
        return found


def read_description(
    folder: Path, *, name: str | None = None, model_name: str | None = None, overrides_file: Path | None = None
) -> ModelDescription:
    """Read README.md, config.json and generation_config.json of a checkpoint folder, and the user's overrides.

    `name` replaces the folder's name where the folder is only a cache. Raises InputError for a card whose front matter
    is not YAML, for overrides that are not a JSON object, and for an override that is no settable `general.*` key.
    """
    findings = Findings()
    overrides = read_json(overrides_file) if overrides_file else {}
    settable = _settable_keys()
    for key in overrides:
        if key not in settable:
            similar = get_close_matches(key, settable, 1, cutoff=0.9)
            raise InputError(
                "metadata-key",
                f"{key!r} cannot be set: only general.* keys of authorship, origin and sampling can",
                subject=str(overrides_file),
                remedy=f"did you mean {similar[0]}?" if similar else "remove it",
            )
    # A link keeps its own name: it may be the telling one.
    named = folder.resolve() if folder.name in ("", "..") else folder
    return ModelDescription(
        name or named.name,
        _read_card(folder / CARD),
        read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {},
        _read_generation(folder / GENERATION, findings),
        overrides,
        model_name,
        tuple(findings),
    )


def size_label(tensors: Iterable[TensorInfo]) -> str:
    """The size of a file in words, `8x1.4M` or `848K`: experts × elements outside them and in one of each layer."""
    import gguf

    total = outside = inside = experts = layers = 0
    for tensor in tensors:
        total += tensor.elements
        if "_exps." not in tensor.name or len(tensor.ne) < 3:
            outside += tensor.elements
            continue
        count = tensor.ne[1 if ".bias" in tensor.name else 2]
        inside += tensor.elements // count
        experts += count
        layers += 1
    return str(gguf.size_label(total, outside, inside, experts // layers if layers else 0))


def file_name(role: str, name: str, outtype: str) -> str:
    """The path of an output below its folder, for a role, a `<Name>` and a type such as `bf16`."""
    return FILE_NAMES[role].format(name=name, outtype=outtype.upper())


def fill_template(template: str, role: str, name: str, outtype: str) -> str:
    """A path from a template with `{name}`, `{role}`, `{outtype}` or `{ftype}`, and `{OUTTYPE}` or `{FTYPE}`.

    Raises UsageError when it holds other fields.
    """
    lower, upper = outtype.lower(), outtype.upper()
    values = {"name": name, "role": role, "outtype": lower, "ftype": lower, "OUTTYPE": upper, "FTYPE": upper}
    remedy = "fields: " + ", ".join(f"{{{field}}}" for field in values)
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
        if unknown := [field for field in fields if field not in values and field != ""]:
            message = f"there is no field {{{unknown[0]}}}"
            raise UsageError("bad-template", message, subject=template, remedy=remedy)
        return template.format(lower, **values)
    except (ValueError, LookupError) as error:
        message = f"cannot be filled in: {error}"
        raise UsageError("bad-template", message, subject=template, remedy=remedy) from error


def _settable_keys() -> dict[str, str]:
    """The keys that --metadata may set, with the fields of `gguf.Metadata` that hold them."""
    from gguf import Metadata

    keys = {}
    for field in (f.name for f in fields(Metadata)):
        first, _, rest = field.partition("_")
        keys[f"general.{first}.{rest}" if first in NESTED and rest else f"general.{field}"] = field
    return keys


def _read_card(path: Path) -> Mapping[str, Any]:
    from gguf import Metadata

    try:
        return dict(Metadata.load_model_card(path.parent))
    except Exception as error:  # The library lets through whatever a broken value makes its constructors raise.
        detail = " ".join(str(error).split())[:300]
        raise InputError(
            "bad-card",
            f"front matter is not readable: {detail}",
            subject=str(path),
            remedy="correct the YAML between the two lines of ---, or move the file away",
        ) from error


def _read_generation(path: Path, findings: Findings) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_json(path)
    except InputError as error:
        message = f"{error.message}; no sampling keys are written"
        findings.warn("generation-config", str(path), message)
        return {}


def _check_lists(found: Metadata) -> None:
    """Refuse what the library would take apart wrongly: it reads a text as a list of letters."""
    for field, item in LISTS.items():
        value = getattr(found, field)
        if value is None or (field in TEXT_OR_LIST and isinstance(value, str)):
            continue
        if not isinstance(value, list) or not all(isinstance(entry, item) for entry in value):
            raise _wrong_type(f"general.{field}", value, "a list of texts" if item is str else "a list of objects")


def _typed(key: str, value: object, type_: ValueType) -> Value:
    match type_:
        case ValueType.ARRAY:
            return array(ValueType.STRING, cast(list[str], value))
        case ValueType.STRING if isinstance(value, str):
            return Value(type_, value)
        case ValueType.INT32 | ValueType.UINT32 if (number := _number(value)) is not None and number.is_integer():
            low, high = LIMITS[type_]
            if low <= number <= high:
                return Value(type_, int(number))
        case ValueType.FLOAT32 if (number := _number(value)) is not None:
            return Value(type_, number)
    raise _wrong_type(key, value, WORDS[type_])


def _number(value: object) -> float | None:
    """A finite number as float, which holds every 32-bit integer exactly."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < FLOAT32_LIMIT:
        return None
    return float(value)


def _wrong_type(key: str, value: object, wanted: str) -> InputError:
    return InputError(
        "metadata-type",
        f"must be {wanted}, found {shown(value)}",
        subject=key,
        remedy=f"correct it where it stands ({CARD}, {GENERATION}), or set it with --metadata",
    )
