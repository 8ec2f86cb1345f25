"""The model card: what people wrote stays, what is ours is renewed, and facts of earlier uploads are kept."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nextn.convert.hub.card import BEGIN, END, read_facts, write_card
from nextn.convert.hub.facts import Base, Facts, PairRow, Proof, Row, Target
from nextn.gguf_schema.errors import InputError

REPO = "me/Tiny-GGUF"
TRUNK = Row("Tiny-trunk-Q8_0.gguf", 1234567, "a" * 64, "trunk", "Q8_0", "loads")
MTP = Row("mtp-Tiny-Q8_0.gguf", 2345, "b" * 64, "mtp", "Q8_0", "loads")
SHARED = Row(
    "shared/mtp-Tiny-shared-Q8_0.gguf", 345, "c" * 64, "mtp-shared", "Q8_0", "refuses: no token_embd",
    target=Target("Tiny", "d" * 64),
)  # fmt: skip
PAIRS = (PairRow(TRUNK.path, MTP.path, "loads"), PairRow(TRUNK.path, SHARED.path, "refuses: no token_embd"))
PROOF = Proof("proof.json", "identical", 12, (1, 2, 3), 200, 150, "e" * 64, (TRUNK.sha256, MTP.sha256))
FACTS = Facts((TRUNK, MTP, SHARED), PAIRS, (PROOF,), Base("maker/Tiny", "0123abc"), "mit")


def front(text: str) -> dict[str, object]:
    told = yaml.safe_load(text.split("---\n")[1])
    assert isinstance(told, dict)
    return told


def human(text: str) -> str:
    """What is outside of our markers in the body."""
    body = text.split("---\n", 2)[2] if text.startswith("---\n") else text
    return body.partition(BEGIN)[0] + body.partition(END)[2]


def test_a_new_card_says_everything() -> None:
    text = write_card(None, FACTS, REPO)
    assert "# Tiny-GGUF\n" in text
    assert front(text) == {
        "library_name": "gguf",
        "tags": ["gguf", "mtp", "speculative-decoding"],
        "license": "mit",
        "base_model": "maker/Tiny",
        "base_model_relation": "quantized",
    }
    lines = text.splitlines()
    assert f"| <code>{TRUNK.path}</code> | trunk | Q8_0 | 1,234,567 | loads | <code>{'a' * 64}</code> |" in lines
    assert f"| <code>{TRUNK.path}</code> | <code>{MTP.path}</code> | loads |" in lines
    assert "| <code>proof.json</code> | identical | 12 | 1, 2, 3 | 200 | 150 (75.0 %) |" in text
    assert "Made from maker/Tiny at revision <code>0123abc</code>." in lines
    assert f"belongs to Tiny, whose embeddings have the sha256 <code>{'d' * 64}</code>" in text


def test_commands_for_llama_cpp_only_where_it_loads_the_files() -> None:
    lines = write_card(None, FACTS, REPO).splitlines()
    assert f"    llama-server -hf {REPO} --spec-type draft-mtp" in lines
    assert f"    llama-server -m {TRUNK.path} -md {MTP.path} --spec-type draft-mtp" in lines
    assert not [line for line in lines if "llama-server" in line and SHARED.path in line]
    assert [line for line in lines if line.startswith(f"    nextn generate -m {TRUNK.path} -d {SHARED.path} ")]
    assert "llama.cpp b11549, given this pair: refuses: no token_embd" in lines
    assert f"    nextn join {TRUNK.path} {SHARED.path} --emit mtp -o mtp.gguf" in lines


def test_tables_are_tables() -> None:
    # Every line of a table has as many cells as its head, and an empty line before it.
    lines = write_card(None, FACTS, REPO).splitlines()
    for index, line in enumerate(lines):
        if line.startswith("|--"):
            assert lines[index - 2] == ""
            cells = lines[index - 1].count("|")
            end = lines.index("", index)
            assert {row.count("|") for row in lines[index:end]} == {cells}
    assert "\n\n\n" not in "\n".join(lines)


@pytest.mark.parametrize(
    "existing",
    [
        "",
        "# Mine\n",
        "# Mine",
        "---\nlicense: apache-2.0\n---\n# Mine\n\n* one\n* two\n",
        "---\n# a remark\nlicense:   apache-2.0\ntags: [a,b]\n---\ntext\n",
        "---\r\nlicense: mit\r\n---\r\n# Mine\r\n",
        "---\n---\n# Mine\n",
        "\ufeff---\nlicense: mit\n---\n# Mine\n",
        "text\n---\nnot: front matter\n---\n",
    ],
)
def test_what_people_wrote_stays_and_a_second_time_changes_nothing(existing: str) -> None:
    text = write_card(existing, FACTS, REPO)
    plain = existing.removeprefix("\ufeff")
    kept = plain.split("---\n", 2)[2] if plain.startswith("---\n") else plain
    for line in kept.splitlines():
        assert line in text.splitlines()
    assert write_card(text, FACTS, REPO) == text
    assert read_facts(text) == FACTS


def test_human_keys_win_and_are_kept_to_the_letter() -> None:
    existing = "---\n# a remark\nlicense:   apache-2.0\ntags: [a,b]\n---\n# Mine\n"
    text = write_card(existing, FACTS, REPO)
    assert text.startswith("---\n# a remark\nlicense:   apache-2.0\ntags: [a,b]\n")
    told = front(text)
    assert (told["license"], told["tags"], told["base_model"]) == ("apache-2.0", ["a", "b"], "maker/Tiny")
    # A key that is ours follows the facts; one that a human takes over is theirs from then on.
    other = replace(FACTS, base=Base("maker/Other"))
    assert front(write_card(text, other, REPO))["base_model"] == "maker/Other"
    taken = text.replace("tags: [a,b]\n", "tags: [a,b]\nbase_model: human/Choice\n", 1)
    assert front(write_card(taken, other, REPO))["base_model"] == "human/Choice"


def test_ours_is_replaced_where_it_stands() -> None:
    before, after = "# Mine\n\nabove\n\n", "\n\nbelow\n"
    text = write_card(None, FACTS, REPO)
    ours = text[text.index(BEGIN) : text.index(END) + len(END)]
    moved = before + ours + after
    fewer = write_card(moved, replace(FACTS, rows=(TRUNK,), pairs=(), proofs=()), REPO)
    assert human(fewer) == before + after
    assert MTP.path not in fewer


@pytest.mark.parametrize(
    ("existing", "says"),
    [
        (f"text {BEGIN} text", "once each"),
        (f"text {END} text", "once each"),
        (f"{END} text {BEGIN}", "once each"),
        (f"{BEGIN}{END}{BEGIN}{END}", "once each"),
        ("---\nlicense: mit\n", "does not end"),
        ("---\nlicense: [mit\n---\n", "no YAML"),
        ("---\n- mit\n---\n", "no list of keys"),
        ("---\n# nextn: begin\n---\n", "has no # nextn: end"),
    ],
)
def test_a_card_that_cannot_be_continued_is_left_alone(existing: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        write_card(existing, FACTS, REPO)
    assert caught.value.code == "bad-card"


@pytest.mark.parametrize("data", ["{", "[]", '{"rows": [{}]}', '{"rows": 7}', "null"])
def test_damaged_data_is_said(data: str) -> None:
    with pytest.raises(InputError, match="damaged") as caught:
        read_facts(f"{BEGIN}\n<!-- nextn: data {data} -->\n{END}")
    assert caught.value.code == "bad-card"


def test_earlier_facts_stay_for_files_that_are_still_there() -> None:
    there = {TRUNK.path: TRUNK.sha256, MTP.path: MTP.sha256, SHARED.path: "f" * 64}
    new = Facts((Row("Tiny-Q8_0.gguf", 9, "9" * 64, "combined", "Q8_0", "loads"),))
    both = new.with_earlier(FACTS, there)
    # The sidecar that is there is another one than the card told of.
    assert [row.path for row in both.rows] == ["Tiny-Q8_0.gguf", TRUNK.path, MTP.path]
    assert both.pairs == PAIRS[:1]
    assert both.proofs == (PROOF,)
    assert (both.base, both.license) == (FACTS.base, FACTS.license)
    gone = new.with_earlier(FACTS, {TRUNK.path: TRUNK.sha256})
    assert [row.path for row in gone.rows] == ["Tiny-Q8_0.gguf", TRUNK.path]
    assert (gone.pairs, gone.proofs) == ((), ())


names = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=30)


@given(names, names, names)
def test_no_name_breaks_the_card(name: str, target: str, said: str) -> None:
    path = f"{name}.gguf"
    row = Row(path, 1, "a" * 64, "mtp-shared", "Q8_0", f"refuses: {said}", target=Target(target))
    facts = Facts((TRUNK, row), (PairRow(TRUNK.path, path, f"refuses: {said}"),))
    text = write_card("# Mine\n", facts, REPO)
    assert write_card(text, facts, REPO) == text
    assert read_facts(text) == facts
    table = [line for line in text.splitlines() if line.startswith("| <code>")]
    assert {line.count("|") for line in table} == {7, 4}


def test_the_comment_with_data_holds_no_end_of_a_comment() -> None:
    row = replace(MTP, loads="refuses: --> <!-- x --")
    text = write_card(None, Facts((row,)), REPO)
    comment = text[text.index("<!-- nextn: data") :].partition("-->")[0]
    assert json.loads(comment.removeprefix("<!-- nextn: data "))["rows"][0]["loads"] == row.loads
    assert "--" not in comment.removeprefix("<!--")
