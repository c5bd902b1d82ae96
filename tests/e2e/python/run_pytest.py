# SPDX-License-Identifier: Apache-2.0
"""Runs one pytest file, of this folder or an absolute path: run_pytest.py FILE LIBRARY BIN_DIR [WORDS OF PYTEST].
Exit 77: skipped."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main():
    try:
        import pytest
    except ImportError:
        print("skipped: pytest is missing (make deps)")
        return 77
    # What packages of the environment add to pytest is not used, and takes half of the time to start it.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    file, library, bin_dir, *words = sys.argv[1:]
    os.environ["CAIRN_LIBRARY"] = library
    os.environ["CAIRN_BIN_DIR"] = bin_dir
    arguments = ["-q", "-rs", "-p", "no:cacheprovider", str(HERE / file), *words]
    status = pytest.main(arguments)
    return 77 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


if __name__ == "__main__":
    sys.exit(main())
