"""The prompts of a check: nine kinds that drafts are commonly measured on, a long one, and several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

TOGETHER = "multi_sequence"
LONG = "long_context"


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids; those of the category `multi_sequence` are also run all at once."""

    name: str
    category: str
    tokens: tuple[int, ...]
    text: str | None = None


TEXTS: dict[str, str] = {
    "code_python": (
        "# Returns the words of a text that occur more than once, in the order of their first use.\n"
        "def repeated_words(text):\n    seen = {}\n    for word in text.split():\n"
    ),
    "code_cpp": (
        "// A queue of fixed size; push gives false when it is full.\n"
        "template <typename T, int N>\nclass RingQueue {\n public:\n  bool push(const T& value) {\n"
    ),
    "explain_concept": (
        "Question: Why does a metal spoon feel colder than a wooden one in the same room?\n"
        "Answer, in plain words for a child of ten:"
    ),
    "summarize": (
        "Text: The ferry to the island was cancelled on Monday because of the storm. On Tuesday it ran again, but only "
        "twice a day, and most of the fresh bread had already been sold when it came in.\nSummary in one sentence:"
    ),
    "qa_factual": "Q: Which planet is closest to the sun?\nA: Mercury.\nQ: How many days has a leap year?\nA:",
    "translation": (
        "English: The museum opens at nine, and children enter free.\n"
        "German: Das Museum öffnet um neun, und Kinder haben freien Eintritt.\n"
        "English: The train was late, so we walked along the river.\nGerman:"
    ),
    "creative_short": "A very short story about a lighthouse keeper who collects letters.\n\nThe first letter came",
    "stepwise_math": (
        "A baker fills 7 trays with 12 rolls each and sells 58 rolls. How many are left?\n"
        "Step 1: 7 * 12 = 84 rolls were baked.\nStep 2:"
    ),
    "long_code_review": (
        "Please review this function and list what can go wrong.\n\n"
        "def read_settings(path, defaults={}):\n"
        "    file = open(path)\n"
        "    for line in file:\n"
        "        if line[0] == '#':\n"
        "            continue\n"
        "        name, value = line.split('=')\n"
        "        defaults[name] = eval(value)\n"
        "    return defaults\n\n"
        "def save_settings(path, settings):\n"
        "    with open(path, 'w') as file:\n"
        "        for name in settings:\n"
        "            file.write(name + '=' + str(settings[name]))\n\n"
        "Review:\n1."
    ),
}
# Of different lengths, and one of them twice: equal prompts must get equal answers.
AT_ONCE: tuple[str, ...] = (
    "Shopping list for a soup: onions, carrots,",
    "Dear Ms. Okafor,\nthank you for your order of three garden chairs. Unfortunately the green ones",
    "for i in range(10):\n    print(i",
    "Shopping list for a soup: onions, carrots,",
)
# A diary grows by one entry after the other until the long prompt is long enough.
ENTRY = "Day {day}. We walked {walked} miles to {place} and met {met}. At night it {weather}, and supper was {food}.\n"
WORDS: dict[str, tuple[str, ...]] = {
    "place": ("the mill", "a farm by the lake", "the old bridge", "a village", "the pass"),
    "met": ("a shepherd", "two cyclists", "nobody", "a boy with a kite", "the postwoman", "an old friend", "a tailor"),
    "weather": ("rained", "was clear", "snowed a little", "grew windy"),
    "food": ("soup", "bread and cheese", "beans", "fish from the river", "pancakes", "rice"),
}


def default_prompts(encode: Callable[[str], Sequence[int]], long: int) -> list[Prompt]:
    """The prompts of every category; the one of long context is cut to `long` tokens."""
    found = [Prompt(name, name, tuple(encode(text)), text) for name, text in TEXTS.items()]
    if long > max(len(prompt.tokens) for prompt in found):
        found.append(Prompt(LONG, LONG, tuple(_diary(encode, long))))
    for number, text in enumerate(AT_ONCE, 1):
        found.append(Prompt(f"{TOGETHER}_{number}", TOGETHER, tuple(encode(text)), text))
    return found


def _diary(encode: Callable[[str], Sequence[int]], rows: int) -> Sequence[int]:
    """A text of so many tokens that does not repeat itself."""
    days = 8
    while len(tokens := encode("".join(map(_entry, range(1, days + 1))))) < rows:
        days *= 2
    return tokens[:rows]


def _entry(day: int) -> str:
    chosen = {name: words[day % len(words)] for name, words in WORDS.items()}
    return ENTRY.format(day=day, walked=3 + day * 7 % 11, **chosen)
