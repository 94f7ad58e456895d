// Launches: binding by address, barriers where data depends, dispatch; and command buffers, which end where enough work is in them.
#include "encode.h"

namespace bao {

void Pass::bind(int index, const void* address, int64_t bytes, bool tracked) {
  fixed_.push_back({index, address, bytes, false});
  if (tracked) always_.push_back({static_cast<const char*>(address), static_cast<const char*>(address) + bytes});
}

void Pass::bind_bytes(int index, const void* data, size_t size) { fixed_.push_back({index, data, int64_t(size), true}); }

void Pass::open() {
  commands_ = backend_.command_buffer();
  encoder_ = [commands_ computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
  if (!encoder_) return fail("Metal gives no command buffer", BAO_DEVICE);
  read_.clear();
  written_.clear();
  spent_ = 0;
  for (const Fixed& f : fixed_) {
    if (f.by_value) {
      [encoder_ setBytes:f.address length:NSUInteger(f.bytes) atIndex:NSUInteger(f.index)];
      continue;
    }
    Bound bound = backend_.memory.find(f.address, f.bytes);
    [encoder_ setBuffer:bound.buffer offset:NSUInteger(bound.offset) atIndex:NSUInteger(f.index)];
  }
  if (opened_++ == 0 || !reopened) return;
  opening_ = true;
  reopened();
  opening_ = false;
}

void Pass::next() {
  if (!encoder_) return;
  [encoder_ endEncoding];
  encoder_ = nil;
  if (profile) timed.emplace_back(op, commands_);
  backend_.commit(commands_, completion_);
  commands_ = nil;
}

void Pass::end() {
  next();
  backend_.committed_all(*completion_, status_, error_);
}

void Pass::spend(double nanoseconds) {
  spent_ += nanoseconds;
  launches_++;
  // A launch waits for this one to be open.
  if (!opening_ && ((opened_ == 1 && launches_ == early_) || spent_ >= most_ / 2)) next();
}

Launch::Launch(Pass& pass, const char* module, const char* kernel, int32_t dtype) : pass_(pass), pipeline_(nil) {
  if (pass.failed()) return;
  pipeline_ = pass.backend_.library.pipeline(module, kernel, dtype);
  if (!pipeline_) {
    pass.fail(pass.backend_.library.error());
    return;
  }
  if (!pass.encoder_) pass.open();
  if (pass.failed()) return;
  [pass.encoder_ setComputePipelineState:pipeline_];
}

bool Launch::bind(int index, const void* address, int64_t bytes) {
  if (pass_.failed()) return false;
  if (!address) address = pass_.backend_.nothing, bytes = 4;
  Bound bound = pass_.backend_.memory.find(address, bytes);
  if (!bound.buffer) {
    pass_.fail("an operand lies in no buffer of the device");
    return false;
  }
  [pass_.encoder_ setBuffer:bound.buffer offset:NSUInteger(bound.offset) atIndex:NSUInteger(index)];
  return true;
}

Launch& Launch::in(int index, const void* address, int64_t bytes) {
  if (bind(index, address, bytes) && address) read_[reads_++] = {static_cast<const char*>(address), static_cast<const char*>(address) + bytes};
  return *this;
}

Launch& Launch::out(int index, void* address, int64_t bytes) {
  if (bind(index, address, bytes) && address) written_[writes_++] = {static_cast<const char*>(address), static_cast<const char*>(address) + bytes};
  return *this;
}

Launch& Launch::pool(int index, const PoolRef& pool, int32_t layer, bool written) {
  char* address = pool.base + layer * pool.layer_stride;
  int64_t bytes = int64_t(pass_.backend_.memory.find(address, 1).buffer.length);
  if (bytes == 0) return in(index, nullptr, 0);  // no page yet, so that no row may have one
  return written ? out(index, address, bytes) : in(index, address, bytes);
}

Launch& Launch::bytes(int index, const void* data, size_t size) {
  if (!pass_.failed()) [pass_.encoder_ setBytes:data length:size atIndex:NSUInteger(index)];
  return *this;
}

Launch& Launch::group_memory(int index, int64_t size) {
  if (!pass_.failed()) [pass_.encoder_ setThreadgroupMemoryLength:NSUInteger((size + 15) / 16 * 16) atIndex:NSUInteger(index)];
  return *this;
}

int32_t Launch::threads_for(int64_t n, int32_t most) const { return group_for(n, pipeline_ ? std::min(most, int32_t(pipeline_.maxTotalThreadsPerThreadgroup)) : most); }

// A barrier when this launch touches what one since the last barrier wrote, or writes what one touched.
void Launch::order() {
  auto touches = [](const Pass::Span* spans, int n, const std::vector<Pass::Span>& others) {
    for (int i = 0; i < n; i++) {
      for (const Pass::Span& other : others) {
        if (spans[i].low < other.high && other.low < spans[i].high) return true;
      }
    }
    return false;
  };
  bool clash = touches(read_, reads_, pass_.written_) || touches(written_, writes_, pass_.written_) || touches(written_, writes_, pass_.read_) ||
               touches(pass_.always_.data(), int(pass_.always_.size()), pass_.written_) || touches(written_, writes_, pass_.always_);
  if (clash) {
    [pass_.encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers];
    pass_.read_.clear();
    pass_.written_.clear();
  }
  pass_.read_.insert(pass_.read_.end(), read_, read_ + reads_);
  pass_.written_.insert(pass_.written_.end(), written_, written_ + writes_);
}

void Launch::dispatch(int64_t x, int64_t y, int64_t z, int32_t group, bool grid_of_groups) {
  if (pass_.failed() || x <= 0 || y <= 0 || z <= 0) return;
  if (NSUInteger(group) > pipeline_.maxTotalThreadsPerThreadgroup) {
    return pass_.fail("a kernel needs threadgroups of " + std::to_string(group) + " threads, this device gives it " + std::to_string(pipeline_.maxTotalThreadsPerThreadgroup));
  }
  order();
  MTLSize grid = MTLSizeMake(NSUInteger(x), NSUInteger(y), NSUInteger(z)), size = MTLSizeMake(NSUInteger(group), 1, 1);
  if (grid_of_groups) [pass_.encoder_ dispatchThreadgroups:grid threadsPerThreadgroup:size];
  else [pass_.encoder_ dispatchThreads:grid threadsPerThreadgroup:size];
  double threads = double(x) * double(y) * double(z) * (grid_of_groups ? group : 1);
  pass_.spend(cost_ > 0 ? cost_ : estimate(threads * 12, 0));  // two floats read and one written
}

void Launch::threads(int64_t x, int64_t y, int64_t z, int32_t group) { dispatch(x, y, z, group, false); }
void Launch::groups(int64_t x, int64_t y, int64_t z, int32_t group) { dispatch(x, y, z, group, true); }

}  // namespace bao
