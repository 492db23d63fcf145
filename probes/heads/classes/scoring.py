"""Scoring new texts, or pairs of texts, with the class heads of a run."""

from typing import Any

from probes.heads.scoring import KindScoring, score_texts


def _fields(row: Any, name: str) -> dict[str, Any]:
    texts = {"text": row} if isinstance(row, str) else {"text1": row[0], "text2": row[1]}
    return {"class": name, **texts}


CLASSES_SCORING = KindScoring(score_texts, _fields, n_texts=lambda record: 2 if record["is_pairs"] else 1)
