"""Chat templates of strangers: written as transformers writes them, and ended where they do not end."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from extract.errors import InputError
from extract.inputs import tokens
from extract.inputs.tokens import render_chat
from tests.extract.tiny_decoders import make_tokenizer

MESSAGES = [{"role": "system", "content": "Be cold."}, {"role": "user", "content": "Ice \ue000 <b>"}]
HONEST = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{{ m | tojson }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ENDLESS = (
    "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("begins_answer", [False, True])
def test_a_chat_is_written_as_transformers_writes_it(begins_answer: bool) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = HONEST
    expected = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=begins_answer)
    assert render_chat(tokenizer, MESSAGES, begins_answer=begins_answer) == expected


@pytest.mark.long
@pytest.mark.parametrize("template", [ENDLESS, "{{ 9 ** (9 ** 9) }}"], ids=["loop", "one operation"])
def test_a_template_that_never_ends_ends_in_one_sentence(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, where no signal arrives."""
    monkeypatch.setattr(tokens, "CHAT_SECONDS", 1)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="did not end within 1 seconds"):
        pool.submit(render_chat, tokenizer, MESSAGES, begins_answer=False).result()


@pytest.mark.long
@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 'a' * 20000000 }}", "it writes more than 10,000,000 characters"),
        ("{{ 'a' * 6000000000 }}", "MemoryError"),
    ],
)
def test_a_template_that_would_fill_the_memory_ends_in_one_sentence(template: str, why: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=f"cannot be written: .*{why}"):
        render_chat(tokenizer, MESSAGES, begins_answer=False)
