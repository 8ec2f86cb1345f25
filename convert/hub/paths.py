"""Which paths of a repository can be used: names that others chose become files here, and are printed."""

from __future__ import annotations

from pathlib import PureWindowsPath

# git and file systems take no longer names.
NAME_BYTES = 255


def path_problem(path: str) -> str | None:
    """Why a path of a repository cannot be used, here or elsewhere; None when it can."""
    parts = path.split("/")
    if not path.isprintable():  # Surrogates, by which Python keeps what is not UTF-8, are not.
        return "it has characters that cannot be shown"
    if any(part in ("", ".", "..") for part in parts):
        return "a part of it is empty or made of dots"
    if "\\" in path:
        return "it has a backslash, which separates folders elsewhere"
    if PureWindowsPath(path).drive:
        return "it begins with the name of a drive"
    if any(len(part.encode()) > NAME_BYTES for part in parts):
        return f"names have at most {NAME_BYTES} bytes"
    return None
