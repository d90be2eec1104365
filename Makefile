# Every target makes what it needs on first use: Python 3.11 or newer, with venv, is all a machine must have.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= auto

# These pin OpenBLAS to slower kernels than the machine has, and distort every measurement.
unexport OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
# With it every process compiles all modules again: half of the time of `import gdt`.
unexport PYTHONDONTWRITEBYTECODE

# The figure in parentheses is the time that a target takes on 2 cores, after its packages are there.
.PHONY: demo smoke test docs docs-serve bench bench-report peers test-gpu bench-gpu peers-gpu gpu gpu-bundle clean

# Trains two published models on real data and draws their curves (10 s).
demo: $(VENV)/examples.stamp
	$(BIN)/python -m examples.demo

# One sample of every op, one training and two processes: whether an environment works (20 s).
smoke: $(VENV)/test.stamp
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) tests/smoke.py

# The site of docs/, in build/docs: a folder that any server of files can show (2 minutes). Warnings are
# errors, every link inside and every anchor is checked, and pages load nothing from other hosts.
docs: $(VENV)/docs.stamp
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --write-all --quiet docs build/docs
	$(BIN)/python -m docs.extensions.check_site build/docs

docs-serve: docs
	$(BIN)/python -m http.server --directory build/docs --bind 127.0.0.1 8000

# Formatting, types, tests and the built wheel (7 minutes). FULL=layouts and so on, below, tests
# exhaustively what `make test` holds a covering part of.
FULLS := layouts kernels cupy networks memory processes docs torch conformance keras fuzz soak
ifdef FULL
test: $(if $(filter $(FULL),$(FULLS)),full-$(FULL),$(error FULL is $(FULL), and none of $(FULLS)))
else
test: $(VENV)/test.stamp $(VENV)/nvrtc-13.0
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --benchmark-disable
	$(BIN)/python -m tests.check_wheel
endif

# A hang in an exhaustive test ends after half an hour.
EXHAUSTIVE = OPENBLAS_NUM_THREADS=1 $(1)/bin/python -m pytest -o faulthandler_timeout=1800
.PHONY: $(FULLS:%=full-%)
$(filter-out full-torch full-conformance,$(FULLS:%=full-%)): $(VENV)/test.stamp

# Every op and function in many more layouts of its operands than in `make test`.
full-layouts:
	$(call EXHAUSTIVE,$(VENV)) -n $(JOBS) -m layouts_full

# Every kernel under every option, schedule and planted bug.
full-kernels:
	$(call EXHAUSTIVE,$(VENV)) -n $(JOBS) -m "kernels_full or not gpu" tests/kernels

# Every sample on arrays that refuse what CuPy refuses, as both versions of CuPy have it.
full-cupy: $(VENV)-cupy13/test-cupy13.stamp
	$(call EXHAUSTIVE,$(VENV)) -n $(JOBS) -m cupy_full
	$(call EXHAUSTIVE,$(VENV)-cupy13) -n $(JOBS) -m "cupy_full or not gpu" \
		tests/test_strict.py tests/backend/test_cupy_contract.py tests/programs/test_cuda_graph.py

# Hundreds of random networks in random layouts: values, and bytes beside those of an earlier commit;
# a GPT of 1,000 steps under every scheme, the networks of all 60,000 digits, and plans beside
# random layouts.
full-networks:
	$(call EXHAUSTIVE,$(VENV)) -m networks_full tests/sharding/test_choice.py tests/examples/test_examples.py tests/nn/test_pipelined.py \
		tests/prediction/test_plan.py tests/training/test_training_equivalence.py

# The memory that 5,000 shapes and 2,000 meshes leave behind.
full-memory:
	$(call EXHAUSTIVE,$(VENV)) -m memory_full tests/test_caches.py

# Every op and every relayout in two and four processes.
full-processes:
	$(call EXHAUSTIVE,$(VENV)) -m "processes_full or not gpu" tests/processes

# The site, and the code of pages that takes long.
full-docs: docs
	$(call EXHAUSTIVE,$(VENV)) -m "docs_full or not gpu" tests/test_docs.py tests/test_pages.py

# Layers on 2,000 random sizes, in random layouts, against PyTorch's: results and gradients.
CASES ?= 2000
full-torch: $(VENV)-torch/test-torch.stamp
	OPENBLAS_NUM_THREADS=1 $(VENV)-torch/bin/python -m tests.nn.torch_layers --cases $(CASES)

# A checkout of data-apis/array-api-tests (SUITE=path), on split arrays, on two meshes in both storage modes.
EXAMPLES ?= 100
full-conformance: $(VENV)-conformance/conformance.stamp
	OPENBLAS_NUM_THREADS=1 $(VENV)-conformance/bin/python -m tests.conformance $(SUITE) --max-examples $(EXAMPLES)

