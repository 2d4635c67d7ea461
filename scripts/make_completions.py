# SPDX-License-Identifier: MIT
"""Writes completions of the programs for bash and zsh, read off what they say of their flags (--help).

Usage: make_completions.py FOLDER_OF_PROGRAMS SHARE
Makes SHARE/bash-completion/completions/PROGRAM and SHARE/zsh/site-functions/_PROGRAM. The install rules call it.
"""
import pathlib
import re
import sys

from program_help import help_of

FLAG = re.compile(r"^  --([A-Za-z0-9_-]+)(?: (\S*\|\S*))?(?:\s+(.*))?$")
COMMANDS = {"tessera-checkpoint": ("inspect", "verify", "export", "merge", "diff")}  # those with flags are asked, too
# Flags whose values are paths; the others without choices complete nothing.
OF_PATHS = re.compile(r"(_file|_dir|_ids|^config|^model|^tokenizer|^deepspeed|^output|^rows|^adapter|^input|^prompts|^directory|_template|^resume_from_checkpoint)$")


class Flag:
    def __init__(self, name, choices, text):
        self.name, self.choices, self.text = name, [word for word in (choices or "").split("|") if word], text or ""


def flags_in(text):
    """Of a help text: `  --name a|b|c   what it does`, over several lines where it is long."""
    flags = []
    for line in text.splitlines():
        if match := FLAG.match(line):
            flags.append(Flag(*match.groups()))
        elif flags and (more := re.match(r"^ {6}\|(\S+)\s*(.*)$", line)):
            flags[-1].choices += more.group(1).split("|")
            flags[-1].text = (flags[-1].text + " " + more.group(2)).strip()
        elif flags and line.startswith(" " * 30):
            flags[-1].text = (flags[-1].text + " " + line.strip()).strip()
    return flags


def flags_of(program):
    """Of a program and its commands, each once."""
    found = {}
    for words in ((), *((command,) for command in COMMANDS.get(program.name, ()))):
        text = help_of(program, *words)
        flags = flags_in(text)
        if not flags and program.name not in COMMANDS:  # whose text names flags of other programs
            flags = [Flag(name, "", "") for name in re.findall(r"(?<!\S)\[?--([a-z][a-z_-]+)", text)]
        for flag in flags:
            found.setdefault(flag.name, flag)
    found.setdefault("help", Flag("help", "", "print the flags, and stop"))
    found.setdefault("version", Flag("version", "", "print what this build is, and stop"))
    return list(found.values())


def bash(program, flags):
    function = "_" + program.replace("-", "_")
    words = " ".join("--" + flag.name for flag in flags)
    cases = "".join(f"    --{flag.name}) COMPREPLY=($(compgen -W '{' '.join(flag.choices)}' -- \"$cur\")); return ;;\n"
                    for flag in flags if flag.choices)
    paths = "|".join("--" + flag.name for flag in flags if not flag.choices and OF_PATHS.search(flag.name))
    if paths:
        cases += f"    {paths}) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n"
    commands = ""
    if program in COMMANDS:
        commands = f"  if ((COMP_CWORD == 1)); then words='{' '.join(COMMANDS[program])} --help --version'; fi\n"
    return (f"# bash completion of {program}; made by scripts/make_completions.py\n{function}() {{\n"
            f"  local cur=${{COMP_WORDS[COMP_CWORD]}} words='{words}'\n"
            "  case ${COMP_WORDS[COMP_CWORD - 1]} in\n" + cases + "  esac\n" + commands +
            "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
            "  ((${#COMPREPLY[@]})) || { compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\")); }\n"
            f"}}\ncomplete -F {function} {program}\n")


def zsh(program, flags):
    def quoted(text):
        for character in "\\[]:'":
            text = text.replace(character, "'\\''" if character == "'" else "\\" + character)
        return text
    lines = [f"#compdef {program}", "# made by scripts/make_completions.py", "_arguments \\"]
    for flag in flags:
        action = ""
        if flag.choices:
            action = f":value:({' '.join(flag.choices)})"
        elif OF_PATHS.search(flag.name):
            action = ":file:_files"
        elif flag.name not in ("help", "version"):
            action = "::value:"
        lines.append(f"  '--{flag.name}[{quoted(flag.text)[:200]}]{action}' \\")
    lines.append(f"  '1:command:({' '.join(COMMANDS[program])})' '*:file:_files'" if program in COMMANDS else "  '*:file:_files'")
    return "\n".join(lines) + "\n"


def main():
    programs, share = map(pathlib.Path, sys.argv[1:])
    made = 0
    for program in sorted(programs.glob("tessera-*")):
        flags = flags_of(program)
        for folder, name, text in (("bash-completion/completions", program.name, bash(program.name, flags)),
                                   ("zsh/site-functions", "_" + program.name, zsh(program.name, flags))):
            (share / folder).mkdir(parents=True, exist_ok=True)
            (share / folder / name).write_text(text)
        made += 1
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())
