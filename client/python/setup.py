# SPDX-License-Identifier: Apache-2.0
"""Tags the wheel for any Python 3 on one platform, since its library does not need the Python ABI.

Refuses to make a wheel without the library, which build_wheel.py adds.
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
