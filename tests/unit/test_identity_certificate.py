"""A certificate is written and read without loss, and a damaged one names the key that is wrong."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from stub_heads import StubHeads, right_before
from toy_models import ToyTrunk

from nextn.gguf_schema.errors import InputError
from nextn.runtime.engines.reference import Reference
from nextn.runtime.identity.certificate import FORMAT, Certificate, from_json, load_certificate
from nextn.runtime.identity.check import check
from nextn.runtime.identity.observe import Settings
from nextn.runtime.identity.prompts import TEXTS, TOGETHER, Prompt, default_prompts

TRUNK = ToyTrunk()


SUMS = {
    "engine": "e",
    "n_max": 1,
    "n_requests": 1,
    "total_predicted": 4,
    "total_draft": 4,
    "total_draft_accepted": 4,
    "aggregate_accept_rate": 1.0,
}


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    engine = Reference(TRUNK, StubHeads(right_before(TRUNK, 1)), ())
    prompts = [
        Prompt("one", "kind", (3, 5, 8), "a text"),
        Prompt("two", TOGETHER, (4, 9)),
        Prompt("three", TOGETHER, (7,)),
    ]
    return check([engine], prompts, Settings((1, 2), 10), decode=lambda ids: " ".join(map(str, ids)))


def test_it_comes_back_as_it_was(certificate: Certificate, tmp_path: Path) -> None:
    path = tmp_path / "new" / "certificate.json"
    certificate.save(path)
    assert load_certificate(path) == certificate
    assert json.loads(path.read_text())["format"] == FORMAT


def test_it_has_the_keys_that_scripts_rely_on(certificate: Certificate) -> None:
    told = certificate.as_json()
    for key in ("identical", "verdict", "cause", "engines", "runs", "findings", "stream_sha256", "files", "versions"):
        assert key in told
    run = told["runs"][0]
    for key in ("engine", "prompt", "n_max", "identical", "first_divergence", "margin", "n_drafted", "n_accepted"):
        assert key in run
    assert run["class"] == 0
    assert run["text"] == " ".join(map(str, run["tokens"]))


def test_sums_are_those_of_the_prompts_alone_and_once(certificate: Certificate) -> None:
    sums = {each.n_max: each for each in certificate.aggregate}
    # Right in the first place of each draft, wrong in the second: 9 more tokens, one or two of them in a round.
    assert [sums[n].n_requests for n in (0, 1, 2)] == [3, 3, 3]
    assert [sums[n].total_predicted for n in (0, 1, 2)] == [30, 30, 30]
    assert sums[1].accepted_by_position == (1.0,)
    assert sums[2].accepted_by_position == (1.0, 0.0)
    assert sums[0].aggregate_accept_rate is None
    assert {run.together for run in certificate.runs if run.prompt == "two"} == {1, 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "perfect"}, "verdict has the value 'perfect'"),
        ({"cause": 3}, "cause has the value '3'"),
        ({"runs": {}}, "runs has the value"),
        ({"runs": [3]}, "runs[0] is no object"),
        ({"engines": [{"name": "x"}]}, "engines[0].describe is missing"),
        ({"versions": {"a": 1}}, "versions.a has the value '1'"),
        ({"findings": [{"severity": "loud"}]}, "findings[0].severity has the value 'loud'"),
        ({"created": None}, "created has the value 'None'"),
        ({"aggregate": [{**SUMS, "wall_s_total": float("nan")}]}, "aggregate[0].wall_s_total has the value 'nan'"),
        ({"aggregate": [{**SUMS, "wall_s_total": 10**400}]}, "aggregate[0].wall_s_total has the value '1000"),
    ],
)
def test_damage_is_named(certificate: Certificate, change: dict[str, Any], message: str) -> None:
    told = json.loads(json.dumps(certificate.as_json())) | change
    with pytest.raises(ValueError, match=message.replace("[", r"\[").replace("]", r"\]")):
        from_json(told)


def test_a_place_that_cannot_be_written_is_an_input_error(certificate: Certificate, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        certificate.save(tmp_path / "file" / "certificate.json")


def test_keys_of_later_versions_are_left_out(certificate: Certificate) -> None:
    told = json.loads(json.dumps(certificate.as_json()))
    told["runs"][0]["mood"] = "good"
    assert from_json(told | {"baseline": {}}) == certificate


def test_the_built_in_prompts_have_eleven_kinds_and_the_long_one_its_length() -> None:
    prompts = default_prompts(lambda text: list(text.encode()), 3000)
    assert len({prompt.category for prompt in prompts}) == len(TEXTS) + 2 == 11
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    (long,) = [prompt for prompt in prompts if prompt.category == "long_context"]
    assert len(long.tokens) == 3000
    group = [prompt.tokens for prompt in prompts if prompt.category == TOGETHER]
    assert len(group) == 4
    assert len(set(group)) == 3
    # Where the context has no room for it there is none.
    assert "long_context" not in {prompt.name for prompt in default_prompts(lambda text: list(text.encode()), 100)}


def test_a_full_disk_leaves_no_half_a_certificate(
    certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "certificate.json"
    certificate.save(path)
    before = path.read_bytes()
    write = Path.write_text

    def half(self: Path, text: str, **asked: Any) -> int:
        write(self, text[: len(text) // 2], **asked)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(InputError, match="No space left"):
        certificate.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["certificate.json"]
