"""Rendering a chat template, which is a program of whoever made the checkpoint: in a process that has a time limit."""

import json
import subprocess
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from extract.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SECONDS = 10
"""Longest time that a chat template may take; real ones take milliseconds."""
START_SECONDS = 120
"""Longest time that the process may take in total; it is a second where the disk is quick."""
CODE = """
import json, signal, sys
job = json.load(sys.stdin)
sys.path[:] = job["path"]
from transformers.utils.chat_template_utils import render_jinja_template
if hasattr(signal, "alarm"):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process within one endless operation too
    signal.alarm(job["seconds"])
try:
    answer = {"text": render_jinja_template(**job["arguments"])[0][0]}
except Exception as error:
    line = (str(error).strip().splitlines() or [""])[0]
    answer = {"error": f"{type(error).__name__}: {line[:200]}".removesuffix(": ").rstrip(".")}
sys.stdout.write(json.dumps(answer))
"""
"""The program of the process. It reads nothing but its job, and imports from the same path as this process."""


def render_chat(tokenizer: "PreTrainedTokenizerBase", messages: list[dict[str, str]], *, begins_answer: bool) -> str:
    """Write a chat by the template of a tokenizer, as `apply_chat_template` does, with or without a begun answer.

    The template may come from anybody: `InputError` where it raises an error, or does not end in time.
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:  # several templates, none of which is the default
        raise InputError(f"the chat template of this tokenizer cannot be written: {first_line(error)}.") from error
    arguments = {
        **tokenizer.special_tokens_map,
        "conversations": [messages],
        "chat_template": template,
        "add_generation_prompt": begins_answer,
    }
    return _render(json.dumps(arguments, default=str), SECONDS)


@lru_cache(maxsize=256)
def _render(arguments: str, seconds: int) -> str:
    job = json.dumps({"arguments": json.loads(arguments), "seconds": seconds, "path": sys.path})
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-c", CODE],
            input=job,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=START_SECONDS,
            check=False,
        )
        answer = json.loads(ended.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise InputError(
            f"the chat template of this tokenizer did not end within {seconds} seconds, or ended its process; set chat "
            "to 'none', or use a tokenizer of people you trust."
        ) from error
    if "error" in answer:
        raise InputError(f"the chat template of this tokenizer cannot be written: {answer['error']}.")
    return str(answer["text"])
