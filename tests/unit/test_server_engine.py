"""A server as an engine: what it is asked, what it may answer, and how everything else becomes an outcome."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from serving import Answer, answer, scripted, usual

from nextn.gguf_schema.errors import InputError
from nextn.runtime.engines.engine import Asked, Continuation
from nextn.runtime.engines.llama_server import LlamaServer
from nextn.runtime.engines.server import NOT_TOLD, Server
from nextn.runtime.engines.server_api import ServerError, send, with_rounds

SIZE = 512
N_MAX = "speculative.n_max"


def obedient(body: dict[str, Any]) -> Answer:
    """Drafts as each request asks, and says so."""
    n_max = body[N_MAX]
    return 200, answer([5, 6, 7, 8, 9], 2 * n_max, n_max, generation_settings={N_MAX: n_max})


def test_a_request_is_greedy_uses_nothing_of_earlier_ones_and_says_how_long_drafts_may_be() -> None:
    seen = []

    def complete(body: dict[str, Any]) -> Answer:
        seen.append(body)
        return obedient(body)

    with scripted(usual(complete)) as url:
        engine = Server(url, None, (1, 2), SIZE)
        outcome = engine.run([(1, 2, 3), (4,)], Asked(2, 5))
    assert outcome.ok
    assert [body["prompt"] for body in seen] == [[1, 2, 3], [4]]
    for body in seen:
        assert (body["n_predict"], body["temperature"], body["top_k"]) == (5, 0.0, 1)
        assert (body["cache_prompt"], body["return_tokens"], body[N_MAX]) == (False, True, 2)
        assert "n_probs" not in body
    made = outcome.continuations[0]
    assert (made.tokens, made.stop, made.n_drafted, made.n_accepted) == ((5, 6, 7, 8, 9), "limit", 4, 2)
    assert (made.seconds_prefill, made.seconds_decode) == (0.01, 0.02)
    assert engine.describe()["drafts"] == "as each request asks"


def test_it_tells_what_the_server_tells_of_itself() -> None:
    with scripted(usual(obedient)) as url:
        engine = Server(url, None, (1,), SIZE)
    assert engine.context == 512
    told = engine.describe()
    assert (told["version"], told["model"], told["vocabulary"], told["context"]) == (
        "b1-test",
        "/models/m.gguf",
        "512",
        "512",
    )
    assert told["kv_type"] == NOT_TOLD


def test_log_probabilities_are_those_that_are_there() -> None:
    probabilities = [
        {"id": 5, "logprob": -0.1, "top_logprobs": [{"id": 5, "logprob": -0.1}, {"id": 9, "logprob": -2.5}]},
        {"id": 6, "logprob": 0.0, "top_logprobs": []},
    ]

    def complete(body: dict[str, Any]) -> Answer:
        assert body["n_probs"] == 2
        return 200, answer([5, 6], completion_probabilities=probabilities)

    with scripted(usual(complete)) as url:
        outcome = Server(url, None, (1,), SIZE).run([(1,)], Asked(0, 2, top=2))
    assert outcome.continuations[0].top == (((5, -0.1), (9, -2.5)), ())


def test_a_server_that_drafts_unasked_needs_a_plain_one_beside_it() -> None:
    with scripted(usual(lambda _: (200, answer([5, 6, 7], 3, 1)))) as drafting:
        alone = Server(drafting, None, (3,), SIZE).run([(1,)], Asked(0, 3))
        assert alone.status == "error"
        assert "give --engine PLAIN_URL,DRAFT_URL" in alone.message
        with scripted(usual(lambda body: (200, answer([5, 6, 7])) if N_MAX not in body else (500, {}))) as plain:
            both = Server(drafting, plain, (3,), SIZE)
            assert both.name == f"{plain},{drafting}"
            assert both.run([(1,)], Asked(0, 3)).ok
            assert both.run([(1,)], Asked(3, 3)).continuations[0].n_drafted == 3
            assert both.describe()["drafts"] == "as the server was started"


def test_a_server_that_drafts_as_it_was_started_is_asked_for_one_length() -> None:
    with scripted(usual(lambda _: (200, answer([5, 6, 7], 3, 1)))) as url:
        outcome = Server(url, None, (1, 3), SIZE).run([(1,)], Asked(3, 3))
        assert "give --n-max the one length" in outcome.message
        # Three tokens take at most two rounds: of one draft token each there cannot have been twelve.
    with scripted(usual(lambda _: (200, answer([5, 6, 7], 12, 1)))) as url:
        assert "too many for drafts of at most 1" in Server(url, None, (1,), SIZE).run([(1,)], Asked(1, 3)).message


def test_several_prompts_go_to_slots_of_their_own_if_there_are_so_many() -> None:
    seen = set()

    def complete(body: dict[str, Any]) -> Answer:
        seen.add((body["id_slot"], tuple(body["prompt"])))
        return 200, answer([10 * body["id_slot"]])

    with scripted(usual(complete)) as url:
        engine = Server(url, None, (1,), SIZE)
        outcome = engine.run_together([(1,), (2,)], Asked(0, 1))
        assert outcome is not None
        assert [made.tokens for made in outcome.continuations] == [(0,), (10,)]
        assert engine.run_together([(1,), (2,), (3,)], Asked(0, 1)) is None
    assert seen == {(0, (1,)), (1, (2,))}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ((200, b"<html>hello</html>"), "no JSON"),
        ((200, b'{"tokens": [1, 2'), "no JSON"),
        ((200, b"[" * 100_000), "no JSON"),
        ((200, {}), "KeyError: 'tokens'"),
        ((200, []), "something else"),
        ((200, None), "something else"),
        ((200, {"tokens": "abc", "stop_type": "limit"}), "no whole number"),
        ((200, {"tokens": [1.5], "stop_type": "limit"}), "no whole number"),
        ((200, {"tokens": [True], "stop_type": "limit"}), "no whole number"),
        ((200, {"tokens": [1], "stop_type": "mood"}), "KeyError: 'mood'"),
        ((200, {"tokens": [1], "stop_type": "limit", "timings": {"prompt_ms": "fast"}}), "something else"),
        ((200, {"tokens": [1], "stop_type": "limit", "timings": [1]}), "something else"),
        ((400, {"error": {"message": "the prompt is too long"}}), "the prompt is too long (status 400)"),
        ((200, {"error": {"message": "odd"}}), "odd"),
        ((500, {"error": "plain words"}), "plain words"),
        ((503, {"error": {"message": "Loading model"}}), "Loading model"),
    ],
)
def test_whatever_else_it_answers_is_an_error_of_the_run_and_keeps_what_came_before(told: Answer, message: str) -> None:
    def complete(body: dict[str, Any]) -> Answer:
        return (200, answer([9])) if body["prompt"] == [1] else told

    with scripted(usual(complete)) as url:
        outcome = Server(url, None, (1,), SIZE).run([(1,), (2,)], Asked(0, 1))
    assert outcome.status == "error"
    assert message in outcome.message
    assert [made.tokens for made in outcome.continuations] == [(9,)]


def test_a_server_that_dies_between_requests_is_an_error_of_the_run() -> None:
    with scripted(usual(obedient)) as url:
        engine = Server(url, None, (1,), SIZE)
    outcome = engine.run([(1,)], Asked(1, 1))
    assert outcome.status == "error"
    assert "does not answer /completion" in outcome.message


def test_an_answer_that_never_ends_is_given_up() -> None:
    """Every byte comes in time, and there is always one more."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            with listening.accept()[0] as peer, suppress(OSError):
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    peer.sendall(b" ")
                    time.sleep(0.01)

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(ServerError, match="does not end"):
            send(f"http://127.0.0.1:{listening.getsockname()[1]}", "/props", timeout_s=0.2)
        thread.join()


