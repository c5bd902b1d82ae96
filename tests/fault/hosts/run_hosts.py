# SPDX-License-Identifier: Apache-2.0
"""Runs test_hosts.py: run_hosts.py LIBRARY BIN_DIR [WORDS OF PYTEST]. Exit 77: skipped."""

import os
import pathlib
import sys


def main():
    try:
        import pytest
    except ImportError:
        print("skipped: pytest is missing (make deps)")
        return 77
    os.environ["CAIRN_LIBRARY"], os.environ["CAIRN_BIN_DIR"] = sys.argv[1:3]
    file = pathlib.Path(__file__).resolve().parent / "test_hosts.py"
    words = ["-q", "-rs", "-s", "-p", "no:cacheprovider", str(file), *sys.argv[3:]]
    return int(pytest.main(words))


if __name__ == "__main__":
    sys.exit(main())
