# SPDX-License-Identifier: Apache-2.0
"""`python -m cairn.evaluate`"""

import os
import sys

# Before numpy is loaded: its products are small, and one thread is faster than several.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

try:
    from .command import main
except ModuleNotFoundError as error:
    if error.name not in ("numpy", "matplotlib", "jinja2", "markupsafe"):
        raise
    sys.exit(
        f"cairn.evaluate needs {error.name}: pip install numpy matplotlib jinja2, or the wheel with"
        " [evaluate]"
    )

sys.exit(main())
