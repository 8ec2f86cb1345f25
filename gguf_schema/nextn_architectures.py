"""Every llama.cpp architecture that knows nextn blocks, and what its loader does with a file that lacks a part.

Source: llama.cpp b11549, src/llama-arch.cpp, src/llama-model.cpp (`nextn_flags`, `load_hparams`) and src/models/*.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from nextn.gguf_schema.architecture import MAX_BLOCKS as MAX_BLOCKS  # a limit of the loaders, found here too
from nextn.gguf_schema.architecture import Rule


@dataclass(frozen=True)
class NextnArchitecture:
    """How the loader of one architecture tells trunk and head apart.

    `probe` is the tensor of block 0 whose absence makes a file MTP-only; without one the loader does not look, and
    every block that the keys declare must be there. `mtp_only` and `trunk_only` say whether a file that declares heads
    loads when it lacks the trunk, or the heads. `heads` is the number of heads that its draft graph takes: None for
    any number, 0 when there is no such graph and heads are only carried. With `whole` all blocks are the head's.
    """

    name: str
    probe: str | None = "attn_norm.weight"
    mtp_only: bool = True
    trunk_only: bool = True
    heads: int | None = 1
    whole: bool = False
    note: str = ""


def _carried(name: str, *, trunk_only: bool = False, note: str = "") -> NextnArchitecture:
    return NextnArchitecture(name, None, mtp_only=False, trunk_only=trunk_only, heads=0, note=note)


_Nextn = NextnArchitecture
NEXTN_ARCHITECTURES: dict[str, NextnArchitecture] = {
    a.name: a
    for a in (
        _Nextn("step35", heads=None, note="chained heads: head k drafts token k + 1"),
        _Nextn("qwen4exp", "hc_attn_norm.weight", note="one head, looped; no output_norm"),
        _Nextn("glm5-next", note="one head, looped"),
        _Nextn("deepseek2"),
        _Nextn("mistral4", heads=0, note="the loader of deepseek2, without its draft graph"),
        _Nextn("deepseek32"),
        _Nextn(
            "deepseek4",
            trunk_only=False,
            note="without the first head's eh_proj the declared heads are taken for trunk blocks, which must be there",
        ),
        _Nextn("glm4moe"),
        _Nextn("glm-dsa"),
        _Nextn("qwen3next"),
        _Nextn("qwen35"),
        _Nextn("qwen35moe"),
        _Nextn("mimo2", heads=None),
        _Nextn("hy_v3", heads=None),
        _Nextn("cohere2moe"),
        _Nextn("bailingmoe3"),
        _Nextn("nemotron_h_moe"),
        _Nextn("nemotron_h", heads=0, note="the loader of nemotron_h_moe, without its draft graph"),
        _carried("glm4"),
        _carried("bailingmoe2"),
        _carried("exaone4"),
        _carried("exaone-moe"),
        _carried("dots3note", trunk_only=True),
        NextnArchitecture(
            "gemma4-assistant",
            None,
            trunk_only=False,
            heads=None,
            whole=True,
            note="the whole file is a head: nextn_predict_layers is block_count, no tensor is named blk.N.nextn.*",
        ),
    )
}

# The dimensions of the tensors that make a block a head's; `H` is `embedding_length`. qwen4exp has a wider `hnorm`.
HEAD_TENSORS: dict[str, str] = {
    "nextn.eh_proj.weight": "2H H",
    "nextn.enorm.weight": "H",
    "nextn.hnorm.weight": "H",
}

# The tensors outside blocks that a file which is a head as a whole must have.
WHOLE_HEAD_TENSORS = ("nextn.pre_projection.weight", "nextn.post_projection.weight")


@dataclass(frozen=True)
class ArrayKey:
    """A key that may hold an array over blocks: which blocks, and whether the loader insists on the length.

    `at_least` takes longer arrays too. `lenient` takes any length: entries that are missing read as 0, silently.
    """

    name: str
    rule: Rule = Rule.PER_BLOCK
    at_least: bool = False
    lenient: bool = False

    def length(self, block_count: int, nextn_predict_layers: int) -> int:
        """The length that the loader wants, by what the file declares."""
        return block_count - (nextn_predict_layers if self.rule is Rule.PER_TRUNK_BLOCK else 0)


# Keys that every architecture may hold as an array over blocks (one value stands for all blocks).
ARRAY_KEYS: tuple[ArrayKey, ...] = (
    ArrayKey("feed_forward_length"),
    ArrayKey("attention.head_count"),
    ArrayKey("attention.head_count_kv"),
    ArrayKey("expert_used_count"),
    ArrayKey("expert_feed_forward_length"),
    ArrayKey("swiglu_clamp_exp"),
    ArrayKey("swiglu_clamp_shexp"),
    ArrayKey("attention.recurrent_layers"),
    ArrayKey("attention.compress_ratios"),
    ArrayKey("attention.sliding_window_pattern", lenient=True),
    ArrayKey("attention.indexer.types", Rule.PER_TRUNK_BLOCK),
)

# Where the loader of an architecture has another rule than the one above.
ARRAY_KEYS_OF: dict[str, tuple[ArrayKey, ...]] = {
    "deepseek4": (ArrayKey("attention.compress_ratios", at_least=True),),
    "dots3note": (ArrayKey("attention.indexer.types", Rule.PER_TRUNK_BLOCK, lenient=True),),
}


def array_keys(architecture: str) -> dict[str, ArrayKey]:
    """The rules of the keys that may be arrays over blocks in a file of this architecture, by name."""
    return {key.name: key for key in (*ARRAY_KEYS, *ARRAY_KEYS_OF.get(architecture, ()))}


# Keys of any architecture, without their prefix, that people meet under a wrong one.
COMMON_KEYS: frozenset[str] = frozenset(
    {key.name for key in ARRAY_KEYS}
    | {"block_count", "nextn_predict_layers", "context_length", "embedding_length", "vocab_size"}
    | {"expert_count", "expert_weights_norm", "expert_weights_scale", "expert_gating_func"}
    | {"leading_dense_block_count", "full_attention_interval", "rope.freq_base", "rope.dimension_count"}
    | {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"}
    | {"attention.key_length", "attention.value_length", "attention.sliding_window"}
)

_NAMES = """
clip llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bert modern-bert nomic-bert
nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3
qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe clef qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3
codeshell orion internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4 gemma4-assistant gemma-embedding
gemma-embedding2 starcoder2 mamba mamba2 maple jamba falcon-h1 xverse command-r cohere2 cohere2moe dbrx olmo
olmo2 olmoe muse-glimmer openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 chatglm glm4
glm4moe glm-dsa bitnet t5 t5encoder jais jais2 nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe
rwkv6 rwkv6qwen2 rwkv7 arwkv7 granite granitemoe granitehybrid graniteswitch granite_swa chameleon wavtokenizer-dec
plm bailingmoe bailingmoe2 bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe
hunyuan-dense hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe seed_oss
grovemoe apertus minimax-01 hrm_text minimax-m2 minimax-m3 cogvlm rnd1 pangu-embedded mistral3 eagle3 dflash
mistral4 paddleocr mimo2 step35 spark2_5 llama-embed maincoder kimi-linear kimi-k3 glm5-next talkie mellum
nanbeige qwen3tts pockettts k2-horizon
"""
# Every architecture that llama.cpp b11549 knows, with or without nextn blocks.
ARCHITECTURE_NAMES: frozenset[str] = frozenset(_NAMES.split())

# Spellings that forks wrote before upstream settled on a name.
OLD_SPELLINGS: dict[str, str] = {"glm5next": "glm5-next"}


def upstream_spelling(architecture: str) -> str:
    """An architecture's name as llama.cpp spells it now."""
    return OLD_SPELLINGS.get(architecture, architecture)
