"""`nextn upload`: publish GGUF files on the hub as one transaction, verified before it is visible."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nextn.cli.report import Report, report_options
from nextn.gguf_schema.errors import size

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from nextn.convert.hub.facts import Base, Proof
    from nextn.convert.hub.items import Item, Uploaded
    from nextn.convert.hub.release import Release
    from nextn.convert.hub.repository import Repository
    from nextn.convert.hub.upload import CardOf
    from nextn.gguf_schema.contents import LocalFile

FILE = click.Path(path_type=Path, readable=False)
EXAMPLE = """
\b
Examples:
  nextn upload *.gguf shared/*.gguf org/Step-3.7-Flash-GGUF --dry-run
  nextn upload *.gguf shared/*.gguf org/Step-3.7-Flash-GGUF --base stepfun-ai/Step-3.7-Flash
"""


@click.command(epilog=EXAMPLE)
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.argument("repo_id")
@click.option("--private", is_flag=True, help="Make the repository private, if it is made.")
@click.option("--create-pr", is_flag=True, help="Stop at a pull request, for someone else to merge.")
@click.option("--allow-invalid", is_flag=True, help="Upload files though something is wrong with them.")
@click.option("--base", metavar="ORG/NAME[@REVISION]", help="The checkpoint that the files were made from.")
@click.option("--certificate", type=FILE, metavar="FILE", help="A certificate of nextn identity about these files.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done; the hub is read, and nothing is sent.")
@report_options
def command(files: tuple[Path, ...], repo_id: str, **asked: Any) -> None:
    """Publish FILEs in the repository REPO_ID (org/name), which is made if it is not there.

    Files are validated, sent to a branch of their own, checked there, and made visible by one commit. After an
    interruption the same command goes on. The model card is written, or renewed between nextn's markers.
    """
    from nextn.convert.hub.limits import check_repo_id
    from nextn.convert.hub.release import read_release

    check_repo_id(repo_id)
    base = _base(asked["base"])
    report = Report(asked["as_json"], asked["quiet"])
    release = read_release(files)
    for finding in release.findings:
        report.note(str(finding))
    if not release.ok and not asked["allow_invalid"]:
        text = "not uploaded: something is wrong with the files; --allow-invalid uploads them all the same"
        report.result(text, {**_told(release, repo_id), "ok": False, "files": []})
        sys.exit(1)
    _Upload(report, release, repo_id, base, asked).run()


class _Upload:
    """One run of the command on files that may be published."""

    def __init__(self, report: Report, release: Release, repo: str, base: Base | None, asked: dict[str, Any]) -> None:
        from nextn.convert.hub.publishing import writing_api

        self.report, self.release, self.repo, self.base, self.asked = report, release, repo, base, asked
        self.api: HfApi = writing_api()
        self.files: dict[str, LocalFile] = dict(release.files)
        if asked["certificate"]:
            self._add_certificate(asked["certificate"])

    def run(self) -> None:
        """Do it, or with --dry-run show it; ends the process with the status of the first failure."""
        from nextn.convert.hub.publishing import check_token, find_repository, make_repository
        from nextn.convert.hub.upload import Transaction

        dry_run, create_pr, private = (self.asked[key] for key in ("dry_run", "create_pr", "private"))
        if not dry_run:
            check_token(self.api, create_pr=create_pr)
        main = find_repository(self.api, self.repo, private=private)
        self._check_sizes(main)
        hashes = self._hashes()
        items, card_of = self._items(hashes)
        if dry_run:
            self._show(main, items, card_of)
            return
        if main is None:
            make_repository(self.api, self.repo, private=private, create_pr=create_pr)
        whole = not self.asked["allow_invalid"]
        bars = sys.stderr.isatty() and not self.report.quiet
        transaction = Transaction(self.api, self.repo, items, card_of, self.report.note, whole, bars)
        try:
            uploaded = transaction.run(create_pr=create_pr)
        except KeyboardInterrupt as error:
            error.add_note("the same command goes on from here")
            raise
        self._finish(uploaded)

    def _check_sizes(self, main: Repository | None) -> None:
        from nextn.convert.hub.limits import check_sizes
        from nextn.validators.findings import Findings

        found = Findings()
        check_sizes({path: file.size for path, file in self.files.items()}, main.files if main else (), found)
        for finding in found:
            self.report.note(str(finding))

    def _hashes(self) -> dict[str, str | None]:
        """The sha256 of each file by path; --dry-run reads no file to compute one."""
        from nextn.convert.hub.hashes import Hashes
        from nextn.convert.hub.repository import assets_folder

        known = Hashes(assets_folder("hashes"))
        if self.asked["dry_run"]:
            return {path: known.known(file) for path, file in self.files.items()}
        with self.report.progress("hashing", sum(file.size for file in self.files.values())) as progress:
            return {path: known.of(file, progress) for path, file in self.files.items()}

    def _items(self, hashes: dict[str, str | None]) -> tuple[list[Item], CardOf]:
        from nextn.convert.hub.items import Item
        from nextn.convert.hub.publishing import card_writer, facts_of

        proofs = [self._proof(hashes)] if self.asked["certificate"] else []
        facts = facts_of(self.release, hashes, self.base, proofs)
        items = [Item(path, file, hashes[path]) for path, file in self.files.items()]
        return items, card_writer(facts, self.repo)

    def _add_certificate(self, path: Path) -> None:
        from nextn.convert.hub.limits import check_paths
        from nextn.gguf_schema.contents import LocalFile

        check_paths([*((each, file.name) for each, file in self.files.items()), (path.name, str(path))])
        self.files[path.name] = LocalFile(path)

    def _proof(self, hashes: dict[str, str | None]) -> Proof:
        """What the certificate says; InputError when it is about other files."""
        from nextn.convert.hub.facts import Proof
        from nextn.gguf_schema.errors import InputError
        from nextn.runtime.identity.certificate import load_certificate

        path: Path = self.asked["certificate"]
        told = load_certificate(path)
        ours = {digest for digest in hashes.values() if digest}
        others = [file.path for file in told.files if file.sha256 not in ours]
        if others and not self.asked["dry_run"]:
            remedy = "upload the files that it is about, or make another with nextn identity"
            message = f"is about other files, such as {others[0]}"
            raise InputError("other-files", message, subject=str(path), remedy=remedy)
        drafting = [run for run in told.runs if run.n_max > 0]
        return Proof(
            path.name,
            told.verdict,
            len(told.prompts),
            tuple(sorted({run.n_max for run in drafting})),
            sum(run.n_drafted for run in drafting),
            sum(run.n_accepted for run in drafting),
            told.stream_sha256,
            tuple(file.sha256 for file in told.files),
        )

    def _show(self, main: Repository | None, items: list[Item], card_of: CardOf) -> None:
        """What would be done."""
        from nextn.convert.hub.items import Outcome, Result

        every = [*items, card_of(main)]
        there = main.files if main else {}
        results = [
            Result(item, Outcome.PUBLISHED if item.is_at(there.get(item.path)) else Outcome.WOULD_SEND)
            for item in every
        ]
        kind = "private" if self.asked["private"] else "public"
        lines = [] if main else [f"the repository {self.repo} would be made ({kind})"]
        lines += _table(results)
        if any(item.sha256 is None for item in items):
            lines.append("files that were not hashed yet count as not there; they are hashed before they are sent")
        way = "a pull request" if self.asked["create_pr"] else "one commit to the main branch"
        lines.append(f"everything goes to a draft, is checked there, and then to {way}; nothing was sent now")
        told = {**self._json(results), "card": every[-1].source.read(0, every[-1].source.size).decode()}
        self.report.result("\n".join(lines), told)

    def _finish(self, uploaded: Uploaded) -> None:
        draft = uploaded.draft
        told = {
            **self._json(uploaded.results),
            "published": uploaded.commit is not None,
            "commit": uploaded.commit,
            "draft": draft.ref if draft else None,
            "pull_request": draft.url if draft else None,
        }
        lines = _table(uploaded.results)
        lines += [
            f"{result.item.path}: {result.error.message}"
            + (f"\n  {result.error.remedy}" if result.error.remedy else "")
            for result in uploaded.results
            if result.error
        ]
        if uploaded.commit:
            lines.append(f"published: {told['url']} at commit {uploaded.commit}")
        elif uploaded.failure:
            lines.append(
                f"not published: what was sent is in {draft.ref if draft else 'no draft'}; run the same command again"
            )
        elif draft:
            lines.append(f"to be merged: {draft.url}")
        self.report.result("\n".join(lines), told)
        if uploaded.failure:
            sys.exit(uploaded.failure.exit_status)

    def _json(self, results: Any) -> dict[str, Any]:
        return {
            **_told(self.release, self.repo),
            "ok": not any(result.error for result in results),
            "url": f"{self.api.endpoint}/{self.repo}",
            "dry_run": self.asked["dry_run"],
            "files": [result.as_json() for result in results],
        }


def _told(release: Release, repo: str) -> dict[str, Any]:
    return {"repository": repo, "findings": [finding.as_json() for finding in release.findings]}


def _base(text: str | None) -> Base | None:
    """A base model as it is given: org/name, perhaps with @ and a revision."""
    from nextn.convert.hub.facts import Base
    from nextn.convert.hub.limits import check_repo_id

    if text is None:
        return None
    repo, _, revision = text.partition("@")
    check_repo_id(repo)
    return Base(repo, revision or None)


def _table(results: Any) -> list[str]:
    from nextn.cli.verdict import printable, table

    rows = [(printable(result.item.path), size(result.item.source.size), str(result.outcome)) for result in results]
    return table(("file", "size", "outcome"), rows, right=(1,))
