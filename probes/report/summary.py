"""The Markdown summary of a run folder."""

from typing import Any

from probes.report.table import COLUMNS, markdown_table, score_rows


def summary_text(scores: dict[str, Any], figures: dict[str, str]) -> str:
    """Write the summary of a run.

    Args:
        scores: The content of scores.json.
        figures: Title to file name, relative to the run folder.

    Returns:
        Markdown.
    """
    task, cache, decoder = scores["task"], scores["cache"], scores["decoder"]
    sample = "\n> The task is a **sample** shipped with the project: its scores are no benchmark result.\n"
    parts = [
        f"# {scores['name']}",
        sample if task["is_sample"] else "",
        f"Command: `{scores['command']}`\n",
        markdown_table(score_rows(scores), COLUMNS),
        "\nCorrelations are of the whole split, times 100; mean ± standard deviation over seeds. The interval is a "
        f"{scores['n_resamples']}-fold bootstrap over test pairs. Epoch, layer and kind were chosen on validation; "
        "nothing was chosen on test (protocol `icecore`, docs/protocol.md).\n",
        "## What was used\n",
        f"- Decoder: `{decoder['name']}` ({decoder['family']}, {decoder['n_layers']} blocks, width {decoder['width']}, "
        f"{decoder['dtype']}, weights `{decoder['weight_digest'][:12]}`, revision `{decoder['revision'] or 'local'}`)",
        f"- Plan `{cache['plan']}`, poolings {', '.join(cache['poolings'])}, BOS policy `{cache['template']['bos']}`, "
        f"instruction {cache['template']['instruction']!r}",
        f"- Cache: `{cache['file']}`, {cache['n_rows']:,} texts, identity `{cache['id'][:12]}`, "
        f"{cache['n_truncated']} truncated",
        f"- Task: `{task['name']}`, {task['source']}; "
        + ", ".join(f"{split} {n:,}" for split, n in task["n_pairs"].items()),
        f"- {_machine(scores)}",
    ]
    if task["notes"]:
        parts += ["\n## Mind in the data\n", *(f"- {note}" for note in task["notes"])]
    identical = [
        f"- `{name}`: " + ", ".join(f"{entry['identical_similarity']:.3f}" for entry in result["seeds"])
        for name, result in scores["heads"].items()
    ]
    parts += [
        "\n## Prediction for a text paired with itself\n",
        "Before calibration, in [0, 1], per seed. A cosine head gives all identical pairs this one constant.\n",
        *identical,
        "\n## Figures\n",
        *(f"![{title}]({file})" for title, file in figures.items()),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _machine(scores: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in scores["versions"].items())
    return f"Commit `{scores['commit'] or 'not a checkout'}`, device `{scores['device']}`, {versions}"
