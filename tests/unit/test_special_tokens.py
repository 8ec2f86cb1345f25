from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tokenizer_files import Folder, added, found, pre_tokenizer, rules

from nextn.gguf_schema.pretokenizers import PRETOKENIZERS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# --- special ids


def test_ids_come_in_order_of_discovery_and_the_first_stays(folder: Folder) -> None:
    folder.tokenizer_config = {"pad_token": {"content": "<x>"}, "eos_token": "</s>", "bos_token": None}
    folder.config = {
        "eos_token_id": 1,
        "mask_token_id": 2,
        "text_config": {"bos_token_id": 0, "unk_token_id": 3, "mask_token_id": 1},
    }
    assert found(folder.convert(), "_token_id") == {
        "eos": 5, "padding": 6, "bos": 0, "unknown": 3, "mask": 2
    }  # fmt: skip


def test_a_list_of_ids_is_ignored_and_hides_the_text_configuration(folder: Folder) -> None:
    folder.tokenizer_config = {"bos_token": "<s>"}
    folder.config = {"eos_token_id": [5, 6], "text_config": {"eos_token_id": 5}}
    result = folder.convert()
    assert found(result, "_token_id") == {"bos": 4}
    assert "llama.cpp takes id 11" in result.findings[0].message


def test_a_text_of_the_base_vocabulary_gives_no_id(folder: Folder) -> None:
    folder.tokenizer_config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "ab"}
    result = folder.convert()
    assert found(result, "_token_id") == {"bos": 4, "eos": 5}
    assert rules(result) == ["special-token-missing"]


@pytest.mark.parametrize("id_", [-1, 8])
def test_an_id_outside_the_vocabulary_is_not_written(folder: Folder, id_: int) -> None:
    folder.config = {"pad_token_id": id_}
    result = folder.convert()
    assert found(result, "_token_id") == {"bos": 4, "eos": 5}
    assert rules(result) == ["special-token-range"]


def test_cls_and_sep_stand_in_for_bos_and_eos(folder: Folder) -> None:
    folder.tokenizer_config = {"cls_token": "<s>", "sep_token": "</s>"}
    assert found(folder.convert(), "_token_id") == {"bos": 4, "eos": 5, "seperator": 5}


def test_without_tokenizer_config_ids_come_from_config_only(folder: Folder) -> None:
    folder.tokenizer_config = None
    folder.config = {"eos_token_id": 5, "bos_token_id": 4}
    assert found(folder.convert(), "_token_id") == {"bos": 4, "eos": 5}


GLM_TOKENS = [added(4, "<|endoftext|>"), added(5, "[gMASK]"), added(6, "<|user|>"), added(7, "<|observation|>")]


def test_glm_style_adds_what_is_open(folder: Folder) -> None:
    folder.tokenizer["added_tokens"] = GLM_TOKENS
    folder.tokenizer_config = {"eos_token": "<|endoftext|>", "unk_token": "[gMASK]"}
    assert found(folder.convert(style="glm"), "_token_id") == {"eos": 4, "unknown": 5, "bos": 5, "eot": 6, "eom": 7}
    assert found(folder.convert(style="gpt2"), "_token_id") == {"eos": 4, "unknown": 5}


def test_glm_style_reports_what_it_cannot_find(folder: Folder) -> None:
    folder.tokenizer["added_tokens"] = GLM_TOKENS[:3]
    folder.tokenizer_config = {"eos_token": "<|endoftext|>"}
    result = folder.convert(style="glm")
    assert found(result, "_token_id") == {"eos": 4, "bos": 5, "eot": 6, "unknown": 4}
    assert "<|observation|>" in result.findings[0].message


@pytest.mark.parametrize(("type_", "reported"), [("qwen35", 2), ("glm4", 1)])
def test_missing_bos_matters_only_where_a_reader_assumes_one(folder: Folder, type_: str, reported: int) -> None:
    folder.tokenizer["pre_tokenizer"] = pre_tokenizer(*PRETOKENIZERS[type_].regexes)
    folder.tokenizer["model"]["ignore_merges"] = PRETOKENIZERS[type_].ignore_merges
    folder.tokenizer_config = {}
    assert rules(folder.convert()) == ["special-token-missing"] * reported


def test_token_that_only_tokenizer_config_lists_is_doubtful(folder: Folder) -> None:
    folder.tokenizer_config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "added_tokens_decoder": {"4": {"content": "<s>"}, "7": {"content": "<new>"}},
    }
    result = folder.convert()
    assert rules(result) == ["added-tokens"]
    assert "lists 1 tokens" in result.findings[0].message
    assert "'<new>' (7)" in result.findings[0].message


@pytest.mark.parametrize("content", [["<s>"], {"x": 1}, None])
def test_a_listed_token_without_text_is_passed_over(folder: Folder, content: object) -> None:
    assert folder.tokenizer_config is not None
    folder.tokenizer_config["added_tokens_decoder"] = {"7": {"content": content}}
    assert rules(folder.convert()) == []


# --- flags


