"""Roles of tokens. Loads nothing."""

PADDING, SPECIAL, INSTRUCTION, TEXT, SUFFIX, JOINER, CHAT = -1, 0, 1, 2, 3, 4, 5
ELSEWHERE = 6  # of a text token in a window that gives it context, while another window represents it
ROLES = {
    "special": SPECIAL,
    "instruction": INSTRUCTION,
    "text": TEXT,
    "suffix": SUFFIX,
    "joiner": JOINER,
    "chat": CHAT,
}
"""Roles by name; specials are BOS, EOS and what else the tokenizer adds."""
