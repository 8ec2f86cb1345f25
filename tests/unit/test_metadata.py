from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from nextn.convert.metadata import ModelDescription, read_description
from nextn.gguf_schema.contents import TensorInfo
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.types import F32

if TYPE_CHECKING:
    from pathlib import Path


def tensor(name: str, *ne: int) -> TensorInfo:
    return TensorInfo(name, ne, F32, 0)


def described(folder: Path, card: str | None = None, **files: object) -> ModelDescription:
    """A description of a folder with these files, named without `.json`; `overrides` is given with --metadata."""
    folder.mkdir(exist_ok=True)
    if card is not None:
        (folder / "README.md").write_text(card, encoding="utf-8")
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return read_description(folder, overrides_file=folder / "overrides.json" if "overrides" in files else None)


def general(description: ModelDescription) -> dict[str, tuple[str, Any]]:
    keys = description.general_keys("step35", [tensor("output.weight", 100, 10)])
    return {key.removeprefix("general."): (value.type_name, value.value) for key, value in keys.items()}


# --- sampling


def test_sampling_keys_have_their_own_names_order_and_types(tmp_path: Path) -> None:
    generation = {
        "mirostat_eta": 0.5, "mirostat_tau": 5, "mirostat": 2, "repetition_penalty": 1.5, "penalty_last_n": 64,
        "temperature": 1, "xtc_threshold": 0.25, "xtc_probability": 0.75, "min_p": 0, "top_p": 0.5, "top_k": 20,
        "sequence": "kpt", "do_sample": False, "eos_token_id": [1, 2],
    }  # fmt: skip
    keys = general(described(tmp_path / "m", generation_config=generation))
    sampling = [(key.removeprefix("sampling."), *value) for key, value in keys.items() if key.startswith("sampling.")]
    assert sampling == [
        ("sequence", "STRING", "kpt"),
        ("top_k", "INT32", 20),
        ("top_p", "FLOAT32", 0.5),
        ("min_p", "FLOAT32", 0.0),
        ("xtc_probability", "FLOAT32", 0.75),
        ("xtc_threshold", "FLOAT32", 0.25),
        ("temp", "FLOAT32", 1.0),
        ("penalty_last_n", "INT32", 64),
        ("penalty_repeat", "FLOAT32", 1.5),
        ("mirostat", "INT32", 2),
        ("mirostat_tau", "FLOAT32", 5.0),
        ("mirostat_eta", "FLOAT32", 0.5),
    ]


def test_own_name_of_the_repeat_penalty_wins(tmp_path: Path) -> None:
    generation = {"repetition_penalty": 1.5, "penalty_repeat": 1.25}
    assert general(described(tmp_path, generation_config=generation))["sampling.penalty_repeat"] == ("FLOAT32", 1.25)


def test_null_is_not_written(tmp_path: Path) -> None:
    assert not [k for k in general(described(tmp_path, generation_config={"top_k": None})) if "sampling" in k]


def test_damaged_generation_config_is_doubtful_only(tmp_path: Path) -> None:
    description = described(tmp_path, generation_config="{")
    assert [finding.rule for finding in description.findings] == ["generation-config"]
    assert not [key for key in general(description) if "sampling" in key]


@pytest.mark.parametrize(
    ("generation", "key", "wanted"),
    [
        ({"top_k": "20"}, "general.sampling.top_k", "an integer"),
        ({"top_k": 20.5}, "general.sampling.top_k", "an integer"),
        ({"top_k": True}, "general.sampling.top_k", "an integer"),
        ({"top_k": 2**31}, "general.sampling.top_k", "an integer"),
        ({"top_p": [0.5]}, "general.sampling.top_p", "a number"),
        ({"top_p": float("inf")}, "general.sampling.top_p", "a number"),
        ({"sequence": 1}, "general.sampling.sequence", "a text"),
    ],
)
def test_sampling_value_of_another_type(tmp_path: Path, generation: dict[str, Any], key: str, wanted: str) -> None:
    with pytest.raises(InputError, match=f"must be {wanted}") as caught:
        general(described(tmp_path, generation_config=generation))
    assert caught.value.subject == key


# --- names


@pytest.mark.parametrize(
    ("folder", "parts"),
    [
        ("Step-Tiny-8x1M-Instruct-v1.2", ("Step Tiny 8x1M Instruct v1.2", "Step-Tiny", "Instruct", "v1.2", "8x1M")),
        ("Step-3.7-Flash", ("Step 3.7 Flash", None, None, None, "1.0K")),
        ("qwen3.8-flash-next", ("Qwen3.8 Flash Next", None, None, None, "1.0K")),
        # A size far from the real one is no size.
        ("some-7b", ("Some 7b", "some", "7b", None, "1.0K")),
    ],
)
def test_parts_of_a_folder_name(tmp_path: Path, folder: str, parts: tuple[str | None, ...]) -> None:
    keys = general(described(tmp_path / folder))
    names = ("name", "basename", "finetune", "version", "size_label")
    assert tuple(keys[name][1] if name in keys else None for name in names) == parts


def test_name_or_path_comes_before_the_folder_and_the_card_before_both(tmp_path: Path) -> None:
    config = {"_name_or_path": "example-org/from-config"}
    assert general(described(tmp_path / "a", config=config))["name"][1] == "From Config"
    assert general(described(tmp_path / "a", config=config))["organization"][1] == "Example Org"
    card = "---\nname: From Card\n---\n"
    assert general(described(tmp_path / "b", card, config=config))["name"][1] == "From Card"
    computer_path = {"_name_or_path": "/data/x/y"}
    assert general(described(tmp_path / "from-folder", config=computer_path))["name"][1] == "From Folder"


