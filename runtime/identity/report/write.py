"""Write the report into a folder: the page and its plots."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nextn.gguf_schema.errors import InputError, extra
from nextn.runtime.identity.certificate import Certificate


def write_report(certificate: Certificate, folder: Path) -> list[Path]:
    """Write `report.html` and the plots for which there are numbers; the paths of the written files, the page first.

    The same certificate gives the same files. Each is written under another name and renamed when all are there.
    Raises InputError without the packages of the extra `report`, or when a file cannot be written.
    """
    try:
        from nextn.runtime.identity.report.html import page
        from nextn.runtime.identity.report.plots import plots
    except ModuleNotFoundError as error:
        message = f"the report needs {error.name}, which is not installed"
        raise InputError("report-missing", message, remedy=extra("report")) from error
    # What HTML cannot say in UTF-8, such as half of a pair, was made visible by the page.
    files = {"report.html": page(certificate).encode("utf-8"), **plots(certificate)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with _partial(folder, name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for name in files:
            _partial(folder, name).replace(folder / name)
    except OSError as error:
        for name in files:
            with suppress(OSError):
                _partial(folder, name).unlink(missing_ok=True)
        raise InputError("write-error", f"cannot be written: {error.strerror}", subject=str(folder)) from error
    return [folder / name for name in files]


def _partial(folder: Path, name: str) -> Path:
    return folder / f"{name}.partial"
