"""One commit to the main branch in one request, of data that the hub has already.

huggingface_hub's `create_commit` asks several things first, and each could fail; what it posts then is this. Source:
its `_prepare_commit_payload`, lines of JSON with a key and a value each.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from huggingface_hub import HfApi


def pointer(path: str, size: int, sha256: str | None) -> dict[str, Any]:
    """The line of a large file, which the hub knows by its sha256."""
    return {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": sha256, "size": size}}


def content(path: str, data: bytes) -> dict[str, Any]:
    """The line of a small file."""
    value = {"path": path, "encoding": "base64", "content": base64.b64encode(data).decode()}
    return {"key": "file", "value": value}


def commit_pointers(api: HfApi, repo: str, message: str, parent: str, lines: Sequence[dict[str, Any]]) -> None:
    """Commit files to the main branch of a repository, whose last commit must be `parent`.

    Raises the errors of huggingface_hub and of the network.
    """
    from huggingface_hub import get_session
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    header = {"key": "header", "value": {"summary": message, "description": "", "parentCommit": parent}}
    response = get_session().post(
        f"{api.endpoint}/api/models/{repo}/commit/main",
        headers={**build_hf_headers(library_name="nextn"), "Content-Type": "application/x-ndjson"},
        content="".join(json.dumps(line) + "\n" for line in (header, *lines)).encode(),
    )
    hf_raise_for_status(response, endpoint_name="commit")
