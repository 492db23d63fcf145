"""conlleval once more, as slowly and plainly as it can be written: one pass, one word at a time, a few flags.

Nothing is shared with the library: no span is ever built here, and sentences are joined by a word outside all spans.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What conlleval has counted at the end of its input."""

    correct: Counter[str] = field(default_factory=Counter)
    guessed: Counter[str] = field(default_factory=Counter)
    gold: Counter[str] = field(default_factory=Counter)
    n_words: int = 0
    n_words_right: int = 0

    def f1(self) -> float:
        """Micro F1 as conlleval prints it, but from 0 to 1."""
        correct, guessed, gold = (sum(counter.values()) for counter in (self.correct, self.guessed, self.gold))
        precision = correct / guessed if guessed else 0.0
        recall = correct / gold if gold else 0.0
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def parts(tag: str) -> tuple[str, str]:
    """Split a tag at its first hyphen."""
    at = tag.find("-")
    return (tag, "") if at < 0 else (tag[:at], tag[at + 1 :])


def ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Whether a span ended between two words."""
    if (before[0], now[0]) in {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}:
        return True
    return before[0] != "O" and before[1] != now[1]


def starts(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Whether a span started between two words."""
    if (before[0], now[0]) in {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}:
        return True
    return now[0] != "O" and before[1] != now[1]


def conlleval(gold: Sequence[Sequence[str]], guessed: Sequence[Sequence[str]]) -> Tally:
    """Run over all sentences as conlleval runs over the lines of its input."""
    tally = Tally()
    outside = ("O", "")
    last_gold, last_guess, both_open = outside, outside, False
    for golds, guesses in zip(gold, guessed, strict=True):
        lines = [(parts(a), parts(b), True) for a, b in zip(golds, guesses, strict=True)]
        for now_gold, now_guess, is_word in [*lines, (outside, outside, False)]:
            gold_ends, guess_ends = ends(last_gold, now_gold), ends(last_guess, now_guess)
            if both_open and gold_ends and guess_ends and last_gold[1] == last_guess[1]:
                both_open = False
                tally.correct[last_gold[1]] += 1
            elif both_open and (gold_ends != guess_ends or now_gold[1] != now_guess[1]):
                both_open = False
            gold_starts, guess_starts = starts(last_gold, now_gold), starts(last_guess, now_guess)
            if gold_starts and guess_starts and now_gold[1] == now_guess[1]:
                both_open = True
            tally.gold[now_gold[1]] += gold_starts
            tally.guessed[now_guess[1]] += guess_starts
            tally.n_words += is_word
            tally.n_words_right += is_word and now_gold == now_guess
            last_gold, last_guess = now_gold, now_guess
    return tally