@pytest.mark.parametrize(
    ("told", "message"),
    [((302, b""), "no JSON .status 302"), ((301, b"<html>moved</html>"), "no JSON .status 301")],
)
def test_a_redirection_is_no_server(told: Answer, message: str) -> None:
    with scripted(lambda *_: told) as url, pytest.raises(InputError, match=message):
        Server(url, None, (1,), SIZE)


def test_a_dead_server_is_an_input_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="does not answer /props") as caught:
            Server(url, None, (1,), SIZE)
    assert caught.value.subject == url


@pytest.mark.parametrize(
    ("props", "message"),
    [
        ((503, {"error": {"message": "Loading model"}}), "Loading model"),
        ((404, b"File not found"), "no JSON"),
        ((200, b""), "no JSON"),
    ],
)
def test_a_server_without_a_model_is_an_input_error(props: Answer, message: str) -> None:
    with scripted(lambda _, __: props) as url, pytest.raises(InputError, match=message):
        Server(url, None, (1,), SIZE)


def test_a_server_with_another_model_is_an_input_error() -> None:
    with scripted(usual(obedient)) as url, pytest.raises(InputError, match="512 tokens, the file has 700"):
        Server(url, None, (1,), 700)


def test_a_server_that_tells_little_of_itself_can_be_used() -> None:
    def script(path: str, body: dict[str, Any]) -> Answer:
        return {"/props": (200, {}), "/v1/models": (404, {})}.get(path) or obedient(body)

    with scripted(script) as url:
        engine = Server(url, None, (1,), SIZE)
        assert engine.run([(1,)], Asked(1, 5)).ok
    assert (engine.context, engine.slots) == (None, 1)
    assert engine.describe()["version"] == NOT_TOLD


