"""What the hub takes: sizes, numbers and names. Expected values are those of its documentation, "Storage limits"."""

from __future__ import annotations

import pytest

from nextn.convert.hub.limits import check_paths, check_repo_id, check_sizes, examine_name, path_in_repo
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError, UsageError
from nextn.validators.findings import Findings

GB = 10**9


@pytest.mark.parametrize("repo", ["org/name", "Org-1/Step-3.7-Flash_GGUF", f"o/{'x' * 96}"])
def test_ids_of_repositories(repo: str) -> None:
    check_repo_id(repo)


@pytest.mark.parametrize(
    "repo",
    ["name", "a/b/c", "/name", "org/", "org/a b", "org/a--b", "org/a..b", "org/-a", "org/a.git", f"o/{'x' * 97}", ""],
)
def test_what_is_no_id_of_a_repository(repo: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_repo_id(repo)
    assert caught.value.code == "repo-id"
    assert caught.value.subject == repo


def test_a_file_has_at_most_500_gb() -> None:
    check_sizes({"a.gguf": 500 * GB}, (), Findings())
    with pytest.raises(InputError, match=r"has 500\.1 GB") as caught:
        check_sizes({"b.gguf": 1, "a.gguf": 500 * GB + GB // 10}, (), Findings())
    assert (caught.value.code, caught.value.subject) == ("hub-file-size", "a.gguf")
    assert "--split-max-size" in str(caught.value.remedy)


def test_above_200_gb_a_file_is_warned_of() -> None:
    found = Findings()
    check_sizes({"a.gguf": 200 * GB, "b.gguf": 201 * GB}, (), found)
    assert [(finding.severity, finding.subject) for finding in found] == [("warning", "b.gguf")]


def test_a_folder_holds_at_most_10000_files() -> None:
    there = [f"f/{index}" for index in range(9_998)]
    check_sizes({"f/x.gguf": 1, "f/y.gguf": 1}, there, Findings())
    # What is there counts once, and a folder counts as one entry.
    check_sizes({"f/0": 1, "f/x.gguf": 1, "f/g/y.gguf": 1}, there, Findings())
    with pytest.raises(InputError, match="would hold 10001 files") as caught:
        check_sizes({"f/x.gguf": 1, "f/y.gguf": 1, "f/z.gguf": 1}, there, Findings())
    assert (caught.value.code, caught.value.subject) == ("hub-folder-size", "f")
    # A folder that is full and gets nothing is nobody's fault now.
    check_sizes({"x.gguf": 1}, [f"f/{index}" for index in range(20_000)], Findings())


def test_above_100000_files_a_repository_is_warned_of() -> None:
    there = [f"{index % 50}/{index}" for index in range(99_999)]
    found = Findings()
    check_sizes({"x.gguf": 1}, there, found)
    assert found == []
    check_sizes({"x.gguf": 1, "y.gguf": 1}, there, found)
    assert [finding.rule for finding in found] == ["hub-files"]


@pytest.mark.parametrize(
    "path", ["a.gguf", "shared/mtp-a.gguf", "Größe.gguf", f"{'x' * 250}.gguf", ".gitattributes.gguf"]
)
def test_paths(path: str) -> None:
    check_paths([(path, "local")])


@pytest.mark.parametrize(
    "path",
    [
        ".git/a.gguf",
        "x/.cache/a.gguf",
        "../a.gguf",
        "x//a.gguf",
        "a\n.gguf",
        "a\udcff.gguf",
        "a\\b.gguf",
        f"{'ü' * 128}.gguf",
    ],
)
def test_paths_that_the_hub_does_not_take(path: str) -> None:
    with pytest.raises(InputError) as caught:
        check_paths([("fine.gguf", "there"), (path, "local")])
    assert (caught.value.code, caught.value.subject) == ("hub-path", "local")


@pytest.mark.parametrize("other", ["a.gguf", "A.gguf"])
def test_two_files_with_one_name(other: str) -> None:
    with pytest.raises(UsageError, match=r"same name as x/a\.gguf") as caught:
        check_paths([("a.gguf", "x/a.gguf"), (other, f"y/{other}")])
    assert caught.value.code == "name-clash"


def test_nothing_takes_the_place_of_the_model_card() -> None:
    with pytest.raises(UsageError, match="the same name as the model card"):
        check_paths([("Readme.md", "certificate/Readme.md")])


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (Role.COMBINED, "n.gguf"),
        (Role.TRUNK, "n.gguf"),
        (Role.MTP, "n.gguf"),
        (Role.MTP_SHARED, "shared/n.gguf"),
        (None, "n.gguf"),
    ],
)
def test_sidecars_get_a_folder_of_their_own(role: Role | None, expected: str) -> None:
    assert path_in_repo("n.gguf", role) == expected


@pytest.mark.parametrize(
    ("role", "name", "is_fine"),
    [
        (Role.MTP, "mtp-Tiny-Q8_0.gguf", True),
        (Role.MTP, "Tiny-mtp-Q8_0.gguf", True),
        (Role.MTP, "Tiny-MTP-Q8_0.gguf", False),
        (Role.MTP, "Tiny-Q8_0.gguf", False),
        (Role.TRUNK, "Tiny-trunk-Q8_0.gguf", True),
        (Role.TRUNK, "mtp-Tiny-trunk-Q8_0.gguf", False),
        (Role.COMBINED, "Tiny-eagle3-Q8_0.gguf", False),
        (Role.COMBINED, "Tiny-mmproj.gguf", False),
        (Role.MTP_SHARED, "shared/anything.gguf", True),
        (None, "mmproj-Tiny.gguf", True),
    ],
)
def test_names_tell_llama_cpp_the_role(role: Role | None, name: str, is_fine: bool) -> None:
    found = Findings()
    examine_name(name, role, found)
    assert [finding.rule for finding in found] == ([] if is_fine else ["hub-name"])
