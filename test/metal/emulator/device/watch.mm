// Watches memory that a committed command buffer reads: nobody but the GPU may change it before the end. With METAL_EMULATOR_CHECKED only, since the
// kernels have to tell what they read. Words that kernels read by atomics are left to the host.
#include <stdio.h>
#include <string.h>

#include "device.h"

namespace emu {

namespace {

std::mutex lock;  // held while an image is taken or changed
std::vector<Watch*>& watches() {  // of command buffers that have not ended
  static auto* all = new std::vector<Watch*>();
  return *all;
}

// The first byte of [low, high) that is not as it should be, leaving out what `but` covers; 0: none.
uintptr_t changed(const Watch& watch, uintptr_t low, uintptr_t high, const std::vector<Range>& but) {
  for (const Image& image : watch.images) {
    uintptr_t from = std::max(low, image.low), to = std::min(high, image.low + image.bytes.size());
    if (from >= to || !memcmp((const void*)from, image.bytes.data() + (from - image.low), to - from)) continue;
    for (uintptr_t a = from; a < to; a++) {
      bool written = std::any_of(but.begin(), but.end(), [&](const Range& r) { return a >= r.write_low && a < r.write_high; });
      if (!written && *(const char*)a != image.bytes[a - image.low]) return a;
    }
  }
  return 0;
}

void wrote(uintptr_t low, uintptr_t high) {
  for (Watch* watch : watches()) {
    for (Image& image : watch->images) {
      uintptr_t from = std::max(low, image.low), to = std::min(high, image.low + image.bytes.size());
      if (from < to) memcpy(image.bytes.data() + (from - image.low), (const void*)from, to - from);
    }
  }
}

}  // namespace

bool host_can_write(const void* pages, size_t bytes) {
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[1024], rights[8];
  unsigned long low, high;
  bool found = false;
  while (maps && fgets(line, sizeof line, maps)) {
    if (sscanf(line, "%lx-%lx %7s", &low, &high, rights) == 3 && low < (uintptr_t)pages + bytes && (uintptr_t)pages < high && rights[1] == 'w') found = true;
  }
  if (maps) fclose(maps);
  return found;
}

void watch_commit(EmulatedCommandBuffer* commands) {
  if (!setting("CHECKED", 0)) return;
  std::set<EmulatedBuffer*> used;
  for (id kept : commands->kept) {
    if ([kept isKindOfClass:[EmulatedBuffer class]] && ((EmulatedBuffer*)kept)->written_by_host) used.insert(kept);
  }
  auto watch = std::make_unique<Watch>();
  std::lock_guard<std::mutex> hold(lock);
  for (EmulatedBuffer* buffer : used) watch->images.push_back({(uintptr_t)buffer->bytes, std::string(buffer->bytes, buffer->size)});
  watches().push_back(watch.get());
  commands->watch = std::move(watch);
}

void watch_dispatch(EmulatedCommandBuffer* commands, const Dispatch& d) {
  if (!commands->watch) return;
  std::lock_guard<std::mutex> hold(lock);
  Watch& watch = *commands->watch;
  auto check = [&](const Range& r, uintptr_t low, uintptr_t high) {
    if (low >= high) return;
    watch.read.push_back({low, high});
    if (uintptr_t at = changed(watch, low, high, d.ranges)) {
      violation("kernel %s: byte %lu of buffer %d was changed by the host between the commit and the kernel's read", d.kernel->name, at - r.low, r.index);
    }
  };
  for (const Range& r : d.ranges) {
    if (r.words.empty()) {
      check(r, r.plain_low, r.plain_high);
      continue;
    }
    for (size_t i = 0, first = 0; i <= r.words.size(); i++) {
      if (i < r.words.size() && r.words[i]) continue;
      if (i > first) check(r, r.low + first * 4, std::min(r.low + i * 4, r.high));
      first = i + 1;
    }
  }
  for (const Range& r : d.ranges) {
    if (r.write_low < r.write_high) wrote(r.write_low, r.write_high);
  }
}

void watch_write(const void* bytes, size_t size) {
  std::lock_guard<std::mutex> hold(lock);
  wrote((uintptr_t)bytes, (uintptr_t)bytes + size);
}

void watch_end(EmulatedCommandBuffer* commands) {
  if (!commands->watch) return;
  std::lock_guard<std::mutex> hold(lock);
  for (auto [low, high] : commands->watch->read) {
    if (uintptr_t at = changed(*commands->watch, low, high, {})) {
      violation("memory at %#lx was changed by the host before the command buffer that reads it had ended", at);
      break;
    }
  }
  auto& all = watches();
  all.erase(std::find(all.begin(), all.end(), commands->watch.get()));
  commands->watch = nullptr;
}

}  // namespace emu
