# SPDX-License-Identifier: Apache-2.0
# Thin: each target is a line or two over CMake presets and scripts. `make help` lists them.
TRANSPORT ?= local
FUZZ_SECONDS ?= 60
JOBS ?= $(shell nproc)
PYTHON = build/venv/bin/python
SOURCES = $(shell git ls-files '*.h' '*.cc' '*.inl' '*.cu' '*.c')

.PHONY: help deps build programs wheel image package demo demo-hosts demo-vllm test test-connectors test-engines test-hosts test-ops soak bench bench-peers bench-engines quality fuzz asan tsan \
  kernels-check gpu-build gpu-check fmt tidy clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

deps:  ## install what is missing: Debian packages with apt, Python ones into build/venv
	.ci/deps

build: deps  ## build everything into build/release, binaries in build/release/bin
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target all benchmarks

programs: deps  ## build cairnd, cairnctl and the SDKs alone: a third of `build`, which has the tests too
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target programs

demo: programs  ## a real model's KV cache travels through cairnd; TRANSPORT=local or ucx
	$(PYTHON) client/examples/demo/run.py --transport $(TRANSPORT)

demo-hosts: programs  ## two hosts share a cache, and a third takes over (network namespaces with root, else loopback)
	$(PYTHON) client/examples/hosts/run.py

demo-vllm: programs  ## two vLLM engines share a cache (6 minutes on two busy cores; first 3 GB to download, 6 GB on disk)
	.ci/engines client/examples/vllm/run.py

wheel: programs  ## the Python package as a wheel in build/wheel
	$(PYTHON) client/python/build_wheel.py --out build/wheel

image: programs  ## a container image in build/image, and its bill of materials
	.ci/ops
	cmake/packaging/image/build build/release/bin

package: programs  ## a Debian package in build/deb, and the wheel beside it
	.ci/ops
	cmake/packaging/deb/build build/release/bin
	$(PYTHON) client/python/build_wheel.py --out build/deb

test: deps  ## build, run all tests, then the unit tests again under ASan and UBSan
	.ci/test $(JOBS)

test-connectors: programs  ## the connectors with vLLM's, SGLang's and LMCache's own packages, without a run of an engine (ten minutes on two busy cores; first 3 GB to download, 6 GB on disk)
	.ci/engines tests/connectors/run.py

test-hosts: programs  ## daemons that fail and lose each other under load, in network namespaces of the test (root; twelve minutes)
	ctest --preset release -L "^hosts$$" -j 1

test-ops: build  ## what takes programs for containers (root), or Prometheus for ten minutes
	.ci/ops
	ctest --preset release -L "^ops$$" -j 1

test-engines: programs  ## the connector in a real vLLM, the backend beside SGLang's pools (40 minutes on two busy cores; first 3 GB to download, 6 GB on disk)
	.ci/engines tests/engines/sglang_contract.py
	.ci/engines tests/engines/tier_contract.py
	.ci/engines tests/engines/run.py
	.ci/engines tests/engines/names.py
	.ci/engines tests/engines/mixed.py
	.ci/engines tests/engines/quality.py
	.ci/engines tests/engines/hybrid.py
	.ci/engines tests/engines/kinds.py

soak: build  ## the long tests that `make test` leaves out
	ctest --preset release -L "^soak$$" -j 1

bench: build  ## all benchmarks in one run
	$(PYTHON) tests/bench/run.py

bench-peers: programs  ## Redis, LMCache's server and Mooncake beside Cairn, and LMCache's second levels (root; downloads gigabytes)
	.ci/peers tests/bench/peers.py --json build/bench/peers.json
	.ci/peers tests/bench/lmcache_l2.py --json build/bench/lmcache_l2.json

bench-engines: programs  ## Cairn's connector beside LMCache's and vLLM's own, in a real vLLM (a quarter of an hour; first 3 GB to download, 6 GB on disk)
	.ci/engines tests/engines/compare.py --json build/bench/engines.json

quality: build  ## what recipes cost three real models, into docs/results (hours; goes on where it was)
	nice $(PYTHON) tests/quality/run.py
	$(PYTHON) tests/quality/report.py

fuzz: deps  ## each fuzzer for FUZZ_SECONDS (60)
	cmake --preset fuzz
	cmake --build --preset fuzz --target fuzzers -j $(JOBS)
	.ci/fuzz $(FUZZ_SECONDS)

asan: deps  ## all tests but the long ones under ASan and UBSan
	cmake --preset asan -DCAIRN_UBSAN_ALL=ON
	cmake --build --preset asan -j $(JOBS)
	ctest --preset asan -LE "^(soak|ops|hosts)$$" -j $(JOBS)

tsan: deps  ## all tests but the long ones under TSan
	cmake --preset tsan
	cmake --build --preset tsan -j $(JOBS)
	ctest --preset tsan -LE "^(soak|ops|hosts)$$" -j $(JOBS)

kernels-check: build  ## kernels under ASan and TSan, with mistakes in them, and for all architectures (an hour and a half on two cores)
	$(PYTHON) tests/kernels/nvcc_test.py c++ sm_80 sm_90 sm_100 || test $$? -eq 77
	$(PYTHON) tests/kernels/mutations.py build/release
	for sanitizer in asan tsan; do \
	  cmake --preset $$sanitizer -DCAIRN_UBSAN_ALL=ON && \
	  cmake --build --preset $$sanitizer --target kernels_executor_test kernels_device_test kernels_attention_test kernels_attention_hostile_test kernels_decode_test kernels_decode_fast_test kernels_demote_test kernels_encode_test kernels_encode_choices_test kernels_encode_fast_test kernels_encode_rows_test kernels_encode_steps_test kernels_encode_strips_test kernels_hostile_test kernels_mine_test kernels_mine_pass_test kernels_backend_test kernels_gpu_table_test gpu_check gpu_check_emulated -j $(JOBS) && \
	  ctest --preset $$sanitizer -R '^kernels_' -j $(JOBS) || exit 1; \
	done
	$(PYTHON) tests/kernels/mutations.py build/tsan

gpu-build: deps  ## codecs and kernels alone, and everything with CUDA, as it is without a device: the same demo (half an hour)
	cmake --preset kernels
	cmake --build --preset kernels -j $(JOBS)
	cmake --preset gpu
	cmake --build --preset gpu --target cairnd cairnctl cairn cairn_ucx -j $(JOBS)
	$(PYTHON) tests/kernels/gpu_build_test.py build/gpu || test $$? -eq 77

gpu-check: deps  ## kernels on a CUDA device: the CPU's bytes, and a table of their speed (eight minutes); says where there is none
	cmake --preset gpu
	cmake --build --preset gpu --target gpu_check -j $(JOBS)
	build/gpu/bin/gpu_check || test $$? -eq 77

fmt:  ## clang-format all sources in place
	clang-format -i $(SOURCES)

tidy: deps  ## clang-tidy with thread-safety analysis (minutes)
	cmake --preset dev
	cmake --build --preset dev -j $(JOBS)
	git ls-files '*.cc' | xargs -P $(JOBS) -n 4 clang-tidy -p build/dev --quiet

clean:  ## remove build/
	rm -rf build
