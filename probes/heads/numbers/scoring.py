"""Scoring new texts with the number heads of a run."""

from probes.heads.scoring import KindScoring, score_texts

NUMBERS_SCORING = KindScoring(score_texts, lambda text, number: {"number": float(number), "text": text})
