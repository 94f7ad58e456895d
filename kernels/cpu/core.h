// The inside of libcpu_kernels: the shared frontend's objects, and what only this library has.
#pragma once
#include "../frontend/backend.h"
#include "ops.h"

namespace bao {

// ---- memory.cpp: zeroed pages straight from the system, touched when used; null when there is not enough.
void* pages_allocate(int64_t bytes);
void pages_free(void* pages, int64_t bytes);
int64_t memory_total();      // bytes of this machine or of the process's cgroup, whichever is less
int64_t memory_available();  // of those, what new allocations can get

// ---- host.cpp: keeps the pages of the open bao_file that holds all of [address, address + bytes) mapped; null when there is none.
std::shared_ptr<const void> file_mapping(int64_t address, int64_t bytes);

}  // namespace bao
