# SPDX-License-Identifier: Apache-2.0
"""The checks find what they are for: each is given a breach, and the same without it."""

import sys
import unittest

import layers
import names
import tidy
import ways

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


class LayersTest(unittest.TestCase):
    def test_arrows(self):
        bad = {
            "base/a.h": '#include "codecs/image/image.h"',
            "codecs/image/a.cc": '#include "base/status.h"',
            "codecs/format/a.cc": '#include "codecs/forms/form.h"',
            "transport/a.cc": '#include "codecs/image/image.h"',
            "service/put/a.cc": '#include "service/get/get.h"',
            "service/memory/a.cc": '#include "service/tier/host_tier.h"',
            "client/cpp/a.cc": '#include "service/limits.h"',
            "service/main.cc": '#include "tests/support/fake_clock.h"',
        }
        for path, text in bad.items():
            self.assertEqual(len(layers.check_arrows({path: text})), 1, path)
        good = {
            "transport/a.cc": '#include "codecs/checksum/checksum.h"',
            "proto/a.cc": '#include "codecs/types/shape.h"',
            "service/front/a.cc": '#include "service/put/put.h"',
            "service/main.cc": '#include "service/front/control_server.h"',
            "tests/unit/a.cc": '#include "service/get/get.h"',
            "base/b.h": '#include "absl/status/status.h"\n#include <vector>',
        }
        self.assertEqual(layers.check_arrows(good), [])

    def test_homes(self):
        bad = {
            "codecs/image/image.cc": "#include <immintrin.h>",
            "transport/local/a.cc": "#include <ucp/api/ucp.h>",
            "service/daemon.cc": "#include <prometheus/registry.h>",
            "service/put/put.cc": '#include "cairn/v1/store.pb.h"',
            "client/c/cairn.cc": "#include <grpcpp/grpcpp.h>",
            "codecs/types/shape.cc": '#include "absl/status/status.h"',
            "service/tier/gpu_tier.cc": "#include <cuda_runtime.h>",
            "base/log.cc": "#include <gtest/gtest.h>",
        }
        for path, text in bad.items():
            self.assertEqual(len(layers.check_homes({path: text})), 1, path)
        good = {
            "codecs/backend/cpu/avx2.cc": "#include <immintrin.h>",
            "codecs/checksum/sse.cc": "#include <nmmintrin.h>",
            "transport/ucx/a.cc": "#include <ucp/api/ucp.h>",
            "service/front/a.cc": '#include "cairn/v1/store.grpc.pb.h"',
            "tests/unit/a.cc": "#include <ucp/api/ucp.h>",
        }
        self.assertEqual(layers.check_homes(good), [])

    def test_circles(self):
        two = {"base/a.h": '#include "base/b.h"', "base/b.h": '#include "base/a.h"'}
        self.assertIn("circle of files", layers.check_circles(two)[0])
        folders = {
            "service/put/a.h": '#include "service/get/b.h"', "service/get/b.h": "",
            "service/get/c.h": '#include "service/put/d.h"', "service/put/d.h": "",
        }
        self.assertIn("circle of folders", layers.check_circles(folders)[0])
        self.assertEqual(layers.check_circles({"base/a.h": '#include "base/b.h"', "base/b.h": ""}), [])

    def test_circles_of_modules(self):
        top = "client/python/cairn/"
        good = {
            top + "__init__.py": "from .a import A",
            top + "a.py": "from . import b\nfrom .sub import C\nimport os",
            top + "b.py": "def late():\n    from .a import A",
            top + "sub/__init__.py": "from .c import C",
            top + "sub/c.py": "from .. import b\nfrom ..b import late",
        }
        self.assertEqual(layers.check_python_circles(good), [])
        for path, text in [
            ("b.py", "from .a import A"),
            ("b.py", "if TYPE_CHECKING:\n    from .sub.c import C"),
            ("sub/c.py", "from . import C"),
            ("sub/c.py", "from ..a import A"),
        ]:
            bad = good | {top + path: good[top + path] + "\n" + text}
            self.assertIn("circle of modules", "".join(layers.check_python_circles(bad)), text)


