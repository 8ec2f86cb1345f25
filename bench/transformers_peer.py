"""Greedy generation by transformers, as the peer of bench/decode.py, in a Python that has it.

Standard input is a JSON list of lists of token ids. Prints one JSON object: the tokens behind each prompt, end tokens
ignored, and the seconds that they took with one thread, in float32, behind the prompt.
"""

from __future__ import annotations

import json
import sys
import time

import asked
import torch
import transformers  # type: ignore[import-not-found]


def main() -> None:
    parser = asked.parser(__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="in hub format")
    parser.add_argument("count", type=asked.whole(2), metavar="COUNT", help="tokens behind each prompt")
    options = parser.parse_args()
    path, count = options.checkpoint, options.count
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        )
    except ValueError:
        model = transformers.AutoModelForImageTextToText.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        )
    model.eval()
    tokens, seconds = [], 0.0
    with torch.inference_mode():
        for prompt in json.load(sys.stdin):
            out = model(input_ids=torch.tensor([prompt]), use_cache=True)
            said = [int(out.logits[0, -1].argmax())]
            start = time.monotonic()
            while len(said) < count:
                out = model(input_ids=torch.tensor([said[-1:]]), past_key_values=out.past_key_values, use_cache=True)
                said.append(int(out.logits[0, -1].argmax()))
            seconds += time.monotonic() - start
            tokens.append(said)
    print(json.dumps({"tokens": tokens, "seconds": seconds, "version": transformers.__version__}))


if __name__ == "__main__":
    main()
