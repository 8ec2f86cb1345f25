"""Damaged headers of real files: an error that a user can act on, or findings; nothing else, and never slowly."""

from __future__ import annotations

import time
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import headers, judged, mutated

from nextn.gguf_schema.architecture import Role
from nextn.validators.container import examine_sources


@settings(max_examples=400, deadline=None)
@given(st.randoms(use_true_random=False))
def test_damage_gives_an_error_or_findings(random: Random) -> None:
    file = mutated(random, headers())
    begin = time.process_time()
    judged([file])
    assert time.process_time() - begin < 1


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_damage_of_combined_files(random: Random) -> None:
    judged([mutated(random, headers((Role.COMBINED,)))])


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_damage_in_sets(random: Random) -> None:
    judged([mutated(random, headers()) for _ in range(2)])


def test_without_damage_nothing_is_wrong_with_the_container() -> None:
    for header in headers((Role.COMBINED, Role.TRUNK, Role.MTP)):
        container = examine_sources([header.file])
        assert container.whole
        assert container.findings == []
