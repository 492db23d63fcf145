"""Shell completion: a static script, written from the tables of commands, keys of a configuration, and names."""

from collections.abc import Iterator

from probes.cli.arguments import Command
from probes.cli.commands.listing import TABLES
from probes.cli.config import list_keys
from probes.cli.table import COMMANDS

KEYS = {
    "decoder.name": "decoders", "extraction.plan": "masks", "extraction.poolings": "poolings", "task.name": "tasks",
    "heads": "heads", "pretraining.corpus": "corpora",
}  # fmt: skip
"""Keys whose values begin with a name of a table of `icecore list`."""
HEADERS = {
    "bash": "# Completion of icecore for bash: icecore completion bash >> ~/.bashrc",
    "zsh": "# Completion of icecore for zsh: icecore completion zsh >> ~/.zshrc\n"
    "(( $+functions[compdef] )) || { autoload -U compinit && compinit; }\nautoload -U +X bashcompinit && bashcompinit",
}


def write_script(shell: str) -> str:
    """Write the script of bash, or of zsh, which reads the same one."""
    cases = [f'        {pattern}) _icecore_offer "{" ".join(names)}"; return ;;' for pattern, names in _values()]
    for command in COMMANDS.values():
        places = [name for each in command.places for name in (*each.values, *_names(each.completes))]
        cases.append(
            f'        "{command.name} "*) _icecore_offer "{" ".join(_options(command))}" "{" ".join(places)}" ;;'
        )
    return "\n".join([
        HEADERS[shell],
        "_icecore_offer() {  # options once a dash is typed, else names; files where there are none",
        '    local word="${COMP_WORDS[COMP_CWORD]}" words="${2-$1}"',
        '    [[ "$word" == -* ]] && words="$1"',
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "_icecore() {",
        "    COMPREPLY=()",
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f'        _icecore_offer "{" ".join([*COMMANDS, "--help", "--version"])}"',
        "        return",
        "    fi",
        '    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in',
        *cases,
        "    esac",
        "}",
        "complete -o default -F _icecore icecore", "",
    ])  # fmt: skip


def _names(table: str) -> list[str]:
    """List the names of a table that can be typed as they are; none where it is no table."""
    rows = TABLES[table]() if table in TABLES else []
    names = dict.fromkeys(name.removeprefix("words: ") for name, _ in rows)
    return [name for name in names if all(c.isalnum() or c in "-_." for c in name)]


def _options(command: Command) -> list[str]:
    own = [name for each in command.options for name in (each.name, each.alias) if name]
    keys = [f"--{each.name}" for each in list_keys()] if command.takes_config else []
    return [*own, *keys, "--help"]


def _values() -> Iterator[tuple[str, list[str]]]:
    """Pair the commands and options before a value with the names that it may be."""
    for command in COMMANDS.values():
        for each in command.options:
            if names := [*each.values, *_names(each.completes)]:
                yield f'"{command.name} {each.name}"', names
    configured = [command.name for command in COMMANDS.values() if command.takes_config]
    for key in list_keys():
        if names := [*key.values, *_names(KEYS.get(key.name, ""))]:
            yield "|".join(f'"{command} --{key.name}"' for command in configured), names