def test_given_name_replaces_the_folder_name(tmp_path: Path) -> None:
    description = read_description(tmp_path, name="example-org/Some-Model")
    assert general(description)["name"] == ("STRING", "Some Model")


# --- card and overrides


def test_card_without_front_matter_in_line_one_says_nothing(tmp_path: Path) -> None:
    assert list(general(described(tmp_path, "\n---\nlicense: mit\n---\n"))) == [
        "architecture", "type", "name", "size_label"
    ]  # fmt: skip


def test_lists_of_a_card(tmp_path: Path) -> None:
    card = "---\nlicense: [mit, apache-2.0]\nlanguage:\n- no\n- en\ntags: moe\npipeline_tag: text-generation\n---\n"
    keys = general(described(tmp_path, card))
    assert keys["license"] == ("STRING", "mit,apache-2.0")
    assert keys["languages"] == ("ARRAY[STRING]", ("no", "en"))
    assert keys["tags"] == ("ARRAY[STRING]", ("moe", "text-generation"))


@pytest.mark.parametrize("card", ["---\na: [\n---\n", "---\n\tx: 'y\n---\n", "---\n- : :\n  - [\n---\n"])
def test_damaged_card(tmp_path: Path, card: str) -> None:
    with pytest.raises(InputError, match=r"README\.md: front matter is not readable"):
        described(tmp_path, card)


@pytest.mark.parametrize(
    "value",
    [
        "2024-13-45",
        "[" * 5000,
        "1" * 5000,
        "!!timestamp x",
        "!!bool maybe",
        "!!int ''",
    ],
)
def test_card_with_a_value_that_the_library_cannot_build(tmp_path: Path, value: str) -> None:
    with pytest.raises(InputError, match="front matter is not readable") as caught:
        described(tmp_path, f"---\na: {value}\n---\n")
    assert len(caught.value.message) < 400


def test_card_that_grows(tmp_path: Path) -> None:
    """A short file whose value takes hours to spell out."""
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12))]
    card = "\n".join(["---", *lines, "license: *a11", "---", ""])
    with pytest.raises(InputError, match="must be a list of texts") as caught:
        general(described(tmp_path, card))
    assert len(caught.value.message) < 200
    with pytest.raises(InputError, match="must be a text"):
        general(described(tmp_path, "---\nname: 0x" + "f" * 9000 + "\n---\n"))


@pytest.mark.parametrize(
    ("name", "stem"), [("a\0b", "a-b"), ("a\nb", "a-b"), ("a\u202eb", "a-b"), ("../x", "..-x"), ("ä β", "ä-β")]
)
def test_names_of_files_hold_nothing_unseen(tmp_path: Path, name: str, stem: str) -> None:
    assert described(tmp_path, overrides={"general.name": name, "general.basename": None}).stem() == stem


@pytest.mark.parametrize("name", ["", "  "])
def test_a_blank_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="not blank") as caught:
        described(tmp_path, overrides={"general.name": name}).stem()
    assert caught.value.subject == "general.name"


def test_card_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"---\nname: \xff\n---\n")
    with pytest.raises(InputError, match="front matter is not readable"):
        read_description(tmp_path)


@pytest.mark.parametrize(
    ("card", "key"),
    [
        ("version: 1.10", "general.version"),
        ("name: 2024-01-01", "general.name"),
        ("license: 3", "general.license"),
        ("tags: [1]", "general.tags"),
        ("base_model: [{name: 5}]", "general.base_model.0.name"),
    ],
)
def test_card_value_of_another_type(tmp_path: Path, card: str, key: str) -> None:
    with pytest.raises(InputError, match="must be a") as caught:
        general(described(tmp_path, f"---\n{card}\n---\n"))
    assert caught.value.subject == key
    assert "--metadata" in str(caught.value.remedy)


def test_overrides_replace_the_card_and_null_removes(tmp_path: Path) -> None:
    card = "---\nlicense: mit\nauthor: A\ntags: [x]\n---\n"
    overrides = {"general.license": "apache-2.0", "general.author": None, "general.tags": ["y", "z"]}
    keys = general(described(tmp_path, card, overrides=overrides))
    assert keys["license"] == ("STRING", "apache-2.0")
    assert keys["tags"] == ("ARRAY[STRING]", ("y", "z"))
    assert "author" not in keys


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("step35.block_count", "remove it"),
        ("general.architecture", "remove it"),
        ("general.type", "remove it"),
        ("general.file_type", "remove it"),
        ("tokenizer.ggml.pre", "remove it"),
        ("general.autor", "did you mean general.author?"),
        ("name", "remove it"),
    ],
)
def test_override_of_a_key_that_is_not_authorship(tmp_path: Path, key: str, remedy: str) -> None:
    with pytest.raises(InputError, match=key) as caught:
        described(tmp_path, overrides={key: "x"})
    assert caught.value.remedy == remedy
    assert caught.value.subject == str(tmp_path / "overrides.json")


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_damaged_overrides(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"overrides\.json"):
        described(tmp_path, overrides=text)


def test_overrides_that_are_no_file(tmp_path: Path) -> None:
    """Opening a pipe would wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        read_description(tmp_path, overrides_file=tmp_path / "pipe")


def test_missing_overrides_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json"):
        read_description(tmp_path, overrides_file=tmp_path / "none.json")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"general.tags": "letters"}, "general.tags"),
        ({"general.base_models": ["name"]}, "general.base_models"),
        ({"general.datasets": {"name": "x"}}, "general.datasets"),
        ({"general.base_models": [{"version": 2}]}, "general.base_model.0.version"),
        ({"general.description": 5}, "general.description"),
    ],
)
def test_override_of_another_type(tmp_path: Path, overrides: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match="must be a") as caught:
        general(described(tmp_path, overrides=overrides))
    assert caught.value.subject == key
