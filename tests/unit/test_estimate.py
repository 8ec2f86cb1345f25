"""Memory before loading: numbers worked out by hand from the real configurations and the specifications."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from real_models import MODELS

from nextn.convert.planner import Options, plan_conversion
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, i32, string, u32
from nextn.gguf_schema.errors import UsageError
from nextn.validators.estimate import Estimate, estimate

KIB, MIB = 1 << 10, 1 << 20
Files = Callable[..., dict[Role, Contents]]
STEP, QWEN, GLM = "step-3.7-flash", "qwen3.8-flash-next", "glm-5.3-flash"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """What the files of a real model will say, for each role; nothing is written."""

    @cache
    def get(model: str, outtype: str = "bf16") -> dict[Role, Contents]:
        checkpoint = MODELS[model].checkpoint(tmp_path_factory.mktemp("model"))
        files = plan_conversion(checkpoint, Options(tuple(Role), outtype)).files
        return {file.role: file.contents for file in files}

    return get


def state(found: Estimate) -> dict[tuple[str, str], int]:
    return {(group["part"], group["kind"]): group["bytes"] for group in found.states_by_kind()}


def of(trunk: Contents, draft: Contents | None = None, **settings: Any) -> Estimate:
    return estimate(trunk, draft, **{"context": 8192, "ubatch": 512, "kv_type": "f16", **settings})


def test_step_keeps_windows_for_sliding_layers(planned: Files) -> None:
    files = planned(STEP)
    found = of(files[Role.COMBINED], context=32768)
    # Keys and values: 8 heads of 128 each, two bytes. 12 full layers of the trunk, 33 sliding ones, 3 sliding heads;
    # a window of 512 and a ubatch of 512 are 1024 cells.
    row = 2 * 8 * 128 * 2
    assert state(found) == {
        ("trunk", "kv"): 12 * 32768 * row,
        ("trunk", "window"): 33 * 1024 * row,
        ("head", "window"): 3 * 1024 * row,
    }
    assert found.state_bytes == 1_610_612_736 + 138_412_032 + 12_582_912
    # A window is not larger than the context, and comes in steps of 256 cells.
    short = state(of(files[Role.COMBINED], context=300, ubatch=300))
    assert short == {
        ("trunk", "kv"): 12 * 512 * row,
        ("trunk", "window"): 33 * 512 * row,
        ("head", "window"): 3 * 512 * row,
    }


def test_step_weights_are_those_published(planned: Files) -> None:
    found = of(planned(STEP)[Role.MTP])
    # 3,484,091,136 parameters, 66,304 of them in norms, which are F32 like the 64 rotary factors; 6.97 GB.
    assert found.weight_bytes == 2 * 3_484_091_136 + 2 * 66_304 + 4 * 64 == 6_968_315_136
    assert found.weights_by("part") == {
        "embeddings": 2 * 128896 * 4096,
        "head blocks": 3 * (2 * 809_390_336 + 2 * (5 * 4096 + 2 * 128)),
        "output": 2 * 128896 * 4096 + 4 * 4096,
        "other": 4 * 64,
    }
    assert found.weights_by("type") == {"F32": 4 * (66_304 + 64), "BF16": 2 * (3_484_091_136 - 66_304)}


def test_qwen_states_are_those_of_the_specification(planned: Files) -> None:
    files = planned(QWEN)
    found = state(of(files[Role.TRUNK]))
    assert found["trunk", "kv"] == 24 * KIB * 8192
    # llama.cpp keeps the pooled key beside the raw one of the specification's 3 KiB.
    assert found["trunk", "indexer"] == 2 * 3 * KIB * 8192
    assert found["trunk", "recurrent"] == 36 * 3 * MIB == 108 * MIB
    assert found["trunk", "convolution"] == 36 * 120 * KIB + 360 * KIB
    assert len(found) == 4

    found = state(of(files[Role.COMBINED], n_max=3))
    assert found["trunk", "recurrent"] == 4 * 108 * MIB, "one plane for each length that drafts are cut to"
    assert found["trunk", "convolution"] == 4 * (36 * 120 + 360) * KIB
    assert found["head", "kv"] == 2 * KIB * 8192
    assert found["head", "indexer"] == 2 * 256 * 8192
    assert ("head", "recurrent") not in found

    trunk = files[Role.TRUNK]
    key = "qwen4exp.attention.compress_ratios"
    dense = replace(trunk, keys={**trunk.keys, key: replace(trunk.keys[key], value=(0,) * 48)})
    assert state(of(dense))["trunk", "indexer"] == 3 * KIB * 8192, "nothing is pooled"


def test_qwen_weights_by_part(planned: Files) -> None:
    found = of(planned(QWEN)[Role.COMBINED])
    parts = found.weights_by("part")
    assert list(parts) == ["embeddings", "table", "trunk blocks", "head blocks", "output"]
    assert parts["embeddings"] == 2 * 248320 * 2560
    assert parts["table"] == 2 * 51_200_245_760
    # F32 are four norms of all streams, two of heads, two of the indexer, two narrow ones, the router and its gate.
    f32 = 4 * 10240 + 2 * 256 + 2 * 128 + 2 * 2560 + 512 * 2560
    assert parts["head blocks"] == 2 * 2_607_150_848 + 2 * f32
    shared = of(planned(QWEN, "q8_0")[Role.MTP_SHARED])
    assert shared.weight_bytes == (2_607_150_848 - f32) * 34 // 32 + 4 * f32 == 2_774_085_632


def test_glm_keeps_latents_and_indexer_rows(planned: Files) -> None:
    files = planned(GLM)
    found = state(of(files[Role.COMBINED], n_max=2))
    assert found == {
        ("trunk", "recurrent"): 3 * 136 * MIB,
        ("trunk", "convolution"): 3 * 34 * 73_728 * 4,
        ("trunk", "latent"): 11 * 8192 * 512 * 2,
        ("trunk", "indexer"): 11 * 8192 * 3 * 128 * 2,
        ("head", "latent"): 8192 * 512 * 2,
        ("head", "indexer"): 8192 * 3 * 128 * 2,
    }
    found = state(of(files[Role.TRUNK], kv_type="q8_0"))
    assert found["trunk", "recurrent"] == 136 * MIB, "states stay F32, whatever the type of the caches"
    assert found["trunk", "latent"] == 11 * 8192 * 544
    assert found["trunk", "indexer"] == 11 * 8192 * 408


def test_a_shared_sidecar_alone_and_with_its_target(planned: Files) -> None:
    files = planned(GLM)
    alone = of(files[Role.MTP_SHARED])
    assert set(state(alone)) == {("head", "latent"), ("head", "indexer")}
    assert alone.borrowed == {"token_embd.weight": None, "output.weight": None}

    pair = of(files[Role.TRUNK], files[Role.MTP_SHARED])
    assert pair.borrowed == {"token_embd.weight": 2 * 154880 * 4096, "output.weight": 2 * 154880 * 4096}
    assert pair.weight_bytes == of(files[Role.TRUNK]).weight_bytes + alone.weight_bytes
    assert state(pair) == state(of(files[Role.COMBINED]))

    own = of(files[Role.TRUNK], files[Role.MTP])
    assert own.borrowed == {}
    assert own.weight_bytes - pair.weight_bytes == 2 * 2 * 154880 * 4096, "what llama.cpp holds twice"


def test_the_draft_of_a_combined_file_leaves_its_own_head_unused(planned: Files) -> None:
    files = planned(STEP)
    found = of(files[Role.COMBINED], files[Role.MTP])
    assert state(found) == state(of(files[Role.COMBINED]))
    assert sum(found.weights_by("owner").values()) == found.weight_bytes


def test_largest_activation(planned: Files) -> None:
    files = planned(STEP)
    # 8 experts of 4096 values for each of 512 tokens; in a long context, a mask of 2 bytes for each token and cell.
    assert of(files[Role.TRUNK]).activation == ("experts", 8 * 4096 * 512 * 4)
    assert of(files[Role.TRUNK], context=262144).activation == ("attention mask", 262144 * 512 * 2)
    assert of(files[Role.TRUNK], ubatch=1).activation == ("logits", 4 * 128896 * 4)


def test_layer_split_as_llama_cpp_places_layers(planned: Files) -> None:
    files = planned(STEP)
    found = of(files[Role.COMBINED], files[Role.MTP])
    host, (device,) = found.devices(1)
    assert host == 2 * (2 * 128896 * 4096), "both files' embeddings stay in host memory"
    assert host + device == found.total
    host_of_two, (first, second) = found.devices(2)
    assert host_of_two == host
    assert first + second == device + found.activation[1], "each device has activations of its own"
    # i / 49 is below one half for blocks 0 to 24; the rest, the output and all of the draft go to the second device.
    blocks = [w for w in found.weights if w.owner == "model" and 0 <= w.block <= 24]
    states = [s for owner, part, s in found.states if part == "trunk" and s.block <= 24]
    factors = 2 * 4 * 64
    expected = sum(w.bytes for w in blocks) + sum(s.bytes for s in states) + factors + found.activation[1]
    assert first == expected


def test_what_is_not_counted_is_said(planned: Files) -> None:
    trunk = planned(STEP)[Role.TRUNK]
    other = replace(trunk, keys={**trunk.keys, "general.architecture": string("qwen35")})
    found = of(other)
    assert (found.state_bytes, found.activation[1]) == (0, 0)
    assert found.weight_bytes == of(trunk).weight_bytes
    assert found.notes == ("state and activations of architecture qwen35 are not counted, only weights",)

    without = {key: value for key, value in trunk.keys.items() if not key.endswith("sliding_window")}
    (note,) = of(replace(trunk, keys=without)).notes
    assert note.endswith("keys that its state follows from are missing or wrong; only weights counted")

    odd = {**trunk.keys, "step35.attention.head_count_kv": i32(-1)}
    assert of(replace(trunk, keys=odd)).weight_bytes == found.weight_bytes


def test_rows_must_be_whole_blocks_of_the_cache_type(planned: Files) -> None:
    trunk = planned(STEP)[Role.TRUNK]
    keys = {**trunk.keys, "step35.attention.key_length": u32(66), "step35.attention.head_count_kv": u32(1)}
    with pytest.raises(UsageError, match="stores blocks of 32 values, and this model's cache has rows of 66"):
        of(replace(trunk, keys=keys), kv_type="q8_0")


def test_json_adds_up(planned: Files) -> None:
    files = planned(GLM)
    shown = of(files[Role.TRUNK], files[Role.MTP_SHARED]).as_json()
    assert sum(shown["weights"]["by_part"].values()) == shown["weights"]["bytes"]
    assert sum(shown["weights"]["by_type"].values()) == shown["weights"]["bytes"]
    assert sum(shown["weights"]["by_file"].values()) == shown["weights"]["bytes"]
    assert sum(group["bytes"] for group in shown["state"]["by_kind"]) == shown["state"]["bytes"]
    assert shown["total"] == shown["weights"]["bytes"] + shown["state"]["bytes"] + shown["activation"]["bytes"]
    assert shown["one_device"]["host"] + sum(shown["one_device"]["devices"]) == shown["total"]
