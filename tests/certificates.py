"""Certificates made by hand, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from nextn.runtime.identity.certificate import FORMAT, Certificate, from_json

CATEGORIES = (
    "code_python",
    "code_cpp",
    "explain_concept",
    "summarize",
    "qa_factual",
    "translation",
    "creative_short",
    "stepwise_math",
    "long_code_review",
    "long_context",
    "multi_sequence",
)
N_MAX = (1, 2, 3, 5)
WITHOUT = "On Wednesday it will be snowy in Kyoto and about -6 °C, so put on warm shoes."
WITH = "On Wednesday it will be sunny in Kyoto and about 21 °C, so leave the coat at home."


def certificate(**changed: Any) -> Certificate:
    """The empty certificate, with other values for some of its keys."""
    told: dict[str, Any] = {
        "format": FORMAT,
        "identical": True,
        "verdict": "identical",
        "cause": None,
        "engines": [],
        "prompts": [],
        "runs": [],
        "aggregate": [],
        "findings": [],
        "stream_sha256": None,
        "files": [],
        "versions": {},
        "settings": {},
        "command": [],
        "created": "2026-11-30T00:00:00+00:00",
    }
    return from_json(told | changed)


def run(prompt: str = "p", n_max: int = 0, tokens: tuple[int, ...] = (1, 2, 3, 4), **changed: Any) -> dict[str, Any]:
    """A finished run, as JSON."""
    told: dict[str, Any] = {
        "engine": "reference",
        "prompt": prompt,
        "category": "code_python",
        "n_max": n_max,
        "order": "B1" if n_max else "A1",
        "status": "ok",
        "message": "",
        "tokens": list(tokens),
        "text": None,
        "stop": "limit",
        "n_drafted": 10 * n_max,
        "n_accepted": 7 * n_max,
        "class": 1,
        "identical": True if n_max else None,
        "seconds_prefill": 0.1,
        "seconds_decode": 0.5,
    }
    return told | changed


def typical(engines: tuple[str, ...] = ("reference",), prompts: int = len(CATEGORIES)) -> dict[str, Any]:
    """Keys of an identical certificate as the command makes it: ABBA runs of each prompt at four draft lengths."""
    names = [f"{CATEGORIES[i % len(CATEGORIES)]}_{i // len(CATEGORIES) + 1}" for i in range(prompts)]
    runs = [
        run(
            name,
            0 if order[0] == "A" else n_max,
            tuple(range(100, 148)),
            engine=engine,
            category=CATEGORIES[index % len(CATEGORIES)],
            order=order,
            text=WITHOUT,
            n_drafted=0 if order[0] == "A" else 40 + n_max,
            n_accepted=0 if order[0] == "A" else 40 - 5 * n_max - index % 11,
            seconds_decode=0.5 if order[0] == "A" else 0.42 - 0.03 * n_max,
        )
        for engine in engines
        for n_max in N_MAX
        for index, name in enumerate(names)
        for order in ("A1", "B1", "B2", "A2")
    ]
    return {
        "engines": [
            {
                "name": engine,
                "describe": {"context": "8192", "vocabulary": "512", "dtype": "float32"},
                "deterministic": True,
                "verdict": "identical",
                "stream_sha256": "5e" * 32,
            }
            for engine in engines
        ],
        "prompts": [
            {
                "name": name,
                "category": CATEGORIES[index % len(CATEGORIES)],
                "prompt_tokens": 12,
                "tokens": list(range(12)),
                "text": "Weather report for Kyoto.\n",
            }
            for index, name in enumerate(names)
        ],
        "runs": runs,
        "aggregate": [
            {
                "engine": engine,
                "n_max": n_max,
                "n_requests": 2 * prompts,
                "total_predicted": 96 * prompts,
                "total_draft": (40 + n_max) * prompts,
                "total_draft_accepted": (35 - 5 * n_max) * prompts,
                "aggregate_accept_rate": (35 - 5 * n_max) / (40 + n_max),
                "wall_s_total": 0.8 * prompts,
                "accepted_by_position": [0.93 - 0.09 * place - 0.01 * n_max for place in range(n_max)],
                "accepted_by_decile": [None if tenth == 6 else 0.9 - 0.02 * tenth for tenth in range(10)],
            }
            for engine in engines
            for n_max in N_MAX
        ],
        "files": [{"path": "out/Step35-Tiny-Q8_0.gguf", "sha256": "ab" * 32}],
        "versions": {"nextn": "0.1.0", "python": "3.11.2", "torch": "2.9.0"},
        "settings": {"n_predict": 48, "n_max": [1, 2, 3, 5], "bound": 0.001},
        "command": ["nextn", "identity", "-m", "out/Step35-Tiny-Q8_0.gguf", "-o", "result"],
        "stream_sha256": "cd" * 32,
    }


def differing(verdict: str, cause: str | None, **changed: Any) -> Certificate:
    """A typical certificate in which the first prompt's runs at drafts of 3 and 5 part at token 24."""
    told = typical(("reference", "llama-cpp"))
    for each in told["runs"]:
        if (each["prompt"], each["engine"]) == ("code_python_1", "llama-cpp") and each["n_max"] >= 3:
            each |= {
                "tokens": [*range(100, 124), 900, *range(700, 723)],
                "text": WITH,
                "class": 2,
                "identical": False,
                "first_divergence": 24,
                "margin": 0.00021,
                "margins": {"float32": 0.000214, "float64": 0.00021},
                "divergence": {
                    "index": 24,
                    "without": 124,
                    "with": 900,
                    "without_text": "snowy",
                    "with_text": "sunny",
                },
            }
    told["engines"][1] |= {"verdict": verdict, "cause": cause}
    told["findings"] = [
        {
            "severity": "warning",
            "rule": "acceptance-low",
            "subject": "llama-cpp",
            "message": "1 of 633 drafted tokens was accepted",
            "remedy": "check that the head belongs to this trunk",
        },
        {"severity": "note", "rule": "depth", "subject": "llama-cpp", "message": "the index does not move with n_max"},
    ]
    return certificate(**(told | {"identical": False, "verdict": verdict, "cause": cause} | changed))