@pytest.mark.parametrize(
    "post_processor",
    [
        {"type": "Sequence", "processors": None},
        {"type": "Sequence", "processors": 5},
        {"type": "Sequence", "processors": [None]},
        {"type": "TemplateProcessing", "single": {"a": 1}, "pair": []},
        {"type": "TemplateProcessing", "single": [], "pair": "xx"},
    ],
)
def test_a_malformed_post_processor_is_doubtful(folder: Folder, post_processor: object) -> None:
    folder.tokenizer["post_processor"] = post_processor
    result = folder.convert()
    assert rules(result) == ["post-processor"]
    assert found(result, "_token") == {}


def template(single: str, pair: str = "") -> dict[str, Any]:
    def entry(word: str) -> dict[str, Any]:
        kind = "Sequence" if word in ("A", "B") else "SpecialToken"
        return {kind: {"id": word, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [entry(word) for word in single.split()],
        "pair": [entry(word) for word in pair.split()],
        "special_tokens": {},
    }


POST_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def processors(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "processors": list(parts)}


@pytest.mark.parametrize(
    ("post_processor", "flags"),
    [
        (None, {}),
        (POST_BYTE_LEVEL, {"bos": False, "eos": False}),
        (template("A"), {}),
        (template("<s> A"), {"bos": True}),
        (template("A </s>"), {"eos": True}),
        (template("<s> A </s>"), {"bos": True, "eos": True}),
        (processors(POST_BYTE_LEVEL, template("A </s>")), {"bos": False, "eos": True}),
        (processors(template("A </s>"), POST_BYTE_LEVEL), {"eos": True, "bos": False}),
        # Nothing between the two texts: the key is not written.
        (template("<s> A", "<s> A B"), {"bos": True}),
        (template("A", "B A"), {}),
        # The bos between them is no separator; the eos is.
        (template("<s> A", "<s> A <s> B"), {"bos": True, "sep": False}),
        (template("A", "A </s> B"), {"sep": True}),
        (template("<s> A", "<s> A </s> B"), {"bos": True, "sep": True}),
        # One eos after each text is the trailing token, no separator; a second one is.
        (template("A </s>", "A </s> B </s>"), {"eos": True, "sep": False}),
        (template("A </s>", "A </s> </s> B </s>"), {"eos": True, "sep": True}),
        (template("A", "A <x> B"), {"sep": False}),
    ],
)
def test_flags_of_the_post_processor(folder: Folder, post_processor: object, flags: dict[str, bool]) -> None:
    folder.tokenizer["post_processor"] = post_processor
    result = folder.convert()
    written = found(result, "_token")
    assert list(written.items()) == [(f"add_{kind}", flag) for kind, flag in flags.items()]
    assert result.findings == ()


def test_a_separator_without_sep_token_is_the_eos(folder: Folder) -> None:
    folder.tokenizer["post_processor"] = template("A", "A </s> B")
    assert found(folder.convert(), "_token_id") == {"bos": 4, "eos": 5, "seperator": 5}


def test_a_leading_token_becomes_the_bos_when_none_is_named(folder: Folder) -> None:
    folder.tokenizer["post_processor"] = template("<x> A")
    folder.tokenizer_config = {"eos_token": "</s>"}
    result = folder.convert()
    assert found(result, "_token_id") == {"bos": 6, "eos": 5}
    assert found(result, "_token") == {"add_bos": True}


def test_a_leading_token_that_is_not_the_bos_is_doubtful(folder: Folder) -> None:
    folder.tokenizer["post_processor"] = template("<x> A")
    result = folder.convert()
    assert found(result, "_token_id") == {"bos": 4, "eos": 5}
    assert found(result, "_token") == {"add_bos": False}
    assert rules(result) == ["special-token-flag"]


def test_a_leading_cls_token_counts_as_bos(folder: Folder) -> None:
    folder.tokenizer["post_processor"] = template("<x> A")
    folder.tokenizer_config = {"bos_token": "<s>", "cls_token": "<x>", "eos_token": "</s>"}
    assert found(folder.convert(), "_token") == {"add_bos": True}


def test_a_trailing_token_becomes_the_eos_and_the_old_one_moves(folder: Folder) -> None:
    folder.tokenizer["post_processor"] = template("A <x>")
    result = folder.convert()
    assert found(result, "_token_id") == {"bos": 4, "eos": 6, "eot": 5}
    assert found(result, "_token") == {"add_eos": True}
    folder.tokenizer["added_tokens"].append(added(7, "<y>"))
    folder.tokenizer["post_processor"] = processors(template("A <x>"), template("A <y>"))
    assert found(folder.convert(), "_token_id") == {"bos": 4, "eos": 7, "eot": 5, "eom": 6}


def test_tokenizer_config_fills_open_flags_and_loses_conflicts(folder: Folder) -> None:
    folder.tokenizer["post_processor"] = template("<s> A")
    assert folder.tokenizer_config is not None
    folder.tokenizer_config |= {"add_bos_token": False, "add_eos_token": True, "add_unk_token": True}
    result = folder.convert()
    assert found(result, "_token") == {"add_bos": True, "add_eos": True}
    assert rules(result) == ["special-token-flag"]


def test_an_unknown_post_processor_is_doubtful(folder: Folder) -> None:
    folder.tokenizer["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", 5], "cls": ["<s>", 4]}
    result = folder.convert()
    assert found(result, "_token") == {}
    assert "RobertaProcessing" in result.findings[0].message
