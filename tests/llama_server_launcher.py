"""Stands in for the llama-server binary: takes its flags, and starts the same server inside xllamacpp.

python llama_server_launcher.py --model FILE --host 127.0.0.1 --port N ...
"""

from __future__ import annotations

import argparse
import os
import signal
import threading

import xllamacpp as xlc

from nextn.runtime.engines.llama_cpp_child import flush_log

TYPES = {"f32": 0, "f16": 1}
FLASH = xlc.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED


def parsed() -> argparse.Namespace:
    flags = argparse.ArgumentParser(allow_abbrev=False)
    flags.add_argument("--model", required=True)
    flags.add_argument("--host", required=True)
    for name in ("--port", "--threads", "--ctx-size", "--parallel", "--cache-ram", "--ctx-checkpoints"):
        flags.add_argument(name, type=int, required=True)
    for name in ("--cache-type-k", "--cache-type-v"):
        flags.add_argument(name, choices=TYPES, required=True)
    for name in ("--flash-attn", "--fit"):
        flags.add_argument(name, choices=("off",), required=True)
    flags.add_argument("--no-warmup", action="store_true", required=True)
    flags.add_argument("--spec-type", choices=("draft-mtp",))
    for name in ("--cache-type-k-draft", "--cache-type-v-draft"):
        flags.add_argument(name, choices=TYPES)
    flags.add_argument("--spec-draft-n-max", type=int)
    flags.add_argument("--model-draft")
    flags.add_argument("--verbosity", type=int, default=3)
    return flags.parse_args()


def parameters(asked: argparse.Namespace) -> xlc.CommonParams:
    p = xlc.CommonParams()
    draft = p.speculative.draft
    p.model.path, p.hostnames, p.port = asked.model, [asked.host], asked.port
    p.n_parallel, p.n_ctx, p.verbosity = asked.parallel, asked.ctx_size, asked.verbosity
    p.warmup = p.fit_params = p.ui = False
    p.cache_ram_mib, p.n_ctx_checkpoints = asked.cache_ram, asked.ctx_checkpoints
    p.flash_attn_type = FLASH
    for cpu in (p.cpuparams, p.cpuparams_batch, draft.cpuparams, draft.cpuparams_batch):
        cpu.n_threads = asked.threads
    kind = type(p.cache_type_k)
    p.cache_type_k, p.cache_type_v = kind(TYPES[asked.cache_type_k]), kind(TYPES[asked.cache_type_v])
    if asked.spec_type:
        p.load_mtp = True
        p.speculative.types = [xlc.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        draft.backend_sampling, draft.n_max = False, asked.spec_draft_n_max
        draft.cache_type_k = kind(TYPES[asked.cache_type_k_draft])
        draft.cache_type_v = kind(TYPES[asked.cache_type_v_draft])
        if asked.model_draft:
            draft.mparams.path = asked.model_draft
    return p


def main() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    _server = xlc.Server(parameters(parsed()))
    stopped.wait()
    flush_log()
    os._exit(0)


if __name__ == "__main__":
    main()
