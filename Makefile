# Builds the kernel libraries into build/ and runs what uses them. `make` needs a C++20 compiler and nothing else; `make help` lists the rest.
# It never installs anything outside this folder.

CXX ?= g++
# V=1 prints whole command lines.
Q := $(if $(V),,@)
BUILD := build
OBJ := $(BUILD)/obj
SYSTEM := $(shell uname -s)
MACHINE := $(shell uname -m)
BUN := $(or $(shell command -v bun 2>/dev/null),node_modules/.bin/bun)
NVCC := $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))

ifeq ($(SYSTEM),Darwin)
SUFFIX := dylib
LINK := -dynamiclib -undefined error -Wl,-exported_symbol,_bao_*
else
SUFFIX := so
# nodelete: pool threads may sleep inside the library when somebody closes it. The version script keeps the C++ runtime's symbols in.
LINK := -shared -static-libstdc++ -static-libgcc -Wl,-z,now,-z,nodelete,--no-undefined,--version-script=$(BUILD)/exports.map
endif

CXXFLAGS ?= -O3
# No contraction anywhere: the same source must give the same bits with every compiler. Kernels ask for fused multiply-adds by name.
CPU_FLAGS := -std=c++20 -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Werror -ffp-contract=off -MMD -MP

ifeq ($(MACHINE),x86_64)
BASE_ISA := -march=x86-64-v2
OTHER_ISA := kernels/cpu/fast/isa_neon.cpp
else
BASE_ISA :=
OTHER_ISA := kernels/cpu/fast/isa_avx2.cpp kernels/cpu/fast/isa_avx512.cpp
endif
AVX2 := -mavx2 -mfma -mf16c -mbmi2

