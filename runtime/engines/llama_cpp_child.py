"""The process that llama.cpp lives and dies in: reads one job, writes one JSON line per finished prompt.

    python -m nextn.runtime.engines.llama_cpp_child < job.json

Job: `{"model", "draft", "mtp", "n_max", "n_predict", "top"?, "context", "timeout_s", "prompts": [[ids]], "together"?,
"rounds"?, "threads"?}`. Without prompts the model is loaded and let go; with `rounds` the log tells of each draft.
Results leave on the descriptor that standard output was at the start; descriptors 1 and 2 then both lead to the log,
because llama.cpp writes to either. An aborting runtime takes this process with it, which is why nothing else happens
here and why nothing heavy but xllamacpp is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nextn.runtime.engines.child import DONE
from nextn.runtime.engines.engine import Asked, Continuation, Prompts
from nextn.runtime.engines.server_api import ServerError, together

if TYPE_CHECKING:
    import xllamacpp

F32 = 0  # GGML_TYPE_F32
ROUNDS_TOLD = 5  # the verbosity at which the log tells of each draft


def parameters(job: dict[str, Any], sequences: int = 1) -> xllamacpp.CommonParams:
    """Settings under which two runs can be compared exactly: F32 caches, no flash attention, no reuse, one thread.

    The job's context is that of each sequence.
    """
    import xllamacpp as xlc

    p = xlc.CommonParams()
    draft = p.speculative.draft
    p.model.path = job["model"]
    p.hostnames, p.port = ["127.0.0.1"], 0  # port 0: the system picks a free one
    p.n_parallel, p.n_ctx = sequences, sequences * job["context"]
    if job.get("rounds"):
        p.verbosity = ROUNDS_TOLD
    p.warmup = p.fit_params = p.ui = False  # warming up is one more empty decode; the server probes with one anyway
    p.cache_ram_mib = p.n_ctx_checkpoints = 0
    # On builds with a GPU backend; the draft's default would be "all layers".
    p.n_gpu_layers = draft.n_gpu_layers = 0
    p.no_op_offload = True
    for cpu in (p.cpuparams, p.cpuparams_batch, draft.cpuparams, draft.cpuparams_batch):
        cpu.n_threads = job.get("threads", 1)
    f32 = type(p.cache_type_k)(F32)
    p.cache_type_k = p.cache_type_v = draft.cache_type_k = draft.cache_type_v = f32
    p.flash_attn_type = xlc.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if job["mtp"]:
        p.load_mtp = True
        p.speculative.types = [xlc.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        draft.backend_sampling = False
        if job["n_max"]:
            draft.n_max = job["n_max"]
        if job["draft"]:
            draft.mparams.path = job["draft"]
    return p


def serve(job: dict[str, Any], prompts: Prompts) -> list[Continuation]:
    """What a new server says behind prompts, all at once; leaves with the server's words if it refuses.

    llama.cpp keeps the pending hidden row of a slot from one request to the next: only a new server drafts like a first
    request. Starting one takes 10 to 150 ms on a tiny model.
    """
    from xllamacpp import Server

    asked = Asked(job["n_max"], job["n_predict"], job.get("top", 0))
    server = Server(parameters(job, len(prompts)))
    try:
        found = together(server.listening_address, prompts, asked, timeout_s=job["timeout_s"])
    except ServerError as error:
        print(error, file=sys.stderr, flush=True)
        flush_log()
        os._exit(1)  # see main
    del server
    gc.collect()
    if job.get("rounds"):
        flush_log()
        print(DONE, file=sys.stderr, flush=True)
    return found


def flush_log() -> None:
    """Wait until llama.cpp's log thread has written all lines: they say why it failed, and leaving would lose them.

    xllamacpp has no call for it, but its library exports llama.cpp's own; without it nothing is waited for.
    """
    import xllamacpp.xllamacpp

    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
        log, flush = library["_Z15common_log_mainv"], library["_Z16common_log_flushP10common_log"]
        log.restype, flush.argtypes, flush.restype = ctypes.c_void_p, [ctypes.c_void_p], None
        flush(log())


def main() -> None:
    """Serve each prompt of the job on standard input by a server of its own."""
    job = json.load(sys.stdin)
    results = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(ImportError):  # on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected; nobody wants their memory on disk
    try:
        if not job["prompts"]:
            from xllamacpp import Server

            _server = Server(parameters(job))  # kept: letting go of it may take forever, see below
        groups = [job["prompts"]] if job.get("together") else [[prompt] for prompt in job["prompts"]]
        for prompts in filter(None, groups):
            for continuation in serve(job, prompts):
                os.write(results, f"{json.dumps(asdict(continuation))}\n".encode())
    except Exception:
        flush_log()
        raise
    # Not by returning: the destructor of a server that has not served yet may wait for its loop forever.
    os._exit(0)


if __name__ == "__main__":
    main()
