# SPDX-License-Identifier: Apache-2.0
"""The pages docs/reference/cairnd.md and cairnctl.md say what the programs say of themselves.

usage: reference.py CAIRND CAIRNCTL [--write]
"""

import os
import pathlib
import re
import subprocess
import sys

import tree

FOLDER = tree.ROOT / "docs" / "reference"
MADE = "<!-- Made from --help by tests/style/reference.py --write: do not edit. -->"

CAIRND = """# Flags of `cairnd`

{made}

Each flag is also an environment variable and a key of the YAML file that `--config` names: `--host-bytes 16GiB`,
`CAIRN_HOST_BYTES=16GiB` and `host-bytes: 16GiB` say the same. [Operations](../guides/operations.md) explains the ones that you will set.

```
{head}
```

{flags}
"""
CAIRNCTL = """# Commands of `cairnctl`

{made}

```
{head}
```

{commands}
"""


def help_of(program, *words):
    words = [program, *words, "--help"]
    # No Python: `evaluate` then answers from what is built into it.
    environment = {**os.environ, "CAIRN_PYTHON": "/nonexistent"}
    return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True, env=environment).stdout


def cairnd_page(text):
    flag = re.compile(r"^  (--[a-z][a-z0-9-]*) \((CAIRN_\w+)\)\n((?: {6}\S.*\n)+)", re.MULTILINE)
    head = text[:flag.search(text).start()]
    flags = []
    for name, variable, body in flag.findall(text):
        *meaning, takes = (line.strip() for line in body.splitlines())
        takes, _, default = takes.removeprefix("takes ").rpartition("; default ")
        lines = [" ".join(meaning), "", f"- takes: {takes}", f"- default: {default}", f"- variable: `{variable}`"]
        flags.append("\n".join([f"## `{name}`", "", *lines]))
    named = re.findall(r"^\s+(--[a-z][a-z0-9-]*)", text[len(head):], re.MULTILINE)
    assert len(named) == len(flags), f"--help has another form: {len(flags)} of {len(named)} flags were read"
    return CAIRND.format(made=MADE, head=head.strip(), flags="\n\n".join(flags))


def cairnctl_page(program):
    head = help_of(program)
    _, _, common = head.partition("Flags of all commands:\n")
    commands = []
    for name in re.findall(r"^  ([a-z]+)  ", head, re.MULTILINE):
        text = help_of(program, name).removesuffix(common)
        text = re.sub(r"\n\n[^\n]*\n?[^\n]*not ready to run:.*", "", text, flags=re.DOTALL)
        commands.append(f"## {name}\n\n```\n{text.strip()}\n```")
    return CAIRNCTL.format(made=MADE, head=head.strip(), commands="\n\n".join(commands))


def main():
    daemon, client = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    if not (daemon.exists() and client.exists()):
        print(f"skipped: {daemon} or {client} is not built")
        return 77
    findings = []
    for name, page in (("cairnd.md", cairnd_page(help_of(daemon))), ("cairnctl.md", cairnctl_page(client))):
        path = FOLDER / name
        if "--write" in sys.argv:
            path.write_text(page, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != page:
            findings.append(f"docs/reference/{name}: not what the program says; run this with --write")
    return tree.report(findings)


if __name__ == "__main__":
    sys.exit(main())
