# SPDX-License-Identifier: Apache-2.0
"""Modules of engines that are not installed."""

import sys
import types


def install_modules(members):
    """{path: {name: what it is}}: where `import` finds them. A module that is there gets the names."""
    for path, given in members.items():
        parts = path.split(".")
        for i in range(1, len(parts) + 1):
            name = ".".join(parts[:i])
            sys.modules.setdefault(name, types.ModuleType(name))
        vars(sys.modules[path]).update(given)