# Keras' own 10,000 tests, on one device and on 8; JAX's environment says what dtypes they expect.
# Our tests of Keras on the oldest version that gdt supports, whose wheel has no tests of its own.
full-keras: $(VENV)-jax/peers.stamp $(VENV)/keras-3.15.0
	PYTHONPATH=$(abspath $(VENV)/keras-3.15.0) $(call EXHAUSTIVE,$(VENV)) -n $(JOBS) tests/interop/keras -k "not own_tests"
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.interop.keras.run --pytest "-n $(JOBS)" \
		--devices 1 8 --jax $(VENV)-jax/bin/python

# 50,000 random calls of gdt's functions and of NumPy's, and as many random chains of views, in random layouts.
CALLS ?= 50000
full-fuzz:
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --calls $(CALLS)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.array.view_chains --chains $(CALLS)

# Trainings of four processes that die, stop or do different things: none goes on in silence, none hangs;
# and trainings that are killed 50 times, and end with the bits of one that is not.
SECONDS ?= 120
full-soak:
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.processes.soak --seconds $(SECONDS)
	GDT_KILLS=50 $(call EXHAUSTIVE,$(VENV)) tests/training/test_fit.py -k killed

# On a machine with an NVIDIA GPU. GPU=cuda12 or GPU=cuda13 says what to install; by itself it is what
# the driver can run.
GPU ?= $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' \
	| sed 's/^1[3-9]$$/cuda13/; s/^12$$/cuda12/')
test-gpu: need-gpu $(VENV)-$(GPU)/test-gpu.stamp
	$(VENV)-$(GPU)/bin/python -m tests.gpu.run --patience 10 kernels functions train two_ranks nccl

# Writes bench/results/<device>.json and prints the README's tables; peers-gpu adds PyTorch and JAX.
bench-gpu: need-gpu $(VENV)-$(GPU)/test-gpu.stamp
	$(VENV)-$(GPU)/bin/python -m bench.gpu.report

# On a machine that has a GPU and its own Python, and no network (see tests/gpu): everything, or
# STAGES. What it lacks is packed by gpu-bundle where there is a network, and brought there.
BUNDLE ?= build/gpu-bundle
gpu:
	$(PYTHON) -m tests.gpu.run --bundle $(BUNDLE) $(STAGES)

gpu-bundle: $(VENV)/test.stamp
	$(BIN)/python -m tests.gpu.bundle $(BUNDLE)

peers-gpu: need-gpu $(VENV)-jax-$(GPU)/peers.stamp $(VENV)-torch/peers.stamp

need-gpu:
	@case "$(GPU)" in cuda12|cuda13) ;; *) \
		echo "nvidia-smi names no driver of CUDA 12 or 13 here: this target needs a GPU (GPU=cuda13 insists)"; \
		exit 1;; esac

bench: $(VENV)/test.stamp
	$(BIN)/python -m pytest bench/test_steps.py bench/test_ops.py --benchmark-only --benchmark-columns=min,median,iqr,rounds
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.fit
	$(BIN)/python -m bench.report

# BEFORE=RUN.json compares with an earlier run, which a copy of bench/results/run.json is.
bench-report: $(VENV)/test.stamp
	mkdir -p bench/results
	$(BIN)/python -m pytest bench --benchmark-only --benchmark-quiet --benchmark-json=bench/results/run.json
	$(BIN)/python -m gdt.benchmark bench/results/run.json --output bench/results/report $(if $(BEFORE),--before $(BEFORE))

# The other libraries of the comparison, each in an environment of its own.
peers: $(VENV)-jax/peers.stamp $(VENV)-torch/peers.stamp $(VENV)-numexpr/peers.stamp

$(VENV)/%.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@

# The compiler of CUDA 13.0 beside that of the environment: kernels are for both.
$(VENV)/nvrtc-13.0: | $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet --no-deps --target $@ nvidia-cuda-nvrtc==13.0.88

# The oldest version of Keras that gdt supports.
$(VENV)/keras-3.15.0: | $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet --no-deps --target $@ keras==3.15.0

$(VENV)-cupy13/%.stamp $(VENV)-conformance/%.stamp: pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable ".[$*]"
	touch $@

$(VENV)-cuda%/test-gpu.stamp: pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable ".[cuda$*,test-gpu]"
	touch $@

$(VENV)-torch/test-torch.stamp: $(VENV)-torch/peers.stamp pyproject.toml
	$(@D)/bin/python -m pip install --quiet --editable ".[examples,fast]"
	touch $@

$(VENV)-%/peers.stamp: bench/peers/requirements-%.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement $<
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-conformance $(VENV)-cuda12 $(VENV)-cuda13 $(VENV)-cupy13 $(VENV)-jax $(VENV)-jax-cuda12 $(VENV)-jax-cuda13 $(VENV)-numexpr $(VENV)-torch build dist outputs
	rm -rf .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
