# SPDX-License-Identifier: Apache-2.0
"""Writes a program's manual page from its --help: man.py cairnd|cairnctl BIN_DIR > PAGE

No date is in it, so the same program makes the same page."""

import os
import re
import subprocess
import sys

FLAG = re.compile(r"^  (--[a-z-]+(?: [A-Z:]+)?)  +(.*)$")
KNOB = re.compile(r"^  (--[a-z-]+ \([A-Z_]+\))$")
SECTION = {"cairnd": 8, "cairnctl": 1}
SUMMARY = {"cairnd": "KV-cache store for LLM serving", "cairnctl": "look into cairnd and operate it"}
FILES = {
    "cairnd": [
        ("/etc/cairn/cairnd.yaml", "The configuration of the service cairnd."),
        ("/run/cairn/", "Its sockets. Members of the group cairn may use control.sock and cairnd.sock."),
        ("/var/lib/cairn/", "The home of the user cairn, and the default place for an SSD tier."),
    ],
    "cairnctl": [],
}
SEE_ALSO = {"cairnd": "cairnctl(1), systemctl(1), /usr/share/doc/cairn/", "cairnctl": "cairnd(8), /usr/share/doc/cairn/"}


def said(*words):
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def plain(text):
    """As troff prints it, letter for letter."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def verbatim(text):
    return f".nf\n{plain(text.strip(chr(10)))}\n.fi\n"


def options(lines):
    """Flags with what is said of each, and paragraphs between them."""
    page, is_flag = "", False
    for line in lines:
        named, knob = FLAG.match(line), KNOB.match(line)
        if named or knob:
            name, text = named.groups() if named else (knob.group(1), "")
            page += f".TP\n\\fB{plain(name)}\\fR\n" + (f"{plain(text)}\n" if text else "")
            is_flag = True
        elif line.startswith("      ") and is_flag:
            page += f"{plain(line.strip())}\n.br\n" if not line.strip().startswith("takes ") else f"{plain(line.strip())}\n"
        elif line.strip():
            page += ("" if not is_flag and page else ".PP\n") + f"{plain(line.strip())}\n"
            is_flag = False
    return page


def paragraphs(help_):
    """{its first line, if that ends with a colon: lines} of a help's parts between empty lines; and a list of the others."""
    named, rest = {}, []
    for part in re.split(r"\n\n+", help_.strip("\n")):
        first, *lines = part.split("\n")
        if first.endswith(":") and not first.startswith(" "):
            named[first[:-1]] = lines
        else:
            rest.append([first, *lines])
    return named, rest


def usage_of(rest):
    (usage,) = [part for part in rest if part[0].startswith("usage: ")]
    rest.remove(usage)
    return " ".join(line.strip() for line in usage).removeprefix("usage: ")


def daemon(program):
    named, rest = paragraphs(said(program, "--help"))
    page = f".SH SYNOPSIS\n{plain(usage_of(rest))}\n"
    description = rest.pop(0)[0].partition(": ")[2]
    page += f".SH DESCRIPTION\n{plain(description[0].upper() + description[1:])}\n"
    page += f".SH EXAMPLES\n{verbatim(chr(10).join(named['Examples']))}"
    return page + ".SH OPTIONS\n" + options([line for part in rest for line in part])


def command_line(program):
    named, rest = paragraphs(said(program, "--help"))
    page = f".SH SYNOPSIS\n{plain(usage_of(rest))}\n"
    page += ".SH DESCRIPTION\nAsks a running cairnd, changes its state, or works on files of images without one.\n"
    page += f".SH EXAMPLES\n{verbatim(chr(10).join(named['Examples']))}"
    page += ".SH COMMANDS\n"
    for line in named["Commands"]:
        name = line.split()[0]
        # The help of one is its module's own where a Python has the package; without one it is this program's.
        words = ["--python=/nonexistent"] if name == "evaluate" else []
        help_ = said(program, name, *words, "--help").partition("\nAll commands take ")[0]
        help_ = re.sub(r" The module is not ready to run:.*", "", help_, flags=re.DOTALL)
        page += f".SS {name}\n{verbatim(help_.removeprefix('usage: '))}"
    (flags,) = [lines for first, lines in named.items() if first.endswith("Flags of all commands")]
    page += ".SH OPTIONS\nAll commands take these.\n" + options(flags)
    (codes,) = [part for part in rest if part[0].startswith("Exit codes: ")]
    return page + f".SH EXIT STATUS\n{plain(' '.join(line.strip() for line in codes).removeprefix('Exit codes: '))}\n"


def main():
    name, bin_dir = sys.argv[1:]
    program = os.path.join(bin_dir, name)
    version = said(program, "--version").split()[1]
    page = f'.TH {name.upper()} {SECTION[name]} "" "Cairn {version}" "Cairn"\n.SH NAME\n{name} \\- {SUMMARY[name]}\n'
    page += (daemon if name == "cairnd" else command_line)(program)
    if FILES[name]:
        page += ".SH FILES\n" + "".join(f".TP\n{plain(path)}\n{plain(text)}\n" for path, text in FILES[name])
    print(f"{page}.SH SEE ALSO\n{plain(SEE_ALSO[name])}")


main()
