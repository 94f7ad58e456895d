// A mapped file that shrinks, or whose disk fails, while it is read: the lost page reads as zeros from then on and the loss is counted, where
// SIGBUS would end the process. Whoever computes asks for the count and fails what it computed.
#pragma once
#include <cstdint>

namespace bao {

// Registers a mapping (and takes SIGBUS over, once); false when the table is full: the mapping is then unguarded.
bool guard_range(const void* address, int64_t bytes, bool writable);
void guard_release(const void* address);
// Pages lost since the library was loaded.
int64_t guard_losses();

}  // namespace bao