@pytest.mark.parametrize(
    ("more", "kv_type"), [("", "f32"), (" --cache-type-k q8_0", "q8_0"), (" -ctk q8_0 -ctk q4_0 -ngl 9", "q4_0")]
)
def test_the_type_of_the_cache_is_that_of_the_last_flag(more: str, kv_type: str) -> None:
    engine = LlamaServer(sys.executable + more, Path("m.gguf"), None, 512, SIZE)
    assert engine.describe()["kv_type"] == kv_type


LOG = """\
0.1 D slot handle_last_: id  0 | task 4 | generate_draft: id=1, #tokens=16, #draft=3, pos_next=16
0.1 D slot   operator(): id  0 | task 4 | add accepted tokens: sampled=65, ids.size=4, n_draft=3
0.1 D slot handle_last_: id  1 | task 5 | generate_draft: id=1, #tokens=8, #draft=3, pos_next=8
0.1 D slot handle_last_: id  0 | task 4 | generate_draft: id=1, #tokens=20, #draft=3, pos_next=20
0.1 D slot   operator(): id  1 | task 5 | add accepted tokens: sampled=65, ids.size=1, n_draft=2
0.1 D slot   operator(): id  0 | task 4 | add accepted tokens: sampled=65, ids.size=2, n_draft=3
"""


def test_the_log_tells_the_rounds_of_each_slot_or_task() -> None:
    first, second = Continuation((1,), "eos", 6, 4), Continuation((1,), "eos", 2, 0)
    rounds = ((16, 3, 3), (20, 3, 1)), ((8, 2, 0),)
    assert [each.rounds for each in with_rounds([first, second], LOG, slots=True)] == [*rounds]
    plain = Continuation((1,), "eos", 0, 0)
    assert [each.rounds for each in with_rounds([first, plain, second], LOG, slots=False)] == [rounds[0], (), rounds[1]]


def test_a_log_that_does_not_add_up_is_not_believed() -> None:
    other = Continuation((1,), "eos", 7, 4)
    assert with_rounds([other], LOG, slots=True)[0].rounds is None
