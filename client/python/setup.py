# SPDX-License-Identifier: Apache-2.0
"""Tags the wheel: any Python 3, but one platform: the library in it needs no Python ABI.

Refuses to make one without the library: build_wheel.py puts it in.
"""

import pathlib

from setuptools import setup
from setuptools.dist import Distribution
from wheel.bdist_wheel import bdist_wheel


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return True


class PlatformWheel(bdist_wheel):
    def run(self):
        library = pathlib.Path(__file__).resolve().parent / "cairn" / "libcairn.so"
        if not library.exists():
            raise SystemExit(
                "kvcairn: a wheel needs libcairn.so, which this folder has not: build one with "
                "`make build`, then `python client/python/build_wheel.py`"
            )
        super().run()

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(distclass=PlatformDistribution, cmdclass={"bdist_wheel": PlatformWheel})
