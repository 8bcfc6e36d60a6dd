# Two commands are all a newcomer needs: `make lab` and `make test`. Each makes the environment if it is missing.
# Options: PYTHON=python3.12 chooses the Python; ARGS="-k sketch" goes to pytest, LESSON=03 runs one lesson's tests;
# NAMES="03_sketching" builds one notebook.
PYTHON ?= $(firstword $(foreach name,python3 python3.11 python3.12 python3.13 python3.14 python,$(shell command -v $(name) 2>/dev/null)))
ARGS ?=
NAMES ?=
ifdef LESSON
ARGS += -m lesson$(LESSON)
endif
BOOT = $(if $(PYTHON),"$(PYTHON)" tools/bootstrap.py,$(error No Python was found. Install Python 3.11 or newer and run the same command again))

.PHONY: help env lab test test-slow notebooks timings lint smollm bench verify clean
help:
	@echo "make lab        open the lessons in JupyterLab"
	@echo "make test       run the tests, the notebooks among them"
	@echo "make test-slow  run the tests that take long"
	@echo "make notebooks  build and execute notebooks from notebooks/sources (NAMES=03_sketching for one)"
	@echo "make timings    time every lesson and write TIMINGS.md"
	@echo "make bench      race LoGRA against other optimizers on this CPU and write data/runs/bench-cpu.json"
	@echo "make lint       check style, spelling and types, and notebooks against their sources"
	@echo "make verify     the whole course in a fresh clone: both commands, all lessons, all checks (an hour)"
	@echo "make smollm     install the weights of SmolLM2-135M for its section in lesson 07"
	@echo "make env        make the environment and stop there"
	@echo "make clean      remove the environment and build/"
env lab lint smollm clean:
	@$(BOOT) $@
test test-slow:
	@$(BOOT) $@ $(ARGS)
notebooks timings:
	@$(BOOT) $@ $(NAMES)
bench:
	@$(BOOT) python -m bench $(ARGS)
verify:
	@"$(PYTHON)" tools/verify.py $(ARGS)