# What every library has inside: handles, objects, validation of every call.
FRONTEND := $(wildcard kernels/frontend/*.cpp) kernels/common/dequantize.cpp
CPU_SOURCES := $(FRONTEND) $(filter-out $(OTHER_ISA),$(wildcard kernels/cpu/*.cpp kernels/cpu/reference/*.cpp kernels/cpu/fast/*.cpp))
CPU_OBJECTS := $(CPU_SOURCES:%.cpp=$(OBJ)/%.o)
CPU_LIBRARY := $(BUILD)/libcpu_kernels.$(SUFFIX)
NATIVE := $(BUILD)/test
# AVX512=emulated: a library for tests, whose AVX-512 kernels consist of AVX2 (test/kernels/avx512). Few objects are its own.
EMULATED_AVX512 := $(BUILD)/avx512
ifeq ($(AVX512),emulated)
EMULATED_OWN := isa_avx512.o features.o bandwidth.o
CPU_OBJECTS := $(filter-out $(addprefix %/,$(EMULATED_OWN)),$(CPU_OBJECTS)) $(EMULATED_OWN:%=$(EMULATED_AVX512)/%)
CPU_LIBRARY := $(EMULATED_AVX512)/libcpu_kernels.$(SUFFIX)
NATIVE := $(EMULATED_AVX512)/test
endif
CUDA_SOURCES := $(wildcard kernels/cuda/*.cu)
CUDA_LIBRARY := $(BUILD)/libcuda_kernels.$(SUFFIX)
METAL_SOURCES := $(wildcard kernels/metal/*.mm)
METAL_SHADERS := $(wildcard kernels/metal/*.metal)
METAL_LIBRARY := $(BUILD)/libmetal_kernels.$(SUFFIX)

.PHONY: all cpu cuda cuda-trap metal embed demo test test-native test-avx512 test-arm64 bench fuzz clean help
.DELETE_ON_ERROR:

all: cpu

help:
	@echo "make             the CPU library ($(CPU_LIBRARY))"
	@echo "make cuda        the CUDA library; needs nvcc"
	@echo "make metal       the Metal library; needs the Xcode command line tools"
	@echo "make metal-emulated  the Metal library on an emulated device, for tests on Linux; needs clang 19 and lld 19"
	@echo "make embed       what 'bun build --compile' of a program that imports Bao needs besides"
	@echo "make demo        packages, CPU library, and a short text from the embedded model"
	@echo "make test        packages, CPU library, and all tests"
	@echo "make test-native the tests written in C++"
	@echo "make test-metal  the Metal library on its emulated device in every mode; needs clang 19, lld 19 and llvm 19, takes hours"
	@echo "make metal-cross the Metal library for arm64 macOS, to be checked and not to be used; needs clang 19 and lld 19"
	@echo "make metal-probe what a Mac is to tell about the Metal library, as a report; elsewhere on the emulated device"
	@echo "make test-avx512 the AVX-512 kernels on an x86 processor without these instructions, which are emulated; takes minutes"
	@echo "make test-arm64  the tests written in C++ for arm64 on a machine of another kind; needs a cross compiler and qemu, takes minutes"
	@echo "make bench       throughput of the ops and of the embedded model"
	@echo "make fuzz        fuzzes the file parsers, weight registration and the block formats"
	@echo "make clean       removes $(BUILD)/"

# ---- CPU

cpu: $(CPU_LIBRARY)

$(CPU_LIBRARY): $(CPU_OBJECTS) $(BUILD)/exports.map
	@echo "link $@"
	$(Q)$(CXX) $(LINK) -pthread -o $@.part $(CPU_OBJECTS) && mv $@.part $@  # a program may be opening the old one

$(BUILD)/exports.map:
	@mkdir -p $(@D)
	@echo '{ global: bao_*; local: *; };' > $@

$(OBJ)/%.o: %.cpp
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(CXX) $(CXXFLAGS) $(CPU_FLAGS) $(BASE_ISA) -c $< -o $@

# Files of one instruction set: their code is reached only after the processor was asked for it.
$(OBJ)/kernels/cpu/fast/isa_avx2.o: BASE_ISA += $(AVX2)
$(OBJ)/kernels/cpu/fast/isa_avx512.o: BASE_ISA += $(AVX2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
$(OBJ)/kernels/cpu/fast/isa_neon.o: BASE_ISA += $(if $(filter Darwin,$(SYSTEM)),,-march=armv8.2-a+dotprod+fp16)

$(EMULATED_AVX512)/%.o: kernels/cpu/fast/%.cpp
	@mkdir -p $(@D)
	@echo "compile $< (emulated)"
	$(Q)$(CXX) $(CXXFLAGS) -O1 $(CPU_FLAGS) $(BASE_ISA) $(AVX2) -Itest/kernels/avx512 -c $< -o $@
$(EMULATED_AVX512)/%.o: kernels/cpu/%.cpp
	@mkdir -p $(@D)
	@echo "compile $< (emulated)"
	$(Q)$(CXX) $(CXXFLAGS) $(CPU_FLAGS) $(BASE_ISA) -DBAO_AVX512_EMULATED -c $< -o $@

-include $(CPU_OBJECTS:.o=.d)

# ---- CUDA and Metal

ifeq ($(CUDA_SOURCES),)
cuda:
	@echo "cuda: this tree has no CUDA sources (kernels/cuda/*.cu)" >&2; exit 1
else ifeq ($(NVCC),)
cuda:
	@echo "cuda: nvcc was not found: install the CUDA toolkit 12.4 or later, or put its bin folder on PATH" >&2; exit 1
else
cuda: $(CUDA_LIBRARY)
endif

# Machine code for the A100 family and for Hopper, and PTX for what comes later. One family alone while developing:
# make cuda CUDA_ARCH="-gencode arch=compute_90a,code=sm_90a"
CUDA_ARCH ?= -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_90,code=compute_90
CUDA_OBJECTS := $(CUDA_SOURCES:%.cu=$(OBJ)/%.o)
CUDA_FRONTEND := $(FRONTEND:%.cpp=$(OBJ)/%.o)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
NVCC_FLAGS := -std=c++17 -O3 $(CUDA_ARCH) -Xcompiler -fPIC,-fvisibility=hidden,-Wall -diag-suppress 177

# The runtime is linked in and opens the driver itself: the library loads where there is none.
$(CUDA_LIBRARY): $(CUDA_OBJECTS) $(CUDA_FRONTEND) $(BUILD)/exports.map
	@echo "link $@"
	$(Q)$(CXX) $(LINK) -pthread -o $@ $(CUDA_OBJECTS) $(CUDA_FRONTEND) -L$(or $(wildcard $(CUDA_HOME)/lib64),/usr/local/cuda/lib64) -lcudart_static -lrt -ldl

# The same with a kernel that traps in place of a device that dies, for scripts/cuda/parity.sh lost.
cuda-trap: $(CUDA_LIBRARY) $(CPU_LIBRARY)
	@mkdir -p $(BUILD)/trap && ln -sf ../$(notdir $(CPU_LIBRARY)) $(BUILD)/trap/
	$(Q)$(NVCC) $(NVCC_FLAGS) -DBAO_TEST_TRAP -c kernels/cuda/device.cu -o $(BUILD)/trap/device.o
	$(Q)$(CXX) $(LINK) -pthread -o $(BUILD)/trap/libcuda_kernels.so $(BUILD)/trap/device.o $(filter-out %/device.o,$(CUDA_OBJECTS)) $(CUDA_FRONTEND) -L$(or $(wildcard $(CUDA_HOME)/lib64),/usr/local/cuda/lib64) -lcudart_static -lrt -ldl

$(OBJ)/kernels/cuda/%.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -c $< -o $@

-include $(CUDA_OBJECTS:.o=.d)

METAL_GENERATED := $(BUILD)/generated/metal_sources.inc
METAL_FLAGS := -std=c++20 -O2 -fPIC -fvisibility=hidden -fobjc-arc -Wall -Wextra -Wno-unused-parameter -I$(dir $(METAL_GENERATED)) -MMD -MP
METAL_OBJECTS := $(METAL_SOURCES:%.mm=$(OBJ)/%.o)
METAL_FRONTEND := $(FRONTEND:%.cpp=$(OBJ)/%.o)

# The kernels travel as text: every .metal file with what it includes.
$(METAL_GENERATED): scripts/metal/embed.sh $(METAL_SHADERS) $(wildcard kernels/metal/*.h kernels/common/*.h)
	@mkdir -p $(@D)
	$(Q)sh scripts/metal/embed.sh $(METAL_SHADERS) > $@.part && mv $@.part $@

ifeq ($(METAL_SOURCES),)
metal:
	@echo "metal: this tree has no Metal sources (kernels/metal/*.mm)" >&2; exit 1
else ifneq ($(SYSTEM),Darwin)
metal:
	@echo "metal: the Metal library is built on macOS; make metal-emulated builds it against the emulated device of the tests" >&2; exit 1
else
metal: $(METAL_LIBRARY)
endif

$(METAL_LIBRARY): $(METAL_OBJECTS) $(METAL_FRONTEND)
	@echo "link $@"
	$(Q)$(CXX) $(LINK) -framework Metal -framework Foundation -o $@ $(METAL_OBJECTS) $(METAL_FRONTEND)

$(OBJ)/kernels/metal/%.o: kernels/metal/%.mm | $(METAL_GENERATED)
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(CXX) $(METAL_FLAGS) -c $< -o $@

-include $(METAL_OBJECTS:.o=.d)

# ---- the Metal library on an emulated device, for tests on Linux: the same sources, and test/metal/emulator in place of Apple's frameworks

EMULATOR_CXX ?= clang++-19
EMULATOR_SOURCE := test/metal/emulator
EMULATED := $(BUILD)/metal-emulator
EMULATOR_OBJECTS := $(patsubst %,$(EMULATED)/obj/%.o,$(basename $(wildcard $(EMULATOR_SOURCE)/executor/*.cpp $(EMULATOR_SOURCE)/objc/*.cpp $(EMULATOR_SOURCE)/objc/*.mm $(EMULATOR_SOURCE)/device/*.mm)))
EMULATOR_REGISTER := $(EMULATED)/obj/$(EMULATOR_SOURCE)/objc/register.o
EMULATOR_MSL := $(wildcard $(EMULATOR_SOURCE)/msl/*.ts $(EMULATOR_SOURCE)/msl/stdlib/*.h) $(EMULATOR_SOURCE)/executor/abi.h
OBJC := -fblocks -fobjc-runtime=macosx-11 -I$(EMULATOR_SOURCE)/apple -Wno-nonnull -Wno-nullability-completeness
EMULATOR_FLAGS := -std=c++17 -O2 -g -fPIC -Wall -MMD -MP -I$(EMULATOR_SOURCE)
EMULATED_OBJECTS := $(METAL_SOURCES:%.mm=$(EMULATED)/obj/%.o)

.PHONY: metal-emulated test-metal test-metal-short
ifeq ($(shell command -v $(EMULATOR_CXX) 2>/dev/null),)
metal-emulated:
	@echo "metal-emulated: $(EMULATOR_CXX) was not found: install clang 19 and lld 19 (Debian: clang-19 lld-19)" >&2; exit 1
else
metal-emulated: $(EMULATED)/libmetal_kernels.so
endif

# Translated kernels are kept beside the library; a changed translator makes them anew.
$(EMULATED)/libmetal_emulator.so: $(EMULATOR_OBJECTS) $(EMULATOR_REGISTER)
	@echo "link $@"
	$(Q)$(EMULATOR_CXX) -shared -fuse-ld=lld -Wl,-z,defs -o $@.part $^ -lpthread -ldl && mv $@.part $@

$(EMULATED)/libmetal_kernels.so: $(EMULATED_OBJECTS) $(METAL_FRONTEND) $(EMULATOR_REGISTER) $(EMULATED)/libmetal_emulator.so $(BUILD)/exports.map
	@echo "link $@"
	$(Q)$(EMULATOR_CXX) -shared -fuse-ld=lld -Wl,-z,defs,-z,nodelete,--version-script=$(BUILD)/exports.map -Wl,-rpath,'$$ORIGIN' -o $@.part \
	  $(EMULATED_OBJECTS) $(METAL_FRONTEND) $(EMULATOR_REGISTER) -L$(EMULATED) -lmetal_emulator -lpthread && mv $@.part $@

$(EMULATED)/obj/%.o: %.cpp
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(EMULATOR_CXX) $(EMULATOR_FLAGS) -c $< -o $@

$(EMULATED)/obj/$(EMULATOR_SOURCE)/objc/%.o: $(EMULATOR_SOURCE)/objc/%.mm
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(EMULATOR_CXX) $(EMULATOR_FLAGS) $(OBJC) -fno-objc-arc -c $< -o $@

$(EMULATED)/obj/$(EMULATOR_SOURCE)/device/%.o: $(EMULATOR_SOURCE)/device/%.mm $(EMULATOR_MSL)
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(EMULATOR_CXX) $(EMULATOR_FLAGS) $(OBJC) -fobjc-arc -DEMULATOR_SOURCE='"$(CURDIR)/$(EMULATOR_SOURCE)"' \
	  -DEMULATOR_VERSION="\"$$(cat $(EMULATOR_MSL) | cksum | tr ' ' -)\"" -c $< -o $@

$(EMULATOR_REGISTER): $(EMULATOR_SOURCE)/objc/register.c
	@mkdir -p $(@D)
	$(Q)$(EMULATOR_CXX) -x c -O2 -fPIC -c $< -o $@

$(EMULATED)/obj/kernels/metal/%.o: kernels/metal/%.mm | $(METAL_GENERATED)
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(EMULATOR_CXX) $(METAL_FLAGS) $(OBJC) -Werror -c $< -o $@

-include $(EMULATOR_OBJECTS:.o=.d) $(EMULATED_OBJECTS:.o=.d)

# The proof of the emulator: an example host and its kernels, in which bugs are planted (EXAMPLE: such a host), and its Objective-C runtime.
EXAMPLE ?= test/metal/proof/example.mm
EXAMPLE_LIBRARY ?= $(EMULATED)/libexample.so

.PHONY: metal-example
metal-example: $(EMULATED)/libmetal_emulator.so
	$(Q)$(EMULATOR_CXX) $(EMULATOR_FLAGS) $(OBJC) -fobjc-arc -Werror -Wno-unused -Itest/metal/proof -c $(EXAMPLE) -o $(EXAMPLE_LIBRARY:.so=.o)
	$(Q)$(EMULATOR_CXX) -shared -fuse-ld=lld -Wl,-z,defs -Wl,-rpath,'$$ORIGIN' -o $(EXAMPLE_LIBRARY) $(EXAMPLE_LIBRARY:.so=.o) $(EMULATOR_REGISTER) -L$(EMULATED) -lmetal_emulator

$(EMULATED)/objc_test: test/metal/proof/objc_test.mm $(EMULATED)/libmetal_emulator.so
	@echo "compile $<"
	$(Q)$(EMULATOR_CXX) $(EMULATOR_FLAGS) $(OBJC) -fobjc-arc -fuse-ld=lld -Wl,-rpath,'$$ORIGIN' -o $@ $< $(EMULATOR_REGISTER) -L$(EMULATED) -lmetal_emulator

# ---- the Metal library as a Mac gets it, made on Linux: no warning, nothing newer than macOS 13 without a check, and linked as an arm64 dylib.
# Against our declarations (test/metal): it is made to be checked. libc++'s headers are the system's, or fetched into this folder.

CROSS := $(BUILD)/metal-cross
CROSS_LD ?= ld64.lld-19
CROSS_LIBCXX := $(or $(wildcard /usr/lib/llvm-19/include/c++/v1),$(CROSS)/libc++/usr/lib/llvm-19/include/c++/v1)
CROSS_FLAGS := -target arm64-apple-macos13 -std=c++20 -O2 -fvisibility=hidden -Wall -Wextra -Werror -Wunguarded-availability -Wno-unused-parameter -nostdlibinc -nostdinc++ \
  -D_LIBCPP_HAS_NO_LOCALIZATION -D_LIBCPP_HAS_NO_WIDE_CHARACTERS -D_LIBCPP_HAS_NO_FILESYSTEM -D_LIBCPP_HAS_NO_RANDOM_DEVICE -D_LIBCPP_HAS_NO_TIME_ZONE_DATABASE \
  -isystem $(CROSS_LIBCXX) -isystem test/metal/cross/include -I$(dir $(METAL_GENERATED)) -MMD -MP
CROSS_OBJECTS := $(METAL_SOURCES:%.mm=$(CROSS)/obj/%.o) $(FRONTEND:%.cpp=$(CROSS)/obj/%.o)

.PHONY: metal-cross
metal-cross: $(CROSS)/libmetal_kernels.dylib

$(CROSS)/libc++/usr/lib/llvm-19/include/c++/v1:
	@mkdir -p $(CROSS)/libc++ && echo "fetch libc++-19-dev into $(CROSS)"
	$(Q)cd $(CROSS)/libc++ && apt-get download -qq libc++-19-dev && dpkg -x libc++-19-dev*.deb . \
	  || { echo "metal-cross: libc++ 19's headers are not here and could not be fetched (Debian: libc++-19-dev)" >&2; exit 1; }

$(CROSS)/obj/%.o: %.mm $(CROSS_LIBCXX) | $(METAL_GENERATED)
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(EMULATOR_CXX) $(CROSS_FLAGS) -fobjc-arc -fblocks -I$(EMULATOR_SOURCE)/apple -Wno-nonnull -Wno-nullability-completeness -c $< -o $@

$(CROSS)/obj/%.o: %.cpp $(CROSS_LIBCXX)
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(EMULATOR_CXX) $(CROSS_FLAGS) -c $< -o $@

# C, Objective-C and the frameworks must have what is asked for (*.tbd). The C++ library's names are taken as they come, and the one function of
# clang's runtime that Xcode links in.
$(CROSS)/libmetal_kernels.dylib: $(CROSS_OBJECTS) $(wildcard test/metal/cross/*.tbd)
	@echo "link $@"
	$(Q)for object in $(CROSS_OBJECTS); do llvm-nm-19 -u $$object; done | awk '$$NF ~ /^(__Z|___cxa_|___gxx_|___isPlatform)/ && $$NF !~ /^__ZN?K?3bao|^___cxa_atexit/ { print $$NF }' | sort -u | awk '\
	  BEGIN { print "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: /usr/lib/libc++.1.dylib\nexports:\n  - targets: [ arm64-macos ]\n    symbols:" } { print "      - \"" $$0 "\"" } END { print "..." }' >$(CROSS)/libc++.tbd
	$(Q)$(CROSS_LD) -arch arm64 -platform_version macos 13.0 13.0 -dylib -adhoc_codesign -exported_symbol '_bao_*' -install_name @rpath/$(@F) -o $@ $(CROSS_OBJECTS) \
	  $(wildcard test/metal/cross/*.tbd) $(CROSS)/libc++.tbd

-include $(CROSS_OBJECTS:.o=.d)

# ---- what a Mac is to tell: one command for the first person who has one. Elsewhere it runs on the emulated device, which is how it is tested.

.PHONY: metal-probe
ifeq ($(SYSTEM),Darwin)
PROBE := $(BUILD)/metal-assumptions
$(PROBE): test/metal/probe/assumptions.mm
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(CXX) -std=c++20 -O2 -fobjc-arc -Wall -framework Metal -framework Foundation -o $@ $<
metal-probe: node_modules cpu metal $(PROBE)
else
PROBE := $(EMULATED)/assumptions
$(PROBE): test/metal/probe/assumptions.mm $(EMULATED)/libmetal_emulator.so
	@echo "compile $<"
	$(Q)$(EMULATOR_CXX) -std=c++20 -O2 -fobjc-arc $(OBJC) -Wall -fuse-ld=lld -Wl,-rpath,'$$ORIGIN' -o $@ $< $(EMULATOR_REGISTER) -L$(EMULATED) -lmetal_emulator
metal-probe: node_modules cpu metal-emulated $(PROBE)
endif
	$(BUN) scripts/metal/probe.ts

# ---- suites of the Metal library on the emulated device

# Everything that can be shown without a Mac. SUITES: options of scripts/metal/suites.ts.
test-metal: node_modules cpu metal-emulated metal-example $(EMULATED)/objc_test $(PROBE) metal-cross
	$(BUN) scripts/metal/suites.ts $(SUITES)

# The part that `make test` runs, and what has to be built for it.
ifeq ($(shell command -v $(EMULATOR_CXX) >/dev/null 2>&1 && command -v ld.lld-19 2>/dev/null),)
METAL_SHORT_NEEDS :=
METAL_SHORT := echo "SKIPPED: the Metal library was not tested: that needs clang 19 and lld 19 (Debian: apt-get install clang-19 lld-19)"
else
METAL_SHORT_NEEDS := metal-emulated
METAL_SHORT := $(BUN) scripts/metal/suites.ts --short
endif
test-metal-short: node_modules cpu $(METAL_SHORT_NEEDS)
	@$(METAL_SHORT)

# ---- TypeScript

node_modules: package.json
	@if command -v npm >/dev/null; then npm install --no-audit --no-fund --loglevel=error; \
	elif command -v bun >/dev/null; then bun install --silent; \
	else echo "node_modules: neither npm nor bun was found: install one of them" >&2; exit 1; fi
	@touch node_modules

# The engine Worker as one file: a compiled program cannot bundle it by itself.
ENGINE_WORKER := $(BUILD)/engine-worker.js
embed: cpu $(ENGINE_WORKER)
$(ENGINE_WORKER): $(shell find src -name '*.ts') | node_modules
	@echo "bundle $@"
	$(Q)$(BUN) build src/engine/worker.ts --target bun --minify-syntax --outdir $(BUILD) --entry-naming engine-worker.js >/dev/null

demo: node_modules cpu
	$(BUN) run generate --prompt "Tell me a story about a little dog."

# Both parts run, whatever the first says.
test: node_modules cpu $(METAL_SHORT_NEEDS)
	@$(BUN) test; tests=$$?; $(METAL_SHORT) && exit $$tests

bench: node_modules cpu
	$(BUN) run bench

# BAO_FUZZ_SECONDS is the budget (600).
fuzz: node_modules cpu
	$(BUN) test/fuzz/run.ts

# ---- C++ tests

NATIVE_TESTS := $(patsubst test/kernels/%.cpp,$(NATIVE)/%,$(wildcard test/kernels/*_test.cpp))
# What runs a program of another machine, with its arguments.
EMULATOR :=

test-native: $(NATIVE_TESTS)
	@for program in $(NATIVE_TESTS); do echo "$$program"; $(EMULATOR) $$program || exit 1; done

# They look inside the library, so they are linked with its objects and not with the library.
$(NATIVE)/%: test/kernels/%.cpp $(CPU_OBJECTS)
	@mkdir -p $(@D)
	@echo "compile $<"
	$(Q)$(CXX) $(CXXFLAGS) $(CPU_FLAGS) $(BASE_ISA) -o $@ $< $(CPU_OBJECTS)

-include $(NATIVE_TESTS:%=%.d)

# The tests of the CPU library, written in C++ and in TypeScript, with emulated AVX-512.
ifneq ($(MACHINE),x86_64)
test-avx512:
	@echo "test-avx512: needs an x86 processor with AVX2, whose instructions are used for the emulation" >&2; exit 1
else
test-avx512: node_modules
	+@$(MAKE) --no-print-directory AVX512=emulated cpu test-native
	@$(EMULATED_AVX512)/test/isa_test avx512
	BAO_KERNELS=$(EMULATED_AVX512) BAO_TEST_ISA=avx512 $(BUN) test test/kernels test/model
endif

# The same rules with another compiler, into a folder of their own. Then every test on two emulated processors: one with the dot products, and one
# of the first generation, which ends a program at the first newer instruction: there the base kernels must be chosen and be enough.
ARM64_CXX ?= aarch64-linux-gnu-g++
ARM64_ROOT ?= /usr/aarch64-linux-gnu
ARM64_QEMU := $(firstword $(foreach name,qemu-aarch64-static qemu-aarch64,$(shell command -v $(name) 2>/dev/null)))
ARM64_PROCESSORS := neoverse-n1:neon cortex-a53:base
ARM64_MAKE := $(MAKE) --no-print-directory SYSTEM=Linux MACHINE=aarch64 CXX=$(ARM64_CXX) BUILD=$(BUILD)/arm64

ifeq ($(shell command -v $(ARM64_CXX) 2>/dev/null),)
test-arm64:
	@echo "test-arm64: $(ARM64_CXX) was not found: install a cross compiler (Debian: g++-aarch64-linux-gnu) or set ARM64_CXX" >&2; exit 1
else ifeq ($(ARM64_QEMU),)
test-arm64:
	@echo "test-arm64: qemu-aarch64 was not found: install the user-mode emulator (Debian: qemu-user-static)" >&2; exit 1
else
test-arm64:
	+@$(ARM64_MAKE) cpu
	+@for pair in $(ARM64_PROCESSORS); do \
	  emulator="$(ARM64_QEMU) -L $(ARM64_ROOT) -cpu $${pair%:*}"; echo "emulated $${pair%:*}, expected to run $${pair#*:}"; \
	  BAO_TEST_BRIEF=1 $(ARM64_MAKE) test-native EMULATOR="$$emulator" && $$emulator $(BUILD)/arm64/test/isa_test $${pair#*:} || exit 1; \
	done
endif

clean:
	rm -rf $(BUILD)