class NamesTest(unittest.TestCase):
    def test_one_home_for_a_class(self):
        one = {"client/a.h": "namespace cairn {\nclass A final : public B {\n};\n}  // namespace cairn\n"}
        for other, count in [
            ("namespace cairn {\nstruct A {\n};\n}  // namespace cairn\n", 1),
            ("namespace cairn::proto {\nstruct A {\n};\n}  // namespace cairn::proto\n", 0),
            ("namespace cairn {\nnamespace {\nstruct A {\n};\n}  // namespace\n}  // namespace cairn\n", 0),
            ("namespace cairn {\nclass A;\nclass A::Inner : public C {\n};\n}  // namespace cairn\n", 0),
        ]:
            self.assertEqual(len(names.check(one | {"service/a.h": other})), count, other)


class WaysTest(unittest.TestCase):
    FILES = {
        "service/put/put.cc": "// Old() {}\nvoid Puts::Start(int a, F f) {\n  Admit(a);\n}\nstatic bool IsNew() { return Old(); }\n",
        "service/put/put.h": "class Puts {\n  void Start(int a);\n  bool is_open() const ABSL_LOCKS_EXCLUDED(m) { return true; }\n};\n",
    }

    def page(self, counts, *rows):
        return f"## Map\n\n### A put\n\n**{counts}**\n\n| a | b | c |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n\n## Next\n"

    def test_finds(self):
        start = "| lane | `service/put/put.cc` | `Puts::Start()`, `IsNew()` |"
        header = "| any | `service/put/put.h` | `is_open()` |"
        good = self.page("4 functions in 2 files, 2 changes of file.", start, header, start.replace("Puts::Start()`, `IsNew", "Start"))
        self.assertEqual(ways.check(good, self.FILES), [])
        for page in [
            good.replace("4 functions", "3 functions"),
            good.replace("2 files", "3 files"),
            good.replace("2 changes", "1 changes"),
            good.replace("`IsNew()`", "`Old()`"),
            good.replace("`IsNew()`", "`Admit()`"),
            good.replace("`Puts::Start()`", "`Gets::Start()`"),
            good.replace("`is_open()`", "`Start()`"),
            good.replace("`IsNew()`", "`Puts::Start()`"),
            "## Map\n",
        ]:
            self.assertEqual(len(ways.check(page, self.FILES)), 1, page)


class TidyTest(unittest.TestCase):
    def findings(self, path, text):
        return list(tidy.check(path, text))

    def test_finds(self):
        long_function = "void F() {\n" + "  x();\n" * 70 + "}\n"
        for path, text in [
            ("base/a.cc", "int x;\n"),
            ("base/a_util.cc", SPDX),
            ("base/a.cc", SPDX + "// TO" + "DO: later\n"),
            ("base/a.cc", SPDX + "\n" * 1500),
            ("base/a.cc", SPDX + long_function),
            ("base/a.cc", SPDX + "std::mutex m;\n"),
            ("base/a.cc", SPDX + "absl::Mutex m;\n"),
            ("base/a.cc", SPDX + "void F() { throw 1; }\n"),
            ("base/a.cc", SPDX + "std::shared_ptr<int> p;\n"),
            ("base/a.h", SPDX),
        ]:
            self.assertEqual(len(self.findings(path, text)), 1, text[:80])

    def test_leaves_alone(self):
        for path, text in [
            ("base/a.cc", SPDX + "// nothing here may throw, nor hold a std::mutex\n"),
            ("base/a.cc", SPDX + 'const char* a = "throw";\n'),
            ("base/a.cc", SPDX + "void F() {\n" + "  x();\n" * 68 + "}\n"),
            ("base/mutex.h", SPDX + "#pragma once\nstd::mutex m;\n"),
            ("service/front/a.cc", SPDX + "std::shared_ptr<int> p;\n"),
        ]:
            self.assertEqual(self.findings(path, text), [], text[:80])


if __name__ == "__main__":
    sys.exit(unittest.main())
