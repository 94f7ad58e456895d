// The calling thread's last error, always valid UTF-8, and the names of statuses. Never allocates: it must work when memory is gone.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "core.h"

namespace bao {
namespace {

thread_local char last_error[1024];
thread_local int32_t last_status = BAO_OK;

// Length of the valid UTF-8 sequence at s, 0 when there is none. s is NUL-terminated, so a short sequence ends at the NUL.
int sequence_length(const unsigned char* s) {
  unsigned char c = s[0];
  if (c < 0x80) return 1;
  int length = c >= 0xc2 && c <= 0xdf ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
  for (int i = 1; i < length; i++) {
    if ((s[i] & 0xc0) != 0x80) return 0;
  }
  if (c == 0xe0 && s[1] < 0xa0) return 0;  // overlong
  if (c == 0xed && s[1] > 0x9f) return 0;  // surrogates
  if (c == 0xf0 && s[1] < 0x90) return 0;
  if (c == 0xf4 && s[1] > 0x8f) return 0;
  return length;
}

// File names are bytes, and the buffer may have cut a character in two.
void make_utf8(char* text) {
  unsigned char* s = reinterpret_cast<unsigned char*>(text);
  while (*s) {
    int length = sequence_length(s);
    if (length == 0) {
      *s = '?';
      length = 1;
    }
    s += length;
  }
}

}  // namespace

int32_t fail(int32_t status_class, int argument, const char* function, const char* format, ...) {
  char text[sizeof last_error];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  // Through a second buffer: a caller may pass the last error itself as text.
  char whole[sizeof last_error];
  if (argument > 0) {
    std::snprintf(whole, sizeof whole, "%s: argument %d: ", function, argument);
  } else {
    std::snprintf(whole, sizeof whole, "%s: ", function);
  }
  size_t used = std::strlen(whole);
  size_t rest = std::min(std::strlen(text), sizeof whole - used - 1);
  std::memcpy(whole + used, text, rest);
  whole[used + rest] = 0;
  make_utf8(whole);
  std::memcpy(last_error, whole, sizeof last_error);
  last_status = status_class | (argument & 0xff) << 8;
  return last_status;
}

void clear_error() {
  last_error[0] = 0;
  last_status = BAO_OK;
}

bool to_size(double value, int64_t* out) {
  if (!(value >= 0 && value <= 9007199254740992.0) || value != std::floor(value)) return false;
  *out = static_cast<int64_t>(value);
  return true;
}

}  // namespace bao

extern "C" {

const char* bao_last_error(void) { return bao::last_error; }

int32_t bao_last_status(void) { return bao::last_status; }

const char* bao_status_name(int32_t status) {
  switch (status & 0xff) {
    case BAO_OK: return "OK";
    case BAO_INVALID: return "INVALID";
    case BAO_OUT_OF_MEMORY: return "OUT_OF_MEMORY";
    case BAO_UNSUPPORTED: return "UNSUPPORTED";
    case BAO_DEVICE: return "DEVICE";
    case BAO_INTERNAL: return "INTERNAL";
    case BAO_PENDING: return "PENDING";
    case BAO_CANCELLED: return "CANCELLED";
    case BAO_TIMEOUT: return "TIMEOUT";
    default: return "UNKNOWN";
  }
}

}  // extern "C"
